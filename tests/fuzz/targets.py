"""What is fuzzed: each target takes any bytes, and understands them or raises a documented Remote error.

Anything else that comes out of a target, an error of another kind or a broken promise, is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.errors import ProtocolError, Remote, SessionOver
from shared.policy.config import LinkPolicy
from shared.transport.planes import PlaneCodec
from shared.wire.codec import check_payload, decode, encode
from shared.wire.connection import ChunkStart, Connection, LinkMessage, Numbered
from shared.wire.framing import Frame, FrameKind, chunk_head, frame_bytes
from shared.wire.handshake import Dialler, Handshake, Identity, Listener, Offer
from shared.wire.messages import Proof, Role
from shared.wire.port import PeerInfo
from shared.wire.proof import dialler_proof
from shared.wire.session import Session
from tests.support.framing import outcome
from tests.support.samples import MESSAGES, payload_for

P = Identity("p", Role.PREFILL, "a", 11, "full", "template", b"L" * 16, "block_tokens=32", max_chunk=1 << 12)
MD = Identity("md", Role.MAIN, "b", 12, "full", "template", b"L" * 16, "block_tokens=32", max_chunk=1 << 12)
KEY = b"k" * 32
SESSION = 77
_SLICES = (1, 7, 64, 4096)


@dataclass(frozen=True)
class Target:
    """`run` takes an input; `seeds` are right ones to begin with; `files` are followed for coverage."""

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], list[bytes]]
    files: tuple[str, ...]


def targets() -> dict[str, Target]:
    """All of them by name."""
    wire = ("shared/wire/framing.py", "shared/wire/codec.py", "shared/wire/connection.py")
    handshake = (*wire, "shared/wire/handshake.py", "shared/wire/proof.py")
    session = (*wire, "shared/wire/session.py", "shared/wire/parts.py", "shared/wire/outgoing.py")
    found = (
        Target("frames", _frames, _frame_seeds, wire),
        Target("headers", _headers, _header_seeds, wire),
        Target("listener", _listener, _listener_seeds, handshake),
        Target("dialler", _dialler, _dialler_seeds, handshake),
        Target("control", _control, _control_seeds, session),
        Target("bulk", _bulk, _bulk_seeds, wire),
        Target("planes", _planes, _plane_seeds, ("shared/transport/planes.py",)),
    )
    return {each.name: each for each in found}


# --- frames and headers -------------------------------------------------------------------------------------


def _frames(data: bytes) -> None:
    """All at once equals any slices, in what is reported and in how it ends."""
    head, rest = data[:1], data[1:1500]
    how = head[0] if head else 0
    chunks, size = bool(how & 1), _SLICES[how >> 1 & 3]
    whole = outcome([rest], chunks=chunks)
    slices = [rest[at : at + size] for at in range(0, len(rest), size)]
    if outcome(slices, chunks=chunks) != whole:
        raise AssertionError(f"slices of {size} bytes are read otherwise than all at once")


def _frame_seeds() -> list[bytes]:
    one = frame_bytes(Frame(FrameKind.MESSAGE, b"header", b"payload", 3, 2, 1))
    chunk = chunk_head(b"chunk", 300) + bytes(300)
    return [bytes([how]) + chunk + one + chunk for how in range(8)] + [b"\0" + one[:20], b"\0GET / HTTP/1.1"]


def _headers(data: bytes) -> None:
    """What decodes encodes to what decodes to the same."""
    message = decode(data)
    if decode(encode(message)) != message:
        raise AssertionError(f"{message} is not what it encodes to")
    check_payload(message, 0)


def _header_seeds() -> list[bytes]:
    return [encode(message) for message in MESSAGES]


# --- handshakes ---------------------------------------------------------------------------------------------


def _dialler_of(key: bytes | None, bulk: int = 0) -> Dialler:
    return Dialler(P, key, b"d" * 16, node="md", bulk=bulk, session=SESSION, peer_incarnation=12, last_seq=3)


def _listener_of(key: bytes | None) -> Listener:
    return Listener(MD, key, b"l" * 16, lambda _: Offer(SESSION, 4))


def _feed(handshake: Handshake, data: bytes) -> Connection:
    """A connection that was given these bytes; chunks land in memory of their size."""
    connection = Connection(handshake, max_chunk=1 << 12)
    _pump(connection, data)
    if (connection.agreed is None) != (not handshake.open):
        raise AssertionError("a connection that is open without an agreement, or the reverse")
    return connection


def _pump(connection: Connection, data: bytes) -> list[object]:
    events: list[object] = []
    at = 0
    while True:
        while (event := connection.next_event()) is not None:
            events.append(event)
            if isinstance(event, ChunkStart):
                connection.receive_into(memoryview(bytearray(event.size)))
        if at == len(data):
            return events
        buffer = connection.get_buffer()
        if not 0 < len(buffer) <= 64 << 10:
            raise AssertionError(f"{len(buffer)} bytes of room asked for")
        count = min(len(buffer), len(data) - at)
        buffer[:count] = data[at : at + count]
        connection.buffer_updated(count)
        at += count


def _listener(data: bytes) -> None:
    """The first byte says whether there is a key, and whether certificates bind names."""
    how = data[0] if data else 0
    handshake = _listener_of(KEY if how & 1 else None)
    handshake.certified = ["p"] if how & 2 else None
    _feed(handshake, data[1:])
    if how & 1 and handshake.open and not _proven(data[1:]):
        raise AssertionError("a stranger without the key was let in")


def _proven(data: bytes) -> bool:
    """Whether the third frame's proof is what the key makes of the bytes before it: worked out here, without
    the handshake's own judgement."""
    frames, code = outcome([data], chunks=False)
    if code or len(frames) < 2 or not all(isinstance(frame, Frame) for frame in frames[:2]):
        return False
    hello, proof = (frame.header for frame in frames[:2] if isinstance(frame, Frame))
    [welcome] = _listener_of(KEY).receive(hello)
    said = decode(proof)
    return isinstance(said, Proof) and said.proof == dialler_proof(KEY, hello, welcome)


def _dialler(data: bytes) -> None:
    how = data[0] if data else 0
    handshake = _dialler_of(KEY if how & 1 else None)
    handshake.certified = ["md"] if how & 2 else None
    _feed(handshake, data[1:])


def _exchange(key: bytes | None, bulk: int = 0) -> tuple[bytes, bytes, bytes]:
    """(Hello, Proof) frames of a dialler and the Welcome of its listener."""
    one, other = _dialler_of(key, bulk), _listener_of(key)
    [welcome] = other.receive(one.hello)
    [proof] = one.receive(welcome)
    hello, answer, last = (
        frame_bytes(Frame(FrameKind.HANDSHAKE, each)) for each in (one.hello, welcome, proof)
    )
    return hello, last, answer


def _listener_seeds() -> list[bytes]:
    found = []
    for how, key in enumerate((None, KEY)):
        for bulk in (0, 2):
            hello, proof, _ = _exchange(key, bulk)
            found += [bytes([how]) + hello + proof, bytes([how | 2]) + hello + proof, bytes([how]) + hello]
    return found


def _dialler_seeds() -> list[bytes]:
    found = []
    ack = frame_bytes(Frame(FrameKind.ACK, b""))
    for how, key in enumerate((None, KEY)):
        welcome = _exchange(key)[2]
        found += [bytes([how]) + welcome + ack, bytes([how | 2]) + welcome]
    return found


# --- open connections ---------------------------------------------------------------------------------------


def _opened(bulk: int) -> Connection:
    hello, proof, _ = _exchange(None, bulk)
    return _feed(_listener_of(None), hello + proof)


def _control(data: bytes) -> None:
    """Bytes of a peer that is let in: frames to a session, which keeps its promises whatever comes."""
    connection = _opened(0)
    session = Session(SESSION, PeerInfo("p", Role.PREFILL, "a", 11), LinkPolicy(max_control_payload=1 << 14))
    session.reconnected(0)
    last = 0
    for event in _pump(connection, data):
        if isinstance(event, Numbered | LinkMessage):
            try:
                session.receive(event.frame)
            except SessionOver:
                return  # documented: the session ends
        if session.last_seq < last:
            raise AssertionError("what was received is forgotten")
        last = session.last_seq


def _control_seeds() -> list[bytes]:
    plain = [each for each in MESSAGES if len(encode(each)) < 1000]
    found = [
        frame_bytes(Frame(FrameKind.MESSAGE, encode(each), payload_for(each), 1, 0, 5)) for each in plain[7:]
    ]
    found += [frame_bytes(Frame(FrameKind.LINK, encode(each))) for each in plain[4:7]]
    found.append(b"".join(found[:3]))
    return found


def _bulk(data: bytes) -> None:
    _pump(_opened(2), data)


def _bulk_seeds() -> list[bytes]:
    [chunk] = [each for each in MESSAGES if type(each).__name__ == "KvChunk"]
    size = len(payload_for(chunk))
    ack = frame_bytes(Frame(FrameKind.ACK, b""))
    return [
        chunk_head(encode(chunk), size) + bytes(size),
        ack + chunk_head(encode(chunk), size) + bytes(size),
    ]


# --- chunks in an encoding ----------------------------------------------------------------------------------


def _planes(data: bytes) -> None:
    """The first two bytes: the encoding, and how long the chunk is to be, in steps of 16 bytes."""
    if len(data) < 2:
        return
    into = memoryview(bytearray(16 * data[1]))
    PlaneCodec().decode(data[2:], data[0], into)


def _plane_seeds() -> list[bytes]:
    codec = PlaneCodec()
    found = []
    for encoding, width in ((1, 2), (2, 4)):
        raw = b"".join(bytes([at & 255]) * (width - 1) + b"\x3f" for at in range(64 * 16 // width))
        encoded = codec.encode(raw, encoding)
        if encoded is None:
            raise AssertionError("the seed is not encoded")
        found.append(bytes([encoding, 64]) + encoded)
    return found


ALLOWED = (Remote, ProtocolError)
"""What a target may raise."""

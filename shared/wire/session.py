"""One session: numbered control messages between two incarnations, over any number of connections in turn
(sans-IO).

Every numbered frame is kept until the peer acknowledges it and sent again on the next connection, so each
message arrives once and in the order it was sent, or the session ends. Usable without a transport: `push`
messages, carry `next_frame`s to the other side's `receive`, call `reconnected` after a break. Knows no
sockets, leases or roles.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import msgspec

from shared.errors import (
    InvariantBroken,
    Overflow,
    ProtocolError,
    SequenceGap,
    SessionOver,
    UnexpectedMessage,
)
from shared.policy.config import LinkPolicy
from shared.wire import messages as m
from shared.wire.codec import check_payload, decode, encode
from shared.wire.framing import NUMBERED, Frame, FrameKind
from shared.wire.messages import Link, Message
from shared.wire.outgoing import Outgoing
from shared.wire.parts import PartJoiner
from shared.wire.port import PeerInfo

ACK_BYTES = 64 << 10
ACK_FRAMES = 32
"""Received and unacknowledged after which an ack is sent at once; less waits for any other frame or a
Ping."""
_LINK = (m.Hello, m.Welcome, m.Proof, m.Reject, m.Ping, m.Pong, m.Goodbye, m.KvChunk)


@dataclass(frozen=True, slots=True)
class _Kept:
    """A frame on its way, until it is acknowledged."""

    seq: int
    kind: FrameKind
    header: bytes
    payload: bytes
    pushed: float

    @property
    def size(self) -> int:
        return len(self.header) + len(self.payload)


class Session:
    """State of one side. Not connected at first: frames come out from the first `reconnected` on."""

    def __init__(self, number: int, peer: PeerInfo, policy: LinkPolicy) -> None:
        self.number = number
        self.peer = peer
        self.last_seq = 0
        """Last number received; what Hello and Welcome carry."""
        self.resent_bytes = 0
        self._policy = policy
        self._outgoing = Outgoing()
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._sent = 0  # last number given
        self._resend = 0  # frames at the end of _kept that this connection has not carried yet
        self._joiner = PartJoiner(policy.max_control_payload)
        self._unacked_bytes = 0
        self._unacked_frames = 0
        self._failed_at = -1

    # --- sending ---

    @property
    def kept_bytes(self) -> int:
        """Bytes that wait to be sent or acknowledged."""
        return self._kept_bytes + self._outgoing.bytes

    def push(self, now: float, message: Message, payload: bytes = b"") -> None:
        """Queue a message. Raises Overflow where more than `resend_bytes` wait already, or where the
        message is larger than any may be: the session is over then."""
        if isinstance(message, _LINK):
            raise InvariantBroken(f"{type(message).__name__} is no message of a session")
        if self.kept_bytes > self._policy.resend_bytes:
            raise Overflow(
                f"{self.kept_bytes} bytes for {self.peer.node} are not acknowledged; at most "
                f"{self._policy.resend_bytes} ([policy.link] resend_bytes)"
            )
        header = encode(message)
        size = len(header) + len(payload)
        if size > self._policy.max_control_payload:
            raise Overflow(
                f"{type(message).__name__} for {self.peer.node} has {size} bytes; at most "
                f"{self._policy.max_control_payload} ([policy.link] max_control_payload)"
            )
        self._outgoing.push(now, message, header, payload)

    @property
    def wants_to_send(self) -> bool:
        """Whether `next_frame` has something."""
        return bool(self._resend or self._outgoing or self._ack_due)

    def next_frame(self, now: float) -> Frame | None:
        """The next frame for the present connection, with the ack of this moment; None where nothing
        waits."""
        if self._resend:
            kept = self._kept[-self._resend]
            self._resend -= 1
            self.resent_bytes += kept.size
            return self._frame(now, kept)
        piece = self._outgoing.pop()
        if piece is not None:
            self._sent += 1
            kept = _Kept(self._sent, piece.kind, piece.header, piece.payload, piece.pushed)
            self._kept.append(kept)
            self._kept_bytes += kept.size
            return self._frame(now, kept)
        return self.ack_frame() if self._ack_due else None

    def link_frame(self, message: Link) -> Frame:
        """Ping, Pong or Goodbye with the ack of this moment; not kept."""
        return Frame(FrameKind.LINK, encode(message), ack=self._ack())

    def ack_frame(self) -> Frame:
        return Frame(FrameKind.ACK, b"", ack=self._ack())

    def reconnected(self, peer_last_seq: int) -> None:
        """A new connection carries this session from here on; the peer has all frames up to
        `peer_last_seq`. Raises SessionOver where that is impossible."""
        first = self._kept[0].seq if self._kept else self._sent + 1
        if not first - 1 <= peer_last_seq <= self._sent:
            raise SessionOver(
                f"{self.peer.node} has received up to {peer_last_seq}; {first} to {self._sent} are kept here"
            )
        self._acked(peer_last_seq)
        self._resend = len(self._kept)
        self._unacked_bytes = self._unacked_frames = 0

    # --- receiving ---

    def receive(self, frame: Frame) -> tuple[Message, bytes] | None:
        """A frame of the present connection; the message that it completes. Frames that came before are let
        pass. Raises ProtocolError for what cannot be: the connection must end then."""
        self._acked(self._checked(frame.ack))
        if frame.kind not in NUMBERED:
            return None
        if frame.seq <= self.last_seq:
            return None
        if frame.seq != self.last_seq + 1:
            raise SequenceGap(
                f"control frame {frame.seq} from {self.peer.node}; the next is {self.last_seq + 1}"
            )
        found = self._whole(frame)
        self.last_seq = frame.seq
        self._unacked_frames += 1
        self._unacked_bytes += len(frame.header) + len(frame.payload)
        return found

    def failed(self) -> bool:
        """The connection ended by a ProtocolError. True where the same frame did so before: sending it
        again cannot help, the session must end."""
        again = self._failed_at == self.last_seq
        self._failed_at = self.last_seq
        return again

    def _whole(self, frame: Frame) -> tuple[Message, bytes] | None:
        """The message that a frame completes, checked."""
        whole: tuple[bytes, bytes] | None = frame.header, frame.payload
        if frame.kind is FrameKind.PART:
            whole = self._joiner.add(frame.header, frame.payload)
        if whole is None:
            return None
        message = decode(whole[0])
        if isinstance(message, _LINK):
            raise UnexpectedMessage(f"{type(message).__name__} came as a message of a session")
        check_payload(message, len(whole[1]))
        return _aged(message, frame.waited_ms), whole[1]

    # --- acknowledgement ---

    @property
    def _ack_due(self) -> bool:
        return self._unacked_bytes >= ACK_BYTES or self._unacked_frames >= ACK_FRAMES

    def _ack(self) -> int:
        self._unacked_bytes = self._unacked_frames = 0
        return self.last_seq

    def _checked(self, ack: int) -> int:
        if ack > self._sent:
            raise ProtocolError(f"{self.peer.node} acknowledges frame {ack}; {self._sent} is the last sent")
        return ack

    def _acked(self, seq: int) -> None:
        kept = self._kept
        while kept and kept[0].seq <= seq:
            self._kept_bytes -= kept.popleft().size
        self._resend = min(self._resend, len(kept))

    def _frame(self, now: float, kept: _Kept) -> Frame:
        waited = max(0, int((now - kept.pushed) * 1000))
        return Frame(kept.kind, kept.header, kept.payload, kept.seq, self._ack(), waited)


def _aged(message: Message, waited_ms: int) -> Message:
    """Remaining times count from the moment the message met the socket."""
    if waited_ms and isinstance(message, m.Admit | m.Prefill):
        return msgspec.structs.replace(message, remaining_ms=max(0, message.remaining_ms - waited_ms))
    return message

"""The first frames of a connection: who is there, may these two work together, do both hold the key
(sans-IO).

    dialler                                listener
    Hello ------------------------------>            version, then an offer of a session
          <------------------------------ Welcome    with a proof over the Hello and its own claims
    Proof ------------------------------>            over Hello and Welcome
          <------------------------------ any frame  the dialler's side is open from here on

Whoever refuses sends Reject with the field, both values and what to do, and closes. Proofs are HMAC-SHA256
over both sides' fresh nonces, labelled by role, so neither can be replayed nor sent back. Randomness comes
in as arguments. Knows no sockets and no clock.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from shared.errors import BadHeader, Rejected, Unauthenticated, UnexpectedMessage
from shared.wire.codec import decode, encode
from shared.wire.messages import Hello, Message, Proof, Reject, Role, Welcome
from shared.wire.port import PeerInfo
from shared.wire.proof import dialler_proof, listener_proof

MIN_VERSION = 1
MAX_VERSION = 2
"""1: the first. 2: routers of several models (`templates`), and digests of snapshots."""

NONCE_BYTES = 16
LEAST_CHUNK = 1 << 10
"""Bytes: a node that takes only smaller chunks is refused, as it would be served a few bytes at a time."""
_SHOWN = 300  # characters of a value in a refusal

_ADVICE = {
    "protocol version": "upgrade the older of the two nodes",
    "fingerprint": "serve the same model directory (weights, tokenizer, template) on both nodes",
    "layout": "use the same model.block_tokens and model.dtype on both nodes",
    "template": "name the workers' model, with the same tokenizer and template, in the router's mesh file",
    "key": "set the same security.key_file on both nodes",
    "node": "give every node its own name, and correct the address under which this one is dialled",
    "session": "open the control connection first",
    "certificate": "issue each node a certificate with its own name as subjectAltName (DNS:NAME or "
    "URI:pdd://NAME), or set security.tls_names = false on both nodes",
}


@dataclass(frozen=True, slots=True)
class Identity:
    """What a node says about itself. A router has no fingerprint and no layout, and a template for each of
    its models."""

    node: str
    role: Role
    datacenter: str
    incarnation: int
    fingerprint: str = ""
    template: str = ""
    layout: bytes = b""
    layout_text: str = ""
    encodings: int = 0
    """Of chunks that it decodes beside those that come as they are: a bit for each."""
    templates: tuple[str, ...] = ()
    """Further ones of a router with several models."""
    versions: tuple[int, int] = (MIN_VERSION, MAX_VERSION)
    """The lowest and the highest protocol version that it speaks."""
    max_chunk: int = 0
    """Bytes of a chunk that it takes at most; 0: it does not say."""

    def answer_to(self, template: str) -> tuple[str, tuple[str, ...]]:
        """(template, further ones) for a peer with this template: one that knows no further ones compares the
        first alone."""
        own = (self.template, *self.templates)
        first = template if template in own else self.template
        return first, tuple(one for one in own if one != first)


@dataclass(frozen=True, slots=True)
class Offer:
    """The session that the listener would go on with, or a new one."""

    session: int
    last_seq: int


@dataclass(frozen=True, slots=True)
class Agreed:
    """What both sides hold after the handshake."""

    peer: PeerInfo
    session: int
    resumed: bool  # the session that the dialler named goes on
    bulk: int
    peer_last_seq: int  # 0 in a new session
    encodings: int = 0  # of chunks that the peer decodes: a bit for each
    max_chunk: int = 0  # bytes of a chunk that the peer takes at most; 0: it does not say


class State(enum.Enum):
    HELLO = "hello"
    WELCOME = "welcome"
    PROOF = "proof"
    CONFIRM = "confirm"
    OPEN = "open"
    REFUSED = "refused"


class Handshake:
    """What both sides share: a table of (state, message), the outcome, and the last words when refusing."""

    def __init__(self, identity: Identity, key: bytes | None, nonce: bytes, state: State) -> None:
        self.state = state
        self.agreed: Agreed | None = None
        self.farewell: bytes | None = None
        """Header of the Reject to send before closing, where this side refused."""
        self.certified: Sequence[str] | None = None
        """Names in the certificate that the peer has shown; None: a certificate binds no name."""
        self._identity = identity
        self._key = key
        self._nonce = nonce
        self._table: dict[tuple[State, type[Message]], Callable[[Message, bytes], list[bytes]]] = {}

    @property
    def open(self) -> bool:
        return self.state is State.OPEN

    def receive(self, header: bytes) -> list[bytes]:
        """A HANDSHAKE frame's header; the headers to answer. Raises Rejected, Unauthenticated or
        ProtocolError."""
        message = decode(header)
        step = self._table.get((self.state, type(message)))
        if step is None:
            raise UnexpectedMessage(f"{type(message).__name__} in handshake state {self.state.value}")
        return step(message, header)

    def _refuse(self, field: str, ours: str, theirs: str) -> Rejected:
        """Refuse because of a field; the error to raise."""
        self.state = State.REFUSED
        error = Rejected(field, ours[:_SHOWN], theirs[:_SHOWN], _ADVICE[field])
        self.farewell = encode(Reject(field, error.ours, error.theirs, error.advice))
        return error

    def _refused(self, message: Message, _: bytes) -> list[bytes]:
        """The other side has refused."""
        assert isinstance(message, Reject)
        self.state = State.REFUSED
        raise Rejected(message.field, message.theirs, message.ours, message.advice)

    def _compare(self, theirs: Hello | Welcome) -> None:
        """Whether these two may work together. Raises Rejected."""
        ours = self._identity
        if theirs.node == ours.node:
            raise self._refuse("node", ours.node, f"{theirs.node} (the same)")
        if self.certified is not None and theirs.node not in self.certified:
            named = ", ".join(self.certified) or "nobody"
            raise self._refuse("certificate", f"one for node {theirs.node}", f"one for {named}")
        if 0 < theirs.max_chunk < LEAST_CHUNK:
            raise BadHeader(f"max_chunk of {theirs.max_chunk} bytes; at least {LEAST_CHUNK} are needed")
        if len(theirs.nonce) != NONCE_BYTES:
            raise BadHeader(f"nonce of {len(theirs.nonce)} bytes; {NONCE_BYTES} are needed")
        if Role.ROUTER in (ours.role, theirs.role):
            here, there = (ours.template, *ours.templates), (theirs.template, *theirs.templates)
            if not set(here) & set(there):
                raise self._refuse("template", ", ".join(here), ", ".join(there))
            return
        if theirs.fingerprint != ours.fingerprint:
            raise self._refuse("fingerprint", ours.fingerprint, theirs.fingerprint)
        if theirs.layout != ours.layout:
            raise self._refuse(
                "layout", ours.layout_text or ours.layout.hex(), theirs.layout_text or theirs.layout.hex()
            )


class Dialler(Handshake):
    """The side that connected. `node` is whom it expects ("": anyone); `session`, `peer_incarnation` and
    `last_seq` are of the session it would go on with, or 0."""

    def __init__(
        self,
        identity: Identity,
        key: bytes | None,
        nonce: bytes,
        *,
        node: str = "",
        bulk: int = 0,
        session: int = 0,
        peer_incarnation: int = 0,
        last_seq: int = 0,
    ) -> None:
        super().__init__(identity, key, nonce, State.WELCOME)
        self._node = node
        self._hello = Hello(
            min_version=identity.versions[0],
            max_version=identity.versions[1],
            node=identity.node,
            role=identity.role,
            datacenter=identity.datacenter,
            incarnation=identity.incarnation,
            peer_incarnation=peer_incarnation,
            last_seq=last_seq,
            bulk=bulk,
            fingerprint=identity.fingerprint,
            template=identity.template,
            layout=identity.layout,
            nonce=nonce,
            layout_text=identity.layout_text,
            session=session,
            templates=identity.templates,
            encodings=identity.encodings,
            max_chunk=identity.max_chunk,
        )
        self.hello = encode(self._hello)
        """Header of the first frame."""
        self._table = {
            (State.WELCOME, Welcome): self._welcome,
            (State.WELCOME, Reject): self._refused,
            (State.CONFIRM, Reject): self._refused,
        }

    def confirmed(self) -> None:
        """The listener's first other frame is here: it has accepted."""
        if self.state is not State.CONFIRM:
            raise UnexpectedMessage(f"a frame before the handshake is over (state {self.state.value})")
        self.state = State.OPEN

    def _welcome(self, message: Message, header: bytes) -> list[bytes]:
        assert isinstance(message, Welcome)
        lowest, highest = self._identity.versions
        if not lowest <= message.version <= highest:
            raise self._refuse("protocol version", f"{lowest}-{highest}", str(message.version))
        if (self._key is None) != (message.proof == b""):
            raise self._refuse("key", _held(self._key), "set" if message.proof else "none")
        if self._key is not None and not hmac.compare_digest(
            message.proof, listener_proof(self._key, self.hello, message)
        ):
            raise self._refuse("key", "set", "another")
        if self._node and message.node != self._node:
            raise self._refuse("node", self._node, message.node)
        self._compare(message)
        resumed = message.session == self._hello.session != 0
        peer = _peer(message, message.version)
        last_seq = message.last_seq if resumed else 0
        self.agreed = Agreed(
            peer, message.session, resumed, self._hello.bulk, last_seq, message.encodings, message.max_chunk
        )
        self.state = State.CONFIRM
        proof = b"" if self._key is None else dialler_proof(self._key, self.hello, header)
        return [encode(Proof(proof))]


class Listener(Handshake):
    """The side that accepted. `offer` names the session for a Hello, or raises Rejected; it changes
    nothing."""

    def __init__(
        self, identity: Identity, key: bytes | None, nonce: bytes, offer: Callable[[Hello], Offer | None]
    ) -> None:
        super().__init__(identity, key, nonce, State.HELLO)
        self._offer = offer
        self._hello: tuple[Hello, bytes] | None = None
        self._welcome: tuple[Welcome, bytes] | None = None
        self._table = {
            (State.HELLO, Hello): self._on_hello,
            (State.PROOF, Proof): self._on_proof,
            (State.PROOF, Reject): self._refused,
        }

    def _on_hello(self, message: Message, header: bytes) -> list[bytes]:
        assert isinstance(message, Hello)
        lowest, highest = self._identity.versions
        version = min(highest, message.max_version)
        if version < max(lowest, message.min_version):
            theirs = f"{message.min_version}-{message.max_version}"
            raise self._refuse("protocol version", f"{lowest}-{highest}", theirs)
        offer = self._offer(message)
        if offer is None:
            raise self._refuse("session", "none", str(message.session))
        identity = self._identity
        template, templates = identity.answer_to(message.template)
        welcome = Welcome(
            version=version,
            node=identity.node,
            role=identity.role,
            datacenter=identity.datacenter,
            incarnation=identity.incarnation,
            last_seq=offer.last_seq,
            fingerprint=identity.fingerprint,
            template=template,
            layout=identity.layout,
            nonce=self._nonce,
            proof=b"",
            layout_text=identity.layout_text,
            session=offer.session,
            templates=templates,
            encodings=identity.encodings,
            max_chunk=identity.max_chunk,
        )
        if self._key is not None:
            welcome = msgspec.structs.replace(welcome, proof=listener_proof(self._key, header, welcome))
        answer = encode(welcome)
        self._hello, self._welcome = (message, header), (welcome, answer)
        self.state = State.PROOF
        return [answer]

    def _on_proof(self, message: Message, _: bytes) -> list[bytes]:
        assert isinstance(message, Proof)
        assert self._hello is not None
        assert self._welcome is not None
        (hello, hello_header), (welcome, welcome_header) = self._hello, self._welcome
        if self._key is None:
            if message.proof:
                raise self._refuse("key", "none", "set")
        elif not hmac.compare_digest(message.proof, dialler_proof(self._key, hello_header, welcome_header)):
            refusal = self._refuse("key", "set", "another" if message.proof else "none")
            raise Unauthenticated(f"{hello.node}: {refusal}")
        self._compare(hello)
        resumed = welcome.session == hello.session != 0
        peer = _peer(hello, welcome.version)
        last_seq = hello.last_seq if resumed else 0
        self.agreed = Agreed(
            peer, welcome.session, resumed, hello.bulk, last_seq, hello.encodings, hello.max_chunk
        )
        self.state = State.OPEN
        return []


def _peer(said: Hello | Welcome, version: int) -> PeerInfo:
    return PeerInfo(said.node, said.role, said.datacenter, said.incarnation, version, said.template)


def _held(key: bytes | None) -> str:
    return "none" if key is None else "set"

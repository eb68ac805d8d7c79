"""Every message of the mesh, as frozen array-like Structs in one tagged union, and their headers' codec.

Id lists, hashes and KV are the frame's raw payload, never msgpack (`PAYLOAD`). Fields are only added at the
end, with defaults; tags never used twice. Times are *remaining* ms. Knows no sockets, clocks or engines.
"""

from __future__ import annotations

import enum
from typing import Annotated, NamedTuple, get_args

import msgspec

Nat = Annotated[int, msgspec.Meta(ge=0)]
TokenId = Annotated[int, msgspec.Meta(ge=0, le=0xFFFF_FFFF)]  # u32, as where ids are payload
Amount = Annotated[float, msgspec.Meta(ge=0)]  # never negative, never NaN
Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
Name = Annotated[str, msgspec.Meta(max_length=255)]
Bytes16 = Annotated[bytes, msgspec.Meta(max_length=16)]  # a ticket, a digest or a nonce, or b""
Proof32 = Annotated[bytes, msgspec.Meta(max_length=32)]


class Rid(NamedTuple):
    """Name of a request: made by a router, never by a client."""

    incarnation: Nat  # the router's, 64 bits
    counter: Nat  # per incarnation, from 1


class Role(enum.StrEnum):
    ROUTER = "router"
    PREFILL = "prefill"
    RELAY = "relay"
    MAIN = "main_decode"


class Do(enum.IntEnum):
    """What a Feed asks of a decoder."""

    HOLD = 0  # keep the ids
    EXTEND = 1  # also compute their KV when the ticket is complete, then answer CaughtUp
    OWN = 2  # also sample from the log's end on: the receiver is the owner from this term


class TransferClass(enum.IntEnum):
    """Priority of a KV transfer on a line, most urgent first."""

    UNCOVERED = 0  # a client stares at one token
    COVERED = 1  # a relay answers meanwhile
    ALIGNMENT = 2  # the request has ended; keeps MD's cache level with P's
    PARKED = 3  # singular: sent when the line is idle


class Purpose(enum.IntEnum):
    SERVE = 0
    WARM = 1  # re-warming: KV only, nothing is sampled


class FinishReason(enum.StrEnum):
    STOP = "stop"
    LENGTH = "length"


class FailReason(enum.StrEnum):
    REVOKED = "revoked"  # the transfer's promise was taken back
    PARKED = "parked"  # the sequence lost its blocks to older ones
    PRESSURE = "pressure"  # relay out of blocks
    LIMIT = "limit"  # relay_max_tokens without a cut
    DRAIN = "drain"
    STALLED = "stalled"  # bulk bytes unacknowledged though control answers
    NAN = "nan"
    TIMEOUT = "timeout"  # the worker's own backstop timer
    INTERNAL = "internal"
    GRAMMAR = "grammar"  # asked for what cannot be done, mostly a grammar that cannot be followed


class RefuseReason(enum.StrEnum):
    NO_BLOCKS = "no_blocks"
    TOO_LONG = "too_long"  # never fits this worker: larger than its pool or the model's context
    QUEUE_FULL = "queue_full"
    LINE_BACKLOG = "line_backlog"
    DRAINING = "draining"
    BAD_REQUEST = "bad_request"


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How ids are drawn. With (ids, prompt_len) it is all a decoder needs to go on with a request (I4)."""

    max_pos: Nat  # absolute length at which the request ends: prompt_len + max_tokens
    seed: Nat  # 64 bits; the router draws one when the client gives none
    choice: Nat = 0  # index of this choice of n
    temperature: Amount = 1.0  # 0: greedy
    top_k: Nat = 0  # 0: off
    top_p: Amount = 1.0
    min_p: Amount = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: Nat = 0  # stop ids cannot be drawn before this many output ids
    stop_ids: tuple[Nat, ...] = ()  # every id that ends the request, eos included (unless ignore_eos)
    logprobs: int = -1  # -1: none; 0: the drawn id's; k: the k best beside it
    grammar: Annotated[str, msgspec.Meta(max_length=131_072)] = ""  # llguidance's; followed along the log


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of a drawn id and of the best ids at its position, from the raw scores."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob), best first


# --- link ---------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """First frame of the dialling side on each connection."""

    min_version: Nat
    max_version: Nat
    node: Name
    role: Role
    datacenter: Name
    incarnation: Nat
    peer_incarnation: Nat  # last known of the other side; 0: unknown
    last_seq: Nat  # last control seq received in this session; 0: none
    bulk: Nat  # 0: control connection; k >= 1: k-th bulk connection
    fingerprint: str  # weights + tokenizer + template; "" from a router
    template: str  # tokenizer + template part of the fingerprint
    layout: Bytes16  # digest of the KV layout; b"" from a router
    nonce: Bytes16  # 16 random bytes for the key challenge
    layout_text: str = ""  # readable form, for refusals
    session: Nat = 0  # number of the session to go on with; 0: none
    templates: tuple[str, ...] = ()  # further ones of a router with several models (version 2)
    encodings: Nat = 0  # of chunks that this side decodes, a bit for each
    max_chunk: Nat = 0  # bytes of a chunk that this side takes at most; 0: it does not say


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Answer of the listening side; `proof` shows that it holds the shared key."""

    version: Nat
    node: Name
    role: Role
    datacenter: Name
    incarnation: Nat
    last_seq: Nat
    fingerprint: str
    template: str
    layout: Bytes16
    nonce: Bytes16
    proof: Proof32  # HMAC over the Hello and this side's nonce; b"" without a key
    layout_text: str = ""
    session: Nat = 0  # the session in force: the Hello's where it goes on, else a new number
    templates: tuple[str, ...] = ()  # as the Hello's
    encodings: Nat = 0  # as the Hello's
    max_chunk: Nat = 0  # as the Hello's


class Proof(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The dialler's answer to the Welcome's nonce; ends the handshake."""

    proof: Proof32


class Reject(msgspec.Struct, frozen=True, array_like=True, tag=4):
    field: str
    ours: str
    theirs: str
    advice: str


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=5):
    stamp: Nat  # opaque, echoed: the sender's own microseconds


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=6):
    stamp: Nat
    decodes: Nat = 0  # bytes/s of chunks, after decoding, that its sender can decode; 0: not known


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The sender's session is over for good (clean exit): no lease, PeerLost at once."""

    reason: str


# --- mesh ---------------------------------------------------------------------------------------------------


class Announce(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A worker to each of its routers at session start and on change."""

    role: Role
    model: Name  # served name
    block_tokens: Annotated[int, msgspec.Meta(ge=1)]
    bytes_per_block: Nat
    pool_blocks: Nat
    max_context: Nat  # tokens, prompt and output together
    max_running: Nat
    draining: bool
    kv_address: Name  # host:port where other workers reach it for KV
    peers: tuple[str, ...] = ()  # nodes it has a live KV session with
    fingerprint: str = ""  # of the model: with the layout it roots the block hashes
    layout: Bytes16 = b""  # digest of the KV layout


class LoadReport(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Numbers of one worker, sent on change at most every 100 ms, and every second."""

    seq: Nat
    running: Nat
    queued: Nat
    queued_tokens: Nat  # new tokens still to compute of all admitted prefills and extends
    free_blocks: Nat  # free or evictable, less promised
    promised_blocks: Nat
    pinned_blocks: Nat
    prefill_rate: Amount  # tokens/s, measured; 0: no sample yet
    decode_step_ms: Amount  # median of recent steps at the present batch; 0: no sample yet
    unsent_bytes: dict[str, Nat] = {}  # per line: promised - acknowledged, all transfers
    smallest_remaining: dict[str, Nat] = {}  # per line, bytes
    oldest_age_ms: dict[str, Nat] = {}  # per line
    line_rate: dict[str, Amount] = {}  # per line: the sender's estimate, bytes/s
    send_pinned_blocks: Nat = 0
    counters: dict[str, float] = {}
    unsent_by_class: dict[str, tuple[Nat, ...]] = {}  # per line: `unsent_bytes` by TransferClass
    sent_bytes: dict[str, Nat] = {}  # per line: handed to it since this process began
    line_gain: dict[str, Amount] = {}  # per line: bytes of KV for each byte on the wire; not there: 1


class KvEvents(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Change of a pool's published blocks. Payload: `stored`, then `removed` hashes, 16 bytes each."""

    seq: Nat  # from 1 in an incarnation
    stored: Nat
    removed: Nat
    cleared: bool = False  # applied first


class SnapshotRequest(msgspec.Struct, frozen=True, array_like=True, tag=13):
    digest: bool = False  # a SnapshotDigest will do; version 1 answers with a Snapshot all the same


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """All published hashes after event `seq`. Payload: 16 bytes each."""

    seq: Nat
    count: Nat


class SnapshotDigest(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """All published hashes after event `seq`, as their digest (`shared.kv.hashing.set_digest`)."""

    seq: Nat
    count: Nat
    digest: Bytes16


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Router to worker: take no new work (`on`), or take it again."""

    on: bool


class LineShare(msgspec.Struct, frozen=True, array_like=True, tag=16):
    line: Name
    rate: Amount  # bytes/s
    seq: Nat
    ttl_ms: Nat
    senders: Nat = 1  # with something to send on this line: without a fresh share each takes an even part
    oldest: Part = 0.5  # of the rate, that is for the oldest transfers; the rest is for the shortest


class Flush(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Router to worker (admin): drop every cached block that nothing uses."""


class Peers(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Router to worker: all workers it knows, so that one that joined later is dialled for KV."""

    nodes: tuple[tuple[str, Role, str, str], ...]  # (node, role, datacenter, host:port)


# --- request ------------------------------------------------------------------------------------------------


class Admit(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Router to a decoder. Payload: ids, u32 little-endian. Again for a rid: resume (old ticket is gone)."""

    rid: Rid
    term: Nat
    salt: bytes
    priority: int
    prompt_len: Nat
    sampling: Sampling
    remaining_ms: Nat  # as the frame meets the socket
    purpose: Purpose = Purpose.SERVE
    parked: bool = False  # singular: the ticket starts in class PARKED
    trace: str = ""
    alone: Nat = 0  # main decode that has KV of all but so many ids draws at once, under this term


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag=21):
    rid: Rid
    term: Nat  # echoes Admit
    ticket: Bytes16  # 16 random bytes; b"": nothing is missing, complete at once
    have: Nat  # leading blocks published here
    expected: Nat  # further blocks on their way under another ticket
    upto: Nat  # full blocks of the ids
    last_hash: Bytes16  # chain hash of block upto - 1
    incarnation: Nat
    alone: bool = False  # it draws, under Admit's term: nobody has to send to it, or to make it owner


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Admit or Prefill refused: nothing is kept."""

    rid: Rid
    term: Nat
    reason: RefuseReason
    retry_after_ms: Nat
    detail: str = ""


class Prefill(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Router to P. Payload: ids. P computes them, emits one id at len(ids), then only sends."""

    rid: Rid
    term: Nat
    salt: bytes
    priority: int
    prompt_len: Nat
    sampling: Sampling
    remaining_ms: Nat
    trace: str = ""
    scores: int = -1  # k: also the log-probabilities of the prompt's ids, with the k best beside each


class Attach(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Router to a sender (P, or a decoder that holds the blocks): where to send. Again with the same
    ticket: new class; that goes to the target itself too where the ticket was parked.

    Payload: chain hashes of blocks [0, upto), 16 bytes each, or empty where the sender holds `rid` itself.
    """

    rid: Rid
    target: Name  # node
    incarnation: Nat  # of the target
    ticket: Bytes16
    have: Nat
    expected: Nat
    upto: Nat
    last_hash: Bytes16
    cls: TransferClass
    first: bool = True  # a relay is to begin with the sender's id; else the log is past it already
    trace: str = ""


class Feed(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Router to a decoder: the log from absolute position `start`. Payload: ids."""

    rid: Rid
    term: Nat
    start: Nat
    do: Do


class CaughtUp(msgspec.Struct, frozen=True, array_like=True, tag=26):
    rid: Rid
    term: Nat  # of the Feed
    upto: Nat  # log length that this decoder has extended over


class TokenRow(msgspec.Struct, frozen=True, array_like=True):
    rid: Rid
    term: Nat
    start: Nat  # absolute position of ids[0]
    ids: tuple[TokenId, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None  # as long as ids where asked for
    waited_ms: Nat = 0  # from P: how long the prefill waited there before it was computed
    prompt: tuple[TokenLogprob, ...] | None = None  # from P, where asked for: the prompt's but the first


class TokensOut(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """One a worker, router and step."""

    rows: tuple[TokenRow, ...]


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=28):
    rid: Rid
    term: Nat
    at: Nat  # log length at the end, stop id included
    reason: FinishReason


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """A worker gives its part of a request up; its published blocks stay cached."""

    rid: Rid
    term: Nat
    ticket: Bytes16
    reason: FailReason
    detail: str = ""


class Resume(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """Router to the owner: repeat the ids from absolute position `start`."""

    rid: Rid
    start: Nat


class Release(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """Ends the receiver's part in `rid` up to `term`. `align`: its transfer goes on for the prompt."""

    rid: Rid
    term: Nat
    align: bool = False


# --- KV -----------------------------------------------------------------------------------------------------


class KvChunk(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """A byte range of one block. Payload: the (encoded) bytes."""

    ticket: Bytes16
    group: Nat
    shard: Nat
    block: Nat  # index in the request's chain of blocks, not a pool address
    offset: Nat
    length: Nat  # of the decoded bytes
    encoding: Nat  # 0: as they are
    checksum: Nat  # xxh3-64 of the decoded bytes


class Have(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """Receiver to sender (and to the router when complete or gone): the state of a ticket.

    `ranges` are verified byte ranges as (block, first, last + 1), merged, of blocks at or after `published`.
    """

    ticket: Bytes16
    rid: Rid
    published: Nat = 0  # leading blocks published at the receiver
    ranges: tuple[tuple[Nat, Nat, Nat], ...] = ()
    needs: tuple[tuple[Nat, Nat], ...] = ()  # blocks [first, end) that the Attach left out, or damaged ones
    complete: bool = False
    gone: bool = False


class Missing(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """Sender to router: blocks of an Attach are not here any more."""

    rid: Rid
    ticket: Bytes16
    first_block: Nat


class First(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """P to an attached RLD: the first ids, so that its run begins at `start` without a trip to the router."""

    ticket: Bytes16
    rid: Rid
    start: Nat
    ids: tuple[TokenId, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


Link = Hello | Welcome | Proof | Reject | Ping | Pong | Goodbye
Mesh = (
    Announce
    | LoadReport
    | KvEvents
    | SnapshotRequest
    | Snapshot
    | Drain
    | LineShare
    | Flush
    | Peers
    | SnapshotDigest
)
Request = (
    Admit
    | Admitted
    | Refused
    | Prefill
    | Attach
    | Feed
    | CaughtUp
    | TokensOut
    | Finished
    | Failed
    | Resume
    | Release
)
Kv = KvChunk | Have | Missing | First
Message = Link | Mesh | Request | Kv
KINDS: tuple[type[Message], ...] = get_args(Message)

"""Every message of the mesh, as frozen array-like Structs in one tagged union, and the codec for their
headers.

Long id lists, hashes and KV bytes are never msgpack: they are the frame's raw payload (`PAYLOAD` says of
which kind). Fields are only ever added at the end, with defaults. Tags are never used twice. Times are
*remaining* milliseconds, written when the frame meets the socket. This module knows nothing of sockets,
clocks or engines.
"""

from __future__ import annotations

import enum
from typing import NamedTuple

import msgspec


class Rid(NamedTuple):
    """Name of a request: made by a router, never by a client."""

    incarnation: int  # the router's, 64 bits
    counter: int  # per incarnation, from 1


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


class RefuseReason(enum.StrEnum):
    NO_BLOCKS = "no_blocks"
    TOO_LONG = "too_long"  # never fits this worker: larger than its pool or the model's context
    QUEUE_FULL = "queue_full"
    LINE_BACKLOG = "line_backlog"
    DRAINING = "draining"
    BAD_REQUEST = "bad_request"


class Sampling(msgspec.Struct, frozen=True, array_like=True):
    """How ids are drawn. With (ids, prompt_len) it is all a decoder needs to go on with a request (I4)."""

    max_pos: int  # absolute length at which the request ends: prompt_len + max_tokens
    seed: int  # 64 bits; the router draws one when the client gives none
    choice: int = 0  # index of this choice of n
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: off
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    min_tokens: int = 0  # stop ids cannot be drawn before this many output ids
    stop_ids: tuple[int, ...] = ()  # every id that ends the request, eos included (unless ignore_eos)
    logprobs: int = -1  # -1: none; 0: the drawn id's; k: the k best beside it
    grammar: str = ""  # "": none; else a serialised grammar, replayed over the log by each owner


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of a drawn id and of the best ids at its position, from the raw scores."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob), best first


# --- link ---------------------------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """First frame of the dialling side on each connection."""

    min_version: int
    max_version: int
    node: str
    role: Role
    datacenter: str
    incarnation: int
    peer_incarnation: int  # last known of the other side; 0: unknown
    last_seq: int  # last control seq received in this session; 0: none
    bulk: int  # 0: control connection; k >= 1: k-th bulk connection
    fingerprint: str  # weights + tokenizer + template; "" from a router
    template: str  # tokenizer + template part of the fingerprint
    layout: bytes  # digest of the KV layout; b"" from a router
    nonce: bytes  # 16 random bytes for the key challenge
    layout_text: str = ""  # readable form, for refusals


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Answer of the listening side; `proof` shows that it holds the shared key."""

    version: int
    node: str
    role: Role
    datacenter: str
    incarnation: int
    last_seq: int
    fingerprint: str
    template: str
    layout: bytes
    nonce: bytes
    proof: bytes  # HMAC over the dialler's nonce; b"" without a key
    layout_text: str = ""


class Proof(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The dialler's answer to the Welcome's nonce; ends the handshake."""

    proof: bytes


class Reject(msgspec.Struct, frozen=True, array_like=True, tag=4):
    field: str
    ours: str
    theirs: str
    advice: str


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=5):
    stamp: int  # opaque, echoed: the sender's own microseconds


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=6):
    stamp: int


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The sender's session is over for good (clean exit): no lease, PeerLost at once."""

    reason: str


# --- mesh ---------------------------------------------------------------------------------------------------


class Announce(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """A worker to each of its routers at session start and on change."""

    role: Role
    model: str  # served name
    block_tokens: int
    bytes_per_block: int
    pool_blocks: int
    max_context: int  # tokens, prompt and output together
    max_running: int
    draining: bool
    kv_address: str  # host:port where other workers reach it for KV
    peers: tuple[str, ...] = ()  # nodes it has a live KV session with
    fingerprint: str = ""  # of the model: with the layout it roots the block hashes
    layout: bytes = b""  # digest of the KV layout


class LoadReport(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """Numbers of one worker, sent on change at most every 100 ms, and every second."""

    seq: int
    running: int
    queued: int
    queued_tokens: int  # new tokens still to compute of all admitted prefills and extends
    free_blocks: int  # free or evictable, less promised
    promised_blocks: int
    pinned_blocks: int
    prefill_rate: float  # tokens/s, measured; 0: no sample yet
    decode_step_ms: float  # median of recent steps at the present batch; 0: no sample yet
    unsent_bytes: dict[str, int] = {}  # per line: promised - acknowledged, all transfers
    smallest_remaining: dict[str, int] = {}  # per line, bytes
    oldest_age_ms: dict[str, int] = {}  # per line
    line_rate: dict[str, float] = {}  # per line: the sender's estimate, bytes/s
    send_pinned_blocks: int = 0
    counters: dict[str, float] = {}


class KvEvents(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Change of a pool's published blocks. Payload: `stored` then `removed` hashes, 16 bytes each, in
    order."""

    seq: int  # from 1 in an incarnation
    stored: int
    removed: int
    cleared: bool = False  # applied first


class SnapshotRequest(msgspec.Struct, frozen=True, array_like=True, tag=13):
    pass


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """All published hashes after event `seq`. Payload: 16 bytes each."""

    seq: int
    count: int


class Drain(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """Router to worker: take no new work (`on`), or take it again."""

    on: bool


class LineShare(msgspec.Struct, frozen=True, array_like=True, tag=16):
    line: str
    rate: float  # bytes/s
    seq: int
    ttl_ms: int


class Flush(msgspec.Struct, frozen=True, array_like=True, tag=17):
    """Router to worker (admin): drop every cached block that nothing uses."""


class Peers(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """Router to worker: all workers it knows, so that one that joined later is dialled for KV."""

    nodes: tuple[tuple[str, Role, str, str], ...]  # (node, role, datacenter, host:port)


# --- request ------------------------------------------------------------------------------------------------


class Admit(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """Router to a decoder. Payload: ids, u32 little-endian. Again for the same rid: resume (old ticket is
    gone)."""

    rid: Rid
    term: int
    salt: bytes
    priority: int
    prompt_len: int
    sampling: Sampling
    remaining_ms: int
    purpose: Purpose = Purpose.SERVE
    parked: bool = False  # singular: the ticket starts in class PARKED
    trace: str = ""


class Admitted(msgspec.Struct, frozen=True, array_like=True, tag=21):
    rid: Rid
    term: int  # echoes Admit
    ticket: bytes  # 16 random bytes; b"": nothing is missing, complete at once
    have: int  # leading blocks published here
    expected: int  # further blocks on their way under another ticket
    upto: int  # full blocks of the ids
    last_hash: bytes  # chain hash of block upto - 1
    incarnation: int


class Refused(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """Admit or Prefill refused: nothing is kept."""

    rid: Rid
    term: int
    reason: RefuseReason
    retry_after_ms: int
    detail: str = ""


class Prefill(msgspec.Struct, frozen=True, array_like=True, tag=23):
    """Router to P. Payload: ids. P computes them, emits one id at len(ids), then only sends."""

    rid: Rid
    term: int
    salt: bytes
    priority: int
    prompt_len: int
    sampling: Sampling
    remaining_ms: int
    trace: str = ""


class Attach(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """Router to a sender (P, or a decoder that holds the blocks): where to send. Again with the same
    ticket: new class.

    Payload: chain hashes of blocks [0, upto), 16 bytes each, or empty where the sender holds `rid` itself.
    """

    rid: Rid
    target: str  # node
    incarnation: int  # of the target
    ticket: bytes
    have: int
    expected: int
    upto: int
    last_hash: bytes
    cls: TransferClass


class Feed(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """Router to a decoder: the log from absolute position `start`. Payload: ids."""

    rid: Rid
    term: int
    start: int
    do: Do


class CaughtUp(msgspec.Struct, frozen=True, array_like=True, tag=26):
    rid: Rid
    term: int  # of the Feed
    upto: int  # log length that this decoder has extended over


class TokenRow(msgspec.Struct, frozen=True, array_like=True):
    rid: Rid
    term: int
    start: int  # absolute position of ids[0]
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None  # as long as ids where asked for


class TokensOut(msgspec.Struct, frozen=True, array_like=True, tag=27):
    """One a worker, router and step."""

    rows: tuple[TokenRow, ...]


class Finished(msgspec.Struct, frozen=True, array_like=True, tag=28):
    rid: Rid
    term: int
    at: int  # log length at the end, stop id included
    reason: FinishReason


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=29):
    """A worker gives its part of a request up; its published blocks stay cached."""

    rid: Rid
    term: int
    ticket: bytes
    reason: FailReason
    detail: str = ""


class Resume(msgspec.Struct, frozen=True, array_like=True, tag=30):
    """Router to the owner: repeat the ids from absolute position `start`."""

    rid: Rid
    start: int


class Release(msgspec.Struct, frozen=True, array_like=True, tag=31):
    """Ends the receiver's part in `rid` up to `term`. `align`: the open transfer goes on as an alignment
    (prompt only)."""

    rid: Rid
    term: int
    align: bool = False


# --- KV -----------------------------------------------------------------------------------------------------


class KvChunk(msgspec.Struct, frozen=True, array_like=True, tag=40):
    """A byte range of one block. Payload: the (encoded) bytes."""

    ticket: bytes
    group: int
    shard: int
    block: int  # index in the request's chain of blocks, not a pool address
    offset: int
    length: int  # of the decoded bytes
    encoding: int  # 0: as they are
    checksum: int  # xxh3-64 of the decoded bytes


class Have(msgspec.Struct, frozen=True, array_like=True, tag=41):
    """Receiver to sender (and to the router when complete or gone): the state of a ticket.

    `ranges` are verified byte ranges as (block, first, last + 1), merged, of blocks at or after `published`.
    """

    ticket: bytes
    rid: Rid
    published: int = 0  # leading blocks published at the receiver
    ranges: tuple[tuple[int, int, int], ...] = ()
    needs: tuple[
        tuple[int, int], ...
    ] = ()  # block ranges [first, end) to send that the Attach had left out or that were damaged
    complete: bool = False
    gone: bool = False


class Missing(msgspec.Struct, frozen=True, array_like=True, tag=42):
    """Sender to router: blocks of an Attach are not here any more."""

    rid: Rid
    ticket: bytes
    first_block: int


class First(msgspec.Struct, frozen=True, array_like=True, tag=43):
    """P to an attached RLD: the first ids, so that its run can begin at `start` without a trip to the
    router."""

    ticket: bytes
    rid: Rid
    start: int
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None


Link = Hello | Welcome | Proof | Reject | Ping | Pong | Goodbye
Mesh = Announce | LoadReport | KvEvents | SnapshotRequest | Snapshot | Drain | LineShare | Flush | Peers
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

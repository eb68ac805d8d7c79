"""Every tunable of the mesh's behaviour, as frozen Structs that `mesh.toml` decodes into ([policy.link] and
so on).

Each field's docstring gives its unit. The pure code that reads a Struct takes it through its constructor.
"""

from __future__ import annotations

import msgspec


class LinkPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sessions between nodes: [policy.link]."""

    ping_every: float = 0.5
    """Seconds between Pings on a control connection."""
    suspect_after: float = 2.0
    """Seconds without a byte from a peer until it is suspect."""
    lease: float = 30.0
    """Seconds a session survives without a control connection."""
    handshake_timeout: float = 5.0
    """Seconds from accept or connect until the handshake has to be over."""
    resend_bytes: int = 64 << 20
    """Bytes of control frames that may wait to be sent or acknowledged, kept for a reconnect; more ends the
    session. A burst of long prompts has to fit."""
    bulk_stall: float = 5.0
    """Seconds that written bulk bytes may stay unacknowledged while control answers, before bulk is
    reconnected."""
    reconnect_first: float = 0.05
    """Seconds before the first attempt to dial again; doubles up to `reconnect_most`."""
    reconnect_most: float = 2.0
    """Seconds between attempts to dial at most."""
    bulk_connections: int = 1
    """Bulk connections per pair of workers."""
    max_control_payload: int = 16 << 20
    """Bytes of a control message at most, after its parts are joined."""
    max_chunk: int = 256 << 10
    """Bytes of one KV chunk at most."""
    lan_congestion: str = "cubic"
    """TCP congestion control of bulk connections that cross no line; empty: the kernel's default. One that
    paces (bbr) carries half as much there."""
    min_chunk: int = 16 << 10
    """Bytes of one KV chunk at least (the end of a block may be shorter)."""


class LinePolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Use of the lines between datacenters: [policy.line]."""

    uncovered_to_covered: float = 2.0
    """Weight of class uncovered against covered."""
    oldest_share: float = 0.5
    """Part of a class's rate that serves its oldest transfer; the rest serves the shortest remaining."""
    chunk_ms: float = 10.0
    """Milliseconds of the line that one chunk should take."""
    estimate_window: float = 10.0
    """Seconds of delivery samples that the estimate looks back on."""
    have_bytes: int = 4 << 20
    """Verified bytes after which a receiver reports what it has, or `have_every`, whichever is first."""
    have_every: float = 0.1
    """Seconds after which a receiver reports what it has."""
    codec_threads: int = 2
    """Threads of a worker that compress and decompress chunks, on lines where that is done."""


class WorkerPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prefill and decode workers: [policy.worker]."""

    max_running: int = 64
    """Sequences that compute at the same time."""
    max_queued: int = 256
    """Prefills that wait at P; more are refused with `queue_full`."""
    token_budget: int = 512
    """New tokens per step while others decode."""
    extend_stretch: float = 1.75
    """Longest step while others decode, as a multiple of a step of decodes alone; extends are cut to it."""
    max_chunk_tokens: int = 2048
    """New tokens of one sequence per step when nothing decodes; fewer where these would take more than a
    quarter of `owner_stall`."""
    growth_tokens: int = 256
    """Output tokens that admission at a decoder reserves room for (or max_tokens, if less)."""
    local_tokens: int = 256
    """Tokens at most that a new owner computes itself rather than wait for the rest of a transfer that
    runs."""
    attach_wait: float = 5.0
    """Seconds a finished prefill keeps its blocks pinned without an Attach."""
    send_pin_fraction: float = 0.5
    """Part of P's pool that may be pinned for sending; above it large deltas are refused."""
    unlanded_fraction: float = 0.5
    """Part of a decoder's pool that may be promised to transfers that have not landed."""
    relay_max_tokens: int = 512
    """Ids a relay makes of one request without a cut before it gives up."""
    align_most: float = 60.0
    """Seconds an alignment may take."""
    align_fraction: float = 0.1
    """Part of P's pool, and of MD's promises, that alignments may hold."""
    owner_stall: float = 10.0
    """Seconds an owner may be without a step before the router takes it as lost."""
    landing_patience: float = 0.5
    """Seconds without a byte after which a new owner waits no longer for its transfer: it computes the
    rest."""
    report_wait: float = 1.0
    """Seconds after a break that a sender waits for the receiver's report before it sends again all that was
    not reported."""
    ask_again: float = 1.0
    """Seconds after which blocks that were asked for, and did not begin to come, are asked for again."""
    hung_step: float = 120.0
    """Seconds that one step may take before /health says so."""
    backstop: float = 5.0
    """Seconds a worker's own timer adds to remaining_ms."""
    orphan_pause: float = 2.0
    """Seconds after the router is lost until its requests stop decoding (KV kept)."""
    orphan_lease: float = 40.0
    """Seconds after the router is lost until its requests are released."""
    report_every: float = 1.0
    """Seconds between load reports at most; at least 0.1 s apart on change."""


class RouterPolicy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Placement and admission at the router: [policy.router]."""

    md_local_tokens: int = 128
    """A request whose tokens missing at MD are at most this many is extended by MD itself: what one step has
    room for beside its decodes."""
    md_local_tokens_line_down: int = 4096
    """The same while the line or all P are down."""
    md_local_busy: float = 16.0
    """Multiple of `md_local_tokens` up to which MD does so where the way over prefill takes more than twice
    the time."""
    relay: bool = True
    """Whether relays are used at all."""
    relay_margin: float = 0.05
    """Seconds by which a relay must be earlier than MD to be attached."""
    max_line_wait: float = 30.0
    """Seconds of line backlog and delta above which low-hit work is refused."""
    max_prefill_wait: float = 1.0
    """Seconds of prefill queue above which a prefill worker gets no new request: it waits at the router,
    where tenants take turns."""
    catch_up_backlog: int = 64
    """Ids between the log's end and MD's extend at which a catch-up cut is made."""
    catch_up_rounds: int = 2
    """Catch-up rounds at most."""
    cuts_at_once: int = 2
    """Requests that one MD takes over from relays at the same time; relays with room go on meanwhile."""
    singular: bool = True
    """Whether singular requests (very long uncached input, very short output) may finish at a relay."""
    singular_min_uncached: int = 1024
    """Uncached input tokens a singular request has at least."""
    singular_max_output: int = 64
    """Predicted output tokens of a singular request at most."""
    singular_pool_fraction: float = 0.05
    """Part of a relay's blocks that singular requests may hold, or one request."""
    admit_timeout: float = 5.0
    """Seconds for a worker's answer to an Admit before another is asked."""
    max_requests: int = 4096
    """Live requests; more are refused with 429."""
    tokens_ahead: int = 4096
    """Ids of runs past the log's end that are held per request."""
    gap_grace: float = 0.1
    """Seconds beside 2 RTT that a gap in the log may last before Resume is sent."""
    text_waiting: int = 1 << 20
    """Bytes of text that may wait for a slow client before its request is released."""
    slow_client: float = 30.0
    """Seconds that text may wait for a slow client."""
    default_deadline: float = 600.0
    """Seconds a request may take when the client gives no deadline."""
    session_memory: int = 4096
    """Recent sessions whose ids are kept for re-warming and splicing."""
    rewarm_share: float = 0.3
    """Part of the line that re-warming a cold MD may use."""
    rewarm_most: float = 60.0
    """Seconds that the transfer of one re-warmed session may take."""
    share_ttl: float = 1.0
    """Seconds that a sender obeys its share of a line without a new one."""
    compare_wait: float = 10.0
    """Seconds that workers have to say what they hold, where the index is compared with them."""
    drain: float = 30.0
    """Seconds that streams are served after SIGTERM."""
    replace_wait: float = 30.0
    """Seconds a request without an owner waits for a worker that could take it on, before it ends with an
    error."""
    max_failures: int = 3
    """Failures of workers at one request (`internal`, `nan`, divergence), without an id between, before it
    ends."""
    max_losses: int = 8
    """Workers lost, stalled or drained under one request, without an id between, before it ends."""
    queue_wait: float = 10.0
    """Seconds a request may wait for room before it is refused. One that is expected to wait half as long is
    refused at once; a fifth, where requests have been waiting all that time."""
    max_waiting: int = 1024
    """Requests that wait for room at most."""
    breaker_failures: int = 3
    """Failures of a worker in a row before it gets no work for a while."""
    breaker_first: float = 1.0
    """Seconds without work after that, until one request probes it; doubles up to `breaker_most`."""
    breaker_most: float = 30.0
    """Seconds without work at most."""
    join_ramp: float = 10.0
    """Seconds over which a new worker is brought to its share of the load."""
    index_expected: int = 1 << 20
    """Blocks expected from own placements that the index keeps at most."""

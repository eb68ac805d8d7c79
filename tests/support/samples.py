"""One of every message, with every field set: for golden bytes and fuzzing."""

from __future__ import annotations

from shared.wire import messages as m
from shared.wire.messages import Message, Rid

RID = Rid(0x0123456789ABCDEF, 7)
TICKET = bytes(range(16))
HASH = bytes(range(16, 32))
SAMPLING = m.Sampling(
    max_pos=120,
    seed=2**63 + 5,
    choice=1,
    temperature=0.7,
    top_k=40,
    top_p=0.9,
    min_p=0.05,
    repetition_penalty=1.1,
    presence_penalty=0.25,
    frequency_penalty=-0.5,
    logit_bias={17: -100.0},
    min_tokens=3,
    stop_ids=(0, 2),
    logprobs=2,
    grammar="",
)
LOGPROB = m.TokenLogprob(-0.5, ((11, -0.5), (12, -1.5)))

MESSAGES: tuple[Message, ...] = (
    m.Hello(
        1,
        2,
        "p1",
        m.Role.PREFILL,
        "a",
        11,
        12,
        3,
        1,
        "f",
        "t",
        HASH,
        TICKET,
        "block_tokens=32",
        99,
        ("u",),
        6,
        1 << 18,
    ),
    m.Welcome(
        1,
        "md1",
        m.Role.MAIN,
        "b",
        12,
        4,
        "f",
        "t",
        HASH,
        TICKET,
        bytes(32),
        "block_tokens=32",
        99,
        ("u",),
        6,
        1 << 17,
    ),
    m.Proof(bytes(range(32))),
    m.Reject("layout", "bfloat16", "float32", "use the same model.dtype on both nodes"),
    m.Ping(123456789),
    m.Pong(123456789, 800_000_000),
    m.Goodbye("drained"),
    m.Announce(
        m.Role.RELAY, "smol", 32, 737280, 512, 8192, 64, False, "10.0.0.2:7000", ("p1", "md1"), "f", HASH
    ),
    m.LoadReport(
        5,
        1,
        2,
        300,
        400,
        50,
        60,
        2000.5,
        12.5,
        {"wan": 7},
        {"wan": 6},
        {"wan": 5},
        {"wan": 25e6},
        8,
        {"x": 1.0},
        {"wan": (4, 3, 0, 0)},
        {"wan": 9},
        {"wan": 1.45},
    ),
    m.KvEvents(9, 2, 1, True),
    m.SnapshotRequest(True),
    m.Snapshot(9, 3),
    m.Drain(True),
    m.LineShare("wan", 12.5e6, 4, 1000, 3, 0.25),
    m.Flush(),
    m.Peers((("md1", m.Role.MAIN, "b", "10.0.0.3:7000"),)),
    m.SnapshotDigest(9, 3, HASH),
    m.Admit(RID, 2, b"salt", -1, 100, SAMPLING, 60000, m.Purpose.WARM, True, "trace", 256),
    m.Admitted(RID, 2, TICKET, 3, 1, 5, HASH, 12, True),
    m.Refused(RID, 2, m.RefuseReason.LINE_BACKLOG, 1500, "31 s of line"),
    m.Prefill(RID, 1, b"salt", 0, 100, SAMPLING, 60000, "trace", 3),
    m.Attach(RID, "md1", 12, TICKET, 3, 1, 5, HASH, m.TransferClass.ALIGNMENT, trace="t"),
    m.Feed(RID, 3, 100, m.Do.OWN),
    m.CaughtUp(RID, 3, 164),
    m.TokensOut(
        (
            m.TokenRow(RID, 3, 100, (5, 70000), (LOGPROB, LOGPROB)),
            m.TokenRow(RID, 3, 102, (6,), None, 7, (LOGPROB,)),
        )
    ),
    m.Finished(RID, 3, 120, m.FinishReason.LENGTH),
    m.Failed(RID, 3, TICKET, m.FailReason.REVOKED, "older requests need the blocks"),
    m.Resume(RID, 101),
    m.Release(RID, 3, True),
    m.KvChunk(TICKET, 0, 0, 4, 65536, 32768, 0, 2**64 - 1),
    m.Have(TICKET, RID, 3, ((3, 0, 65536), (4, 0, 10)), ((5, 7),), True, True),
    m.Missing(RID, TICKET, 4),
    m.First(TICKET, RID, 100, (5,), (LOGPROB,)),
)


def payload_for(message: Message) -> bytes:
    """A payload that the message may carry."""
    match message:
        case m.KvEvents():
            return HASH * (message.stored + message.removed)
        case m.Snapshot():
            return HASH * message.count
        case m.Attach():
            return HASH * message.upto
        case m.Admit() | m.Prefill() | m.Feed():
            return bytes(4 * 100)
        case m.KvChunk():
            return bytes(message.length)
        case _:
            return b""

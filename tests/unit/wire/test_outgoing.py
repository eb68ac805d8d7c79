"""The order of control messages: urgent first, and nothing overtakes what it belongs to."""

from __future__ import annotations

from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.framing import PART_BYTES, FrameKind
from shared.wire.messages import Message, Rid
from shared.wire.outgoing import Outgoing
from shared.wire.parts import MOST_OPEN, PartJoiner
from tests.support.samples import HASH, SAMPLING

ONE, TWO = Rid(1, 1), Rid(1, 2)
LARGE = bytes(4 * PART_BYTES)


def feed(rid: Rid, start: int = 0) -> m.Feed:
    return m.Feed(rid, 1, start, m.Do.HOLD)


def admit(rid: Rid) -> m.Admit:
    return m.Admit(rid, 1, b"", 0, 1, SAMPLING, 1000)


def tokens(*rids: Rid) -> m.TokensOut:
    return m.TokensOut(tuple(m.TokenRow(rid, 1, 0, (1,)) for rid in rids))


def queue(*items: Message | tuple[Message, bytes]) -> Outgoing:
    made = Outgoing()
    for item in items:
        message, payload = item if isinstance(item, tuple) else (item, b"")
        made.push(0.0, message, encode(message), payload)
    return made


def order(outgoing: Outgoing) -> list[Message]:
    """The messages in the order in which they are whole at the other side."""
    joiner = PartJoiner(1 << 20)
    found = []
    while (piece := outgoing.pop()) is not None:
        if piece.kind is FrameKind.MESSAGE:
            found.append(decode(piece.header))
        elif (whole := joiner.add(piece.header, piece.payload)) is not None:
            found.append(decode(whole[0]))
    assert outgoing.bytes == 0
    assert not outgoing
    return found


def test_urgent_then_small_then_large() -> None:
    large, small, urgent = (admit(ONE), LARGE), m.Drain(True), m.Release(TWO, 1)
    assert order(queue(large, small, urgent)) == [urgent, small, large[0]]


def test_first_in_first_out_within_a_rank() -> None:
    urgent: list[Message] = [feed(ONE, 0), feed(ONE, 1), m.Release(ONE, 1), tokens(TWO)]
    assert order(queue(*urgent)) == urgent


def test_an_urgent_message_passes_the_parts_of_another_request() -> None:
    outgoing = queue((admit(ONE), LARGE))
    outgoing.pop()
    outgoing.push(0.0, feed(TWO), encode(feed(TWO)), b"")
    piece = outgoing.pop()
    assert piece is not None
    assert decode(piece.header) == feed(TWO)


def test_an_urgent_message_waits_for_the_parts_of_its_own_request() -> None:
    assert order(queue((admit(ONE), LARGE), feed(ONE), m.Release(ONE, 1))) == [
        admit(ONE),
        feed(ONE),
        m.Release(ONE, 1),
    ]


def test_it_waits_also_when_the_parts_are_under_way() -> None:
    outgoing = queue((admit(ONE), LARGE))
    first = outgoing.pop()
    outgoing.push(0.0, m.Release(ONE, 1), encode(m.Release(ONE, 1)), b"")
    outgoing.push(0.0, m.Release(TWO, 1), encode(m.Release(TWO, 1)), b"")
    kinds = [piece.kind for piece in iter(outgoing.pop, None)]
    assert first is not None
    assert kinds[0] is FrameKind.MESSAGE  # of the other request
    assert kinds[1:-1] == [FrameKind.PART] * (len(kinds) - 2)
    assert kinds[-1] is FrameKind.MESSAGE


def test_an_urgent_message_does_not_pass_a_small_one_of_its_request() -> None:
    failed = m.Failed(ONE, 1, b"", m.FailReason.PRESSURE)
    finished = m.Finished(TWO, 1, 9, m.FinishReason.STOP)
    assert order(queue(failed, tokens(ONE), finished, m.Release(TWO, 2))) == [
        failed,
        tokens(ONE),
        finished,
        m.Release(TWO, 2),
    ]


def test_what_follows_a_waiting_message_waits_too() -> None:
    chain: list[Message] = [admit(ONE), feed(ONE, 0), feed(ONE, 1), m.Resume(ONE, 5), m.Release(ONE, 1)]
    assert order(queue((chain[0], LARGE), *chain[1:])) == chain


def test_rows_of_several_requests_keep_the_order_of_each() -> None:
    large = (admit(ONE), LARGE)
    seen = order(queue(large, tokens(ONE, TWO), m.Finished(TWO, 1, 3, m.FinishReason.STOP), tokens(ONE)))
    assert seen == [admit(ONE), tokens(ONE, TWO), tokens(ONE), m.Finished(TWO, 1, 3, m.FinishReason.STOP)]


def test_index_events_keep_their_order_past_a_snapshot_and_load_reports_pass_it() -> None:
    snapshot = (m.Snapshot(4, 4096), HASH * 4096)
    events = (m.KvEvents(5, 1, 0), HASH)
    drain = m.Drain(True)
    assert order(queue(snapshot, events, drain)) == [drain, snapshot[0], events[0]]


def test_large_messages_take_turns_up_to_a_few() -> None:
    rids = [Rid(1, n) for n in range(MOST_OPEN + 2)]
    sizes = [LARGE] * MOST_OPEN + [LARGE, LARGE]
    outgoing = queue(*((admit(rid), size) for rid, size in zip(rids, sizes, strict=True)))
    streams = []
    joiner = PartJoiner(1 << 20)
    while (piece := outgoing.pop()) is not None:
        streams.append(piece.header[1])
        joiner.add(piece.header, piece.payload)  # refuses more than MOST_OPEN
    assert set(streams[:MOST_OPEN]) == {1, 2, 3, 4}
    assert set(streams) == set(range(1, MOST_OPEN + 3))


def test_bytes_are_those_not_yet_taken() -> None:
    outgoing = queue((admit(ONE), LARGE), m.Drain(True))
    total = len(encode(admit(ONE))) + len(LARGE) + len(encode(m.Drain(True)))
    assert outgoing.bytes == total
    while (piece := outgoing.pop()) is not None:
        total -= piece.size if piece.kind is FrameKind.MESSAGE else len(piece.payload)
        assert outgoing.bytes == total
    assert total == 0

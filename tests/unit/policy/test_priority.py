"""The send queue: classes, lanes, and what the agentic trace gains over first come, first served."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from shared.policy.config import LinePolicy
from shared.policy.priority import ALIGNMENT, BURST, COVERED, PARKED, UNCOVERED, SendQueue
from tests.support.virtual_line import first_come, serve

CHUNK = 100


def drain(queue: SendQueue, sizes: dict[bytes, int], chunks: int | None = None) -> list[bytes]:
    """Send chunks until all is sent, or so many; the tickets in order. Everything sent is acknowledged at
    once."""
    left = dict(sizes)
    order: list[bytes] = []
    while (chunks is None or len(order) < chunks) and (ticket := queue.next()) is not None:
        order.append(ticket)
        size = min(CHUNK, left[ticket])
        left[ticket] -= size
        queue.sent(ticket, size)
        queue.acked(ticket, sizes[ticket] - left[ticket])
        if not left[ticket]:
            queue.close(ticket)
    return order


def queue_of(*transfers: tuple[bytes, int, int]) -> tuple[SendQueue, dict[bytes, int]]:
    """Ready transfers (ticket, class, bytes), opened one second apart."""
    queue = SendQueue(LinePolicy())
    for now, (ticket, cls, total) in enumerate(transfers):
        queue.open(ticket, cls, total, float(now))
        queue.set_ready(ticket, True)
    return queue, {ticket: total for ticket, _, total in transfers}


def test_nothing_waits() -> None:
    queue = SendQueue(LinePolicy())
    assert queue.next() is None
    queue.open(b"a", UNCOVERED, 100, 0.0)
    assert queue.next() is None  # open, but nothing to send yet
    queue.set_ready(b"a", True)
    assert queue.next() == b"a"
    queue.set_ready(b"a", False)
    assert queue.next() is None


def test_half_to_the_oldest_half_to_the_shortest() -> None:
    queue, sizes = queue_of((b"old", UNCOVERED, 2000), (b"mid", UNCOVERED, 5000), (b"short", UNCOVERED, 1000))
    counts = Counter(drain(queue, sizes, chunks=20))
    assert counts == {b"old": 10, b"short": 10}


def test_a_short_one_that_comes_late_passes_the_rest_and_the_oldest_goes_on() -> None:
    queue, sizes = queue_of((b"old", UNCOVERED, 10_000), (b"mid", UNCOVERED, 5000))
    drain(queue, sizes, chunks=10)
    sizes[b"new"] = 300
    queue.open(b"new", UNCOVERED, 300, 50.0)
    queue.set_ready(b"new", True)
    order = drain(queue, sizes, chunks=6)
    assert order.count(b"new") == 3
    assert order.count(b"old") == 3


def test_remaining_is_what_is_not_acknowledged() -> None:
    queue, _ = queue_of((b"a", UNCOVERED, 1000), (b"b", UNCOVERED, 900), (b"c", UNCOVERED, 5000))
    queue.sent(b"a", CHUNK)  # the oldest lane has had its turn
    assert queue.next() == b"b"
    queue.acked(b"c", 4500)
    assert queue.next() == b"c"


def test_uncovered_gets_twice_what_covered_gets() -> None:
    queue, sizes = queue_of((b"u", UNCOVERED, 100_000), (b"c", COVERED, 100_000))
    counts = Counter(drain(queue, sizes, chunks=300))
    assert counts == {b"u": 200, b"c": 100}


def test_lower_classes_wait_until_all_above_are_empty() -> None:
    queue, sizes = queue_of(
        (b"p", PARKED, 300), (b"a", ALIGNMENT, 300), (b"c", COVERED, 300), (b"u", UNCOVERED, 300)
    )
    order = drain(queue, sizes)
    assert set(order[:6]) == {b"u", b"c"}
    assert order[6:] == [b"a"] * 3 + [b"p"] * 3


def test_a_class_with_nothing_to_send_now_leaves_the_line_to_those_below() -> None:
    queue, _ = queue_of((b"u", UNCOVERED, 300), (b"a", ALIGNMENT, 300))
    queue.set_ready(b"u", False)
    assert queue.next() == b"a"


def test_an_idle_class_does_not_save_up() -> None:
    queue, sizes = queue_of((b"u", UNCOVERED, 100_000))
    drain(queue, sizes, chunks=500)
    sizes[b"c"] = 100_000
    queue.open(b"c", COVERED, 100_000, 9.0)
    queue.set_ready(b"c", True)
    counts = Counter(drain(queue, sizes, chunks=30))
    assert counts == {b"u": 20, b"c": 10}


def test_what_a_client_waits_for_passes_in_a_burst_of_what_it_let_pass() -> None:
    """Half of what the other class was sent meanwhile weighs a third: twice as many bytes are its own."""
    queue, sizes = queue_of((b"c", COVERED, 100_000))
    drain(queue, sizes, chunks=30)
    sizes[b"u"] = 100_000
    queue.open(b"u", UNCOVERED, 100_000, 9.0)
    queue.set_ready(b"u", True)
    order = drain(queue, sizes, chunks=90)
    assert order[:60] == [b"u"] * 60
    assert Counter(order[60:]) == {b"u": 20, b"c": 10}


def test_a_burst_is_bounded_however_long_the_class_was_idle() -> None:
    queue = SendQueue(LinePolicy())
    size = BURST // 8
    for at, (ticket, cls) in enumerate(((b"c", COVERED), (b"u", UNCOVERED))):
        queue.open(ticket, cls, 1000 * size, float(at))
    queue.set_ready(b"c", True)
    for _ in range(100):
        queue.sent(queue.next() or b"", size)
    queue.set_ready(b"u", True)
    order = []
    for _ in range(38):
        order.append(queue.next() or b"")
        queue.sent(order[-1], size)
    assert order[:8] == [b"u"] * 8
    assert Counter(order[8:]) == {b"u": 20, b"c": 10}


def test_another_class_for_the_same_ticket_keeps_its_age() -> None:
    queue, _ = queue_of((b"a", PARKED, 500), (b"b", UNCOVERED, 400))
    assert queue.next() == b"b"
    queue.open(b"a", UNCOVERED, 500, 99.0)
    assert queue[b"a"].opened == 0.0
    assert queue.next() == b"a"  # the oldest of its class
    assert len(queue) == 2


def test_closing_in_any_state() -> None:
    queue, _ = queue_of((b"a", UNCOVERED, 500))
    queue.open(b"idle", PARKED, 5, 0.0)
    queue.close(b"idle")
    queue.close(b"a")
    queue.close(b"a")
    queue.close(b"never")
    assert queue.next() is None
    assert len(queue) == 0


def test_a_ticket_may_come_again_after_its_end() -> None:
    queue, _ = queue_of((b"a", UNCOVERED, 500))
    queue.close(b"a")
    queue.open(b"a", UNCOVERED, 700, 5.0)
    assert queue.next() is None
    queue.set_ready(b"a", True)
    assert queue.next() == b"a"
    assert queue[b"a"].remaining == 700


def test_what_a_sender_reports() -> None:
    queue, _ = queue_of((b"a", UNCOVERED, 500), (b"b", PARKED, 300))
    queue.acked(b"a", 100)
    assert queue.remaining == 700
    assert queue.smallest == 300
    assert queue.oldest_age(10.0) == 10.0
    assert SendQueue(LinePolicy()).smallest == 0


def test_what_is_sent_and_waits_for_its_acknowledgement_claims_nothing_of_the_line() -> None:
    queue, _ = queue_of((b"a", UNCOVERED, 500), (b"b", UNCOVERED, 9000))
    queue.set_ready(b"a", False)
    assert queue.smallest == 9000
    assert queue.remaining == 9500
    queue.set_ready(b"b", False)
    assert (queue.smallest, queue.oldest_age(10.0)) == (0, 0.0)


def test_heaps_stay_small_under_many_acknowledgements() -> None:
    queue, _ = queue_of((b"a", UNCOVERED, 10**9), (b"b", UNCOVERED, 10**9))
    for total in range(20_000):
        queue.acked(b"a", total)
        queue.set_ready(b"b", bool(total % 2))
    assert sum(len(lanes.shortest) + len(lanes.oldest) for lanes in queue._classes) < 200


def test_agentic_transfers_against_first_come_first_served() -> None:
    trace = json.loads((Path(__file__).parents[2] / "golden" / "agentic_transfers.json").read_text())
    rate = trace["tokens_per_second"]
    arrivals, now = [], 0.0
    for gap, tokens in zip(trace["gaps_ms"], trace["tokens"], strict=True):
        now += gap / 1000
        arrivals.append((now, tokens))
    ours = serve(arrivals, rate, chunk=rate * 0.2)
    theirs = first_come(arrivals, rate)
    assert sum(ours) <= 0.15 * sum(theirs)
    assert sorted(ours)[len(ours) // 2] <= 0.02 * sorted(theirs)[len(theirs) // 2]
    largest = sorted(range(len(ours)), key=lambda at: -arrivals[at][1])[: len(ours) // 100]
    assert max(ours[at] for at in largest) <= 2.5 * max(theirs[at] for at in largest)


def test_a_share_says_which_lane_is_served() -> None:
    """Only the oldest, only the shortest, and the configured halves again."""
    queue, sizes = queue_of((b"old", UNCOVERED, 1000 * CHUNK), (b"short", UNCOVERED, 50 * CHUNK))
    queue.serve_oldest(1.0)
    assert drain(queue, sizes, 10) == [b"old"] * 10
    queue.serve_oldest(0.0)
    assert drain(queue, {b"old": 990 * CHUNK, b"short": 50 * CHUNK}, 10) == [b"short"] * 10
    queue.serve_oldest(0.25)
    order = Counter(drain(queue, {b"old": 990 * CHUNK, b"short": 40 * CHUNK}, 20))
    assert order[b"short"] in (14, 15, 16)
    queue.serve_oldest(None)
    order = Counter(drain(queue, {b"old": 980 * CHUNK, b"short": 25 * CHUNK}, 20))
    assert order[b"short"] in (9, 10, 11)

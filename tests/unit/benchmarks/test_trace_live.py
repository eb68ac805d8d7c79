"""The window that is sent, what a pair of runs says, and that both sides of the live case count all bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.transport.agentic import Arrival
from benchmarks.transport.trace_live import LINE, Live, LiveReceiver, LiveSender, Pair, results, window
from shared.wire.messages import Role
from shared.wire.port import PeerInfo

COMING = (Arrival(0.0, 3000, 0), Arrival(0.1, 1000, 1), Arrival(5.0, 1000, 2))


def pair(live: tuple[float, ...]) -> Pair:
    return Pair(COMING, live, (3.0, 1.0, 1.0), (3.0, 4.0, 1.0))


def test_transfers_that_overlap_have_to_end_in_the_same_order() -> None:
    assert pair((3.0, 1.0, 1.0)).alike() == 1.0
    assert pair((1.0, 2.0, 1.0)).alike() == 0.0  # the third was alone: it says nothing


def test_an_order_that_is_not_ours_is_no_match() -> None:
    near = results(Live(), [pair((3.1, 1.0, 1.0))], "none")
    assert [each.verdict for each in near] == ["met"] * 3
    fifo = results(Live(), [pair((3.0, 4.0, 1.0))], "none")
    assert [each.verdict for each in fifo] == ["missed"] * 3


def test_the_first_window_of_the_wanted_load_counts_from_its_own_start() -> None:
    coming = [Arrival(at / 2, 10 if at < 20 else 50, at) for at in range(60)]
    found = window(coming, 10.0, 0.5, 200.0)
    assert (len(found), found[0].at, found[0].size) == (20, 0.0, 50)
    with pytest.raises(ValueError, match="longer window"):
        window(coming, 10.0, 5.0, 200.0)


def test_the_shorter_one_passes_and_every_byte_is_counted() -> None:
    sizes = [1_000_000, 10_000, 300_000]
    sender, receiver = LiveSender([0.0, 0.0, 9.0], sizes), LiveReceiver(sizes)
    assert sender.next_deadline() is None
    sender.on_session(100.0, PeerInfo("md", Role.MAIN, "b", 1))
    for now in (100.0, 109.0):
        sender.on_timer(now)
        while (chunk := sender.next_chunk(now, "md", 100_000)) is not None:
            receiver.on_chunk(now, "p", chunk.header, chunk.data, False)
    assert sender.next_deadline() is None
    assert receiver.over.is_set()
    assert (receiver.got, receiver.wrong) == (sum(sizes), 0)
    assert list(receiver.ended) == [1, 0, 2]


def test_the_rate_is_what_the_endpoint_is_capped_to() -> None:
    assert Live().rate == 190e6 / 8
    assert Live(line=replace(LINE, cap_mbit=0.0)).rate == 200e6 / 8

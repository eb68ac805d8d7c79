"""Rounds between two pools, without sockets: bytes once, over breaks in the middle of chunks, and nothing is
left in either pool.
"""

from __future__ import annotations

import random

import pytest

from benchmarks.transport.rounds import BLOCKS, RoundsReceiver, RoundsSender
from shared.wire.messages import Role
from shared.wire.port import OutChunk, PeerInfo, Send

LIMIT = 400_000


def tell(one: RoundsSender | RoundsReceiver, other: RoundsSender | RoundsReceiver) -> None:
    """What one side has to say reaches the other."""
    for each in one.take_outbox():
        if isinstance(each, Send):
            other.on_message(0.0, "peer", each.message, b"")


def move(sender: RoundsSender, receiver: RoundsReceiver, *, broken: bool = False) -> OutChunk | None:
    """One chunk; its connection may break in the middle of it."""
    chunk = sender.next_chunk(0.0, "md", LIMIT)
    if chunk is None:
        return None
    into = receiver.chunk_buffer("p", chunk.header)
    if broken:
        if into is not None:
            receiver.on_chunk_broken("p", chunk.header)
        receiver.on_resumed(0.0, "p")
    else:
        if into is not None:
            into[:] = chunk.data
        receiver.on_chunk(0.0, "p", chunk.header, chunk.data, into is not None)
    sender.chunk_written(0.0, "md", chunk.key, not broken)
    tell(receiver, sender)
    return chunk


def joined() -> tuple[RoundsSender, RoundsReceiver]:
    sender, receiver = RoundsSender(), RoundsReceiver()
    receiver.on_session(0.0, PeerInfo("p", Role.PREFILL, "a", 1))
    tell(receiver, sender)
    return sender, receiver


def test_rounds_leave_nothing_over_breaks() -> None:
    sender, receiver = joined()
    draw = random.Random(2)
    while receiver.rounds < 4:
        assert move(sender, receiver, broken=draw.random() < 0.1) is not None
    receiver.last = True
    while not receiver.over:
        assert move(sender, receiver) is not None
    assert receiver.got == receiver.rounds * BLOCKS * receiver.block_bytes
    assert set(receiver.left().values()) == set(sender.left().values()) == {0}


def test_blocks_that_a_write_buffer_refers_to_stay_pinned() -> None:
    sender, receiver = joined()
    held = sender.next_chunk(0.0, "md", LIMIT)
    assert held is not None
    receiver.on_resumed(0.0, "p")
    tell(receiver, sender)
    receiver.last = True
    while not receiver.over:
        assert move(sender, receiver) is not None
    assert sender.left()["pinned blocks"] == BLOCKS
    sender.chunk_written(0.0, "md", held.key, False)
    assert set(sender.left().values()) == {0}


@pytest.mark.parametrize("what", ["content", "pin"])
def test_what_is_wrong_is_counted(what: str) -> None:
    sender, receiver = joined()
    receiver.last = True
    while not receiver.over:
        chunk = sender.next_chunk(0.0, "md", LIMIT)
        if chunk is None:
            break
        into = receiver.chunk_buffer("p", chunk.header)
        assert into is not None
        into[:] = bytes(len(into)) if what == "content" else chunk.data
        receiver.on_chunk(0.0, "p", chunk.header, chunk.data, True)
        if what == "content":
            sender.chunk_written(0.0, "md", chunk.key, True)
        tell(receiver, sender)
    assert (receiver.left()["wrong"] > 0) == (what == "content")
    assert (sender.left()["pinned blocks"] > 0) == (what == "pin")

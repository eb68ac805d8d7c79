"""A transfer's bytes at its sender: whatever is reported, lost or asked for, exactly the missing bytes
leave.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.wire.messages import Attach, Have, Rid, TransferClass
from shared.worker.transfer import Transfer

SIZE = 64
RID = Rid(1, 1)


def transfer(have: int = 0, expected: int = 0, upto: int = 6) -> Transfer:
    attach = Attach(RID, "md", 1, b"t" * 16, have, expected, upto, b"", TransferClass.COVERED)
    made = Transfer(attach, "r", [bytes([i]) * 16 for i in range(upto)], SIZE, 0.0)
    made.held = {index: 100 + index for index in range(have, upto)}
    return made


def drain(made: Transfer, limit: int = 40) -> list[tuple[int, int, int]]:
    spans = []
    while made.sendable:
        spans.append(made.next_span(limit))
    return spans


def test_sends_in_chain_order_in_pieces() -> None:
    made = transfer(have=1, expected=2, upto=5)
    assert made.total_bytes == 2 * SIZE
    assert drain(made) == [(3, 0, 40), (3, 40, 64), (4, 0, 40), (4, 40, 64)]
    assert made.outstanding
    assert made.unsent_bytes == 0


def test_waits_at_a_block_that_does_not_exist() -> None:
    made = transfer()
    del made.held[2]
    assert [block for block, _, _ in drain(made, 64)] == [0, 1]
    assert made.unresolved == [2]
    made.held[2] = 102
    assert [block for block, _, _ in drain(made, 64)] == [2, 3, 4, 5]


def test_pins_end_with_what_landed() -> None:
    made = transfer()
    drain(made)
    assert made.report(Have(b"", RID, published=2)) == [100, 101]
    assert made.report(Have(b"", RID, published=2, ranges=((3, 0, 64), (4, 0, 10)))) == [103]
    assert made.acked_bytes == 3 * SIZE + 10
    assert sorted(made.held) == [2, 4, 5]


def test_rewinding_sends_what_has_not_landed() -> None:
    made = transfer()
    drain(made)
    made.report(Have(b"", RID, published=3, ranges=((4, 8, 24),)))
    made.waits_report = True
    assert not made.sendable
    made.rewind()
    assert drain(made, 64) == [(3, 0, 64), (4, 0, 8), (4, 24, 64), (5, 0, 64)]


def test_needs_are_sent_again_once() -> None:
    made = transfer(expected=3)
    drain(made, 64)
    made.want(((1, 3),))
    made.want(((1, 3),))
    assert made.total_bytes == 5 * SIZE
    assert drain(made, 64) == [(1, 0, 64), (2, 0, 64)]
    made.report(Have(b"", RID, published=2))
    made.want(((1, 3), (90, 99)))
    assert drain(made, 64) == [(2, 0, 64)], "what is published is not sent again, what is not there never"


def test_a_shorter_transfer_forgets_the_rest() -> None:
    made = transfer()
    made.next_span(64)
    assert made.shorten(2) == [102, 103, 104, 105]
    assert made.total_bytes == 2 * SIZE
    assert drain(made, 64) == [(1, 0, 64)]


@given(st.integers(0, 1 << 32))
@settings(max_examples=150, deadline=None)
def test_a_receiver_gets_every_byte_whatever_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    made = transfer(have=rng.randint(0, 2), expected=rng.randint(0, 2), upto=6)
    first = made.have + (made.upto - made.have - made.total_bytes // SIZE)
    landed: dict[int, set[int]] = {block: set() for block in range(made.upto)}

    def report() -> Have:
        published = made.have
        while published < made.upto and (len(landed[published]) == SIZE or made.have <= published < first):
            published += 1
        ranges = []
        for block in range(published, made.upto):
            run = sorted(landed[block])
            starts = [at for at in run if at - 1 not in landed[block]]
            ranges += [
                (block, at, next(end for end in range(at, SIZE + 1) if end not in landed[block]))
                for at in starts
            ]
        return Have(b"", RID, published=published, ranges=tuple(ranges))

    for _ in range(200):
        while made.sendable and rng.random() < 0.9:
            block, start, end = made.next_span(rng.randint(1, SIZE))
            if rng.random() < 0.8:
                landed[block] |= set(range(start, end))
        made.report(report())
        if all(len(landed[block]) == SIZE for block in range(first, made.upto)):
            break
        if not made.sendable or rng.random() < 0.2:
            made.rewind()
    assert made.acked_bytes == made.total_bytes
    assert not made.outstanding

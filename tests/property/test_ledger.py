"""Any order of tickets, chunks, damage, breaks and ends: no wrong byte is ever published, nothing stalls or
leaks.

Memory is real here: while a chunk is being received its range is scribbled over at every step, so a block
that is reused or published too early shows as wrong content of a published block.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from shared.kv.ledger import GONE, SCRATCH, Ledger, Report, Target, Ticket
from shared.kv.pool import BlockPool
from tests.support.kv_chains import LAYOUT, FakeChunk, hashes_of

SIZE = LAYOUT.block_bytes


def content(hash_: bytes) -> bytes:
    """What a block of that hash must hold."""
    return hashlib.blake2b(hash_, digest_size=SIZE).digest()


@dataclass(eq=False)
class Sender:
    """What the other side knows of a ticket: which byte ranges it has still to send."""

    ticket: Ticket
    blocks: set[int]  # those it was asked for
    todo: list[tuple[int, int, int]]  # (block, first, end), in the order of sending


class Mesh:
    """A receiver with real memory, honest senders, and a line that does what it likes."""

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.ledger = Ledger(self.pool, LAYOUT)
        self.memory = bytearray(blocks * SIZE)
        self.senders: dict[bytes, Sender] = {}
        self.flying: list[tuple[FakeChunk, Target]] = []
        self.computed: list[list[int]] = []
        self.seen: Counter[str] = Counter()
        self.hashes: dict[bytes, list[bytes]] = {}  # by ticket, closed ones as well

    def step(self, random: Random) -> None:
        choices = [self.open] * 3 + [self.send] * 12 + [self.arrive] * 8 + [self.close] * 2
        choices += [self.compute, self.drop, self.hurry, self.resend, self.take]
        random.choice(choices)(random)
        self.deliver_reports()
        self.check()

    # --- what happens ---------------------------------------------------------------------------------------

    def open(self, random: Random) -> None:
        path = [random.randint(0, 1) for _ in range(random.randint(1, 5))]
        hashes = hashes_of(*path)
        yields = random.random() < 0.3
        blocks = self.pool.match(hashes)
        self.pool.pin(blocks)
        expected = self.ledger.on_its_way(hashes, len(blocks), yields=yields)
        missing = len(hashes) - len(blocks) - expected
        if self.pool.available < missing:
            self.pool.unpin(blocks)
            return
        name = len(self.hashes).to_bytes(16, "little")
        self.hashes[name] = hashes
        self.pool.promise(name, missing)
        ticket = self.ledger.open(name, name, hashes, blocks, name, yields=yields)
        self.seen["expected"] += bool(ticket.expected)
        first = ticket.have + ticket.expected
        asked = range(first, len(hashes))
        self.senders[name] = Sender(ticket, set(asked), [(index, 0, SIZE) for index in asked])

    def close(self, random: Random) -> None:
        if self.senders:
            self.end(self.senders[random.choice(sorted(self.senders))])

    def end(self, sender: Sender) -> None:
        del self.senders[sender.ticket.ticket]
        self.seen["complete" if sender.ticket.complete else "cut short"] += 1
        blocks = self.ledger.close(sender.ticket)
        self.pool.unpromise(sender.ticket.promise)
        self.pool.unpin(blocks)
        assert self.ledger.admit_chunk(FakeChunk(sender.ticket.ticket, 0)) is GONE

    def send(self, random: Random) -> None:
        waiting = [sender for _, sender in sorted(self.senders.items()) if sender.todo]
        if not waiting:
            return
        sender = random.choice(waiting)
        block, first, end = sender.todo.pop(random.randrange(len(sender.todo)))
        cut = min(end, first + random.choice([8, 24, 40, SIZE]))
        if cut < end:
            sender.todo.append((block, cut, end))
        self.put(FakeChunk(sender.ticket.ticket, block, first, cut - first))

    def put(self, chunk: FakeChunk) -> None:
        target = self.ledger.admit_chunk(chunk)
        if isinstance(target, Target):
            assert self.pool.refs(target.block)
            self.flying.append((chunk, target))
        else:
            self.seen[target.value] += 1

    def arrive(self, random: Random) -> None:
        if self.flying:
            self.land(random, random.choice(["good"] * 6 + ["damaged", "broken"]))

    def land(self, random: Random, how: str) -> None:
        chunk, target = self.flying.pop(random.randrange(len(self.flying)))
        self.seen[how] += 1
        if how == "good":
            hash_ = self.hashes[chunk.ticket][chunk.block]
            self.write(target, content(hash_)[target.first : target.end])
            self.ledger.verified(chunk)
        elif how == "damaged":
            self.ledger.damaged(chunk)
        else:
            self.ledger.broken(chunk)
            sender = self.senders.get(chunk.ticket)
            if sender is not None:  # after a reconnect the sender goes by the report's ranges
                self.again(sender, self.ledger.report(sender.ticket))

    def resend(self, random: Random) -> None:
        """A sender repeats itself: any range of any block, now."""
        if self.senders:
            sender = self.senders[random.choice(sorted(self.senders))]
            first = random.randrange(SIZE)
            length = random.randint(1, SIZE - first)
            self.put(FakeChunk(sender.ticket.ticket, random.randrange(sender.ticket.upto), first, length))

    def compute(self, random: Random) -> None:
        """A sequence computes a chain that may be on its way as well, and keeps it pinned."""
        hashes = hashes_of(*(random.randint(0, 1) for _ in range(random.randint(1, 4))))
        found = self.pool.match(hashes)
        self.pool.pin(found)
        if self.pool.available < len(hashes) - len(found):
            self.pool.unpin(found)
            return
        blocks = found + self.pool.take(len(hashes) - len(found))
        for index in range(len(found), len(hashes)):
            self.write(Target(blocks[index], 0, SIZE), content(hashes[index]))
            self.pool.publish(blocks[index], hashes[index], hashes[index - 1] if index else None)
        self.computed.append(blocks)
        if random.random() < 0.5:
            self.ledger.refresh()

    def drop(self, random: Random) -> None:
        if self.computed:
            self.pool.unpin(self.computed.pop(random.randrange(len(self.computed))))

    def take(self, random: Random) -> None:
        """Somebody else uses every block that can be had, for a moment."""
        blocks = self.pool.take(max(self.pool.available, 0))
        for block in blocks:
            self.write(Target(block, 0, SIZE), b"\xee" * SIZE)
        self.pool.unpin(blocks)

    def hurry(self, random: Random) -> None:
        if self.senders:
            ticket = self.senders[random.choice(sorted(self.senders))].ticket
            self.ledger.set_yields(ticket, not ticket.yields)

    # --- the other side -------------------------------------------------------------------------------------

    def deliver_reports(self) -> None:
        """Every change is reported; a sender queues what is needed, less what is verified."""
        for ticket in self.ledger.take_changed():
            report = self.ledger.report(ticket)
            assert report.complete == ticket.complete
            sender = self.senders[ticket.ticket]
            needed = {block for first, end in report.needs for block in range(first, end)}
            self.seen["needs"] += len(needed)
            sender.blocks |= needed
            self.queue(sender, needed, report)

    def again(self, sender: Sender, report: Report) -> None:
        sender.blocks |= {block for first, end in report.needs for block in range(first, end)}
        self.queue(sender, sender.blocks, report)

    def queue(self, sender: Sender, blocks: set[int], report: Report) -> None:
        """Send what is not verified of these blocks."""
        for block in sorted(block for block in blocks if block >= report.published):
            at = 0
            for _, first, end in (span for span in report.ranges if span[0] == block):
                if at < first:
                    sender.todo.append((block, at, first))
                at = end
            if at < SIZE:
                sender.todo.append((block, at, SIZE))

    # --- what must hold -------------------------------------------------------------------------------------

    def write(self, target: Target, data: bytes) -> None:
        at = target.block * SIZE
        self.memory[at + target.first : at + target.end] = data

    def check(self) -> None:
        self.pool.check()
        self.ledger.check()
        for _, target in self.flying:
            self.write(target, b"\xff" * (target.end - target.first))
        for hash_ in self.pool.hashes():
            block = self.pool.find(hash_)
            assert block is not None
            assert self.memory[block * SIZE : (block + 1) * SIZE] == content(hash_)


def finish(mesh: Mesh, random: Random) -> None:
    """The line is good again: everything still open completes, without anything but reports."""
    while mesh.flying:
        mesh.land(random, "good")
        mesh.deliver_reports()
        mesh.check()
    waiting = True
    while waiting:
        waiting = False
        for sender in list(mesh.senders.values()):
            while sender.todo:
                waiting = True
                block, first, end = sender.todo.pop(0)
                mesh.put(FakeChunk(sender.ticket.ticket, block, first, end - first))
                while mesh.flying:
                    mesh.land(random, "good")
                mesh.deliver_reports()
        mesh.check()
    for sender in list(mesh.senders.values()):
        assert sender.ticket.complete
        mesh.end(sender)
        mesh.check()
    for blocks in mesh.computed:
        mesh.pool.unpin(blocks)
    mesh.pool.check()
    assert mesh.pool.free + mesh.pool.cached == mesh.pool.total
    assert mesh.pool.promised_total == 0


def run(blocks: int, seeds: list[int]) -> Mesh:
    mesh = Mesh(blocks)
    for seed in seeds:
        mesh.step(Random(seed))
    finish(mesh, Random(0))
    return mesh


@settings(max_examples=60, deadline=None)
@given(blocks=st.integers(5, 14), seeds=st.lists(st.integers(0, 2**24), min_size=50, max_size=150))
def test_any_order(blocks: int, seeds: list[int]) -> None:
    run(blocks, seeds)


def test_every_case_is_met() -> None:
    seen: Counter[str] = Counter()
    for start in range(30):
        seen += run(6 + start % 8, list(range(start * 1000, start * 1000 + 150))).seen
    for case in ("expected", "complete", "cut short", "needs", "damaged", "broken", SCRATCH.value):
        assert seen[case] > 30, seen

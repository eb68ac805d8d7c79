"""The send queue under random use, against a plain model that looks at everything."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from shared.policy.config import LinePolicy
from shared.policy.priority import ALIGNMENT, SendQueue


class Queue(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = SendQueue(LinePolicy())
        self.now = 0.0
        self.number = 0

    @rule(cls=st.integers(0, 3), total=st.integers(1, 10_000), ready=st.booleans())
    def open(self, cls: int, total: int, ready: bool) -> None:
        self.now += 1
        self.number += 1
        ticket = self.number.to_bytes(2, "big")
        self.queue.open(ticket, cls, total, self.now)
        self.queue.set_ready(ticket, ready)

    @precondition(lambda self: len(self.queue) > 0)
    @rule(data=st.data(), cls=st.integers(0, 3), ready=st.booleans(), acked=st.integers(0, 10_000))
    def change(self, data: st.DataObject, cls: int, ready: bool, acked: int) -> None:
        ticket = data.draw(st.sampled_from(self.queue.tickets()))
        self.queue.set_class(ticket, cls)
        self.queue.acked(ticket, acked)
        self.queue.set_ready(ticket, ready)

    @precondition(lambda self: len(self.queue) > 0)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.queue.close(data.draw(st.sampled_from(self.queue.tickets())))

    @rule(size=st.integers(1, 5000))
    def send(self, size: int) -> None:
        ticket = self.queue.next()
        if ticket is not None:
            self.queue.sent(ticket, size)

    @invariant()
    def the_pick_is_the_oldest_or_the_shortest_of_a_class_whose_turn_it_is(self) -> None:
        ready = [t for ticket in self.queue.tickets() if (t := self.queue[ticket]).ready]
        picked = self.queue.next()
        if not ready:
            assert picked is None
            return
        assert picked is not None
        transfer = self.queue[picked]
        top = min(t.cls for t in ready)
        assert transfer.cls == top if top >= ALIGNMENT else transfer.cls < ALIGNMENT
        peers = [t for t in ready if t.cls == transfer.cls]
        oldest = min(peers, key=lambda t: (t.opened, t.order))
        shortest = min(t.remaining for t in peers)
        assert transfer is oldest or transfer.remaining == shortest


TestQueue = Queue.TestCase
TestQueue.settings = settings(max_examples=80, stateful_step_count=40)

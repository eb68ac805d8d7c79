"""Two sessions under random delay, cuts and restarts, in virtual time: every message arrives once and in
order of its request, or the session ends on both sides."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from shared.policy.config import LinkPolicy
from shared.wire import messages as m
from shared.wire.framing import PART_BYTES
from shared.wire.messages import Message, Rid
from tests.support.memory_pair import MemoryPair, Side
from tests.support.samples import SAMPLING

Item = tuple[Message, bytes]
RIDS = [Rid(1, n) for n in range(3)]


def key_of(message: Message) -> object:
    """What keeps its order: one request, or the index."""
    if isinstance(message, m.KvEvents | m.Snapshot):
        return "index"
    assert isinstance(message, m.Resume | m.Feed | m.Admit)
    return message.rid


class Sessions(RuleBasedStateMachine):
    """What was pushed since a session began is the model."""

    @initialize(seed=st.integers(0, 2**32 - 1))
    def begin(self, seed: int) -> None:
        self.pair = MemoryPair(LinkPolicy(resend_bytes=200_000), seed)
        self.sent: dict[str, list[Item]] = {"a": [], "b": []}
        self.counter = 0
        self._connect()

    @rule(
        side=st.sampled_from("ab"),
        kind=st.sampled_from(["small", "urgent", "large", "events", "snapshot"]),
        rid=st.sampled_from(RIDS),
    )
    def push(self, side: str, kind: str, rid: Rid) -> None:
        self.counter += 1
        number = self.counter
        message: Message
        payload = b""
        match kind:
            case "small":
                message = m.Resume(rid, number)
            case "urgent":
                message, payload = m.Feed(rid, 1, number, m.Do.HOLD), bytes(4)
            case "large":
                message = m.Admit(rid, number, b"", 0, 1, SAMPLING, 10**9)
                payload = number.to_bytes(4, "little") * (PART_BYTES // 2)
            case "events":
                message, payload = m.KvEvents(number, 1, 0), bytes(16)
            case _:
                message, payload = m.Snapshot(number, 3000), bytes(16 * 3000)
        if self.pair.push(self._side(side), message, payload):
            self.sent[side].append((message, payload))

    @rule(seconds=st.floats(0.01, 0.5))
    def wait(self, seconds: float) -> None:
        self.pair.run(self.pair.now + seconds)

    @rule()
    def cut(self) -> None:
        self.pair.cut()

    @rule()
    def reconnect(self) -> None:
        self.pair.cut()
        self._connect()

    @rule(side=st.sampled_from("ab"))
    def restart(self, side: str) -> None:
        self.pair.restart(self._side(side))

    @rule(side=st.sampled_from("ab"))
    def lease_ends(self, side: str) -> None:
        """One side gives up; the other learns of it at the next connection."""
        self.pair.cut()
        self.pair.end(self._side(side), "lease")

    @rule()
    def heal(self) -> None:
        """After the last break everything arrives."""
        self._connect()
        self.pair.settle()
        for sender, receiver in (("a", "b"), ("b", "a")):
            if self.pair.connection:
                self._compare(self.sent[sender], self._side(receiver).got, whole=True)

    @invariant()
    def nothing_twice_and_nothing_out_of_order(self) -> None:
        if hasattr(self, "pair"):
            for sender, receiver in (("a", "b"), ("b", "a")):
                self._compare(self.sent[sender], self._side(receiver).got, whole=False)

    def _compare(self, sent: list[Item], got: list[Item], *, whole: bool) -> None:
        if whole:
            assert len(got) == len(sent)
        for key in {key_of(message) for message, _ in got}:
            theirs = [_timeless(one) for one in got if key_of(one[0]) == key]
            ours = [_timeless(one) for one in sent if key_of(one[0]) == key]
            assert theirs == ours[: len(theirs)]

    def _connect(self) -> None:
        if self.pair.connection:
            return
        before = self.pair.a.session, self.pair.b.session
        self.pair.connect()
        if (
            self.pair.a.session,
            self.pair.b.session,
        ) != before:  # another session: what was sent before is void
            for side in (self.pair.a, self.pair.b):
                side.got.clear()
                self.sent[side.name].clear()

    def _side(self, name: str) -> Side:
        return self.pair.a if name == "a" else self.pair.b


def _timeless(item: Item) -> Item:
    """Remaining times shrink on the way."""
    message, payload = item
    if isinstance(message, m.Admit):
        return m.Admit(message.rid, message.term, b"", 0, 1, SAMPLING, 0), payload
    return message, payload


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40)


@given(st.integers(0, 2**32 - 1), st.lists(st.booleans(), min_size=5, max_size=60))
@settings(max_examples=60)
def test_one_direction_in_one_rank_keeps_the_whole_order(seed: int, cuts: list[bool]) -> None:
    pair = MemoryPair(LinkPolicy(), seed)
    pair.connect()
    for number, cut in enumerate(cuts):
        pair.push(pair.a, m.Resume(RIDS[number % 3], number))
        pair.run(pair.now + 0.05)
        if cut:
            pair.cut()
            pair.connect()
    pair.settle()
    assert [message for message, _ in pair.b.got] == [
        m.Resume(RIDS[number % 3], number) for number in range(len(cuts))
    ]

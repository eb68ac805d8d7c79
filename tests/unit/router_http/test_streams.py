"""The generator over the core: events reach their stream, ends are ends, refusals leave nothing."""

import pytest

from services.router.requests import Broken, Done, GenerationRequest, RequestEvent, Tokens
from services.router.streams import LiveStream, Streams
from shared.errors import Overloaded, RequestFailed
from shared.wire.messages import FinishReason, Rid, Role, Sampling


class Core:
    """Records what it is told; the test puts events in."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []
        self.events: list[tuple[Rid, RequestEvent]] = []
        self.refusal: Overloaded | None = None

    def submit(self, now: float, request: GenerationRequest) -> Rid:
        if self.refusal is not None:
            raise self.refusal
        rid = Rid(7, len([one for one in self.told if one[0] == "submit"]) + 1)
        self.told.append(("submit", now, request))
        return rid

    def cancel(self, now: float, rid: Rid) -> None:
        self.told.append(("cancel", now, rid))

    def stop_at(self, now: float, rid: Rid, at: int) -> None:
        self.told.append(("stop_at", now, rid, at))
        self.events.append((rid, Done(FinishReason.STOP, at, 0, {})))

    def take_events(self) -> list[tuple[Rid, RequestEvent]]:
        events, self.events = self.events, []
        return events


REQUEST = GenerationRequest([1], Sampling(max_pos=5, seed=1))
TOKENS = Tokens(1, (5,), None, Role.MAIN)


class Setup:
    """Streams over the core, as the service joins them: what was told is performed, then events are handed
    out.
    """

    def __init__(self) -> None:
        self.core = Core()
        self.settled: list[float] = []
        self.woken: list[str] = []
        self.generator = Streams(self.core, self.settle, lambda: 3.0)

    def settle(self, now: float) -> None:
        self.settled.append(now)
        self.generator.deliver()

    def start(self, name: str = "a") -> LiveStream:
        return self.generator.start(REQUEST, lambda: self.woken.append(name))


def test_events_go_to_their_stream_and_the_outbox_is_performed() -> None:
    setup = Setup()
    one, two = setup.start("one"), setup.start("two")
    assert setup.settled == [3.0, 3.0]
    setup.core.events += [(two.rid, TOKENS), (one.rid, TOKENS), (two.rid, Done(FinishReason.STOP, 2, 0, {}))]
    setup.generator.deliver()
    assert setup.woken == ["two", "one", "two"]
    assert one.take() == [TOKENS]
    assert one.take() == []
    assert [type(event) for event in two.take()] == [Tokens, Done]
    assert len(setup.generator) == 1


def test_a_cancelled_stream_tells_the_core_once_and_hears_nothing_more() -> None:
    setup = Setup()
    stream = setup.start()
    setup.core.events.append((stream.rid, TOKENS))
    setup.generator.deliver()
    stream.cancel()
    stream.cancel()
    assert [told[0] for told in setup.core.told] == ["submit", "cancel"]
    setup.core.events.append((stream.rid, TOKENS))
    setup.generator.deliver()
    assert stream.take() == []
    assert len(setup.generator) == 0


def test_after_the_end_nothing_is_told_to_the_core() -> None:
    for last in (Done(FinishReason.LENGTH, 5, 0, {}), Broken(RequestFailed("x"))):
        setup = Setup()
        stream = setup.start()
        setup.core.events.append((stream.rid, last))
        setup.generator.deliver()
        stream.cancel()
        stream.stop_at(3)
        assert [told[0] for told in setup.core.told] == ["submit"]


def test_stop_at_brings_done() -> None:
    setup = Setup()
    stream = setup.start()
    stream.stop_at(3)
    assert setup.core.told[-1] == ("stop_at", 3.0, stream.rid, 3)
    assert stream.take() == [Done(FinishReason.STOP, 3, 0, {})]
    assert len(setup.generator) == 0


def test_a_refusal_leaves_nothing() -> None:
    setup = Setup()
    setup.core.refusal = Overloaded("full", 1.0)
    with pytest.raises(Overloaded):
        setup.start()
    assert len(setup.generator) == 0

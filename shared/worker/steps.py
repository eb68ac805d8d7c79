"""What an engine step has brought, passed on to the room whose sequence it is."""

from __future__ import annotations

from collections.abc import Sequence

from shared.engine.events import EngineEvent, Extended, Fault, Finished, Sampled, Scored, Starved
from shared.worker.part import Part
from shared.worker.rooms import Rooms


class Steps:
    """Engine events of one worker. Blocks that filled up are found through the pool's own events."""

    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def on_engine(self, now: float, events: Sequence[EngineEvent]) -> None:
        """All events of one step, in order. A sequence may end by one of them: later ones of it are void."""
        rooms = self._rooms
        starved: list[int] = []
        for event in events:
            if rooms.prefilling.has(event.seq):
                self._prefill(now, event)
            elif isinstance(event, Starved):
                starved.append(event.seq)
            elif (part := rooms.decoding.of_seq(event.seq)) is not None:
                self._decode(now, part, event)
        rooms.prefilling.settle()
        rooms.decoding.check_limit()
        self._relieve(starved)

    def _prefill(self, now: float, event: EngineEvent) -> None:
        match event:
            case Scored():
                self._rooms.prefilling.on_scored(event)
            case Sampled():
                self._rooms.prefilling.on_sampled(now, event)
            case Finished():
                self._rooms.prefilling.on_finished(event)
            case Fault():
                self._rooms.prefilling.on_fault(event)

    def _decode(self, now: float, part: Part, event: EngineEvent) -> None:
        match event:
            case Sampled():
                self._rooms.decoding.on_sampled(part, event)
            case Extended():
                self._rooms.decoding.on_extended(part, event)
            case Finished():
                self._rooms.decoding.on_finished(now, part, event)
            case Fault():
                self._rooms.decoding.on_fault(part, event)

    def _relieve(self, starved: list[int]) -> None:
        decoding, pressure = self._rooms.decoding, self._rooms.pressure
        alive = [seq for seq in starved if decoding.of_seq(seq) is not None]
        if alive:
            pressure.relieve(len(alive))
            part = decoding.of_seq(alive[0])
            if len(alive) == 1 and part is not None:
                pressure.fail_alone(part)

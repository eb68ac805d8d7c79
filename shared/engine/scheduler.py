"""Which sequences take part in the next step, and with how many new tokens. No pool, no clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shared.engine.pace import LEAST, Pace
from shared.engine.sequence import Goal, Sequence
from shared.policy.config import WorkerPolicy

SIGNS = 4
"""Steps that end at least in the time after which an engine without any is taken as lost."""

FAIR_TURN = 4
"""One in so many steps and places is given strictly by age, so that no priority can wait for ever."""


class Scheduler:
    """Decodes first, then extends by priority, FIFO within, packed until the step's tokens are used up."""

    def __init__(self, policy: WorkerPolicy, pace: Pace) -> None:
        self._policy = policy
        self._pace = pace
        self._turn = 0
        self._starts = 0

    def starts(self, running: int, waiting: Iterable[Sequence]) -> list[Sequence]:
        """The waiting sequences that get the places left free by `running` ones."""
        queue = sorted(waiting, key=_urgency)
        started: list[Sequence] = []
        while queue and running + len(started) < self._policy.max_running:
            self._starts += 1
            first = min(queue, key=_age) if self._starts % FAIR_TURN == 0 else queue[0]
            queue.remove(first)
            started.append(first)
        return started

    def pick(
        self, running: Iterable[Sequence], fit: Callable[[Sequence, int], int]
    ) -> list[tuple[Sequence, int]]:
        """(sequence, new tokens) of the next step. `fit` makes room for n new tokens and returns how many
        fit.

        While a sequence decodes, the new tokens of a step are at most `token_budget`, decodes included, and
        extends get what the pace allows beside them, at least a few; alone, they get `max_chunk_tokens`, or
        fewer where these would take too long. What one leaves is given to the next.
        """
        decodes: list[Sequence] = []
        extends: list[Sequence] = []
        for sequence in running:
            (decodes if sequence.decodes else extends).append(sequence)
        decodes.sort(key=_age)
        picked = [(sequence, 1) for sequence in decodes if fit(sequence, 1)]
        if not extends:
            return picked
        room = self._room(len(picked))
        for sequence in self._ordered(extends):
            if not room:
                break
            n = fit(sequence, room)
            if n:
                picked.append((sequence, n))
                room -= n
        return picked

    def _room(self, decoding: int) -> int:
        if not decoding:
            return self._pace.alone(self._policy.owner_stall / SIGNS, self._policy.max_chunk_tokens)
        budget = self._policy.token_budget
        return self._pace.room(decoding, max(budget - decoding, min(budget, LEAST)))

    def _ordered(self, extends: list[Sequence]) -> list[Sequence]:
        if len(extends) < 2:
            return extends
        self._turn = (self._turn + 1) % FAIR_TURN
        return sorted(extends, key=_age if self._turn == 0 else _urgency)


def _age(sequence: Sequence) -> int:
    return sequence.number


def _urgency(sequence: Sequence) -> tuple[int, bool, int]:
    # An owner or a prefill keeps a client waiting; a standby's extend does not.
    return (sequence.priority, sequence.goal is Goal.EXTEND, sequence.number)

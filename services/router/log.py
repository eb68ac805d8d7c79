"""The log of one request: the ids that the router has accepted, in order, and who may append to it (I1).

An append is idempotent: the part of a run that overlaps the log has to be equal, the rest is appended, a
run that starts past the end waits. Only the current term and the one named to follow it may append. The end
is decided here: by a stop id, by length, or by the owner's Finished once the log is as long as it says. No
clock, no messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from shared.errors import Divergence, InvariantBroken
from shared.wire.messages import FinishReason, TokenLogprob

Logprobs = tuple[TokenLogprob, ...] | None


@dataclass(frozen=True, slots=True)
class Run:
    """Ids from absolute position `start` on; `logprobs` as long as `ids`, or None."""

    start: int
    ids: tuple[int, ...]
    logprobs: Logprobs = None

    def after(self, position: int) -> Run:
        """The part at and after `position`."""
        skip = max(0, position - self.start)
        if not skip:
            return self
        return Run(
            self.start + skip, self.ids[skip:], None if self.logprobs is None else self.logprobs[skip:]
        )

    def upto(self, count: int) -> Run:
        """The first `count` ids."""
        if count >= len(self.ids):
            return self
        return Run(self.start, self.ids[:count], None if self.logprobs is None else self.logprobs[:count])


@dataclass(frozen=True, slots=True)
class End:
    at: int  # the log's final length
    reason: FinishReason


@dataclass(slots=True)
class Outcome:
    """What an append did: new parts of the log in order, whether its term took over, whether its sender
    diverged.
    """

    runs: list[tuple[int, Run]] = field(default_factory=list)  # (term, part)
    took_over: bool = False
    stale: bool = False
    fault: Divergence | None = None


class Log:
    """Ids from position 0 on. Terms only grow; the log only grows until it ends."""

    def __init__(
        self, prompt: Sequence[int], max_pos: int, stop_ids: Sequence[int], tokens_ahead: int
    ) -> None:
        self.ids = list(prompt)
        self.prompt_len = len(self.ids)
        self.max_pos = max_pos
        self.current = 0  # the owner's term; 0: none was named yet
        self.following = 0  # a term that may take over by its first run; 0: none
        self.end: End | None = None
        self.gap_since: float | None = None
        self.overflowed = 0  # ids of runs ahead that found no room
        self._stops = frozenset(stop_ids)
        self._ahead = tokens_ahead
        self._held: list[tuple[int, Run]] = []
        self._finish: tuple[int, End] | None = None
        self._reach: dict[int, int] = {}  # term -> length up to which its sender is known to have ids

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def made(self) -> int:
        """Output ids so far."""
        return len(self.ids) - self.prompt_len

    @property
    def held(self) -> int:
        """Ids of runs that wait for a gap to close."""
        return sum(len(run.ids) for _, run in self._held)

    def own(self, term: int) -> None:
        """`term` owns from now on; everything of older terms is dropped from here."""
        if term <= self.current:
            raise InvariantBroken(f"term {term} follows {self.current}: terms have to grow")
        self.current = term
        self.following = 0
        self._forget_older()

    def follow(self, term: int) -> None:
        """`term` may take over by its first run (0: nobody may). It has to be newer than the current one."""
        if term and term <= self.current:
            raise InvariantBroken(f"term {term} cannot follow {self.current}")
        self.following = term
        self._forget_older()

    def append(self, now: float, term: int, run: Run) -> Outcome:
        """Take a run in. See the module's docstring for the rules."""
        outcome = Outcome()
        if self.end is not None or not term or term not in (self.current, self.following) or not run.ids:
            outcome.stale = True
            return outcome
        if run.start < self.prompt_len:
            outcome.fault = Divergence(f"a run starts at {run.start}, inside the prompt of {self.prompt_len}")
            return outcome
        if run.start > len(self.ids):
            self._hold(now, term, run)
            return outcome
        self._join(term, run, outcome)
        self._join_held(outcome)
        self._settle_finish()
        self._note_gap(now, progress=bool(outcome.runs))
        return outcome

    def finish(self, now: float, term: int, at: int, reason: FinishReason) -> bool:
        """An owner's Finished: it ends the log once the log is `at` long and `term` is current. False: it
        is stale.
        """
        if self.end is not None or not term or term not in (self.current, self.following):
            return False
        self._finish = (term, End(at, reason))
        self._reach[term] = max(self._reach.get(term, 0), at)
        self._settle_finish()
        self._note_gap(now)
        return True

    def asked_again(self, now: float) -> None:
        """The missing ids were asked for: the gap counts from now."""
        self.gap_since = now

    def cut_short(self, at: int) -> None:
        """A stop string was found: the log ends at `at`, which may lie before ids already accepted."""
        if not self.prompt_len <= at <= len(self.ids):
            raise InvariantBroken(f"a stop at {at} outside {self.prompt_len}..{len(self.ids)}")
        self.end = End(at, FinishReason.STOP)

    def _join(self, term: int, run: Run, outcome: Outcome) -> None:
        """Append what is new of a run that leaves no gap."""
        offset = len(self.ids) - run.start
        overlap = self.ids[run.start : run.start + len(run.ids)]
        if tuple(overlap) != run.ids[: len(overlap)]:
            outcome.fault = Divergence(
                f"the run of term {term} at {run.start} differs from the log within {len(overlap)} ids"
            )
            return
        if term != self.current:
            self.current, self.following = term, 0
            outcome.took_over = True
            self._forget_older()
        if offset >= len(run.ids):
            return
        fresh = run.after(len(self.ids))
        taken = 0
        for token in fresh.ids:
            self.ids.append(token)
            taken += 1
            if token in self._stops:
                self.end = End(len(self.ids), FinishReason.STOP)
            elif len(self.ids) >= self.max_pos:
                self.end = End(len(self.ids), FinishReason.LENGTH)
            if self.end is not None:
                break
        outcome.runs.append((term, fresh.upto(taken)))

    def _join_held(self, outcome: Outcome) -> None:
        """Append held runs that the log has reached."""
        while self._held and self.end is None and outcome.fault is None:
            for at, (term, run) in enumerate(self._held):
                if run.start <= len(self.ids):
                    del self._held[at]
                    self._join(term, run, outcome)
                    break
            else:
                return

    def _hold(self, now: float, term: int, run: Run) -> None:
        if self.held + len(run.ids) > self._ahead:
            self.overflowed += len(run.ids)
        else:
            self._held.append((term, run))
        self._reach[term] = max(self._reach.get(term, 0), run.start + len(run.ids))
        self._note_gap(now)

    def _note_gap(self, now: float, progress: bool = False) -> None:
        if self.end is not None or max(self._reach.values(), default=0) <= len(self.ids):
            self.gap_since = None
        elif self.gap_since is None or progress:
            self.gap_since = now

    def _forget_older(self) -> None:
        allowed = (self.current, self.following)
        self._held = [(term, run) for term, run in self._held if term in allowed]
        self._reach = {term: reach for term, reach in self._reach.items() if term in allowed}
        if max(self._reach.values(), default=0) <= len(self.ids):
            self.gap_since = None
        if self._finish is not None and self._finish[0] not in allowed:
            self._finish = None

    def _settle_finish(self) -> None:
        if self.end is None and self._finish is not None:
            term, end = self._finish
            if term == self.current and end.at == len(self.ids):
                self.end = end

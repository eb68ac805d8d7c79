"""The agentic trace as requests with prompts: a window of it, laid on a ring as the transport's benchmark
does, at the pace that loads a line as wanted.

The trace has lengths and shared prefixes only. Texts are made up from a seed so that what shares a prefix
there shares ids here; where a request goes on from all of an earlier one, the earlier answer stands in it.
Where the trace is not there, sessions of its kind are drawn.
"""

from __future__ import annotations

import gzip
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.simulation.timed import answer_of, seed_for

LONGEST = 256_000
"""Input tokens of a request at most; the trace has 7% that are longer, few enough to make samples uneven."""

EDGE = 64
"""Tokens that shared prefixes are rounded to in the trace."""

Row = tuple[float, int, int, int, int, float, float]
"""One request of the trace: t, input and output tokens, parent, shared tokens, think and api seconds."""


class _Line(msgspec.Struct, frozen=True):
    session: int
    requests: list[Row]


def rows_of(path: Path, most: int | None = None) -> list[list[Row]]:
    """All sessions of a trace. Raises OSError, msgspec.ValidationError where it is none."""
    found = []
    with gzip.open(path) as lines:
        for line in lines:
            found.append(msgspec.json.decode(line, type=_Line).requests)
            if most is not None and len(found) >= most:
                break
    return found


def drawn_rows(seed: int, sessions: int = 300) -> list[list[Row]]:
    """Sessions in the trace's proportions: most turns add little, few add very much."""
    draw = random.Random(f"rows {seed}")
    return [_drawn_session(draw) for _ in range(sessions)]


def _drawn_session(draw: random.Random) -> list[Row]:
    at, rows = 0.0, list[Row]()
    length = int(draw.lognormvariate(math.log(30_000), 0.8))
    for turn in range(1 + int(draw.expovariate(1 / 40))):
        answer = max(1, int(draw.lognormvariate(math.log(220), 1.1)))
        parent = turn - 1 if turn and draw.random() > 0.02 else -1
        shared = rows[parent][1] // EDGE * EDGE if parent >= 0 else 0
        rows.append((at, length, answer, parent, shared, 0.0, 0.0))
        length += answer + int(draw.lognormvariate(math.log(350), 1.6))
        at += draw.lognormvariate(math.log(18), 1.0)
    return rows


@dataclass(frozen=True, slots=True)
class Asked:
    """One request: `at` in seconds of the window. `lacks`: tokens that a decoder with every earlier part of
    the session has no KV of.
    """

    at: float
    session: int
    index: int
    lacks: int


class TraceLoad:
    """A window of `seconds`. `pace`: requests are laid on a ring so long that their missing tokens come at
    this rate.
    """

    def __init__(self, sessions: Sequence[Sequence[Row]], seed: int, *, pace: float, seconds: float) -> None:
        self._sessions = sessions
        self._seed = seed
        total = sum(self._lacks(rows, row) for rows in sessions for row in rows if row[1] <= LONGEST)
        ring = total / pace
        draw = random.Random(f"ring {seed}")
        asked, self.warm = list[Asked](), set[tuple[int, int]]()
        for number, rows in enumerate(sessions):
            start = draw.random() * ring
            laps: dict[int, set[int]] = {}
            for index, row in enumerate(rows):
                lap, at = divmod(start + row[0], ring)
                if row[1] > LONGEST or at >= seconds:
                    continue
                inside = laps.setdefault(int(lap), set())
                inside.add(index)
                asked.append(Asked(at, number, index, self._lacks(rows, row)))
                if row[3] >= 0 and row[3] not in inside:
                    self.warm.add((number, row[3]))
        self.asked = sorted(asked, key=lambda each: (each.at, each.session, each.index))

    @property
    def lacking(self) -> int:
        """Tokens that all requests of the window lack at a decoder."""
        return sum(each.lacks for each in self.asked)

    def outputs(self, session: int, index: int) -> int:
        """Ids of a request's answer."""
        return max(1, self._sessions[session][index][2])

    def seed_of(self, session: int, index: int) -> int:
        """The request's seed, which says its answer."""
        number = (self._seed * 1_000_003 + session) * 4099 + index
        return seed_for(number, self.outputs(session, index))

    def prompt(self, session: int, index: int) -> list[int]:
        """Its ids."""
        return self._prefix(session, index, self._sessions[session][index][1])

    def said(self, session: int, index: int) -> list[int]:
        """Prompt and answer."""
        row = self._sessions[session][index]
        return self._prefix(session, index, row[1] + max(1, row[2]))

    # --- texts ----------------------------------------------------------------------------------------------

    def _prefix(self, session: int, index: int, length: int) -> list[int]:
        parts = list[list[int]]()
        for at, start, end in self._pieces(session, index, length):
            parts.append(self._own(session, at, start, end))
        return [id_ for part in reversed(parts) for id_ in part]

    def _pieces(self, session: int, index: int, length: int) -> Iterator[tuple[int, int, int]]:
        """(request, first, end): whose own tokens stand where, from the end to the beginning."""
        rows = self._sessions[session]
        while length > 0:
            base = self._base(rows, rows[index])
            if length > base:
                yield index, base, length
                length = base
            index = rows[index][3]

    def _own(self, session: int, index: int, start: int, end: int) -> list[int]:
        length = self._sessions[session][index][1]
        ids = list(
            random.Random(f"{self._seed} {session} {index}").randbytes(max(0, min(end, length) - start))
        )
        if end > length:
            ids += answer_of(self.seed_of(session, index), length)[: end - length]
        return ids

    @staticmethod
    def _base(rows: Sequence[Row], row: Row) -> int:
        """How much of its parent's prompt and answer a request begins with."""
        if row[3] < 0:
            return 0
        parent = rows[row[3]]
        whole = parent[1] + max(1, parent[2])
        return whole if row[4] >= parent[1] - EDGE and row[1] >= whole else min(row[4], parent[1])

    @classmethod
    def _lacks(cls, rows: Sequence[Row], row: Row) -> int:
        return row[1] - cls._base(rows, row)

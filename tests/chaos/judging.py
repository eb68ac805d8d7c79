"""What a client was told, against what the synthetic engine must say: wrong, doubled and missing ids, and
errors that the failure table does not allow. Knows no sockets and no faults beyond when they were."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

CLIENTS = ("disconnect", "slow_reader")
"""Faults that are clients' ways, not the script's."""
_IN_FLIGHT = 0.5  # seconds in which a request may be on its way to a router that begins to drain
_SEEN = 6  # ids that have to agree for a run to be found again elsewhere


@dataclass(frozen=True)
class Difference:
    """How two runs of ids differ: counts of ids of each kind; all zero where they do not."""

    wrong: int = 0
    duplicated: int = 0
    missing: int = 0
    at: int = -1

    def __bool__(self) -> bool:
        return self.at >= 0


def difference(told: Sequence[int], expected: Sequence[int], *, ended: bool) -> Difference:
    """`told` has to be the beginning of `expected`, and all of it where the answer has `ended`."""
    same = next((at for at, (a, b) in enumerate(zip(told, expected, strict=False)) if a != b), None)
    if same is None:
        if len(told) > len(expected):
            return Difference(duplicated=len(told) - len(expected), at=len(expected))
        if ended and len(told) < len(expected):
            return Difference(missing=len(expected) - len(told), at=len(told))
        return Difference()
    rest = list(told[same : same + _SEEN])
    if len(rest) == _SEEN:
        for shift in range(1, len(expected)):
            if same >= shift and list(expected[same - shift : same - shift + _SEEN]) == rest:
                return Difference(duplicated=shift, at=same)
            if list(expected[same + shift : same + shift + _SEEN]) == rest:
                return Difference(missing=shift, at=same)
    return Difference(wrong=len(told) - same, at=same)


Span = tuple[float, float]
"""Of loop time."""


@dataclass
class Trouble:
    """When something was broken on purpose. `router` spans also end streams rightly, and `draining` ones what
    was asked after their beginning. `away`: when each node could not be asked, until it answered again;
    `fellows`: the workers of each role without which no answer goes on."""

    spans: list[Span] = field(default_factory=list)
    router: list[Span] = field(default_factory=list)
    draining: list[Span] = field(default_factory=list)
    away: dict[str, list[Span]] = field(default_factory=dict)
    fellows: Sequence[Collection[str]] = ()

    def during(self, began: float, ended: float, *, after: float) -> bool:
        """Whether anything was broken in this time, or up to `after` seconds before it."""
        return any(start <= ended and stop + after >= began for start, stop in self.spans)

    def ends_rightly(self, began: float, ended: float, *, after: float) -> bool:
        """Whether a connection to the router that broke in this time broke as it must."""
        if any(start <= ended and stop + after >= began for start, stop in self.router):
            return True
        return any(start - _IN_FLIGHT <= began <= stop + after for start, stop in self.draining)

    def gives_up_rightly(self, now: float, waits: float, *, after: float) -> bool:
        """Whether an answer is given up at this time as it must: all workers of a role have been away for as
        long as a request waits for one, each up to `after` seconds longer than until it answered.
        """
        return any(
            all(_covered(self.away.get(name, ()), now - waits, now, after) for name in names)
            for names in self.fellows
        )

    def calm(self, began: float, ended: float) -> float:
        """Seconds of this time in which nothing was broken."""
        broken, reached = 0.0, began
        for start, stop in sorted(self.spans):
            start, stop = max(start, reached), min(stop, ended)
            if stop > start:
                broken += stop - start
                reached = stop
        return ended - began - broken


def _covered(spans: Iterable[Span], began: float, ended: float, after: float) -> bool:
    for start, stop in sorted(spans):
        if start <= began:
            began = max(began, stop + after)
    return began >= ended


@dataclass
class Tally:
    """Everything counted over a run."""

    requests: int = 0
    finished: int = 0
    left: Counter[str] = field(default_factory=Counter)  # clients, by how far their answers were
    wrong: int = 0
    duplicated: int = 0
    missing: int = 0
    hangs: int = 0
    lost: int = 0
    excused: int = 0
    given_up: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    not_allowed: Counter[str] = field(default_factory=Counter)
    pipelines: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def differs(self, found: Difference, note: str) -> None:
        """One answer's ids are not the expected ones."""
        self.wrong += found.wrong
        self.duplicated += found.duplicated
        self.missing += found.missing
        self.notes.append(f"{found} {note}")

    @property
    def survived(self) -> float:
        """Part of the accepted requests that came to their end, without those that the failure table ends."""
        told = self.finished + self.lost
        return self.finished / told if told else 1.0


def verdict(
    tally: Tally,
    faults: Mapping[str, int],
    leaks: Mapping[str, Mapping[str, float]],
    recovery: Sequence[float],
    crashes: Sequence[str],
) -> dict[str, object]:
    """The one line of a run."""
    return {
        "faults": dict(faults),
        "requests": tally.requests,
        "wrong_tokens": tally.wrong,
        "duplicated": tally.duplicated,
        "missing": tally.missing,
        "client_errors": dict(tally.errors),
        "errors_not_allowed": dict(tally.not_allowed),
        "hangs": tally.hangs,
        "leaks": {node: dict(found) for node, found in leaks.items()},
        "survived_ratio": round(tally.survived, 5),
        "recovery_s": [round(one, 2) for one in recovery],
        "finished": tally.finished,
        "left": dict(tally.left),
        "ended_with_the_router": tally.excused,
        "given_up_without_workers": tally.given_up,
        "pipelines": dict(tally.pipelines),
        "crashes": list(crashes),
    }


def is_red(line: Mapping[str, object]) -> bool:
    """Whether a run has failed by what it found, timing aside."""
    keys = ("wrong_tokens", "duplicated", "missing", "hangs", "leaks", "crashes")
    return any(line[key] for key in keys)


@dataclass(frozen=True)
class Must:
    """What a run of full length has to show beside being right."""

    faults: int = 150
    windows: int = 8
    survived: float = 0.99
    recovery: float = 5.0  # seconds


def missed(line: Mapping[str, Any], must: Must) -> list[str]:
    """What of it a run has not shown."""
    broken = sum(count for kind, count in line["faults"].items() if kind not in CLIENTS)
    found = []
    if broken < must.faults:
        found.append(f"{broken} faults, not {must.faults}")
    if len(line["recovery_s"]) < must.windows:
        found.append(f"{len(line['recovery_s'])} quiet windows, not {must.windows}")
    if line["survived_ratio"] < must.survived:
        found.append(f"{line['survived_ratio']:.2%} survived, not {must.survived:.0%}")
    if late := [one for one in line["recovery_s"] if one > must.recovery]:
        found.append(f"recovery took {max(late)} s, not {must.recovery:g}")
    if line["errors_not_allowed"]:
        found.append(f"errors that are not allowed: {line['errors_not_allowed']}")
    return found

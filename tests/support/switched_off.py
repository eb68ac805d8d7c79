"""Checks of ledger, log and lifecycle, each by a name, and how it is switched off: what a test that is to see
their work has to miss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from services.router.endings import Endings
from services.router.lifecycle import Request
from services.router.log import Log, Outcome, Run
from services.router.orders import Orders
from shared.kv.ledger import Ledger
from shared.kv.ranges import Ranges

Patch = Callable[[type, str, Any], None]
"""Puts something else in an attribute's place."""


def accept_damage(patch: Patch) -> None:
    """A chunk whose checksum is wrong counts as received."""
    patch(Ledger, "damaged", Ledger.verified)


def publish_early(patch: Patch) -> None:
    """A block counts as whole with its first chunk."""
    patch(Ranges, "covers", lambda ranges, first, end: True)


def append_twice(patch: Patch) -> None:
    """The part of a run that the log has is appended again."""
    join = Log._join

    def append(log: Log, term: int, run: Run, outcome: Outcome) -> None:
        join(log, term, Run(len(log), run.ids, run.logprobs), outcome)

    patch(Log, "_join", append)


def name_terms_twice(patch: Patch) -> None:
    """A term does not grow with every owner."""
    patch(Request, "next_term", lambda r: max(r.term, 1))


def forget_releases(patch: Patch) -> None:
    """Workers are not told that a request is over."""
    patch(Orders, "release", lambda orders, r, leg, *, align=False: orders.drop(leg))


def forget_alignments(patch: Patch) -> None:
    """Main decode is owed nothing when an answer ends early."""

    def align(endings: Any, now: float, r: Any) -> None:
        endings._release_all(r)
        endings._close(now, r)

    patch(Endings, "_align", align)


CHECKS: Mapping[str, Callable[[Patch], None]] = {
    one.__name__: one
    for one in (
        accept_damage,
        publish_early,
        append_twice,
        name_terms_twice,
        forget_releases,
        forget_alignments,
    )
}

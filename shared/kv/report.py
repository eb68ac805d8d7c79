"""What a receiver tells a sender of a ticket."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from shared.kv.ticket import Ticket


@dataclass(frozen=True, slots=True)
class Report:
    """The content of a Have. Ranges are verified bytes as (block, first, end), counted from the block's
    start.

    The sender sends the blocks of `needs` ([first, end) in the chain) again, less their `ranges`.
    """

    published: int
    ranges: tuple[tuple[int, int, int], ...]
    needs: tuple[tuple[int, int], ...]
    complete: bool

    @classmethod
    def of(cls, ticket: Ticket, needs: Iterable[int]) -> Report:
        ranges = tuple(
            (index, first, end)
            for index in sorted(ticket.landings)
            for first, end in ticket.landings[index].verified
        )
        return cls(ticket.published, ranges, runs(sorted(needs)), ticket.complete)


def runs(indices: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Ascending indices as [first, end) runs."""
    made: list[tuple[int, int]] = []
    for index in indices:
        if made and made[-1][1] == index:
            made[-1] = (made[-1][0], index + 1)
        else:
            made.append((index, index + 1))
    return tuple(made)

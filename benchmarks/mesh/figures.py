"""Numbers over many requests: quantiles, and goodput under bounds that a service promises."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.simulation.clients import Client


def quantile(values: Iterable[float], part: float) -> float:
    """The value that `part` of all do not exceed; nan of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


def median(values: Sequence[float]) -> float:
    """The middle one; nan of none."""
    return statistics.median(values) if values else float("nan")


@dataclass(frozen=True, slots=True)
class Promise:
    """What an answer has to keep to count: seconds to the second id at most, mean seconds between ids at
    most."""

    ttst: float = 10.0
    itl: float = 0.1

    def kept(self, client: Client) -> bool:
        """Whether a request was answered, and as promised."""
        return client.outcome == "done" and client.ttst <= self.ttst and client.itl <= self.itl


def done(clients: Iterable[Client]) -> list[Client]:
    """Those that were answered to the end."""
    return [each for each in clients if each.outcome == "done"]


def refused(clients: Iterable[Client]) -> list[Client]:
    """Those that were sent away with 429 or 503."""
    return [each for each in clients if each.outcome == "refused"]


def goodput(clients: Iterable[Client], seconds: float, promise: Promise) -> float:
    """Answers a second that kept the promise."""
    return sum(promise.kept(each) for each in clients) / seconds


def relay_share(clients: Iterable[Client]) -> float:
    """Part of all ids that relays drew."""
    ended = done(clients)
    return sum(each.relayed for each in ended) / max(1, sum(each.made for each in ended))

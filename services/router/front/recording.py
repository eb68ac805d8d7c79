"""Clients' requests as root spans of their traces. Knows no endpoint and no collector."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from services.router.front.intake import Call
from shared.runtime.tracing import Span, is_recorded

FAILED = 500


@dataclass(frozen=True, slots=True)
class Recording:
    """How traces begin here, and where spans go."""

    begin: Callable[[str], str]
    """The request's own `traceparent` from its client's (or empty)."""
    emit: Callable[[Iterable[Span]], None]

    def ended(self, call: Call, end: float, status: int, facts: Mapping[str, Any], error: str = "") -> None:
        """A request is over; of its facts, those that are plain values are told."""
        if not is_recorded(call.parent):
            return
        told = {
            f"pdd.{name}": value
            for name, value in facts.items()
            if isinstance(value, str | int | float | bool) and value != ""
        }
        told["http.response.status_code"] = status
        failure = error or (f"status {status}" if status >= FAILED else "")
        root = Span("request", call.parent, call.started, end, told, failure, above=call.client, root=True)
        self.emit([root])

"""What the demo asks, in order, and how fast its line is: both follow from how fast this machine is.

Knows nothing of processes, sockets or HTTP, so that the same acts can be played in virtual time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scripts.demo import texts

LONG = 1536
"""Tokens of the long prompt, about."""
_SINGULAR = 1280
_SHORT_ANSWER = 64
_LINE_TIMES_PREFILL = 3.0
_MOST_TOKENS = 4000
"""Of the long answer, whatever the line's rate; the context has room for it."""


@dataclass(frozen=True, slots=True)
class Measured:
    """This machine, on one thread: seconds of the long prefill and of a decode step, bytes of its KV."""

    prefill: float
    step: float
    kv_bytes: float

    def line_rate(self) -> float:
        """Mbit/s of a line on which the long prompt's KV takes three times its prefill."""
        return 8e-6 * self.kv_bytes / (_LINE_TIMES_PREFILL * self.prefill)

    def line_seconds(self, rate_mbit: float) -> float:
        """Seconds that the long prompt's KV takes on a line."""
        return 8e-6 * self.kv_bytes / rate_mbit


@dataclass(frozen=True, slots=True)
class Act:
    """One request."""

    name: str
    what: str  # it shows
    text: str  # what the user says
    max_tokens: int
    min_tokens: int = 0
    goes_on: bool = False  # with the conversation of the act before
    flushed: bool = False  # all workers' caches are dropped before it
    without: Sequence[str] = ()


def acts(measured: Measured, rate_mbit: float, count: Callable[[str], int]) -> list[Act]:
    """The five requests; `count` says how many tokens a text has."""
    answer = min(_MOST_TOKENS, int(1.1 * measured.line_seconds(rate_mbit) / measured.step) + 96)
    long_text = texts.notes(1, LONG - 60, count) + texts.QUESTION
    singular_text = texts.notes(2, _SINGULAR, count) + texts.SINGULAR
    return [
        Act(
            "long",
            "no hit anywhere, and an answer that outlives the line",
            long_text,
            answer,
            min_tokens=answer - 16,
        ),
        Act("followup", "the next turn: only missing blocks cross", texts.FOLLOW_UP, 48, goes_on=True),
        Act(
            "md_local",
            "a turn so short that main decode extends it alone",
            texts.SHORT_TURN,
            24,
            goes_on=True,
        ),
        Act("singular", "a long new prompt, a very short answer", singular_text, 4),
        Act(
            "relay_off",
            "the first prompt again, caches flushed, relay off",
            long_text,
            _SHORT_ANSWER,
            min_tokens=_SHORT_ANSWER - 16,
            flushed=True,
            without=("relay",),
        ),
    ]

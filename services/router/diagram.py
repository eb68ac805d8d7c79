"""The tables of phases and legs as Mermaid state diagrams, for the documentation."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from services.router.legs import DECODER_TABLE, PREFILL_TABLE, LegState
from services.router.phases import TABLE, Phase

S = TypeVar("S", bound=Enum)
E = TypeVar("E", bound=Enum)


def mermaid(table: Mapping[tuple[S, E], S], first: S) -> str:
    """A state diagram of a (state, event) table; events that lead the same way share an arrow."""
    arrows: dict[tuple[S, S], list[E]] = {}
    for (state, event), after in table.items():
        arrows.setdefault((state, after), []).append(event)
    lines = ["stateDiagram-v2", f"    [*] --> {first.value}"]
    lines += [
        f"    {state.value} --> {after.value}: {', '.join(event.value for event in events)}"
        for (state, after), events in arrows.items()
    ]
    return "\n".join(lines) + "\n"


def diagrams() -> dict[str, str]:
    """All tables by title."""
    return {
        "Who draws a request's ids": mermaid(TABLE, Phase.PLACING),
        "A decoder's part": mermaid(DECODER_TABLE, LegState.ASKED),
        "A prefill's part": mermaid(PREFILL_TABLE, LegState.ASKED),
    }

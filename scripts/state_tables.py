"""The state machines of the source as Markdown: diagrams of who may follow whom, tables of what is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from services.router.diagram import diagrams, mermaid
from shared.kv.ticket import BLOCK_TABLE, TICKET_TABLE, BlockState, TicketState
from shared.worker.attach_table import ATTACH_TABLE, AttachEvent
from shared.worker.part import TABLE, Stage, Told
from shared.worker.sources import SourceState


def state_lines() -> Iterator[str]:
    """All of them, by title."""
    for title, text in diagrams().items():
        yield from _drawn(f"{title} (router)", text)
    yield "\n### A request at a decoder\n"
    yield from _table("stage", [one.value for one in Stage], [one.value for one in Told], _act)
    yield "\n### A transfer at its sender\n"
    yield "What becomes of it, by how far its request is at the sender.\n"
    yield from _table(
        "event", [one.value for one in AttachEvent], [one.value for one in SourceState], _outcome
    )
    ticket = mermaid(TICKET_TABLE, TicketState.OPEN)
    yield from _drawn("A ticket at its receiver", ticket)
    yield from _drawn("A block of a ticket", mermaid(BLOCK_TABLE, BlockState.WANTED))


def _drawn(title: str, text: str) -> Iterator[str]:
    yield f"\n### {title}\n"
    yield f"```mermaid\n{text}```"


def _table(
    corner: str, rows: list[str], columns: list[str], cell: Callable[[str, str], str]
) -> Iterator[str]:
    yield f"| {corner} | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 1)}"
    yield from (f"| {row} | {' | '.join(cell(row, column) for column in columns)} |" for row in rows)


def _act(stage: str, told: str) -> str:
    found = TABLE.get((Stage(stage), Told(told)))
    return "" if found is None else found.value


def _outcome(event: str, state: str) -> str:
    return ATTACH_TABLE[SourceState(state), AttachEvent(event)].value

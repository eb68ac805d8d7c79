"""Drives a runner by hand: one object per sequence, any split into steps, any mix of sequences in a step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from shared.engine.api import Draw, Drawn, Runner, SamplingParams, StepPlan, WorkItem, ids_of


def greedy(**changes: Any) -> SamplingParams:
    """Parameters that take the best score, changed as given."""
    return SamplingParams(**({"max_pos": 1 << 20, "seed": 5, "temperature": 0.0} | changes))


@dataclass
class Row:
    """One sequence: its ids so far, how many have KV, and the pool blocks it may use."""

    seq: int
    ids: list[int]
    blocks: Sequence[int]
    params: SamplingParams = field(default_factory=greedy)
    done: int = 0
    prompt_len: int = 0
    drawn: list[Drawn] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_len = self.prompt_len or len(self.ids)

    def item(self, count: int, block_tokens: int) -> WorkItem:
        """The next `count` ids; a draw where they are the last known."""
        end = min(self.done + count, len(self.ids))
        blocks = tuple(self.blocks[: -(-end // block_tokens)])
        draw = None
        if end == len(self.ids):
            draw = Draw(ids_of(self.ids, self.params), end, self.prompt_len, self.params)
        return WorkItem(self.seq, self.done, tuple(self.ids[self.done : end]), blocks, draw)


def step(runner: Runner, rows: Sequence[tuple[Row, int]], ended: Sequence[int] = ()) -> None:
    """One step of `count` ids for each row; what is drawn is appended. An item's error is raised."""
    items = tuple(row.item(count, runner.layout.block_tokens) for row, count in rows)
    result = runner.execute(StepPlan(items, tuple(ended)))
    for (row, _), item, outcome in zip(rows, items, result.drawn, strict=True):
        if isinstance(outcome, Exception):
            raise outcome
        row.done += len(item.ids)
        if outcome is not None:
            row.drawn.append(outcome)
            row.ids.append(outcome.id)


def finish(runner: Runner, rows: Sequence[Row], tokens: int, chunk: int = 1 << 20) -> list[list[int]]:
    """Steps until each row has drawn `tokens` ids; all rows that lack some take part in every step."""
    while lacking := [row for row in rows if len(row.drawn) < tokens]:
        step(runner, [(row, chunk) for row in lacking])
    return [[each.id for each in row.drawn] for row in rows]

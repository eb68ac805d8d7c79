"""Whether an item of a plan can be computed at all, looked at before anything is. No torch here."""

from __future__ import annotations

from dataclasses import dataclass

from shared.engine.api import WorkItem
from shared.errors import InvalidRequest, InvariantBroken


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a runner serves: tokens of a block, blocks of its pool, tokens of a context, ids."""

    block_tokens: int
    blocks: int
    max_context: int
    vocab: int


def refusal(item: WorkItem, bounds: Bounds) -> Exception | None:
    """Why `item` cannot be computed; None where it can."""
    end = item.start + len(item.ids)
    if not item.ids or item.start < 0 or len(item.blocks) * bounds.block_tokens < end:
        return InvariantBroken(f"sequence {item.seq}: {len(item.blocks)} blocks for positions to {end}")
    if end > bounds.max_context:
        return InvalidRequest(f"{end} tokens; the model's context is {bounds.max_context}")
    wrong = [token for token in item.ids if not 0 <= token < bounds.vocab]
    if wrong:
        return InvalidRequest(f"id {wrong[0]} is outside the vocabulary of {bounds.vocab}")
    outside = [block for block in item.blocks if not 0 <= block < bounds.blocks]
    if outside:
        return InvariantBroken(f"sequence {item.seq}: block {outside[0]} of a pool of {bounds.blocks}")
    return None

"""An engine's timing without its arithmetic: steps last, blocks are written by nobody, ids tell nothing.

For figures about policy, where 100,000 tokens of context must cost the simulator nothing. A request's seed
says how long its answer gets (`seed_for`): then the stop id is drawn, wherever it is drawn, as a model
would.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.engine.api import Draw, Drawn, StepPlan, StepResult
from shared.kv.layout import KvLayout, full_attention

STOP = 256
"""The id that ends an answer."""

VOCAB = 256
"""Ids of prompts and answers are below: small integers, which Python keeps but once."""


@dataclass(frozen=True, slots=True)
class StepCosts:
    """Seconds of a step: a base, then for each token of an extend and for each row that decodes."""

    step: float = 0.02
    token: float = 1 / 8000
    row: float = 0.0002

    def seconds(self, plan: StepPlan) -> float:
        """What this step takes."""
        if not plan.items:
            return 0.0
        sizes = [len(item.ids) for item in plan.items]
        extended = sum(size for size in sizes if size > 1)
        return self.step + self.token * extended + self.row * sum(size == 1 for size in sizes)


def small_layout(block_tokens: int) -> KvLayout:
    """The smallest layout there is: 4 bytes a token. Rates of lines are scaled to it."""
    return full_attention(layers=1, kv_heads=1, head_dim=1, block_tokens=block_tokens, dtype="float16")


def seed_for(number: int, outputs: int) -> int:
    """The seed of a request whose answer has `outputs` ids, the stop id among them."""
    return (number & 0xFFFFFFFF) << 24 | outputs


def answer_of(seed: int, prompt_len: int) -> list[int]:
    """The ids that a prompt of so many is answered with."""
    outputs = seed & 0xFFFFFF
    return [_id_at(seed, at) for at in range(prompt_len, prompt_len + outputs - 1)] + [STOP]


class TimedRunner:
    """A `Runner` that only draws. Its blocks are zeros that travel."""

    def __init__(self, layout: KvLayout, blocks: int, costs: StepCosts) -> None:
        self._layout = layout
        self._block_bytes = layout.block_bytes
        self._costs = costs
        self._memory = memoryview(bytearray(blocks * self._block_bytes))

    @property
    def layout(self) -> KvLayout:
        return self._layout

    def warm_up(self) -> None:
        """Nothing to compile."""

    def close(self) -> None:
        """Nothing to give back."""

    def view(self, block: int) -> memoryview:
        """The bytes of one block, writable."""
        size = self._block_bytes
        return self._memory[block * size : (block + 1) * size]

    def landed(self, block: int) -> None:
        """Nothing is computed from a block's bytes."""

    @property
    def counters(self) -> Mapping[str, int]:
        """Nothing is counted."""
        return {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Draw where asked."""
        drawn = tuple(None if item.draw is None else _drawn(item.draw) for item in plan.items)
        return StepResult(drawn, self._costs.seconds(plan))


def _drawn(draw: Draw) -> Drawn:
    seed = draw.params.seed
    if draw.position - draw.prompt_len + 1 >= seed & 0xFFFFFF:
        return Drawn(STOP)
    return Drawn(_id_at(seed, draw.position))


def _id_at(seed: int, position: int) -> int:
    return (seed + 7919 * position) % VOCAB

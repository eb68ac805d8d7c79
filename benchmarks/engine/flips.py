"""Case `flips`: where the same prompt draws other ids in bfloat16 when its KV is computed in other pieces.

Greedy, so that only rounding can differ. What is reported is the first id that differs and how close the two
best scores were there: near ties flip, nothing else may.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.command import say
from benchmarks.engine.options import Options
from benchmarks.engine.subjects import BLOCK_TOKENS, runner_of, some_ids
from benchmarks.report import Result, bounded
from shared.engine.api import Draw, Drawn, SamplingParams, StepPlan, WorkItem
from shared.engine.runner import TorchRunner

LENGTH = 192
TOKENS = 128
NEAR = 0.25
"""Largest gap of two scores (natural logarithms) that bfloat16 may turn round: 8 bits of scores near 32."""
PIECES: dict[str, Callable[[int], int]] = {
    "chunks of 64": lambda _left: 64,
    "chunks of 16": lambda _left: 16,
    "token by token": lambda _left: 1,
}
_PARAMS = SamplingParams(max_pos=1 << 30, seed=0, temperature=0.0, logprobs=2)
_PER = -(-(LENGTH + TOKENS) // BLOCK_TOKENS) + 1


def flips(options: Options) -> list[Result]:
    """The part of prompts that ever differ from one shot, and the largest gap at a first difference."""
    prompts = [some_ids(LENGTH, 300 + at) for at in range(3 if options.quick else 6)]
    runner = runner_of(dataclasses.replace(options, dtype="bfloat16"), _PER)
    whole = [_run(runner, prompt, lambda left: left) for prompt in prompts]
    found = []
    for name, piece in PIECES.items():
        firsts, gaps = [], []
        for prompt, expected in zip(prompts, whole, strict=True):
            drawn = _run(runner, prompt, piece)
            at = next((at for at in range(TOKENS) if drawn[at].id != expected[at].id), None)
            if at is not None:
                firsts.append(at)
                gaps.append(expected[at].top[0][1] - expected[at].top[1][1])
        say(f"flips, {name}: {len(firsts)} of {len(prompts)}, first at {sorted(firsts)}, gaps {_shown(gaps)}")
        more: dict[str, Any] = {
            "prompts": len(prompts),
            "differ": len(firsts),
            "first": sorted(firsts),
            "median_gap": round(statistics.median(gaps), 4) if gaps else None,
        }
        found.append(
            bounded(
                f"flips in bfloat16, {name}: largest gap",
                [max(gaps, default=0.0)],
                "nat",
                NEAR,
                most=True,
                **more,
            )
        )
    return found


def _run(runner: TorchRunner, prompt: list[int], piece: Callable[[int], int]) -> list[Drawn]:
    runner.close()
    ids, done = list(prompt), 0
    drawn: list[Drawn] = []
    while len(drawn) < TOKENS:
        count = min(piece(len(ids) - done), len(ids) - done)
        end = done + count
        draw = Draw((), end, len(prompt), _PARAMS) if end == len(ids) else None
        item = WorkItem(1, done, tuple(ids[done:end]), tuple(range(-(-end // BLOCK_TOKENS))), draw)
        (outcome,) = runner.execute(StepPlan((item,))).drawn
        if isinstance(outcome, Exception):
            raise outcome
        done = end
        if outcome is not None:
            drawn.append(outcome)
            ids.append(outcome.id)
    return drawn


def _shown(gaps: list[float]) -> str:
    return ", ".join(f"{gap:.3f}" for gap in sorted(gaps)) or "none"

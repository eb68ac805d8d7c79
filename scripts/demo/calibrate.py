"""Measures what the demo's line is sized by: seconds of a prefill on this machine, and of a decode step.

`python -m scripts.demo.calibrate MODEL TOKENS`, in a process of its own so that its memory goes with it.
Prints one JSON object.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

from shared.engine.api import Draw, SamplingParams, StepPlan, WorkItem
from shared.engine.loading import compiled
from shared.engine.runner import TorchRunner

BLOCK_TOKENS = 32
CHUNK = 512
DECODES = 8


def measure(model: str, tokens: int) -> dict[str, float]:
    """One prefill of `tokens` in chunks and a few decode steps behind it, on one thread in float32."""
    blocks = -(-(tokens + DECODES) // BLOCK_TOKENS)
    runner = TorchRunner(
        model,
        dtype="float32",
        kv_blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        threads=1,
        library=compiled(lambda _reason: None),  # as the workers, which say why they have none
    )
    runner.warm_up()
    params = SamplingParams(max_pos=tokens + DECODES, seed=1, temperature=0.0)
    table = tuple(range(blocks))
    ids = tuple((7 * index) % 1000 + 100 for index in range(tokens + DECODES))
    began = time.perf_counter()
    for start in range(0, tokens, CHUNK):
        end = min(start + CHUNK, tokens)
        draw = Draw((), end, tokens, params) if end == tokens else None
        runner.execute(StepPlan((WorkItem(1, start, ids[start:end], table, draw),)))
    prefill = time.perf_counter() - began
    steps = []
    for position in range(tokens, tokens + DECODES - 1):
        draw = Draw((), position + 1, tokens, params)
        item = WorkItem(1, position, ids[position : position + 1], table, draw)
        steps.append(runner.execute(StepPlan((item,))).seconds)
    block_bytes = runner.layout.block_bytes
    runner.close()
    return {
        "prefill_s": prefill,
        "decode_step_s": statistics.median(steps),
        "kv_bytes": float(tokens // BLOCK_TOKENS * block_bytes),
    }


def main() -> None:
    """Measure and print."""
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))


if __name__ == "__main__":
    main()

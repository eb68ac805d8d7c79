"""Whole steps of the GPU's runner: replayed beside launched, and what n new tokens cost."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import torch

from benchmarks.report import Result, bounded, quartiles
from shared.engine.api import Draw, SamplingParams, StepPlan, WorkItem
from shared.engine.device.runner import DeviceRunner

GREEDY = SamplingParams(max_pos=1 << 30, seed=0, temperature=0.0)
BLOCK_TOKENS = 32


def steps(directory: Path, device: str, *, tiny: bool) -> Iterator[Result]:
    """Of a real model: decode by batch, the extend curve, and what was launched or compiled late."""
    context, runs = (96, 2) if tiny else (2048, 20)
    dtype = "float32" if tiny else "bfloat16"
    batches = (1, 2) if tiny else (1, 8, 32, 64)
    per = context // BLOCK_TOKENS + 20
    runner = DeviceRunner(
        directory, dtype=dtype, kv_blocks=per * max(batches), block_tokens=BLOCK_TOKENS, device=device
    )
    launched = {batch: _decode(runner, batch, context, per, runs) for batch in batches}
    runner.warm_up()
    for batch in batches:
        replayed = _decode(runner, batch, context, per, runs)
        name = f"decode step, batch {batch}, context {context}, vs without graphs"
        ratio = quartiles([launched[batch] / replayed])
        yield Result(name, 1e3 * replayed, "ms", 1e3 * launched[batch], ratio)
    yield _curve(runner, context, per, runs, tiny=tiny)
    late = runner.counters["late_compilations"]
    yield bounded("kernels compiled after ready", [float(late)], "", 0.0, most=True)
    runner.close()


def _run(runner: DeviceRunner, items: list[WorkItem]) -> float:
    result = runner.execute(StepPlan(tuple(items)))
    for outcome in result.drawn:
        if isinstance(outcome, Exception):
            raise outcome
    return result.seconds


def _item(vocab: int, seq: int, start: int, new: int, per: int) -> WorkItem:
    end = start + new
    blocks = tuple(range(seq * per, seq * per + -(-end // BLOCK_TOKENS)))
    ids = tuple((7 * position + seq) % vocab for position in range(start, end))
    return WorkItem(seq, start, ids, blocks, Draw((), end, end, GREEDY))


def _decode(runner: DeviceRunner, batch: int, context: int, per: int, runs: int) -> float:
    for seq in range(batch):
        _run(runner, [_item(runner.vocab, seq, 0, context, per)])
    taken = [
        _run(runner, [_item(runner.vocab, seq, context + at, 1, per) for seq in range(batch)])
        for at in range(runs + 2)
    ]
    return statistics.median(taken[2:])


def _curve(runner: DeviceRunner, context: int, per: int, runs: int, *, tiny: bool) -> Result:
    counts = (1, 4) if tiny else tuple(1 << power for power in range(10))
    taken = {}
    for count in counts:
        _run(runner, [_item(runner.vocab, 0, context, count, per)])
        taken[count] = statistics.median(
            _run(runner, [_item(runner.vocab, 0, context, count, per)]) for _ in range(runs)
        )
    most = max(count for count in counts if count <= 64)
    shown = {str(count): round(1e3 * seconds, 3) for count, seconds in taken.items()}
    ratio = quartiles([taken[most] / taken[1]])
    name = f"extend of {most} at context {context} vs of 1"
    return Result(name, 1e3 * taken[most], "ms", 1e3 * taken[1], ratio, more={"milliseconds": shown})


def name_of(device: torch.device) -> str:
    """The device's name, for the results."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"

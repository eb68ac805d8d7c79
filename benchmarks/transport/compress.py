"""Compression on the wire: the same KV over the same line with and without it, also while other processes
want every processor."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.report import Result, paired, quartiles
from benchmarks.transport.course import course
from benchmarks.transport.line_cases import SKIP, Wan, over
from benchmarks.transport.loopback import Run
from benchmarks.transport.real_kv import real_kv
from shared.policy.compression import Mode

LEAST = 1.4
"""All bytes before by all bytes after, those among them that were not compressed."""


AS_WITHOUT = 0.97
"""Of the rate without, where the processors are busy: what counts as no slower."""


async def compress(
    lines: Sequence[Wan], pairs: int, folder: Path, say: Callable[[str], None]
) -> list[Result]:
    """Each line: KV that arrives a second, with and without; compared byte for byte where it arrives."""
    content = real_kv("bfloat16", folder, say)
    found = []
    for each in lines:
        found += _results(each, *await _pairs(each, pairs, content, say))
    line = replace(lines[-1], megabytes=min(lines[-1].megabytes, 768))
    with busy_processors():
        packed, plain = await _pairs(line, pairs, content, say)
    rates = [[run.rate(SKIP) * 8e-6 for run in runs] for runs in (packed, plain)]
    part = statistics.median(run.facts.get("encoded_bytes_before", 0) for run in packed)
    facts: dict[str, Any] = {"compressed_part": round(part / (line.megabytes << 20), 3)}
    name = f"compress {line.name}, busy processors / without"
    return [*found, paired(name, rates[0], rates[1], "Mbit/s", AS_WITHOUT, **facts)]


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    """A process for each processor that never waits."""
    context = multiprocessing.get_context("spawn")
    loops = [context.Process(target=_spin, daemon=True) for _ in range(os.cpu_count() or 1)]
    for each in loops:
        each.start()
    try:
        yield
    finally:
        for each in loops:
            each.kill()
            each.join()


def _spin() -> None:
    while True:
        pass


async def _pairs(
    line: Wan, pairs: int, content: Path, say: Callable[[str], None]
) -> tuple[list[Run], list[Run]]:
    """Runs with and without, in turns."""
    runs: dict[Mode, list[Run]] = {"auto": [], "off": []}
    async with course(line.impairment, say) as where:
        for pair in range(pairs):
            for mode, into in runs.items():
                into.append(
                    await asyncio.to_thread(over, replace(line, compress=mode), where, content=content)
                )
            one, other = (rates[-1].rate(SKIP) * 8e-6 for rates in runs.values())
            say(f"compress {line.name} {pair + 1}/{pairs}: {one:.0f}, without {other:.0f} Mbit/s of KV")
    return runs["auto"], runs["off"]


def _results(line: Wan, packed: Sequence[Run], plain: Sequence[Run]) -> list[Result]:
    ratios = [of_compressed(run) for run in packed]
    whole = [of_all(run) for run in packed]
    part = statistics.median(run.facts["encoded_bytes_before"] for run in packed) / (line.megabytes << 20)
    seconds = [
        (run.facts["encode_microseconds"] / 1e6) / (run.facts["encoded_bytes_before"] / 1e9)
        for run in packed
        if run.facts["encoded_bytes_before"]
    ]
    facts = {
        "compressed_part": round(part, 3),
        "encode_s_per_gb": round(statistics.median(seconds), 3) if seconds else None,
        "bit_identical": True,  # else the receiver has failed
    }
    rates = [[run.rate(SKIP) * 8e-6 for run in runs] for runs in (packed, plain)]
    cpu = [[run.cpu / ((line.megabytes << 20) / 1e9) for run in runs] for runs in (packed, plain)]
    name = f"compress {line.name}"
    return [
        Result(
            f"{name} / all bytes", statistics.median(whole), "x", 1.0, quartiles(whole), LEAST, more=facts
        ),
        Result(f"{name} / bytes compressed", statistics.median(ratios), "x", 1.0, quartiles(ratios)),
        paired(f"{name} / without", rates[0], rates[1], "Mbit/s", 1.0),
        paired(f"{name} CPU seconds per GB", cpu[0], cpu[1], "s/GB", None),
    ]


def of_compressed(run: Run) -> float:
    """Of the bytes that were compressed; 1 where none were."""
    before, after = run.facts["encoded_bytes_before"], run.facts["encoded_bytes_after"]
    return before / after if after else 1.0


def of_all(run: Run) -> float:
    """Of all bytes, compressed or not."""
    before, after = run.facts["encoded_bytes_before"], run.facts["encoded_bytes_after"]
    out = run.facts["chunk_bytes_out"]
    return (out - after + before) / out

"""Everything this project runs on a GPU, checked and timed in under ten minutes: `python -m benchmarks.gpu`.

Kernels beside float64 references; attention beside torch's SDPA and FlexAttention and the device's measured
ceilings; decode at 64k tokens of context with blocks in both orders; whole steps with and without graphs; the
extend curve. With `--device cpu --tiny` the same script runs anywhere, to see that it does. A table comes
last, and with `--out` the JSON lines go to a file.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import torch

from benchmarks.device import attention, ceilings, correctness, steps
from benchmarks.device.timing import Timer
from benchmarks.report import Result, show
from scripts.model_cache import model_dir


def main() -> None:
    """Parse options, run every part, print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", type=Path, help="a Hugging Face directory (default: SmolLM2-135M)")
    parser.add_argument("--tiny", action="store_true", help="small shapes: to see that it runs")
    parser.add_argument("--out", type=Path, help="a file for the JSON lines")
    given = parser.parse_args()
    device = torch.device(given.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here; --device cpu --tiny shows that the script runs")
    timer = Timer(device, 3 if given.tiny else 30)
    results: list[Result] = []

    def part(name: str, run: Callable[[], Iterable[Result]]) -> None:
        began = time.monotonic()
        results.extend(run())
        print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)

    with torch.inference_mode():
        top = ceilings.measure(device, timer)
        shown = ", ".join(
            f"{str(dtype).removeprefix('torch.')} {ops / 1e12:.1f} T/s"
            for dtype, ops in top.operations.items()
        )
        print(f"{steps.name_of(device)}: {top.bytes / 1e9:.3g} GB/s, {shown}", file=sys.stderr, flush=True)
        part("correctness", lambda: correctness.check(device, tiny=given.tiny))
        part("attention", lambda: attention.compare(device, timer, top, tiny=given.tiny))
        part("orders", lambda: [attention.orders(device, timer, tiny=given.tiny)])
    part("steps", lambda: steps.steps(given.model or model_dir(), given.device, tiny=given.tiny))
    show("gpu", results)
    if given.out:
        given.out.write_text("\n".join(result.line("gpu") for result in results) + "\n")


if __name__ == "__main__":
    main()

"""Benchmarks of the engine on a CPU: `python -m benchmarks.engine [CASE ...] [--quick | --full]`.

Other engines come with their own interpreter: `--vs-transformers PYTHON`, `--vs-vllm PYTHON`. Same model
directory, dtype and threads for all. Progress goes to stderr, a table and at last JSON lines to stdout, plots
to `--out`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.command import chosen, command, run, say
from benchmarks.engine.bathtub import bathtub
from benchmarks.engine.beside import handoff_step, interference
from benchmarks.engine.extend import extend
from benchmarks.engine.flips import flips
from benchmarks.engine.memory import memory
from benchmarks.engine.options import Options
from benchmarks.engine.speed import Field, decode, prefill
from benchmarks.report import Result
from scripts.model_cache import model_dir
from shared.engine.loading import compiled

ALONE: dict[str, Callable[[Options], list[Result]]] = {
    "extend": extend,
    "handoff-step": handoff_step,
    "bathtub": bathtub,
    "interference": interference,
    "flips": flips,
    "memory": memory,
}
BESIDE: dict[str, Callable[[Field, Options], list[Result]]] = {"decode": decode, "prefill": prefill}
"""Cases that are measured beside other engines."""


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = command("engine", __doc__, [*BESIDE, *ALONE])
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="a sample, to see that it runs")
    size.add_argument("--full", action="store_true", help="16 prompts in the bathtub")
    parser.add_argument(
        "--model", type=Path, help="a Hugging Face directory (default: the development model)"
    )
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float32"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--torch", action="store_true", help="the forward in torch, not in compiled code")
    parser.add_argument("--pairs", type=int, default=0, help="interleaved runs (default 7; 2 with --quick)")
    parser.add_argument("--vs-transformers", metavar="PYTHON", help="an interpreter that has transformers")
    parser.add_argument("--vs-vllm", metavar="PYTHON", help="one that has vLLM for CPUs: eager and compiled")
    parser.add_argument("--vs-vllm-eager", metavar="PYTHON", help="the same, eager only")
    parser.add_argument("--out", type=Path, default=Path("build/engine"), help="where PNG files go")
    return parser


def peers(given: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """Kinds of peers with their interpreters."""
    found = [
        ("transformers", given.vs_transformers),
        ("vllm-eager", given.vs_vllm or given.vs_vllm_eager),
        ("vllm-compiled", given.vs_vllm),
    ]
    return tuple((kind, python) for kind, python in found if python)


def main() -> None:
    """Parse options, run cases, print."""
    parser = arguments()
    given = parser.parse_args()
    names = chosen(parser, given.cases, [*BESIDE, *ALONE])
    options = Options(
        given.model or model_dir(),
        given.dtype,
        given.threads,
        given.pairs or (2 if given.quick else 7),
        given.quick,
        given.full,
        given.out,
        None if given.torch else compiled(lambda reason: say(f"torch computes: {reason}")),
        peers(given),
    )
    options.out.mkdir(parents=True, exist_ok=True)
    field: Field | None = None

    def case(name: str) -> list[Result]:
        nonlocal field
        if name in BESIDE:
            field = field or Field(options)
            return BESIDE[name](field, options)
        if field is not None:  # what other engines hold and compute is not to be beside what runs alone
            field.close()
            field = None
        return ALONE[name](options)

    try:
        run("engine", names, case)
    finally:
        if field is not None:
            field.close()


if __name__ == "__main__":
    main()

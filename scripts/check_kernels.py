"""Compiles every entry of the kernels' launch table ahead of time and judges the binaries; needs no GPU.

Fails on spills, on more shared memory than the target has, on a 16-bit product without the target's own
matrix instruction and on a float32 product that is not IEEE. `--changed` compiles what differs from the
committed record (shared/kernels/checked.json) and one entry per target; `--record` writes that record after a
full, clean run.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from importlib import metadata
from pathlib import Path

from scripts.kernel_binary import Measured, faults, read_amd, read_nvidia
from shared.kernels import aot
from shared.kernels.aot import TARGETS, WAIVERS, Entry

RECORD = Path(aot.__file__).with_name("checked.json")
ALIGNMENT = [["tt.divisibility", 16]]
ALIGNED_SCALARS = ("words", "width")
"""Scalars that are multiples of 16 in every model served, beside the strides."""


def cache_directory() -> Path:
    """$XDG_CACHE_HOME/pdd/kernels, by default under ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "pdd" / "kernels"


def measure(entry: Entry) -> Measured:
    """Compiles one entry and reads the result."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = importlib.import_module(f"shared.kernels.jit.{entry.module}")
    function = getattr(module, entry.kernel)
    constants = dict(entry.constants)
    signature: dict[str, str] = {}
    attributes: dict[tuple[int], list[list[object]]] = {}
    for index, parameter in enumerate(function.params):
        name = parameter.name
        if name in constants:
            signature[name] = "constexpr"
            continue
        pointer = name.endswith("_ptr")
        signature[name] = entry.pointer_type(name) if pointer else parameter.annotation_type
        aligned = pointer or name.startswith("stride_") or name in ALIGNED_SCALARS
        if aligned and not parameter.do_not_specialize:
            attributes[(index,)] = ALIGNMENT
    amd = entry.target.startswith("gfx")
    target = GPUTarget("hip", entry.target, 64) if amd else GPUTarget("cuda", int(entry.target[3:]), 32)
    compiled = triton.compile(
        ASTSource(function, signature, constants, attributes),
        target=target,
        options={"num_warps": entry.warps, "num_stages": entry.stages},
    )
    shared = int(compiled.metadata.shared)
    if amd:
        return read_amd(entry, compiled.asm["amdgcn"], shared, entry.warps)
    sass, usage = disassemble(compiled.asm["cubin"])
    return read_nvidia(entry, compiled.asm["ptx"], sass, usage, shared, int(compiled.metadata.num_warps))


def disassemble(cubin: bytes) -> tuple[str, str]:
    """(SASS, resource usage). The tools come with triton."""
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        commands: tuple[list[str | Path], ...] = (
            [tools / "nvdisasm", "-c", file.name],
            [tools / "cuobjdump", "--dump-resource-usage", file.name],
        )
        sass, usage = (subprocess.run(c, capture_output=True, text=True, check=True).stdout for c in commands)
    return sass, usage


def measure_in_worker(entry: Entry) -> Measured | str:
    """A compiler's failure comes back as text: it is a verdict on the entry, not on the check."""
    try:
        return measure(entry)
    except (Exception, SystemExit) as fault:  # noqa: BLE001 - the compiler raises whatever it likes
        return f"does not compile: {type(fault).__name__}: {str(fault).strip()[-400:]}"


def load(path: Path) -> Measured | None:
    try:
        fields = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    fields |= {name: tuple(fields[name]) for name in ("matrix", "precision")}
    return Measured(**fields)


def measure_all(
    wanted: list[tuple[Entry, str]], workers: int, cold: bool
) -> dict[tuple[str, str], Measured | str]:
    """Cached by digest; failures are never cached. Prints a line for each entry as it is known."""
    cache = cache_directory()
    cache.mkdir(parents=True, exist_ok=True)
    results: dict[tuple[str, str], Measured | str] = {}
    missing = []
    for entry, digest in wanted:
        known = None if cold else load(cache / f"{digest}.json")
        if known is None:
            missing.append((entry, digest))
        else:
            results[entry.key] = known
    print(f"{len(wanted)} entries, {len(missing)} to compile")
    if missing:
        # Fresh processes: a compiler that dies, or state of an earlier compilation, must not reach the
        # others.
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(workers, mp_context=context) as pool:
            for (entry, digest), found in zip(
                missing, pool.map(measure_in_worker, [entry for entry, _ in missing]), strict=True
            ):
                results[entry.key] = found
                if isinstance(found, Measured):
                    partial = cache / f"{digest}.{os.getpid()}"
                    partial.write_text(json.dumps(asdict(found)))
                    partial.replace(cache / f"{digest}.json")
    return results


def report(wanted: Iterable[tuple[Entry, str]], results: dict[tuple[str, str], Measured | str]) -> int:
    """Prints the table; returns the number of entries that fail."""
    failing = 0
    print(f"{'target':8}{'entry':32}{'warps':>5}{'regs':>6}{'shared':>9}{'spill':>6}{'occup.':>7}  product")
    for entry, _ in wanted:
        found = results[entry.key]
        if isinstance(found, str):
            wrong, columns = [found], ""
        else:
            wrong = faults(entry, found)
            columns = (
                f"{entry.warps:>5}{found.registers:>6}{found.shared / 1024:>7.1f} K{found.spilled:>6}"
                f"{found.occupancy:>7.0%}  {' '.join(found.matrix[:2] or found.precision[:2])}"
            )
        print(f"{entry.target:8}{entry.name:32}{columns}")
        waiver = WAIVERS.get(entry.key)
        for line in wrong:
            print(f"    {'waived: ' + waiver if waiver else 'FAIL'}: {line}")
        failing += bool(wrong) and waiver is None
    return failing


def select(changed: bool, targets: list[str], version: str) -> list[tuple[Entry, str]]:
    """All entries with their digests, or those that the record does not know and the first of each target."""
    known = set(json.loads(RECORD.read_text())) if changed and RECORD.exists() else set()
    wanted = []
    for target in targets:
        for index, entry in enumerate(aot.entries(target)):
            digest = entry.digest(version)
            if not changed or index == 0 or digest not in known:
                wanted.append((entry, digest))
    return wanted


def write_record(wanted: list[tuple[Entry, str]], results: dict[tuple[str, str], Measured | str]) -> None:
    record = {}
    for entry, digest in wanted:
        found = results[entry.key]
        assert isinstance(found, Measured)
        record[digest] = [*entry.key, found.registers, found.shared, round(found.occupancy, 2)]
    lines = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in record.items())
    RECORD.write_text("{\n" + lines + "\n}\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--changed", action="store_true", help="only changed entries and one per target")
    parser.add_argument("--target", choices=TARGETS, action="append", help="only this target (may repeat)")
    parser.add_argument("--workers", type=int, default=2, help="compiler processes (default: 2)")
    parser.add_argument("--cold", action="store_true", help="compile again what the cache knows")
    parser.add_argument("--record", action="store_true", help="write the record of a full, clean run")
    options = parser.parse_args()
    if importlib.util.find_spec("triton") is None:
        print("triton is not installed here (no wheel for this machine?): kernels are not checked")
        return 0
    if os.environ.pop("TRITON_INTERPRET", None):
        print("TRITON_INTERPRET is set: ignored here, the interpreter compiles nothing")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="pdd-triton-") as scratch:
        # Triton's own cache is not used: a result here must come from a compilation by this version.
        os.environ["TRITON_CACHE_DIR"] = scratch
        wanted = select(options.changed, options.target or list(TARGETS), metadata.version("triton"))
        results = measure_all(wanted, max(1, options.workers), options.cold)
    failing = report(wanted, results)
    print(f"{len(wanted)} entries, {failing} failing, {time.monotonic() - started:.0f} s")
    if options.record and not failing and not options.changed and not options.target:
        write_record(wanted, results)
    return 1 if failing else 0


if __name__ == "__main__":
    sys.exit(main())

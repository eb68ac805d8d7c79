"""Reads a compiled kernel - PTX and SASS, or AMD assembly - and says what is wrong with it.

Pure text in, verdict out; running the compiler and the disassembler is `check_kernels`'s job.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from shared.kernels.aot import Entry


@dataclass(frozen=True)
class Device:
    """Limits of one target. Shared memory in bytes; registers are 32-bit, per multiprocessor (AMD: per SIMD
    lane).
    """

    shared_per_program: int
    shared_per_processor: int
    registers: int
    max_warps: int
    max_programs: int


KIB = 1024
DEVICES = {
    "sm_80": Device(163 * KIB, 164 * KIB, 65536, 64, 32),
    "sm_89": Device(99 * KIB, 100 * KIB, 65536, 48, 24),
    "sm_90": Device(227 * KIB, 228 * KIB, 65536, 64, 32),
    "sm_100": Device(227 * KIB, 228 * KIB, 65536, 64, 32),
    "gfx942": Device(64 * KIB, 64 * KIB, 512, 32, 32),
}

MATRIX_INSTRUCTION = {
    "sm_80": "HMMA",
    "sm_89": "HMMA",
    "sm_90": "HGMMA",
    "sm_100": "UTCHMMA",
    "gfx942": "v_mfma",
}
SMALL_TILE_ROWS = 64
"""wgmma and tcgen05 take at least 64 rows: below that, HMMA is the target's own instruction."""

PTX_MATRIX = re.compile(
    r"^\s*(?:@\S+\s+)?((?:mma\.sync|wgmma\.mma_async|tcgen05\.mma\.cta)\S*)", re.MULTILINE
)
SASS_MATRIX = re.compile(r"\b(HMMA|HGMMA|UTC[A-Z]*MMA|IMMA|QGMMA|DMMA)\b")
SASS_SPILL = re.compile(r"\b(?:STL|LDL)\b")
AMD_MATRIX = re.compile(r"\bv_mfma_\w+")
AMD_IEEE = re.compile(r"v_mfma_f32_\d+x\d+x\d+_?f32")
"""CDNA's own float32 matrix product: full precision, unlike xf32."""


@dataclass(frozen=True)
class Measured:
    """What the check prints about one entry."""

    registers: int
    shared: int
    spilled: int
    """Bytes of stack a thread (NVIDIA) or a work item (AMD) spills to, or instructions where only those show.
    """
    occupancy: float
    """Resident warps over the most the device holds."""
    matrix: tuple[str, ...]
    precision: tuple[str, ...]


def read_nvidia(entry: Entry, ptx: str, sass: str, usage: str, shared: int, warps: int) -> Measured:
    """`sass` from nvdisasm, `usage` from `cuobjdump --dump-resource-usage`."""
    registers = _field(r"\bREG:(\d+)", usage)
    spilled = max(_field(r"\bSTACK:(\d+)", usage), len(SASS_SPILL.findall(sass)))
    precision = tuple(sorted(set(PTX_MATRIX.findall(ptx)))) or _scalar_precision(ptx)
    matrix = tuple(sorted(set(SASS_MATRIX.findall(sass))))
    occupancy = nvidia_occupancy(DEVICES[entry.target], registers, shared, warps)
    return Measured(registers, shared, spilled, occupancy, matrix, precision)


def read_amd(entry: Entry, assembly: str, shared: int, warps: int) -> Measured:
    registers = _field(r"\.vgpr_count:\s+(\d+)", assembly)
    spilled = max(
        _field(r"\.vgpr_spill_count:\s+(\d+)", assembly),
        _field(r"\.private_segment_fixed_size:\s+(\d+)", assembly),
    )
    matrix = tuple(sorted(set(AMD_MATRIX.findall(assembly))))
    occupancy = amd_occupancy(DEVICES[entry.target], registers, shared, warps)
    return Measured(registers, shared, spilled, occupancy, matrix, matrix or ("v_fma_f32",))


def faults(entry: Entry, measured: Measured) -> list[str]:
    """Why the entry must not ship; empty when it may."""
    found = []
    limit = DEVICES[entry.target].shared_per_program
    if measured.spilled:
        found.append(f"spills ({measured.spilled})")
    if measured.shared > limit:
        found.append(f"takes {measured.shared} B of shared memory, the target has {limit}")
    if entry.matrix == "required":
        expected = _expected_instruction(entry)
        if not any(name.startswith(expected) for name in measured.matrix):
            found.append(f"shows {_names(measured.matrix)} where {expected} is the target's own")
        if any(not _half_product(name) for name in measured.precision):
            found.append(f"multiplies in {_names(measured.precision)}, not in its own 16-bit type")
    elif entry.target == "gfx942":
        if any(AMD_IEEE.fullmatch(name) is None for name in measured.matrix):
            found.append(f"multiplies in {_names(measured.matrix)}, must stay IEEE float32")
    elif measured.matrix or any("fma" not in name for name in measured.precision):
        found.append(f"uses {_names(measured.matrix + measured.precision)}, must stay IEEE float32")
    return found


def nvidia_occupancy(device: Device, registers: int, shared: int, warps: int) -> float:
    """Registers are given out to warps in units of 256, and a program takes 1 KiB of shared memory beside its
    own.
    """
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    by_registers = device.registers // per_warp // warps
    by_shared = device.shared_per_processor // (shared + KIB)
    programs = min(device.max_programs, device.max_warps // warps, by_registers, by_shared)
    return programs * warps / device.max_warps


def amd_occupancy(device: Device, registers: int, shared: int, warps: int) -> float:
    """Waves per SIMD by vector registers (units of 8), programs per unit of 4 SIMDs by shared memory."""
    per_wave = -(-max(registers, 1) // 8) * 8
    waves = 4 * min(8, device.registers // per_wave)
    by_shared = device.shared_per_processor // shared if shared else device.max_programs
    return min(waves // warps, by_shared) * warps / device.max_warps


def _field(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the disassembler's output has no {pattern}: its format has changed")
    return int(found.group(1))


def _scalar_precision(ptx: str) -> tuple[str, ...]:
    """How a kernel without matrix products multiplies; anything reduced shows by its name."""
    reduced = set(re.findall(r"\bcvt\S*tf32\S*", ptx))
    return tuple(sorted(reduced)) or ("fma.f32",)


def _expected_instruction(entry: Entry) -> str:
    rows = dict(entry.constants)["BLOCK_ROWS"]
    if entry.target in ("sm_90", "sm_100") and rows < SMALL_TILE_ROWS:
        return "HMMA"
    return MATRIX_INSTRUCTION[entry.target]


def _half_product(name: str) -> bool:
    """A product of bf16 or f16 into float32."""
    if name.startswith("v_mfma_f32"):
        return name.endswith(("bf16", "bf16_1k", "f16"))
    return ".f32.bf16.bf16" in name or ".f32.f16.f16" in name or "kind::f16" in name


def _names(found: tuple[str, ...]) -> str:
    return ", ".join(found) or "no matrix instruction"

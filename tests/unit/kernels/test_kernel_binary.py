"""The judge of compiled kernels: what it must refuse, on texts as the tools print them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.kernel_binary import DEVICES, Measured, faults, nvidia_occupancy, read_amd, read_nvidia
from shared.kernels.aot import Entry, entries

USAGE = "Function paged_attention:\n  REG:{reg} STACK:{stack} SHARED:0 LOCAL:0 CONSTANT[0]:588 TEXTURE:0\n"
SASS = {
    "HMMA": "        /*0a50*/ HMMA.16816.F32.BF16 R4, R8, R2, R4 ;\n",
    "HGMMA": "        /*0a50*/ HGMMA.64x64x16.F32.BF16 R24, R4, gdesc[UR8], R24, gsb0 ;\n",
    "UTCHMMA": "        /*0a50*/ UTCHMMA gdesc[UR12], gdesc[UR10], tmem[UR7], tmem[UR4], idesc[UR5] ;\n",
    "FFMA": "        /*0a50*/ FFMA R4, R8, R2, R4 ;\n",
    "STL": "        /*0a60*/ STL.64 [R1+0x8], R4 ;\n",
}
PTX = {
    "HMMA": "\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 { %r1 }, { %r2 };\n",
    "HGMMA": "\twgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {%f1}, %rd1;\n",
    "UTCHMMA": "\t@%p1 tcgen05.mma.cta_group::1.kind::f16 [ %r1 + 0 ], %rd1, %rd2, %r2, %p2;\n",
    "TF32": "\tmma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 { %r1 }, { %r2 };\n",
    "FFMA": "\tfma.rn.f32 %f1, %f2, %f3, %f4;\n",
}
AMD = "  v_mfma_f32_32x32x{product} a[0:15], v[2:3], v[4:5], a[0:15]\n .vgpr_count: 90\n"
AMD_SPILLS = " .vgpr_spill_count: {spilled}\n .private_segment_fixed_size: {private}\n"


def entry(target: str, name: str) -> Entry:
    return next(one for one in entries(target) if one.name == name)


def nvidia(target: str, name: str, sass: str, ptx: str, *, stack: int = 0, shared: int = 1024) -> list[str]:
    one = entry(target, name)
    return faults(one, read_nvidia(one, ptx, sass, USAGE.format(reg=128, stack=stack), shared, one.warps))


@pytest.mark.parametrize(
    ("target", "name", "instruction"),
    [
        ("sm_80", "attention bfloat16 128 tiled", "HMMA"),
        ("sm_89", "attention bfloat16 128 few", "HMMA"),
        ("sm_90", "attention bfloat16 128 tiled", "HGMMA"),
        ("sm_90", "attention bfloat16 128 few", "HMMA"),
        ("sm_100", "attention bfloat16 128 split", "UTCHMMA"),
        ("sm_100", "attention bfloat16 128 few", "HMMA"),
        ("sm_80", "attention float32 64 few", "FFMA"),
        ("sm_90", "rms_norm", "FFMA"),
    ],
)
def test_the_targets_own_instruction_passes(target: str, name: str, instruction: str) -> None:
    assert nvidia(target, name, SASS[instruction], PTX[instruction]) == []


def test_a_product_that_is_not_the_targets_own_fails() -> None:
    assert (
        "HGMMA is the target's own"
        in nvidia("sm_90", "attention bfloat16 128 tiled", SASS["HMMA"], PTX["HMMA"])[0]
    )
    found = nvidia("sm_80", "attention bfloat16 64 few", SASS["FFMA"], PTX["FFMA"])
    assert "no matrix instruction" in found[0]
    assert "not in its own 16-bit type" in found[1]


def test_reduced_float32_fails() -> None:
    found = nvidia("sm_80", "attention float32 64 few", SASS["HMMA"], PTX["TF32"])
    assert "tf32" in found[0]
    found = nvidia("sm_80", "attention float32 64 few", SASS["FFMA"], "\tcvt.rna.tf32.f32 %r1, %f1;\n")
    assert "tf32" in found[0]


def test_spills_fail_however_they_show() -> None:
    good = SASS["HMMA"]
    assert "spills (8)" in nvidia("sm_80", "attention bfloat16 64 few", good, PTX["HMMA"], stack=8)
    assert "spills (1)" in nvidia("sm_80", "attention bfloat16 64 few", good + SASS["STL"], PTX["HMMA"])


@pytest.mark.parametrize("target", ["sm_80", "sm_89"])
def test_too_much_shared_memory_fails(target: str) -> None:
    limit = DEVICES[target].shared_per_program
    for shared, fails in ((limit, False), (limit + 1, True)):
        found = nvidia(target, "attention bfloat16 64 few", SASS["HMMA"], PTX["HMMA"], shared=shared)
        assert bool(found) == fails


@pytest.mark.parametrize(
    ("name", "product", "passes"),
    [
        ("attention bfloat16 64 few", "8_bf16", True),
        ("attention float16 64 few", "8_f16", True),
        ("attention bfloat16 64 few", "2_f32", False),
        ("attention float32 64 few", "2_f32", True),
        ("attention float32 64 few", "4_xf32", False),
        ("attention float32 64 few", "8_bf16", False),
    ],
)
def test_amd_products(name: str, product: str, passes: bool) -> None:
    one = entry("gfx942", name)
    text = AMD.format(product=product) + AMD_SPILLS.format(spilled=0, private=0)
    assert (faults(one, read_amd(one, text, 1024, one.warps)) == []) == passes


@pytest.mark.parametrize(("spilled", "private"), [(3, 0), (0, 20)])
def test_amd_spills(spilled: int, private: int) -> None:
    one = entry("gfx942", "attention bfloat16 64 few")
    text = AMD.format(product="8_bf16") + AMD_SPILLS.format(spilled=spilled, private=private)
    assert "spills" in faults(one, read_amd(one, text, 1024, one.warps))[0]


def test_a_changed_output_format_is_an_error_not_a_pass() -> None:
    one = entry("sm_80", "rms_norm")
    with pytest.raises(ValueError, match="format has changed"):
        read_nvidia(one, "", "", "Registers: 128", 0, 4)


def test_occupancy() -> None:
    a100 = DEVICES["sm_80"]
    assert nvidia_occupancy(a100, registers=32, shared=0, warps=4) == 1.0
    assert nvidia_occupancy(a100, registers=255, shared=0, warps=8) == 8 / 64
    assert nvidia_occupancy(a100, registers=32, shared=80 * 1024, warps=4) == 8 / 64
    assert nvidia_occupancy(replace(a100, max_warps=48), registers=64, shared=0, warps=4) == 32 / 48


def test_measured_is_what_the_cache_stores() -> None:
    one = entry("sm_80", "rms_norm")
    assert faults(one, Measured(32, 0, 0, 1.0, (), ("fma.f32",))) == []

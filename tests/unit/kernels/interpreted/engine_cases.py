"""The whole forward of a GPU's runner through the kernels under the interpreter."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from shared.engine.api import Draw, SamplingParams, StepPlan, WorkItem
from shared.engine.device.model import load_device_model
from shared.engine.device.runner import DeviceRunner
from shared.kernels.launch import interpreting
from tests.support.reference import Reference
from tests.support.tiny_model import TinyShape, tiny_model

BLOCK_TOKENS = 16
"""As many as a step of keys may hold: blocks are a compile-time constant of the kernel."""


def check(shape: TinyShape) -> None:
    """A prompt in two extends beside a decoding neighbour, then decodes of both, against the reference."""
    assert interpreting()
    with tempfile.TemporaryDirectory() as directory:
        path = tiny_model(Path(directory), 3, shape)
        reference = Reference.load(path)
        model = load_device_model(path, "float32", torch.device("cpu"))
    runner = DeviceRunner(model, kv_blocks=12, block_tokens=BLOCK_TOKENS, device="cpu")
    greedy = SamplingParams(max_pos=999, seed=0, temperature=0.0)
    texts = {1: [7 * at % 250 + 3 for at in range(21)], 2: [5 * at % 200 + 9 for at in range(18)]}
    blocks = {1: (4, 9, 2), 2: (0, 11, 7)}

    def item(seq: int, start: int, end: int) -> WorkItem:
        draw = Draw((), end, 999, greedy) if end == len(texts[seq]) else None
        return WorkItem(seq, start, tuple(texts[seq][start:end]), blocks[seq], draw)

    for step in (
        [item(1, 0, 9), item(2, 0, 18)],
        [item(1, 9, 21)],
    ):
        collect(runner, step, texts)
    for _ in range(2):
        collect(runner, [item(seq, len(ids) - 1, len(ids)) for seq, ids in texts.items()], texts)
    for seq, ids in texts.items():
        prompt = {1: 21, 2: 18}[seq]
        want = reference.logits(ids)[prompt - 1 : -1].argmax(-1).tolist()
        assert ids[prompt:] == want, (seq, ids[prompt:], want)


def collect(runner: DeviceRunner, items: list[WorkItem], texts: dict[int, list[int]]) -> None:
    drawn = runner.execute(StepPlan(tuple(items))).drawn
    for each, found in zip(items, drawn, strict=True):
        if isinstance(found, Exception):
            raise found
        if found is not None:
            texts[each.seq].append(found.id)


def forward_with_groups() -> None:
    check(TinyShape(heads=6, kv_heads=2))


def forward_with_norms_per_head() -> None:
    check(TinyShape("qwen3", head_dim=32))


CASES = [forward_with_groups, forward_with_norms_per_head]

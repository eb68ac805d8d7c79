"""A tiny model beside its reference: runners over one set of weights, prompts, and the right answers."""

import random
from pathlib import Path

import torch

from shared.engine.cpu_model import CpuModel, load_model
from shared.engine.device.model import load_device_model
from shared.engine.device.runner import DeviceRunner
from shared.engine.runner import TorchRunner
from tests.support.compiled import compiled
from tests.support.reference import Reference
from tests.support.replay import generate
from tests.support.tiny_model import TinyShape, tiny_model

BLOCK_TOKENS = 4
KINDS = ("torch", "compiled", "device")
SHAPES = {
    "groups": TinyShape(heads=6, kv_heads=2),
    "one_kv_head": TinyShape("mistral", heads=4, kv_heads=1, tied=True),
    "no_groups": TinyShape(heads=3, kv_heads=3, head_dim=24),
    "biased": TinyShape("qwen2", layers=3),
    "normed": TinyShape("qwen3", head_dim=32),
}


class Case:
    """A tiny model with its reference, and runners over it that share the weights.

    `kind`: "torch" or "compiled" for those of the CPU, "device" for those of a GPU, which run here with the
    kernels' references.
    """

    def __init__(self, directory: Path, shape: TinyShape, kind: str = "torch") -> None:
        self.directory = tiny_model(directory, 3, shape)
        self.reference = Reference.load(self.directory)
        self.library = compiled() if kind == "compiled" else None
        self.model: CpuModel = load_model(self.directory, "float32", library=self.library)
        self._random = random.Random(9)
        cpu = torch.device("cpu")
        on_device = kind == "device"
        self.device_model = load_device_model(self.directory, "float32", cpu) if on_device else None

    def runner(self, blocks: int = 128, context_bytes: int = 1 << 30) -> TorchRunner | DeviceRunner:
        if self.device_model is not None:
            return DeviceRunner(self.device_model, kv_blocks=blocks, block_tokens=BLOCK_TOKENS, device="cpu")
        return self.host_runner(blocks, context_bytes)

    def host_runner(self, blocks: int = 128, context_bytes: int = 1 << 30) -> TorchRunner:
        return TorchRunner(
            self.model,
            kv_blocks=blocks,
            block_tokens=BLOCK_TOKENS,
            context_bytes=context_bytes,
            library=self.library,
        )

    def prompt(self, length: int) -> list[int]:
        return [self._random.randrange(self.model.config.vocab) for _ in range(length)]

    def answer(self, prompt: list[int], tokens: int) -> list[int]:
        return generate(self.reference, prompt, {"temperature": 0.0}, tokens)

"""A tiny model beside its reference: runners over one set of weights, prompts, and the right answers."""

import random
from pathlib import Path

from shared.engine.model import LlamaModel, load_model
from shared.engine.runner import TorchRunner
from tests.support.reference import Reference
from tests.support.replay import generate
from tests.support.tiny_model import TinyShape, tiny_model

BLOCK_TOKENS = 4
SHAPES = {
    "groups": TinyShape(heads=6, kv_heads=2),
    "one_kv_head": TinyShape("mistral", heads=4, kv_heads=1, tied=True),
    "no_groups": TinyShape(heads=3, kv_heads=3, head_dim=24),
    "biased": TinyShape("qwen2", layers=3),
    "normed": TinyShape("qwen3", head_dim=32),
}


class Case:
    """A tiny model with its reference, and runners over it that share the weights."""

    def __init__(self, directory: Path, shape: TinyShape) -> None:
        self.directory = tiny_model(directory, 3, shape)
        self.reference = Reference.load(self.directory)
        self.model: LlamaModel = load_model(self.directory, "float32")
        self._random = random.Random(9)

    def runner(self, blocks: int = 128, context_bytes: int = 1 << 30) -> TorchRunner:
        return TorchRunner(
            self.model, kv_blocks=blocks, block_tokens=BLOCK_TOKENS, context_bytes=context_bytes
        )

    def prompt(self, length: int) -> list[int]:
        return [self._random.randrange(self.model.config.vocab) for _ in range(length)]

    def answer(self, prompt: list[int], tokens: int) -> list[int]:
        return generate(self.reference, prompt, {"temperature": 0.0}, tokens)

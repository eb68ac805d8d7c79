"""The steps that are timed, the same for the engine and for the plain forward: each gives seconds."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.engine.options import Options
from benchmarks.engine.plain_forward import PlainForward
from shared.engine.api import Draw, SamplingParams, StepPlan, WorkItem
from shared.engine.linear import has_matrix_unit
from shared.engine.native.library import Library
from shared.engine.runner import TorchRunner

BLOCK_TOKENS = 32
CONTEXT = 512
LONG_CONTEXT = 2048
GREEDY = SamplingParams(max_pos=1 << 30, seed=0, temperature=0.0)


class Subject(Protocol):
    """Something that can be timed."""

    def prefill(self, tokens: int) -> float: ...

    def start(self, batch: int, context: int) -> None:
        """Bring `batch` contexts to `context` tokens."""

    def extend(self, tokens: int) -> float:
        """One step of `tokens` new ids for each context; decode is 1."""

    def back(self, tokens: int) -> None:
        """Forget the last `tokens` of each context."""


def some_ids(count: int, seed: int) -> list[int]:
    """Ids of ordinary words."""
    random = torch.Generator().manual_seed(seed)
    return torch.randint(300, 20_000, (count,), generator=random).tolist()


def runner_of(options: Options, blocks: int) -> TorchRunner:
    """The engine's runner with so many blocks."""
    return TorchRunner(
        options.directory,
        dtype=options.dtype,
        kv_blocks=blocks,
        block_tokens=BLOCK_TOKENS,
        threads=options.threads,
        library=options.library,
        matrix_unit=has_matrix_unit(),
    )


@dataclass
class EngineSubject:
    """The runner, with blocks of its own for each sequence."""

    directory: Path
    dtype: str
    threads: int
    batch: int = 0
    length: int = 0
    seq: int = 0
    ended: list[int] = field(default_factory=list)
    blocks: int = 0  # 0: enough for 16 long contexts
    library: Library | None = None  # None: torch computes

    def __post_init__(self) -> None:
        self.per_sequence = (LONG_CONTEXT + 1024) // BLOCK_TOKENS
        if self.blocks:
            self.per_sequence = self.blocks // 16
        self.runner = TorchRunner(
            self.directory,
            dtype=self.dtype,
            kv_blocks=16 * self.per_sequence,
            block_tokens=BLOCK_TOKENS,
            threads=self.threads,
            library=self.library,
            matrix_unit=has_matrix_unit(),
        )
        self.runner.warm_up()

    def _item(self, at: int, start: int, ids: list[int]) -> WorkItem:
        end = start + len(ids)
        first = at * self.per_sequence if self.batch > 1 else 0
        blocks = tuple(range(first, first + -(-end // BLOCK_TOKENS)))
        return WorkItem(self.seq + at, start, tuple(ids), blocks, Draw((), end, end, GREEDY))

    def _run(self, items: tuple[WorkItem, ...]) -> float:
        plan = StepPlan(items, tuple(self.ended))
        self.ended = []
        return self.runner.execute(plan).seconds

    def _fresh(self, batch: int) -> None:
        self.ended += range(self.seq, self.seq + self.batch)
        self.seq += self.batch
        self.batch = batch

    def prefill(self, tokens: int) -> float:
        self._fresh(1)
        return self._run((self._item(0, 0, some_ids(tokens, 1)),))

    def start(self, batch: int, context: int) -> None:
        self._fresh(batch)
        self.length = context
        for at in range(batch):
            self._run((self._item(at, 0, some_ids(context, at)),))

    def extend(self, tokens: int) -> float:
        ids = some_ids(tokens, self.length)
        seconds = self._run(tuple(self._item(at, self.length, ids) for at in range(self.batch)))
        self.length += tokens
        return seconds

    def back(self, tokens: int) -> None:
        self.length -= tokens


@dataclass
class PlainSubject:
    """The plain forward."""

    directory: Path
    dtype: str
    threads: int
    batch: int = 1

    def __post_init__(self) -> None:
        self.plain = PlainForward(self.directory, getattr(torch, self.dtype))

    def _run(self, ids: torch.Tensor) -> float:
        torch.set_num_threads(self.threads)
        began = time.perf_counter()
        self.plain.forward(ids)
        return time.perf_counter() - began

    def prefill(self, tokens: int) -> float:
        self.plain.reset(1, tokens)
        return self._run(torch.tensor([some_ids(tokens, 1)]))

    def start(self, batch: int, context: int) -> None:
        self.batch = batch
        self.plain.reset(batch, context + 1024)
        self._run(torch.tensor([some_ids(context, at) for at in range(batch)]))

    def extend(self, tokens: int) -> float:
        return self._run(torch.tensor([some_ids(tokens, self.plain.length)] * self.batch))

    def back(self, tokens: int) -> None:
        self.plain.length -= tokens

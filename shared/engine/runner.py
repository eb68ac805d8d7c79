"""Executes steps with torch on the CPU: the engine thread's side of the seam in `api`.

Holds the model, the pool's memory and the contexts of running sequences. Decides nothing: which sequence
computes what, and in which blocks, comes with the plan.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from shared.engine import huge_pages
from shared.engine.api import Draw, Drawn, SamplingParams, StepPlan, StepResult, WorkItem
from shared.engine.attempt import Outcome, outcomes
from shared.engine.attention import by_place
from shared.engine.contexts import Contexts, Part
from shared.engine.cpu_model import CpuModel, load_model
from shared.engine.native.contenders import NativeContenders
from shared.engine.native.library import Library
from shared.engine.refusal import Bounds
from shared.engine.sampler import draw_batch, score_following
from shared.engine.weights import Progress
from shared.errors import ConfigError
from shared.kv.layout import KvLayout, full_attention
from shared.kv.store import KvStore

_CONTEXT_BYTES = 256 << 20


class TorchRunner:
    """`Runner` of one model on one CPU.

    `model` is a Hugging Face directory or a model already loaded (runners of one process may share it);
    `library` is compiled code to compute and draw with, torch and numpy do it without; `matrix_unit`:
    as in `load_model`. `threads` are those of one step. `context_bytes` bounds what idle
    sequences may hold beside the pool.
    Raises ModelError for a directory that cannot be served, ConfigError for an impossible value.
    """

    def __init__(
        self,
        model: str | Path | CpuModel,
        *,
        dtype: str = "float32",
        kv_blocks: int,
        block_tokens: int,
        threads: int = 1,
        context_bytes: int = _CONTEXT_BYTES,
        progress: Progress | None = None,
        library: Library | None = None,
        matrix_unit: bool = False,
    ) -> None:
        if threads < 1 or block_tokens < 1:
            raise ConfigError(
                "model.threads", f"threads {threads}, block_tokens {block_tokens}: 1 is the least"
            )
        if isinstance(model, str | Path):
            self._model = load_model(Path(model), dtype, progress, library, matrix_unit=matrix_unit)
            huge_pages.advise()
        else:
            self._model = model
        config = self._model.config
        self._layout = full_attention(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            block_tokens=block_tokens,
            dtype=self._model.dtype,
        )
        self._store = KvStore(self._layout, kv_blocks)
        self._bounds = Bounds(block_tokens, kv_blocks, config.max_context, config.vocab)
        self._contexts = Contexts(self._store, config.max_context, context_bytes)
        self._rotary = self._model.rotary()
        self._contenders = None if library is None else NativeContenders(library)
        self._threads = threads
        self._thread: int | None = None
        self._scores: dict[int, tuple[Drawn, ...]] = {}  # of the running step, by sequence

    @property
    def layout(self) -> KvLayout:
        return self._layout

    @property
    def max_context(self) -> int:
        """Tokens of prompt and output together that the model was made for."""
        return self._model.config.max_context

    @property
    def vocab(self) -> int:
        return self._model.config.vocab

    @property
    def model(self) -> CpuModel:
        """What it computes."""
        return self._model

    @property
    def held(self) -> int:
        """Sequences that something is kept for."""
        return len(self._contexts)

    def view(self, block: int) -> memoryview:
        return self._store.view(block)

    def landed(self, block: int) -> None:
        """Nothing to do: there is one memory."""

    @property
    def counters(self) -> Mapping[str, int]:
        return {}

    def warm_up(self) -> None:
        """Run a short prefill and a decode through a sequence of its own, without touching the pool."""
        size = self._layout.block_tokens
        most = min(256, self.max_context - 1)
        params = SamplingParams(max_pos=most + 1, seed=0, temperature=0.0)
        spare = Contexts(KvStore(self._layout, -(-most // size) + 1), self.max_context, _CONTEXT_BYTES)
        blocks = tuple(range(-(-(most + 1) // size)))
        self._contexts, kept = spare, self._contexts
        try:
            for start, new in ((0, most // 2), (most // 2, most // 4), (most // 2 + most // 4, 1)):
                if new:
                    draw = Draw((), start + new, most, params)
                    self.execute(StepPlan((WorkItem(-1, start, (0,) * new, blocks, draw),)))
        finally:
            self._contexts = kept

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. An item that cannot be computed or drawn gives its error and harms no other."""
        began = time.perf_counter()
        self._use_threads()
        self._contexts.begin(plan.ended)
        self._scores = {}
        with torch.inference_mode():
            found = outcomes(plan, self._bounds, self._compute)
        self._contexts.trim()
        scores = {at: self._scores[one.seq] for at, one in enumerate(plan.items) if one.seq in self._scores}
        return StepResult(tuple(found), time.perf_counter() - began, scores)

    def close(self) -> None:
        """Forget all sequences. The memory goes when the last view of it does."""
        self._contexts = Contexts(self._store, self.max_context, 0)

    def _use_threads(self) -> None:
        """Torch keeps the number per thread that computes."""
        if self._thread != threading.get_ident():
            torch.set_num_threads(self._threads)
            self._thread = threading.get_ident()

    def _compute(self, items: Sequence[WorkItem]) -> list[Outcome]:
        contexts = self._contexts
        parts = [
            Part(contexts.ready(item.seq, item.start, len(item.ids), item.blocks), len(item.ids))
            for item in items
        ]
        order = sorted(range(len(items)), key=lambda at: by_place(parts[at]))
        ids = torch.tensor([token for at in order for token in items[at].ids])
        spans = [range(items[at].start, parts[at].end) for at in order]
        positions = torch.tensor([position for span in spans for position in span])
        turns = self._rotary.at(positions, max(part.end for part in parts) - 1)
        hidden = self._model.forward(ids, turns, [parts[at] for at in order])
        drawn = self._draw(items, order, hidden)
        for item, part in zip(items, parts, strict=True):
            contexts.commit(part.context, part.new, item.blocks)
        return drawn

    def _draw(self, items: Sequence[WorkItem], order: Sequence[int], hidden: torch.Tensor) -> list[Outcome]:
        found: list[Outcome] = [None] * len(items)
        rows, drawing, draws = [], [], []
        row = -1
        for at in order:
            if items[at].following:
                states = hidden[row + 1 :]
                self._scores[items[at].seq] = score_following(items[at], states, self._model.logits)
            row += len(items[at].ids)
            draw = items[at].draw
            if draw is not None:
                rows.append(row)
                drawing.append(at)
                draws.append(draw)
        if draws:
            logits = self._model.logits(hidden[rows])
            for at, outcome in zip(drawing, draw_batch(logits, draws, self._contenders), strict=True):
                found[at] = outcome
        return found

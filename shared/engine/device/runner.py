"""Executes steps on a GPU: the engine thread's side of the seam in `shared.engine.api`.

KV lies in the pool's blocks on the device and is attended there; the host has a twin of every full block for
the sockets. Decides nothing: which sequence computes what, and in which blocks, comes with the plan. On the
CPU the same steps run with the kernels' references, for tests.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from shared.engine.api import Draw, Drawn, StepPlan, StepResult, WorkItem
from shared.engine.attempt import Outcome, outcomes
from shared.engine.device.batch import Buffers, Shape, fitting, shapes
from shared.engine.device.block_rows import BlockRows
from shared.engine.device.model import DeviceModel, load_device_model
from shared.engine.device.sampler import draw_on_device
from shared.engine.device.steps import Steps
from shared.engine.device.store import DeviceStore
from shared.engine.refusal import Bounds
from shared.engine.sampler import score_following
from shared.engine.weights import Progress
from shared.errors import ConfigError, DeviceLost
from shared.kernels import warmup
from shared.kv.layout import KvLayout, full_attention

GRAPH_TOKENS = 512
"""Largest step that is recorded; a longer chunk of a prompt hides what launching costs."""
_MOST_TOKENS = 8192  # of a step without buffers of its own


class DeviceRunner:
    """`Runner` of one model on one device.

    `model` is a Hugging Face directory or a model already on the device. `most_running`: sequences of a step
    that graphs are recorded for. Raises ModelError for a directory that cannot be served, ConfigError for an
    impossible value, a device that is not there or one too small.
    """

    def __init__(
        self,
        model: str | Path | DeviceModel,
        *,
        dtype: str = "bfloat16",
        kv_blocks: int,
        block_tokens: int,
        device: str = "cuda",
        most_running: int = 64,
        progress: Progress | None = None,
    ) -> None:
        if block_tokens < 1 or most_running < 1:
            values = f"block_tokens {block_tokens}, most_running {most_running}"
            raise ConfigError("model.block_tokens", f"{values}: 1 is the least")
        self._device = _device(device)
        if isinstance(model, DeviceModel):
            self._model = model
        else:
            self._model = load_device_model(Path(model), dtype, self._device, progress)
        config = self._model.config
        self._layout = full_attention(
            layers=config.layers,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            block_tokens=block_tokens,
            dtype=self._model.dtype,
        )
        self._store = DeviceStore(self._layout, kv_blocks, self._device)
        self._bounds = Bounds(self._layout.block_tokens, kv_blocks, config.max_context, config.vocab)
        self._rows = BlockRows()
        most = Shape(_MOST_TOKENS, most_running)
        self._width = -(-config.max_context // block_tokens)
        self._buffers = Buffers(most, self._width, block_tokens, self._device)
        self._steps = Steps(lambda batch: self._model.forward(batch, self._store.tensor), self._device)
        self._shapes = shapes(Shape(GRAPH_TOKENS, most_running))
        self._compilations = warmup.CompilationCounter()
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
    def counters(self) -> Mapping[str, int]:
        """`launched_steps`: steps since `warm_up` that no graph was recorded for. `late_compilations`:
        kernels compiled since then, each of which stalled all sequences."""
        return {
            "launched_steps": self._steps.launched,
            "replayed_steps": self._steps.replayed,
            "late_compilations": self._compilations.after_ready,
        }

    @property
    def held(self) -> int:
        """Sequences that something is kept for."""
        return len(self._rows)

    def view(self, block: int) -> memoryview:
        return self._store.view(block)

    def landed(self, block: int) -> None:
        self._store.landed(block)

    def warm_up(self) -> None:
        """Compile every kernel, then record the graphs; the pool's contents stay as they are."""
        config = self._model.config
        with torch.inference_mode(), self._on_device():
            shape = warmup.ModelShape(
                q_heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                hidden=config.hidden,
                intermediate=config.ffn if config.experts is None else config.experts.ffn,
                vocabulary=config.vocab,
                norm_per_head=config.qk_norm,
            )
            warmup.warm_up(shape, self._store.tensor)
            if self._model.graphable:
                self._steps.record(self._shapes, self._buffers)
        self._compilations.mark_ready()

    def execute(self, plan: StepPlan) -> StepResult:
        """Run one step. An item that cannot be computed or drawn gives its error and harms no other.

        Raises DeviceLost where the device itself has failed: nothing more can be computed by this process.
        """
        began = time.perf_counter()
        self._rows.drop(plan.ended)
        self._scores = {}
        with torch.inference_mode(), self._on_device():
            self._store.begin()
            found = outcomes(plan, self._bounds, self._compute, self._settle)
            self._settle()
        scores = {at: self._scores[one.seq] for at, one in enumerate(plan.items) if one.seq in self._scores}
        return StepResult(tuple(found), time.perf_counter() - began, scores)

    def close(self) -> None:
        """Give pinned memory back and forget all sequences."""
        self._rows = BlockRows()
        self._store.close()

    def _on_device(self) -> torch.cuda.device:
        """Torch keeps the current device per thread."""
        return torch.cuda.device(self._device if self._device.type == "cuda" else -1)

    def _settle(self) -> None:
        try:
            self._store.finish()
        except RuntimeError as error:
            raise DeviceLost(f"{self._device}: {error}; restart this worker") from error

    def _compute(self, items: Sequence[WorkItem]) -> list[Outcome]:
        tokens = sum(len(item.ids) for item in items)
        shape = fitting(self._shapes, tokens, len(items))
        buffers = self._buffers
        if not buffers.holds(shape):
            buffers = Buffers(shape, self._width, self._layout.block_tokens, self._device)
        batch = buffers.fill(shape, items, self._rows)
        if any(item.following for item in items):
            states = self._model.states(batch, self._store.tensor)
            self._steps.launched += 1
            self._score(items, states)
            hidden = states[batch.last]
        else:
            hidden = self._steps.run(shape, batch)
        self._store.save(self._filled(items))
        return self._draw(items, hidden)

    def _score(self, items: Sequence[WorkItem], states: torch.Tensor) -> None:
        row = 0
        for item in items:
            if item.following:
                self._scores[item.seq] = score_following(item, states[row:], self._model.logits)
            row += len(item.ids)

    def _filled(self, items: Sequence[WorkItem]) -> list[int]:
        """Blocks whose last position this step computes."""
        size = self._layout.block_tokens
        spans = [(item, item.start // size, (item.start + len(item.ids)) // size) for item in items]
        return [block for item, first, end in spans for block in item.blocks[first:end]]

    def _draw(self, items: Sequence[WorkItem], hidden: torch.Tensor) -> list[Outcome]:
        found: list[Outcome] = [None] * len(items)
        drawing: list[tuple[int, Draw]] = [
            (at, item.draw) for at, item in enumerate(items) if item.draw is not None
        ]
        if drawing:
            rows = [at for at, _ in drawing]
            chosen = hidden[: len(items)] if len(rows) == len(items) else hidden[rows]
            logits = self._model.logits(chosen)
            for at, outcome in zip(rows, draw_on_device(logits, [draw for _, draw in drawing]), strict=True):
                found[at] = outcome
        return found


def _device(name: str) -> torch.device:
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise ConfigError("device", f"{name!r}; served are 'cpu', 'cuda' and 'cuda:INDEX'")
    if not torch.cuda.is_available():
        advice = "install a driver and the CUDA build of torch (make setup TORCH=cuda), or take 'cpu'"
        raise ConfigError("device", f"{name!r}, but torch finds no GPU; {advice}")
    count = torch.cuda.device_count()
    if (device.index or 0) >= count:
        raise ConfigError("device", f"{name!r}, but there are {count} GPUs; they are numbered from 0")
    # float32 means float32: torch may otherwise round products to 10 bits of mantissa.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    return torch.device("cuda", device.index or 0)

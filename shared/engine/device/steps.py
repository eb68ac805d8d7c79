"""Runs the forward of one step: replayed from a graph where one was recorded for its shape, else launched.

Graphs share one pool of memory and read the same buffers, so only the integers of a step are new. Knows no
sequences: shapes, buffers and the forward are handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shared.engine.device.batch import Batch, Buffers, Shape
from shared.engine.device.block_rows import BlockRows

Forward = Callable[[Batch], Tensor]


class Steps:
    """`forward` of a `Batch` gives states [items, hidden].

    `launched`, `replayed`: steps since `record` without and with a graph.
    """

    def __init__(self, forward: Forward, device: torch.device) -> None:
        self._forward = forward
        self._device = device
        self._graphs: dict[Shape, tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.launched = 0
        self.replayed = 0

    def record(self, shapes: Sequence[Shape], buffers: Buffers) -> None:
        """Record a graph of each shape, largest first, so that the others fit into its memory.

        The buffers hold a step without real rows meanwhile: nothing is written to the pool.
        """
        if self._device.type == "cuda":
            memory = torch.cuda.graph_pool_handle()
            for shape in sorted(shapes, reverse=True):
                batch = buffers.fill(shape, (), BlockRows())
                self._warm(batch)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=memory):
                    hidden = self._forward(batch)
                self._graphs[shape] = (graph, hidden)
            torch.cuda.synchronize(self._device)
        self.launched = self.replayed = 0

    def run(self, shape: Shape, batch: Batch) -> Tensor:
        """States [shape.items, hidden]; those of a graph are overwritten by its next run."""
        recorded = self._graphs.get(shape)
        if recorded is None:
            self.launched += 1
            return self._forward(batch)
        graph, hidden = recorded
        graph.replay()
        self.replayed += 1
        return hidden

    def _warm(self, batch: Batch) -> None:
        """Libraries make their workspaces at the first launch, which must not be inside a graph."""
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            self._forward(batch)
        torch.cuda.current_stream(self._device).wait_stream(side)

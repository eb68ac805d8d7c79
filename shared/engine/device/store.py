"""A pool whose blocks are on a device, with a twin of each on the host for the sockets.

Both twins have the pool's block-major layout, so a block is one copy. Bytes that came from elsewhere are
uploaded when their block is whole, blocks that a step filled are downloaded at its end; both run on streams
of their own beside the computing one. Which block holds what is for the pool and the ledger.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch

from shared.errors import ConfigError
from shared.kv.layout import KvLayout
from shared.kv.store import KvStore


class DeviceStore:
    """`blocks` blocks of `layout` on `device`.

    `tensor`: [blocks, layers, 2 (K, V), kv_heads, block_tokens, head_dim] on the device. The host's twins
    take as much memory again, pinned for a GPU. Raises ConfigError where either does not fit, as `KvStore`
    does.
    """

    def __init__(self, layout: KvLayout, blocks: int, device: torch.device) -> None:
        self._host = KvStore(layout, blocks)
        self.blocks = blocks
        self._gpu = device.type == "cuda"
        host = self._host.tensor
        try:
            self.tensor = torch.zeros(host.shape, dtype=host.dtype, device=device)
        except torch.OutOfMemoryError as error:
            size = host.nbytes / 2**30
            advice = f"{blocks} KV blocks take {size:.1f} GiB of {device}; lower kv_blocks"
            raise ConfigError("model.kv_blocks", f"{error}; {advice}") from error
        self._uploads = _stream(device)
        self._downloads = _stream(device)
        if self._gpu:
            _pin(host)

    def view(self, block: int) -> memoryview:
        """The bytes of a block's twin on the host. Raises IndexError outside the pool."""
        return self._host.view(block)

    def landed(self, block: int) -> None:
        """The twin's bytes came from elsewhere and are whole: take them over. Any thread."""
        with torch.cuda.stream(self._uploads):
            self.tensor[block].copy_(self._host.tensor[block], non_blocking=True)

    def begin(self) -> None:
        """Before a step: what it computes from now on comes after the uploads so far."""
        if self._uploads is not None:
            torch.cuda.current_stream(self.tensor.device).wait_stream(self._uploads)

    def save(self, blocks: Sequence[int]) -> None:
        """Download blocks that the step filled, after what it was told to compute; then `finish`."""
        if not blocks:
            return
        if self._downloads is not None:
            self._downloads.wait_stream(torch.cuda.current_stream(self.tensor.device))
        with torch.cuda.stream(self._downloads):
            for first, end in runs(blocks):
                self._host.tensor[first:end].copy_(self.tensor[first:end], non_blocking=True)

    def finish(self) -> None:
        """Wait until everything saved is on the host."""
        if self._downloads is not None:
            self._downloads.synchronize()

    def close(self) -> None:
        """Give the pinning back; the memory goes when the last view of it does."""
        if self._gpu:
            torch.cuda.synchronize(self.tensor.device)
            _unpin(self._host.tensor)
            self._gpu = False


def runs(blocks: Sequence[int]) -> list[tuple[int, int]]:
    """Ranges [first, end) of neighbouring blocks: each is one copy."""
    if not blocks:
        return []
    ordered = sorted(set(blocks))
    edges = [at for at, (one, other) in enumerate(pairwise(ordered), 1) if other != one + 1]
    bounds = [0, *edges, len(ordered)]
    return [(ordered[first], ordered[end - 1] + 1) for first, end in pairwise(bounds)]


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _pin(memory: torch.Tensor) -> None:
    """Lock host memory, so that copies of it run beside everything else."""
    code = int(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))  # type: ignore[no-untyped-call]
    if code:
        refused = f"{memory.nbytes / 2**30:.1f} GiB of host memory cannot be pinned (error {code})"
        advice = "raise the limit of locked memory (LimitMEMLOCK=infinity) or lower kv_blocks"
        raise ConfigError("model.kv_blocks", f"{refused}; {advice}")


def _unpin(memory: torch.Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())  # type: ignore[no-untyped-call]

"""The memory of a pool's blocks: one allocation, a torch tensor to the engine and bytes to the sockets.

Knows the layout only; which block holds what, and when it may be touched, is for the pool and the ledger.
"""

from __future__ import annotations

import torch

from shared.errors import ConfigError, OutOfBlocks
from shared.kv.layout import KvLayout
from shared.kv.memory import anonymous

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class KvStore:
    """`blocks` blocks of `layout` in anonymous, page-aligned memory, committed by the system when written.

    `tensor`: [blocks, layers, 2 (K, V), kv_heads, block_tokens, head_dim], the layout's dtype, on the CPU.
    Raises ConfigError for layouts other than one `full` group of equal K and V, OutOfBlocks where the system
    refuses the memory.
    """

    def __init__(self, layout: KvLayout, blocks: int) -> None:
        if blocks < 1:
            raise ConfigError("model.kv_blocks", f"{blocks} is less than 1")
        if len(layout.groups) != 1 or layout.groups[0].kind != "full":
            kinds = ", ".join(group.kind for group in layout.groups)
            raise ConfigError("model.layout", f"groups [{kinds}]; one group of kind 'full' is served")
        group = layout.groups[0]
        shapes = {(part.dtype, part.shape) for part in group.components}
        if len(group.components) != 2 or len(shapes) != 1:
            raise ConfigError(
                "model.layout", f"{layout.describe()}; K and V of equal shape and dtype are served"
            )
        self.layout = layout
        self.blocks = blocks
        self.block_bytes = layout.block_bytes
        try:
            self._memory = anonymous(blocks * self.block_bytes, whole=True)
        except (OSError, OverflowError, ValueError) as error:
            size = blocks * self.block_bytes / 2**30
            raise OutOfBlocks(f"{blocks} KV blocks take {size:.1f} GiB: {error}; lower kv_blocks") from error
        self._bytes = memoryview(self._memory)
        part = group.components[0]
        flat = torch.frombuffer(self._memory, dtype=_DTYPES[part.dtype])
        self.tensor = flat.view(blocks, group.layers, 2, *part.shape)

    def view(self, block: int) -> memoryview:
        """One block, writable: the memory of `tensor[block]`. Raises IndexError outside the pool."""
        if not 0 <= block < self.blocks:
            raise IndexError(f"block {block} of a pool of {self.blocks}")
        at = block * self.block_bytes
        return self._bytes[at : at + self.block_bytes]

"""What the bytes of a KV block are. Pure: knows nothing of torch, pools or sockets."""

from __future__ import annotations

import hashlib
from typing import Literal

import msgspec

from shared.errors import ConfigError

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Component(msgspec.Struct, frozen=True):
    """One tensor of a group, per layer and token block; `shape` is per layer, block_tokens included."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Group(msgspec.Struct, frozen=True):
    id: int
    kind: Literal["full", "window", "latent", "state"]
    layers: int
    components: tuple[Component, ...]

    @property
    def block_bytes(self) -> int:
        """Bytes of one block of this group."""
        total = 0
        for part in self.components:
            size = DTYPE_BYTES[part.dtype]
            for extent in part.shape:
                size *= extent
            total += size
        return total * self.layers


class KvLayout(msgspec.Struct, frozen=True):
    """Groups of a model's KV. Block-major: a block is contiguous, (layers, components, *shape)."""

    block_tokens: int
    groups: tuple[Group, ...]

    @property
    def block_bytes(self) -> int:
        return sum(group.block_bytes for group in self.groups)

    def digest(self) -> bytes:
        """16 bytes that are equal exactly when two layouts are."""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=16, person=b"pdd-layout").digest()

    def describe(self) -> str:
        """Readable form, for refusals."""
        parts = (
            f"{group.kind}:{group.layers}x{part.name}{list(part.shape)}:{part.dtype}"
            for group in self.groups
            for part in group.components
        )
        return " ".join((f"block_tokens={self.block_tokens}", *parts))


def full_attention(
    *, layers: int, kv_heads: int, head_dim: int, block_tokens: int, dtype: str, group_id: int = 0
) -> KvLayout:
    """The one layout of version 1: one `full` group, K then V, each (kv_heads, block_tokens, head_dim)."""
    if dtype not in DTYPE_BYTES:
        raise ConfigError("model.kv_dtype", f"{dtype!r} is not one of {', '.join(sorted(DTYPE_BYTES))}")
    shape = (kv_heads, block_tokens, head_dim)
    parts = (Component("k", dtype, shape), Component("v", dtype, shape))
    return KvLayout(block_tokens, (Group(group_id, "full", layers, parts),))

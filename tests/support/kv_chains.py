"""Chains of block hashes and chunk headers for tests of the pool and the ledger."""

from __future__ import annotations

from dataclasses import dataclass

from shared.kv.layout import Component, Group, KvLayout, full_attention

HALF = 32
"""Bytes of half a block of `LAYOUT`."""
LAYOUT = full_attention(layers=1, kv_heads=1, head_dim=2, block_tokens=4, dtype="float32")
TWO_GROUPS = KvLayout(4, (LAYOUT.groups[0], Group(7, "latent", 1, (Component("c", "float32", (4, 2)),))))


def hash_of(*path: int) -> bytes:
    """A hash that shows its chain: hash_of(1, 2) is a child of hash_of(1)."""
    return bytes([len(path), *path]).ljust(16, b"\0")


def hashes_of(*path: int) -> list[bytes]:
    """The chain that ends with hash_of(*path)."""
    return [hash_of(*path[: depth + 1]) for depth in range(len(path))]


@dataclass(frozen=True)
class FakeChunk:
    """A chunk's header as the ledger reads it."""

    ticket: bytes
    block: int
    offset: int = 0
    length: int = HALF
    group: int = 0
    shard: int = 0

"""Block tables of running sequences as arrays, so that a step converts only what is new since the last."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Row = np.ndarray[Any, np.dtype[np.int32]]


class BlockRows:
    """By sequence number."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[tuple[int, ...], Row]] = {}
        self._none: Row = np.empty(0, np.int32)

    def __len__(self) -> int:
        return len(self._known)

    def row(self, seq: int, blocks: tuple[int, ...]) -> Row:
        """`blocks` as int32; valid until the sequence's next row."""
        old, memory = self._known.get(seq, ((), self._none))
        if blocks == old:
            return memory[: len(blocks)]
        same = len(old) if blocks[: len(old)] == old else 0
        if len(blocks) > len(memory):
            grown = np.empty(max(16, 2 * len(blocks)), np.int32)
            grown[:same] = memory[:same]
            memory = grown
        memory[same : len(blocks)] = blocks[same:]
        self._known[seq] = (blocks, memory)
        return memory[: len(blocks)]

    def drop(self, ended: Sequence[int]) -> None:
        """Sequences that will not come again."""
        for seq in ended:
            self._known.pop(seq, None)

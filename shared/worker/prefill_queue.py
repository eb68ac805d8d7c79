"""Prefills that wait, most urgent first, and which blocks the running ones make.

A prefill whose next block is being made by another one waits for that: equal prompts that come at once are
computed once. Knows nothing of engines or transfers.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterator

from shared.kv.pool import BlockPool
from shared.worker.prompt import Prompt


class PrefillQueue:
    """Waiting prompts by (priority, age)."""

    def __init__(self, pool: BlockPool, block_tokens: int) -> None:
        self._pool = pool
        self._block_tokens = block_tokens
        self._waiting: list[Prompt] = []
        self._making: Counter[bytes] = Counter()  # by hash: running prefills that make the block
        self._makers: dict[int, list[bytes]] = {}  # by the prompt's number

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(list(self._waiting))

    @property
    def tokens(self) -> int:
        """Known ids of all that wait."""
        return sum(len(prompt.ask.ids) for prompt in self._waiting)

    def push(self, prompt: Prompt) -> None:
        """A prompt waits."""
        insort(self._waiting, prompt, key=_urgency)

    def remove(self, prompt: Prompt) -> None:
        """It has started, or ended."""
        self._waiting.remove(prompt)

    def makes(self, prompt: Prompt) -> None:
        """The prompt is being computed: it makes the full blocks that were not here when it began."""
        if prompt.number not in self._makers:
            hashes = self._makers[prompt.number] = prompt.ask.hashes[prompt.cached :]
            self._making.update(hashes)

    def rests(self, prompt: Prompt) -> None:
        """It is done, or computes no more for now: nobody should wait for it."""
        for hash_ in self._makers.pop(prompt.number, ()):
            self._making[hash_] -= 1
            if not self._making[hash_]:
                del self._making[hash_]

    def waits(self, prompt: Prompt) -> bool:
        """Whether the first block that the prompt lacks is being made by another one."""
        hashes = prompt.ask.hashes
        most = (len(prompt.ask.ids) - 1) // self._block_tokens
        while prompt.found < most and self._pool.find(hashes[prompt.found]) is not None:
            prompt.found += 1
        return prompt.found < most and hashes[prompt.found] in self._making


def _urgency(prompt: Prompt) -> tuple[int, int]:
    return prompt.ask.priority, prompt.number

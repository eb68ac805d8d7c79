"""Prompts of a wanted length: sentences of this project's own documents in a random order, every prompt
another. Knows nothing of routers."""

from __future__ import annotations

import random
import re
from collections import deque
from pathlib import Path

from services.router.front.tokens import Tokenizer

_DOCS = Path(__file__).parents[2] / "docs"
ANSWER = " then the quick brown fox goes home and the lazy dog looks after it for some time"
"""What the instant workers say, again and again: each word is one id, with one space."""


class Texts:
    """A source of prompts."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        said = "\n".join(path.read_text(encoding="utf-8") for path in sorted(_DOCS.glob("*.md")))
        self._sentences = [one for one in re.split(r"(?<=[.:;\n])\s+", said) if one.strip()]
        self._draw = random.Random(seed)
        sample = " ".join(self._sentences)
        self._characters = len(sample) / len(tokenizer.encode(sample))
        self.answer = tokenizer.encode(ANSWER)
        self._ready: dict[int, deque[str]] = {}

    def prepare(self, tokens: int, count: int) -> None:
        """Make prompts ahead, so that making them takes no time from what is measured."""
        ready = self._ready.setdefault(tokens, deque())
        ready.extend(self._make(tokens) for _ in range(count - len(ready)))

    def prompt(self, tokens: int) -> str:
        """About so many tokens of text that no prompt had before."""
        ready = self._ready.get(tokens)
        return ready.popleft() if ready else self._make(tokens)

    def _make(self, tokens: int) -> str:
        wanted = int(tokens * self._characters)
        parts: list[str] = []
        size = 0
        while size < wanted:
            parts.append(self._draw.choice(self._sentences))
            size += len(parts[-1]) + 1
        return " ".join(parts)[:wanted]

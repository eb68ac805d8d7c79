"""Prompts of a wanted length: sentences of this project's own documents in a random order, every prompt
another. Knows nothing of routers."""

from __future__ import annotations

import random
import re
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

    def prompt(self, tokens: int) -> str:
        """About so many tokens of text that no prompt had before."""
        wanted = int(tokens * self._characters)
        parts: list[str] = []
        size = 0
        while size < wanted:
            parts.append(self._draw.choice(self._sentences))
            size += len(parts[-1]) + 1
        return " ".join(parts)[:wanted]

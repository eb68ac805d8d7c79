"""What a grammar's text says of whole texts: asked of the library itself, away from how decoders use it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from tests.support.draw import Mask


class GrammarReader:
    """Over the tokenizer of a model's directory."""

    def __init__(self, directory: Path, vocab: int, eos: int) -> None:
        self._tokenizer = LLTokenizer(str(directory / "tokenizer.json"), n_vocab=vocab, eos_token=eos)

    def reads(self, grammar: str, text: str) -> bool:
        """Whether the text is one that the grammar allows, from its beginning to its end."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        ids = self._tokenizer.tokenize_str(text, parse_special=True)
        return matcher.try_consume_tokens(ids) == len(ids) and bool(matcher.is_accepting())

    def begins(self, grammar: str, text: str) -> bool:
        """Whether the text may be how an answer begins."""
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
        ids = self._tokenizer.tokenize_str(text, parse_special=True)
        return matcher.try_consume_tokens(ids) == len(ids)

    def allowed(self, grammar: str, ends: Sequence[int]) -> Callable[[Sequence[int]], Mask]:
        """What may follow an output, by a matcher that begins anew each time."""

        def after(output: Sequence[int]) -> Mask:
            matcher = LLMatcher(self._tokenizer, grammar, log_level=0)
            assert matcher.consume_tokens(list(output)), matcher.get_error()
            words = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            mask = np.unpackbits(words, bitorder="little")[: self._tokenizer.vocab_size].astype(np.bool_)
            if matcher.is_accepting():
                mask[list(self._tokenizer.eos_tokens)] = False
                mask[list(ends)] = True
            return mask

        return after

"""What a grammar allows next, over one vocabulary: compiled once, then followed along each sequence's ids.

A grammar is a text of llguidance's: Lark, or JSON that holds Lark, JSON Schemas and regular expressions. What
is allowed after some ids is a function of (grammar, ids) alone: whoever has the ids of an answer goes on with
it. No torch, no numpy; knows no requests. Any thread may call, and long work runs without the interpreter's
lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from shared.errors import BadGrammar, ModelError

MOST_BYTES = 131_072
"""Of a grammar's text, UTF-8."""
_KEPT = 64
_SHOWN = 300


class Grammars:
    """Compiled grammars of one vocabulary. A grammar that cannot be compiled is remembered as that."""

    def __init__(self, tokenizer: LLTokenizer, *, kept: int = _KEPT) -> None:
        """`kept`: compiled grammars at most; the one used longest ago goes first."""
        self._tokenizer = tokenizer
        self._limits = _limits()
        self._kept = kept
        self._lock = threading.Lock()
        self._compiled: OrderedDict[str, LLMatcher | BadGrammar] = OrderedDict()

    @property
    def vocab(self) -> int:
        return int(self._tokenizer.vocab_size)

    @property
    def ends(self) -> tuple[int, ...]:
        """Ids that end an answer, as the model's directory has them."""
        return tuple(int(token) for token in self._tokenizer.eos_tokens)

    def is_mark(self, token: int) -> bool:
        """Whether an id is a mark: no text of a grammar matches it, only its own name does."""
        return bool(self._tokenizer.is_special_token(token))

    def known(self, text: str) -> bool:
        """Whether `compiled` answers at once. That counts as use: who follows one asks at every step."""
        with self._lock:
            found = text in self._compiled
            if found:
                self._compiled.move_to_end(text)
            return found

    def compiled(self, text: str) -> LLMatcher:
        """A matcher of its own at the grammar's start. Raises BadGrammar. Slow where it is not `known`."""
        with self._lock:
            found = self._compiled.get(text)
            if found is not None:
                self._compiled.move_to_end(text)
        if found is None:
            found = self._compile(text)
            with self._lock:
                self._compiled[text] = found
                while len(self._compiled) > self._kept:
                    self._compiled.popitem(last=False)
        if isinstance(found, BadGrammar):
            raise BadGrammar(str(found))
        return found.deep_copy()

    def _compile(self, text: str) -> LLMatcher | BadGrammar:
        if len(text.encode()) > MOST_BYTES:
            return BadGrammar(f"the grammar has {len(text.encode())} bytes; at most {MOST_BYTES} are taken")
        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=self._limits)
        if not matcher.is_error():
            # The first mask of a grammar is the slow one: what it finds out is shared with the copies.
            mask = matcher.deep_copy().compute_bitmask()
            if any(mask) and not (matcher.is_accepting() and _ids_of(mask) <= set(self.ends)):
                return matcher
        fault = _first_line(matcher.get_error()) or "nothing can be written under it"
        return BadGrammar(f"the grammar cannot be compiled: {fault}")


class Walk:
    """One sequence's place in its grammar. Kept between steps for speed: it follows from the ids alone."""

    def __init__(self, grammars: Grammars, text: str) -> None:
        """Raises BadGrammar."""
        self._grammars = grammars
        self._text = text
        self._matcher = grammars.compiled(text)
        self._written: tuple[int, ...] = ()

    def allowed(self, written: Sequence[int], stop_ids: Sequence[int]) -> bytes:
        """Which ids may follow `written`, all that was generated so far: one bit an id, lowest bit first.

        `stop_ids` may come where the grammar is complete, and nothing else may once it cannot go on. Raises
        BadGrammar where the ids leave the grammar, or following it takes more than its limits.
        """
        self._follow(tuple(written))
        mask = bytearray(self._matcher.compute_bitmask())
        self._check()
        if self._matcher.is_accepting():
            for token in self._grammars.ends:
                mask[token >> 3] &= ~(1 << (token & 7)) & 0xFF
            for token in stop_ids:
                if 0 <= token < self._grammars.vocab:
                    mask[token >> 3] |= 1 << (token & 7)
        if not any(mask):
            raise BadGrammar(f"the grammar allows nothing after {len(written)} ids")
        return bytes(mask)

    def _follow(self, written: tuple[int, ...]) -> None:
        at = len(self._written)
        if written[:at] != self._written:
            self._matcher, at = self._grammars.compiled(self._text), 0
        if not self._matcher.consume_tokens(list(written[at:])):
            self._check()
            raise BadGrammar(f"the {len(written)} ids so far do not follow the grammar")
        self._written = written

    def _check(self) -> None:
        if self._matcher.is_error():
            raise BadGrammar(f"the grammar cannot be followed: {_first_line(self._matcher.get_error())}")


def fault_of(text: str) -> str:
    """Why a grammar cannot be compiled, over whatever vocabulary; "": it can. Any thread."""
    wrong, said = LLMatcher.validate_grammar_with_warnings(text, None, limits=_limits())
    return _first_line(said[0]) or "it cannot be compiled" if wrong else ""


def _limits() -> LLParserLimits:
    """In llguidance's units. On one core the largest grammar within them compiles in half a second, a mask
    takes about 20 ms at most, and what a grammar keeps stays below some 40 MB."""
    return LLParserLimits(
        max_grammar_size=20_000,
        initial_lexer_fuel=500_000,
        step_lexer_fuel=200_000,
        step_max_items=50_000,
        max_lexer_states=20_000,
        verbose_errors=False,
    )


def load_grammars(directory: Path) -> Grammars:
    """Grammars over the tokenizer of a model's directory. Takes a fraction of a second. Raises ModelError."""
    path = directory / "tokenizer.json"
    try:
        settings = _settings(directory)
        vocab = settings["vocab_size"]
        tokenizer = LLTokenizer(str(path), n_vocab=vocab, eos_token=_end_ids(settings, vocab) or None)
        return Grammars(tokenizer)
    except (ValueError, OSError, LookupError, TypeError, msgspec.MsgspecError) as error:
        said = _first_line(str(error))
        raise ModelError(f"{path}: no grammar can be followed over its vocabulary: {said}") from error


def _settings(directory: Path) -> dict[str, Any]:
    """config.json, and over it generation_config.json where there is one."""
    read: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        if (file := directory / name).exists():
            read |= msgspec.json.decode(file.read_bytes(), type=dict[str, Any])
    return read


def _end_ids(settings: Mapping[str, Any], vocab: int) -> list[int]:
    value = settings.get("eos_token_id")
    ids = value if isinstance(value, list) else [value]
    return [one for one in ids if isinstance(one, int) and 0 <= one < vocab]


def _ids_of(mask: bytes) -> set[int]:
    return {at * 8 + bit for at, byte in enumerate(mask) if byte for bit in range(8) if byte >> bit & 1}


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:_SHOWN]

"""The model's tokenizer and what its directory says beside: special ids, chat template, context, sampling
defaults.

Text is tokenized here and nowhere else in the mesh. Knows nothing of HTTP, requests or the core.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog
import tokenizers

from services.router.front.detokenizer import text_of
from services.router.front.segments import Cutter
from services.router.front.template import ChatTemplate
from services.router.front.vocabulary import Vocabulary, read_vocabulary
from shared.engine.grammar import Grammars, load_grammars
from shared.errors import ModelError

_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
_LETTER_SPACE = re.compile("[A-Za-z] ")
_BEFORE_WORDS = ("a", "ab", "AB", "x1y", "don't", "a  b", "\n\nthe", "éa", "(in", "0, z")
_WORDS = (" a", " the", " B2", " it's", " x ")
_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


class Tokenizer:
    """Encoding and decoding; safe to use from several threads."""

    def __init__(
        self,
        inner: tokenizers.Tokenizer,
        vocabulary: Vocabulary,
        facts: ModelFacts,
        grammars: Grammars | None = None,
    ) -> None:
        self._inner = inner
        self.vocabulary = vocabulary
        self.facts = facts
        self.grammars = grammars
        """None: no grammar can be followed over this vocabulary."""
        self.cutter = self._cutter()
        """Where texts may be cut for the tokenizer (nowhere, where it is not `piecewise`)."""
        self.piecewise = self._is_piecewise()
        """Whether texts may be tokenized apart and joined: false where the tokenizer puts a space before a
        text, or something after it."""

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Ids of a text. `add_special`: with what the tokenizer puts around a whole prompt (often a bos)."""
        return list(self._inner.encode(text, add_special_tokens=add_special).ids)

    def encode_aside(self, text: str, *, add_special: bool = False) -> list[int]:
        """The same without holding the interpreter's lock: for long texts, in a thread. One text at a time:
        several go to the library's own threads, and whoever asks next waits behind them, the loop too."""
        return list(self._inner.encode_batch_fast([text], add_special_tokens=add_special)[0].ids)

    def decode(self, ids: Iterable[int], *, skip_special: bool = False) -> str:
        """Text of a run of ids."""
        return text_of(self.vocabulary, ids, skip_special=skip_special)

    def _is_piecewise(self) -> bool:
        plain = all(self.vocabulary.join(self.encode(text)) == text.encode() for text in ("x", " x", "\nx"))
        return plain and self.encode("x", add_special=True)[-1:] == self.encode("x")[-1:]

    def _cutter(self) -> Cutter:
        marks: list[str] = []
        others: list[str] = []
        for token in self._inner.get_added_tokens_decoder().values():
            if token.normalized:
                continue  # looked for after all others, in what they leave
            plain = not (token.lstrip or token.rstrip or token.single_word)
            (marks if plain else others).append(token.content)
        return Cutter(marks, others, words=self._parts_words())

    def _parts_words(self) -> bool:
        """Whether words are always tokenized apart: so says the rule that parts texts before all others, no
        added token is in its way, and what is tokenized apart here is what is tokenized together."""
        rule = self._inner.pre_tokenizer
        if rule is None or [at for _, at in rule.pre_tokenize_str("ab cd ef")] != [(0, 2), (2, 5), (5, 8)]:
            return False
        for token in self._inner.get_added_tokens_decoder().values():
            text, wide = token.content, token.lstrip or token.rstrip or token.single_word
            if _LETTER_SPACE.search(text) or (wide and (text[:1].isalpha() or text[-1:].isalpha())):
                return False
        halves = [(one, other) for one in _BEFORE_WORDS for other in _WORDS]
        return all(self.encode(one + other) == self.encode(one) + self.encode(other) for one, other in halves)

    def token(self, token: int) -> str:
        """How the tokenizer writes one id."""
        return self._inner.id_to_token(token) or ""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model's directory says beside its weights."""

    vocab_size: int
    """Ids are below this."""
    max_context: int
    """Tokens of prompt and output together."""
    eos_ids: tuple[int, ...]
    """Ids that end an answer."""
    template: ChatTemplate | None
    """None: the model has no chat template, and chat is refused."""
    tool_template: ChatTemplate | None = None
    """One of its own for conversations with tools; None: `template` serves them too."""
    sampling: Mapping[str, float]
    """Defaults of temperature, top_k, top_p, min_p and repetition_penalty from generation_config.json."""


def load_tokenizer(directory: Path) -> Tokenizer:
    """Read tokenizer.json and its companions. Raises ModelError naming the file and what is wrong."""
    spec = _read(directory / "tokenizer.json")
    inner = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    inner.no_truncation()
    inner.no_padding()
    vocabulary = read_vocabulary(inner.get_vocab(with_added_tokens=True), spec)
    try:
        grammars = load_grammars(directory)
    except ModelError as error:
        structlog.get_logger().warning("structured answers are not served", reason=str(error))
        grammars = None
    return Tokenizer(inner, vocabulary, _facts(directory, inner), grammars)


def _facts(directory: Path, inner: tokenizers.Tokenizer) -> ModelFacts:
    config = _read(directory / "config.json")
    settings = _read(directory / "tokenizer_config.json", optional=True)
    generation = _read(directory / "generation_config.json", optional=True)
    special = _special_tokens(settings)
    return ModelFacts(
        vocab_size=_positive(directory, config, "vocab_size"),
        max_context=_positive(directory, config, "max_position_embeddings"),
        eos_ids=_eos_ids(inner, special, generation, config),
        template=_template(directory, settings, special, "default"),
        tool_template=_template(directory, settings, special, "tool_use"),
        sampling={key: float(generation[key]) for key in _SAMPLING if generation.get(key) is not None},
    )


def _read(path: Path, *, optional: bool = False) -> dict[str, Any]:
    if optional and not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise ModelError(f"{path}: {error}") from error


def _positive(directory: Path, config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise ModelError(f"{directory / 'config.json'}: {key} is {value!r}, not a number above 0")
    return value


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """bos_token and so on, as text (each is a text or an object with `content`)."""
    found: dict[str, str] = {}
    for name in _SPECIAL:
        value = settings.get(name)
        if isinstance(value, Mapping):
            value = value.get("content")
        if isinstance(value, str):
            found[name] = value
    return found


def _eos_ids(
    inner: tokenizers.Tokenizer,
    special: Mapping[str, str],
    generation: Mapping[str, Any],
    config: Mapping[str, Any],
) -> tuple[int, ...]:
    """The tokenizer's eos and those of generation_config.json; config.json's where neither names one."""
    ids: list[int] = []
    if "eos_token" in special:
        token = inner.token_to_id(special["eos_token"])
        ids += [] if token is None else [token]
    ids += _numbers(generation.get("eos_token_id"))
    return tuple(dict.fromkeys(ids or _numbers(config.get("eos_token_id"))))


def _numbers(value: object) -> list[int]:
    values: Sequence[object] = value if isinstance(value, list) else [value]
    return [entry for entry in values if isinstance(entry, int)]


def _template(
    directory: Path, settings: Mapping[str, Any], special: Mapping[str, str], name: str
) -> ChatTemplate | None:
    """The template of a name: in a file, or `chat_template` of tokenizer_config.json, which holds one or
    several."""
    files = {
        "default": directory / "chat_template.jinja",
        "tool_use": directory / "additional_chat_templates" / "tool_use.jinja",
    }
    if files[name].exists():
        return ChatTemplate(files[name].read_text(encoding="utf-8"), special)
    source = settings.get("chat_template")
    if isinstance(source, list):
        source = {entry.get("name"): entry.get("template") for entry in source}.get(name)
    elif name != "default":
        return None
    return ChatTemplate(source, special) if isinstance(source, str) else None

"""A small byte-level tokenizer as a model directory without weights: no torch, made in milliseconds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
ADDED = ("<think>", "</think>")  # tokens of their own that are text, not marks
EOS = 2
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] "
    "+ '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_WORDS = "the and ing tion hello world answer question other there time good".split()


def small_tokenizer(
    directory: Path,
    *,
    max_context: int = 4096,
    template: str | None = TEMPLATE,
    marks: Sequence[tuple[str, bool]] = (),
) -> Path:
    """Write config.json, tokenizer.json and their companions into `directory`; returns it. `marks`: more
    tokens of their own, and whether each is special."""
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer([(text, False) for text in ADDED] + list(marks))
    size = len(tokenizer["model"]["vocab"]) + len(ADDED) + len(marks)
    settings: dict[str, Any] = {"bos_token": SPECIALS[1], "eos_token": SPECIALS[EOS]}
    if template is not None:
        settings["chat_template"] = template
    for name, value in (
        ("config.json", {"vocab_size": size + 3, "max_position_embeddings": max_context}),
        ("generation_config.json", {"eos_token_id": EOS}),
        ("tokenizer_config.json", settings),
        ("tokenizer.json", tokenizer),
    ):
        (directory / name).write_text(json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return directory


def _byte_characters() -> list[str]:
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def _tokenizer(marks: Sequence[tuple[str, bool]]) -> dict[str, Any]:
    characters = _byte_characters()
    space = characters[ord(" ")]
    merges: list[list[str]] = []
    known = set(characters)
    for word in _WORDS:
        for end in range(2, len(word) + 1):
            if word[:end] not in known:
                known.add(word[:end])
                merges.append([word[: end - 1], word[end - 1]])
    merges += [[space, word] for word in _WORDS]
    words = [*SPECIALS, *characters, *("".join(merge) for merge in merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [{"id": at, "content": text, "special": True, **flags} for at, text in enumerate(SPECIALS)]
    added += [
        {"id": len(words) + at, "content": text, "special": special, **flags}
        for at, (text, special) in enumerate(marks)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: at for at, word in enumerate(words)},
            "merges": merges,
        },
    }

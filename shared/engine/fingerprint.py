"""What a model directory is, as two short strings that peers compare before they exchange blocks or ids.

Covers the bytes of weights, their index, the configuration, tokenizer and chat template. Runs in the router
too, so it imports neither torch nor numpy.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from shared.errors import ModelError

_TEMPLATE_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "chat_template.json",
)
_MODEL_FILES = ("config.json", "model.safetensors.index.json")
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """`full` covers everything; `template` only tokenizer and chat template: the part a router shares."""

    full: str
    template: str


def fingerprint(model_dir: str | Path, *, cache: Path | None = None) -> Fingerprint:
    """Fingerprint of a Hugging Face directory with weights.

    Files are hashed once: their digests are kept in `cache` (default: in the user's cache directory) under
    path, size and time of change. Raises ModelError where configuration, tokenizer or weights are missing.
    """
    directory = _directory(model_dir)
    digests = _DigestCache(cache or _default_cache())
    template = _template(directory, digests)
    weights = sorted(directory.glob("*.safetensors"))
    if not weights:
        raise ModelError(
            f"{directory}: no *.safetensors file; point `model` at a Hugging Face model directory"
        )
    if not (directory / "config.json").is_file():
        raise ModelError(
            f"{directory}: config.json is missing; point `model` at a Hugging Face model directory"
        )
    rest = [directory / name for name in _MODEL_FILES if (directory / name).is_file()]
    full = _combine([("template", template), *((path.name, digests.of(path)) for path in rest + weights)])
    digests.save()
    return Fingerprint(full, template)


def template_fingerprint(model_dir: str | Path) -> str:
    """The tokenizer-and-template part alone, for a process that holds no weights."""
    return _template(_directory(model_dir), None)


def _directory(model_dir: str | Path) -> Path:
    directory = Path(model_dir)
    if not directory.is_dir():
        raise ModelError(f"{directory}: no such directory; point `model` at a Hugging Face model directory")
    return directory.resolve()


def _template(directory: Path, digests: _DigestCache | None) -> str:
    if not (directory / "tokenizer.json").is_file():
        raise ModelError(f"{directory}: tokenizer.json is missing; only tokenizers in that form are served")
    paths = [directory / name for name in _TEMPLATE_FILES if (directory / name).is_file()]
    return _combine([(path.name, digests.of(path) if digests else _digest(path)) for path in paths])


def _combine(parts: list[tuple[str, str]]) -> str:
    hasher = hashlib.blake2b(digest_size=_DIGEST_BYTES, person=b"pdd-model")
    for name, digest in parts:
        hasher.update(f"{name}\0{digest}\0".encode())
    return hasher.hexdigest()


def _digest(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=_DIGEST_BYTES)).hexdigest()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error


def _default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "pdd" / "digests.json"


class _DigestCache:
    """Digests of files by path, size and time of change; a damaged or unwritable cache only costs time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = False
        self._entries: dict[str, list[object]] = {}
        with contextlib.suppress(OSError, ValueError):
            entries = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(entries, dict):
                self._entries = entries

    def of(self, path: Path) -> str:
        try:
            stat = path.stat()
        except OSError as error:
            raise ModelError(f"{path}: {error.strerror or error}") from error
        facts = [stat.st_size, stat.st_mtime_ns]
        entry = self._entries.get(str(path))
        if isinstance(entry, list) and entry[:2] == facts and len(entry) == 3 and isinstance(entry[2], str):
            return entry[2]
        digest = _digest(path)
        self._entries[str(path)] = [*facts, digest]
        self._changed = True
        return digest

    def save(self) -> None:
        if not self._changed:
            return
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=self._path.name)
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(self._entries, stream)
            Path(name).replace(self._path)

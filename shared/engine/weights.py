"""Tensors of a Hugging Face directory, by memory map, checked by name, shape and dtype before they are used.

Knows safetensors files and their index; what the tensors mean is the model's business.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from shared.errors import ModelError

Progress = Callable[[int, int], None]
_READABLE = {"F32", "F16", "BF16"}
_INDEX = "model.safetensors.index.json"


class Weights:
    """Reads tensors as `dtype`; use as a context manager, which unmaps the files at the end.

    `progress(done, total)` counts tensors. Raises ModelError: a missing tensor by name, a wrong shape with
    both shapes, a dtype that is not float, a damaged file, a shard that the index names and is not there.
    """

    def __init__(self, directory: Path, dtype: torch.dtype, progress: Progress | None = None) -> None:
        self._dtype = dtype
        self._progress = progress
        self._files: list[Any] = []
        self._where: dict[str, tuple[Path, Any]] = {}
        self._used: set[str] = set()
        for path in _shards(directory):
            self._open(path)

    def __enter__(self) -> Weights:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in self._files:
            file.__exit__(None, None, None)
        self._files.clear()
        self._where.clear()

    def __contains__(self, name: str) -> bool:
        return name in self._where

    def get(self, name: str, *shape: int) -> Tensor:
        """A tensor of its own memory (nothing of the map is kept)."""
        return self._read(name, shape, torch.empty(shape, dtype=self._dtype))

    def stack(self, parts: list[tuple[str, int]], *rest: int) -> Tensor:
        """Tensors of shape (rows, *rest) one under another: one fused weight, made without a second copy."""
        fused = torch.empty(sum(rows for _, rows in parts), *rest, dtype=self._dtype)
        at = 0
        for name, rows in parts:
            self._read(name, (rows, *rest), fused[at : at + rows])
            at += rows
        return fused

    def unused(self) -> list[str]:
        """Names that nothing has read: what the configuration does not account for."""
        return sorted(set(self._where) - self._used)

    def _open(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
            self._files.append(file)
            names = list(file.keys())
        except (SafetensorError, OSError) as error:
            advice = "the file is damaged or cut short; fetch it again"
            raise ModelError(f"{path}: {error}; {advice}") from error
        for name in names:
            if name in self._where:
                raise ModelError(f"{path}: tensor {name!r} is also in {self._where[name][0].name}")
            self._where[name] = (path, file)

    def _read(self, name: str, shape: tuple[int, ...], into: Tensor) -> Tensor:
        if name not in self._where:
            raise ModelError(
                f"tensor {name!r} is in no *.safetensors file of the model; fetch the model again"
            )
        path, file = self._where[name]
        part = file.get_slice(name)
        found, kind = tuple(part.get_shape()), part.get_dtype()
        if found != shape:
            raise ModelError(
                f"{path}: tensor {name!r} has shape {list(found)}; config.json asks for {list(shape)}"
            )
        if kind not in _READABLE:
            served = ", ".join(sorted(_READABLE))
            raise ModelError(
                f"{path}: tensor {name!r} has dtype {kind}; served are {served} (no quantised weights)"
            )
        into.copy_(file.get_tensor(name))
        self._used.add(name)
        if self._progress is not None:
            self._progress(len(self._used), len(self._where))
        return into


def _shards(directory: Path) -> list[Path]:
    index = directory / _INDEX
    if not index.is_file():
        paths = sorted(directory.glob("*.safetensors"))
        if not paths:
            raise ModelError(
                f"{directory}: no *.safetensors file; point `model` at a Hugging Face model directory"
            )
        return paths
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{index}: not an index of shards ({error!r}); fetch the model again") from error
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or not (directory / name).is_file():
            raise ModelError(f"{index}: shard {name!r} is not there; fetch the model again")
    return [directory / name for name in names]

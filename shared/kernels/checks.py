"""Checks that the wrappers share; each message names the argument, what it is and what it must be."""

from __future__ import annotations

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)


def shape(name: str, tensor: torch.Tensor, expected: tuple[int | None, ...]) -> None:
    """Every extent equals the expected one; None accepts any."""
    found = tuple(tensor.shape)
    if len(found) != len(expected) or any(
        want is not None and have != want for have, want in zip(found, expected, strict=True)
    ):
        want_text = ", ".join("any" if extent is None else str(extent) for extent in expected)
        raise ValueError(f"{name} has shape {list(found)}, must be [{want_text}]")


def dtype(name: str, tensor: torch.Tensor, expected: tuple[torch.dtype, ...]) -> None:
    if tensor.dtype not in expected:
        names = ", ".join(str(kind).removeprefix("torch.") for kind in expected)
        raise TypeError(f"{name} has dtype {str(tensor.dtype).removeprefix('torch.')}, must be {names}")


def floats(name: str, tensor: torch.Tensor, *, kernels: bool) -> None:
    """A float dtype that the kernels serve; the torch reference also takes float64."""
    dtype(name, tensor, FLOATS if kernels else (*FLOATS, torch.float64))


def same_device(reference: torch.Tensor, **others: torch.Tensor) -> None:
    for name, tensor in others.items():
        if tensor.device != reference.device:
            raise ValueError(f"{name} is on {tensor.device}, must be on {reference.device}")


def dense_rows(name: str, tensor: torch.Tensor) -> None:
    """The last dimension is contiguous."""
    if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
        raise ValueError(
            f"{name} has stride {tensor.stride(-1)} in its last dimension, must be 1 (contiguous)"
        )


def contiguous(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise ValueError(f"{name} has strides {list(tensor.stride())}, must be contiguous")

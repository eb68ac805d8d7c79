"""Attention by this project's kernel, torch's SDPA and FlexAttention, beside the device's ceilings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.device.ceilings import Ceilings
from benchmarks.device.paged import Pages, Shape, pages
from benchmarks.device.timing import Timer
from benchmarks.report import Result, quartiles
from shared.kernels.extend_attention import extend_attention


def shapes(*, tiny: bool) -> list[Shape]:
    """Decode, extend and prefill of a model with 32 query heads in groups of 4."""
    if tiny:
        return [Shape(2, 63, 1, 8, 2, 64), Shape(1, 64, 16, 8, 2, 64)]
    decode = [Shape(items, start, 1) for items, start in ((1, 4095), (16, 4095), (64, 4095), (4, 65535))]
    extend = [Shape(1, 16384, new) for new in (4, 16, 64, 256)]
    prefill = [Shape(1, 0, 8192), Shape(4, 0, 2048)]
    return decode + extend + prefill


def compare(device: torch.device, timer: Timer, ceilings: Ceilings, *, tiny: bool) -> Iterator[Result]:
    """Time over the least possible, with the others' beside it as baselines."""
    for shape in shapes(tiny=tiny):
        made = pages(shape, device)
        ours = timer.seconds(functools.partial(_ours, made))
        least = ceilings.seconds(shape.moved, shape.operations, shape.dtype)
        others = {name: timer.seconds(run) for name, run in _others(shape, made)}
        for name, theirs in others.items():
            yield Result(
                f"attention {shape} vs {name}",
                ours * 1e6,
                "us",
                theirs * 1e6,
                quartiles([theirs / ours]),
                more={"roofline": round(least / ours, 3)},
            )


def orders(device: torch.device, timer: Timer, *, tiny: bool) -> Result:
    """Decode at a context of 64k tokens: blocks of all layers beside blocks of each layer apart."""
    shape = Shape(2, 127, 1, 8, 2, 64) if tiny else Shape(4, 65535, 1)
    layers = 2 if tiny else 8
    taken = []
    for block_major in (True, False):
        made = pages(shape, device, layers=layers, block_major=block_major)
        taken.append(timer.seconds(functools.partial(_ours, made)))
        del made
    ours, other = taken
    name = f"decode at {shape.context} block-major vs layer-major"
    return Result(name, ours * 1e6, "us", other * 1e6, quartiles([other / ours]))


def _ours(made: Pages) -> Tensor:
    q, k_cache, v_cache, bounds, start, tables = made.arguments
    return extend_attention(q, k_cache, v_cache, bounds, start, tables, q.shape[-1] ** -0.5)


def _others(shape: Shape, made: Pages) -> Iterator[tuple[str, Callable[[], object]]]:
    keys, values = made.contiguous()
    q = made.q.view(shape.items, shape.new, shape.q_heads, shape.head_dim).transpose(1, 2).contiguous()
    keys, values = keys[:, :, : shape.context], values[:, :, : shape.context]
    mask: Tensor | None = None
    causal = shape.start == 0
    if not causal and shape.new > 1:
        mask = torch.ones(shape.new, shape.context, dtype=torch.bool, device=q.device).tril(shape.start)

    def sdpa() -> Tensor:
        return F.scaled_dot_product_attention(
            q, keys, values, attn_mask=mask, is_causal=causal and shape.new > 1, enable_gqa=True
        )

    yield "SDPA, contiguous", sdpa
    if q.is_cuda:
        yield "FlexAttention, contiguous", _flex(shape, q, keys, values)


def _flex(shape: Shape, q: Tensor, keys: Tensor, values: Tensor) -> Callable[[], object]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(_item: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return column <= row + shape.start

    mask = create_block_mask(seen, None, None, shape.new, shape.context, device=str(q.device))
    compiled = torch.compile(flex_attention)
    return lambda: compiled(q, keys, values, block_mask=mask, enable_gqa=True)

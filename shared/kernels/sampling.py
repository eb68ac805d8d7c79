"""Draws one id per row by Gumbel noise that depends only on the request's seed, the position and the choice.

What is kept (top-k, top-p, penalties) is decided before: an id that is not kept has logit -inf.
"""

from __future__ import annotations

import torch

from shared.kernels import checks, reference
from shared.kernels.launch import DRAW, runs_kernels


def gumbel_argmax(
    logits: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    positions: torch.Tensor,
    choices: torch.Tensor,
) -> torch.Tensor:
    """argmax over kept ids of logit / T + gumbel(u), ties to the lowest id; T = 0 is the plain argmax.

    logits: [rows, vocabulary], a float dtype, dense last dimension; -inf where an id is not kept.
    temperature: [rows] float32, >= 0. seeds: [rows] int64, the bits of the 64-bit seed. positions: [rows]
        int64, the absolute position drawn for. choices: [rows] int32. Returns ids [rows] int64; -1 where a
        logit is NaN or nothing is kept.
    """
    checks.shape("logits", logits, (None, None))
    checks.floats("logits", logits, kernels=runs_kernels(logits))
    checks.dense_rows("logits", logits)
    rows, vocabulary = logits.shape
    if vocabulary == 0:
        raise ValueError("logits has an empty vocabulary, must have at least one id")
    for name, tensor, kind in (
        ("temperature", temperature, torch.float32),
        ("seeds", seeds, torch.int64),
        ("positions", positions, torch.int64),
        ("choices", choices, torch.int32),
    ):
        checks.shape(name, tensor, (rows,))
        checks.dtype(name, tensor, (kind,))
        checks.contiguous(name, tensor)
    checks.same_device(logits, temperature=temperature, seeds=seeds, positions=positions, choices=choices)
    if rows == 0:
        return torch.empty(0, dtype=torch.int64, device=logits.device)
    if not runs_kernels(logits):
        return reference.gumbel_argmax(logits, temperature, seeds, positions, choices)
    from shared.kernels.jit.sampling import draw_chunk

    chunks = -(-vocabulary // DRAW.block)
    scores = torch.empty((rows, chunks), dtype=torch.float32, device=logits.device)
    ids = torch.empty((rows, chunks), dtype=torch.int64, device=logits.device)
    draw_chunk[(rows, chunks)](
        logits,
        temperature,
        seeds,
        positions,
        choices,
        scores,
        ids,
        logits.stride(0),
        vocabulary,
        BLOCK_VOCABULARY=DRAW.block,
        num_warps=DRAW.warps,
    )
    # A chunk with a NaN has score +inf and id -1; chunks with nothing kept win only when all are such.
    best = scores.amax(1, keepdim=True)
    return torch.where(scores == best, ids, vocabulary).amin(1)

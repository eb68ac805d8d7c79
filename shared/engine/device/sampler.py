"""Draws ids from scores on the device, by the rules of `shared.engine.sampler`.

What is kept of a row (bias, penalties, top-k, top-p, min-p) is decided in float64; the draw itself is one
kernel for all rows. A row that wants log-probabilities is drawn on the host.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from shared.engine.api import Draw, Drawn, SamplingParams, needs_history
from shared.engine.sampler import allowed_mask, draw_batch, goes_on
from shared.errors import InvalidRequest, NanLogits, NotBuilt
from shared.kernels.sampling import gumbel_argmax

_SEED_WRAP = 1 << 64


def draw_on_device(logits: Tensor, draws: Sequence[Draw]) -> list[Drawn | Exception]:
    """One draw per row of `logits`, float32 [rows, vocab], which may be overwritten.

    A row that cannot be drawn from gives its error in its place, as in `draw_batch`.
    """
    results: list[Drawn | Exception | None] = [_refusal(draw, logits.shape[1]) for draw in draws]
    hosted = [at for at, draw in enumerate(draws) if results[at] is None and _on_host(draw.params)]
    if hosted:
        moved = logits[hosted].cpu()
        for at, drawn in zip(hosted, draw_batch(moved, [draws[at] for at in hosted]), strict=True):
            results[at] = drawn
    here = [at for at, result in enumerate(results) if result is None]
    if here:
        rows = logits if len(here) == len(draws) else logits[here]
        for at, token in zip(here, _ids(rows, [draws[at] for at in here]), strict=True):
            results[at] = Drawn(token) if token >= 0 else NanLogits(_undrawable(draws[at]))
    return [result for result in results if result is not None]


def _on_host(params: SamplingParams) -> bool:
    return params.logprobs >= 0


def _refusal(draw: Draw, vocab: int) -> Exception | None:
    if draw.params.grammar and draw.allowed is None:
        return NotBuilt("grammar is not served by this engine; leave it out", "grammar")
    for token in draw.params.logit_bias:
        if not 0 <= token < vocab:
            return InvalidRequest(f"id {token} is outside the vocabulary of {vocab}", "logit_bias")
    return None


def _undrawable(draw: Draw) -> str:
    return f"scores at position {draw.position} are not finite, or every id is excluded"


def _ids(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """The drawn ids; -1 where a row has a NaN or nothing is kept."""
    unsound = ~torch.isfinite(logits.amax(1))
    for row, draw in enumerate(draws):
        _adjust(logits[row], draw)
    filtered = [row for row, draw in enumerate(draws) if _filters(draw.params)]
    if filtered:
        logits[filtered] = _kept(logits[filtered], [draws[row].params for row in filtered])
    device = logits.device
    seeds = [_signed(draw.params.seed) for draw in draws]
    ids = gumbel_argmax(
        logits,
        torch.tensor([draw.params.temperature for draw in draws], dtype=torch.float32).to(device),
        torch.tensor(seeds, dtype=torch.int64).to(device),
        torch.tensor([draw.position for draw in draws], dtype=torch.int64).to(device),
        torch.tensor([draw.params.choice for draw in draws], dtype=torch.int32).to(device),
    )
    chosen: list[int] = ids.masked_fill(unsound, -1).tolist()
    return chosen


def _signed(seed: int) -> int:
    """The int64 with the bits of an unsigned 64-bit seed."""
    return seed - _SEED_WRAP if seed >= _SEED_WRAP // 2 else seed


def _adjust(scores: Tensor, draw: Draw) -> None:
    """Bias, penalties, a grammar's mask and min_tokens on one row [vocab], in place."""
    params = draw.params
    device = scores.device
    if params.logit_bias:
        tokens = torch.tensor(list(params.logit_bias)).to(device)
        scores[tokens] += torch.tensor(list(params.logit_bias.values()), dtype=scores.dtype).to(device)
    if needs_history(params):
        _penalise(scores, draw)
    allowed = allowed_mask(draw, len(scores))
    if allowed is not None:
        scores.masked_fill_(torch.from_numpy(~allowed).to(device), -math.inf)
    if draw.position - draw.prompt_len < params.min_tokens:
        stops = [token for token in params.stop_ids if 0 <= token < len(scores)]
        if allowed is None or goes_on(allowed, stops):
            scores[torch.tensor(stops, dtype=torch.int64).to(device)] = -math.inf


def _penalise(scores: Tensor, draw: Draw) -> None:
    params, device = draw.params, scores.device
    if params.repetition_penalty != 1.0:
        seen = torch.tensor(sorted(set(draw.history))).to(device)
        old = scores[seen]
        penalty = params.repetition_penalty
        scores[seen] = torch.where(old > 0, old / penalty, old * penalty)
    if params.presence_penalty or params.frequency_penalty:
        counts = Counter(draw.history[draw.prompt_len :])
        tokens = torch.tensor(list(counts), dtype=torch.int64).to(device)
        times = torch.tensor(list(counts.values()), dtype=torch.float64).to(device)
        less = params.frequency_penalty * times + params.presence_penalty
        scores[tokens] = (scores[tokens].double() - less).to(scores.dtype)


def _filters(params: SamplingParams) -> bool:
    return params.temperature > 0 and (params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0)


def _kept(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Rows with -inf where top-k, top-p or min-p drop an id; ties keep the lower id."""
    rows, vocab = logits.shape
    device = logits.device

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float64).to(device)[:, None]

    scores = logits.double() / column([each.temperature for each in params])
    ordered, order = scores.sort(dim=1, descending=True, stable=True)
    places = torch.arange(vocab, device=device).expand(rows, vocab)
    counts = column([float(each.top_k or vocab) for each in params])
    keep = (places < counts) & (ordered > -math.inf)
    chances = torch.where(keep, (ordered - ordered[:, :1]).exp(), 0.0)
    chances /= chances.sum(1, keepdim=True)
    before = torch.nn.functional.pad(chances.cumsum(1)[:, :-1], (1, 0))
    shares = column([each.top_p for each in params])
    keep &= (before < shares) | (shares >= 1.0) | (places == 0)
    floors = column([math.log(each.min_p) if each.min_p > 0 else -math.inf for each in params])
    keep &= ordered - ordered[:, :1] >= floors
    dropped = torch.zeros_like(keep).scatter_(1, order, ~keep)
    return logits.masked_fill(dropped, -math.inf)

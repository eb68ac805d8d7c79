"""Draws ids from scores by the rules of I4: exact counts, float64 scores, counter-based noise.

A draw is a function of (scores, ids so far, prompt length, parameters) alone; nothing is remembered.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shared.engine.api import Draw, Drawn, SamplingParams, WorkItem, needs_history
from shared.engine.philox import first_words
from shared.errors import InvalidRequest, NanLogits, NotBuilt

Scores = np.ndarray[Any, np.dtype[np.float64]]
Ids = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Contenders = Callable[[Scores, Draw], Ids]
"""From scores [vocab] over the temperature, to all ids that the draw's noise could lift above the others."""

_MOST_NOISE = 22.9  # above the largest value `_gumbel` can give: -log(-log(1 - 2**-33)) = 22.87
_SCORED = 32  # rows of a prompt whose scores are held at once
_SHORT = 256  # best ids tried first, before all are looked at


def draw_batch(
    logits: Tensor, draws: Sequence[Draw], contenders: Contenders | None = None
) -> list[Drawn | Exception]:
    """One draw per row of `logits`, float32 [rows, vocab]; `contenders` may be faster than the one here.

    A row that cannot be drawn from gives its error (NanLogits, InvalidRequest, NotBuilt) in its place.
    """
    highest, best = logits.max(-1)  # of equal scores the first; NaN wins over all
    sound = torch.isfinite(highest).tolist()
    greedy: list[int] = best.tolist()
    results: list[Drawn | Exception] = []
    for row, draw in enumerate(draws):
        if not sound[row]:
            results.append(NanLogits(f"scores at position {draw.position} are not finite"))
            continue
        try:
            plain = _is_plain_greedy(draw)
            chosen = greedy[row] if plain else draw_one(logits[row].numpy(), draw, contenders)
            results.append(_drawn(logits[row], chosen, draw.params.logprobs))
        except (InvalidRequest, NotBuilt, NanLogits) as error:
            results.append(error)
    return results


def score_following(item: WorkItem, states: Tensor, logits: Callable[[Tensor], Tensor]) -> tuple[Drawn, ...]:
    """Of each id that follows one of an item's own: its log-probability, and the best ids beside it.

    `states`: last hidden states from the item's first token on; a few rows at a time are turned to scores.
    """
    found: list[Drawn] = []
    for start in range(0, len(item.following), _SCORED):
        wanted = item.following[start : start + _SCORED]
        scores = logits(states[start : start + len(wanted)]).cpu()
        found += [_drawn(row, token, item.best) for row, token in zip(scores, wanted, strict=True)]
    return tuple(found)


def draw_one(
    logits: np.ndarray[Any, np.dtype[np.float32]], draw: Draw, contenders: Contenders | None = None
) -> int:
    """The id drawn from finite `logits` [vocab]."""
    params = draw.params
    scores = adjusted(logits.astype(np.float64), draw)
    if params.temperature == 0:
        chosen = int(np.argmax(scores))
        if scores[chosen] == -np.inf:
            raise NanLogits(f"every id is excluded at position {draw.position}")
        return chosen
    scores /= params.temperature
    if params.top_k > 0 or params.top_p < 1.0 or params.min_p > 0.0:
        kept = _kept(scores, params)
    else:
        kept = (contenders or _contenders)(scores, draw)
    keys = scores[kept] + _gumbel(kept, draw)
    if not len(kept) or keys.max() == -np.inf:
        raise NanLogits(f"every id is excluded at position {draw.position}")
    return int(kept[keys == keys.max()].min())


def adjusted(scores: Scores, draw: Draw) -> Scores:
    """`scores` [vocab] after bias, penalties, grammar and min_tokens, in place.

    The repetition penalty looks at prompt and output, presence and frequency penalties at the output alone.
    """
    params = draw.params
    if params.grammar and draw.allowed is None:
        raise NotBuilt("grammar is not served by this engine; leave it out", "grammar")
    for token, bias in params.logit_bias.items():
        if not 0 <= token < len(scores):
            raise InvalidRequest(f"id {token} is outside the vocabulary of {len(scores)}", "logit_bias")
        scores[token] += bias
    if needs_history(params):
        _penalise(scores, draw)
    allowed = allowed_mask(draw, len(scores))
    if allowed is not None:
        scores[~allowed] = -np.inf
    if draw.position - draw.prompt_len < params.min_tokens:
        stops = [token for token in params.stop_ids if 0 <= token < len(scores)]
        if allowed is None or goes_on(allowed, stops):
            scores[stops] = -np.inf
    return scores


def allowed_mask(draw: Draw, vocab: int) -> Mask | None:
    """What the grammar leaves, [vocab]."""
    if draw.allowed is None:
        return None
    bits = np.unpackbits(np.frombuffer(draw.allowed, np.uint8), bitorder="little", count=vocab)
    return bits.view(np.bool_)


def goes_on(allowed: Mask, stops: Sequence[int]) -> bool:
    """Whether anything but the end is allowed: where nothing is, the answer ends before `min_tokens`."""
    rest = allowed.copy()
    rest[stops] = False
    return bool(rest.any())


def _penalise(scores: Scores, draw: Draw) -> None:
    params = draw.params
    if params.repetition_penalty != 1.0:
        seen = np.unique(np.asarray(draw.history, dtype=np.int64))
        old = scores[seen]
        penalty = params.repetition_penalty
        scores[seen] = np.where(old > 0, old / penalty, old * penalty)
    if params.presence_penalty or params.frequency_penalty:
        for token, count in Counter(draw.history[draw.prompt_len :]).items():
            scores[token] -= params.frequency_penalty * count + params.presence_penalty


def _kept(scores: Scores, params: SamplingParams) -> Ids:
    """Ids left by top-k, top-p and min-p, in any order."""
    kept = np.flatnonzero(scores > -np.inf)
    if 0 < params.top_k < len(kept):
        kept = _best(scores, params.top_k)
    if params.top_p < 1.0 and len(kept):
        kept = _nucleus(scores, kept, params.top_p)
    if params.min_p > 0.0 and len(kept):
        kept = kept[scores[kept] - scores[kept].max() >= np.log(params.min_p)]
    return kept


def _nucleus(scores: Scores, kept: Ids, share: float) -> Ids:
    """The shortest run of the best of `kept` whose probabilities reach `share`, at least one id.

    Only as many are sorted as are needed: most of the vocabulary is far below the edge.
    """
    chosen = scores[kept]
    peak = chosen.max()
    total = np.exp(chosen - peak).sum()
    count = min(_SHORT, len(kept))
    while True:
        order = _best(chosen, count)
        reached = np.cumsum(np.exp(chosen[order] - peak) / total)
        if reached[-1] >= share or count == len(kept):
            needed = int(np.searchsorted(reached, share)) + 1  # the first place where `share` is reached
            run: Ids = kept[order[:needed]]
            return run
        count = min(count * 4, len(kept))


def _best(scores: Scores, count: int) -> Ids:
    """The `count` best ids, best first; of equal scores the lower id is the better, also at the edge."""
    if count >= len(scores):
        return np.argsort(-scores, kind="stable")
    edge = np.partition(scores, len(scores) - count)[len(scores) - count]
    above = np.flatnonzero(scores > edge)
    chosen = np.concatenate([above, np.flatnonzero(scores == edge)[: count - len(above)]])
    chosen.sort()
    return chosen[np.argsort(-scores[chosen], kind="stable")]


def _contenders(scores: Scores, draw: Draw) -> Ids:
    """Ids that the noise could lift above all others: those within its range of a key surely reached."""
    if len(scores) <= _SHORT:
        return np.arange(len(scores))
    likely = np.flatnonzero(scores >= np.partition(scores, -_SHORT)[-_SHORT])
    reached = (scores[likely] + _gumbel(likely, draw)).max()
    return np.flatnonzero(scores >= reached - _MOST_NOISE)


def _gumbel(ids: Ids, draw: Draw) -> Scores:
    """Noise of each id at the draw's position: -log(-log(u)), u = (x0 + 0.5) / 2**32."""
    words = first_words(ids.astype(np.uint64), counter_of(draw), key_of(draw))
    noise: Scores = -np.log(-np.log((words.astype(np.float64) + 0.5) * 2.0**-32))
    return noise


def counter_of(draw: Draw) -> tuple[int, int, int]:
    """The first three words of the generator's counter; the last one is the id."""
    return draw.position & 0xFFFFFFFF, draw.position >> 32, draw.params.choice


def key_of(draw: Draw) -> tuple[int, int]:
    """The generator's key: the seed's two words."""
    return draw.params.seed & 0xFFFFFFFF, draw.params.seed >> 32 & 0xFFFFFFFF


def _is_plain_greedy(draw: Draw) -> bool:
    """Whether the best raw score wins."""
    params = draw.params
    if params.temperature != 0 or params.logit_bias or params.grammar or needs_history(params):
        return False
    return not (params.stop_ids and draw.position - draw.prompt_len < params.min_tokens)


def _drawn(logits: Tensor, chosen: int, count: int) -> Drawn:
    """With the log-probabilities, from the raw scores, that `count` asks for (-1: none)."""
    if count < 0:
        return Drawn(chosen)
    wide = logits.double()
    whole = torch.logsumexp(wide, 0).item()
    scores = wide.numpy()
    best = _best(scores, min(count, len(scores))) if count else ()
    top = tuple((int(token), float(scores[token] - whole)) for token in best)
    return Drawn(chosen, float(scores[chosen] - whole), top)

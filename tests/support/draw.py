"""The rules by which an id is drawn, written a second time, in numpy and float64, away from the engine.

All arithmetic is float64 over the model's float32 logits. In order:

1. `logit_bias[id]` is added.
2. Repetition penalty r, for every id of prompt or output: score / r if score > 0, else score * r. Then, over
   the output alone, the frequency penalty times the id's count and, if it occurs, the presence penalty are
   subtracted.
3. Ids that `allowed` leaves out get minus infinity. While the output has fewer than `min_tokens` ids, so do
   eos and stop ids, unless nothing else is allowed.
4. Temperature 0: the highest score wins, ties go to the lowest id, and nothing below applies.
   Otherwise scores are divided by the temperature.
5. top-k keeps exactly k ids: the highest scores, ties by lowest id. 0 is off.
6. top-p keeps the shortest run of ids, by falling probability, then rising id, whose probabilities (of what
   top-k left, summing to 1) reach p. The first id is always kept. 1 is off.
7. min-p keeps ids whose probability is at least min_p times the highest. 0 is off.
8. The draw is the kept id with the highest score + gumbel, ties to the lowest id, where
   gumbel = -log(-log(u)), u = (x0 + 0.5) / 2**32, and x0 is the first word of Philox4x32-10 with the key
   (seed low 32 bits, seed high 32 bits) and the counter (position low, position high, choice, id).
   `position` is the index that the drawn id will have, prompt included: with a prompt of n ids the first draw
   has position n.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Scores = np.ndarray[Any, np.dtype[np.float64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]
Words = np.ndarray[Any, np.dtype[np.uint64]]

LOW = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


@dataclass(frozen=True)
class Rules:
    """Sampling parameters of one choice. `eos_ids` and `stop_ids` end the output."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    choice: int = 0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    stop_ids: Sequence[int] = ()
    eos_ids: Sequence[int] = ()
    allowed: Callable[[Sequence[int]], Mask] | None = None
    """What may follow an output, (vocab,)."""

    @property
    def ends(self) -> list[int]:
        """Ids that end the output."""
        return [*self.eos_ids, *self.stop_ids]


def philox(counter: Sequence[Words | int], key: tuple[int, int]) -> list[Words]:
    """Philox4x32-10 (Salmon et al., SC11): four words for each counter, elementwise over arrays."""
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(word, dtype=np.uint64) for word in counter))
    k0, k1 = np.uint64(key[0]), np.uint64(key[1])
    for _ in range(10):
        first, second = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (second >> HALF) ^ c1 ^ k0, second & LOW, (first >> HALF) ^ c3 ^ k1, first & LOW
        k0 = np.uint64((int(k0) + 0x9E3779B9) & 0xFFFFFFFF)
        k1 = np.uint64((int(k1) + 0xBB67AE85) & 0xFFFFFFFF)
    return [c0, c1, c2, c3]


def gumbel(ids: Words, position: int, seed: int, choice: int) -> Scores:
    """Gumbel noise of the given ids at one position."""
    counter = (position & 0xFFFFFFFF, position >> 32, choice, ids)
    word = philox(counter, (seed & 0xFFFFFFFF, seed >> 32 & 0xFFFFFFFF))[0]
    uniform = (word.astype(np.float64) + 0.5) / 2.0**32
    return np.asarray(-np.log(-np.log(uniform)))


def processed(logits: Scores, ids: Sequence[int], prompt_len: int, rules: Rules) -> Scores:
    """Steps 1 to 3 for the context `ids`, of which the first `prompt_len` are the prompt."""
    scores = np.array(logits, dtype=np.float64)
    for token, bias in rules.logit_bias.items():
        scores[int(token)] += bias
    output = Counter(ids[prompt_len:])
    if rules.repetition_penalty != 1.0:
        seen = sorted(set(ids))
        old = scores[seen]
        scores[seen] = np.where(old > 0, old / rules.repetition_penalty, old * rules.repetition_penalty)
    for token, count in output.items():
        scores[token] -= rules.frequency_penalty * count + rules.presence_penalty
    if rules.allowed is not None:
        scores[~rules.allowed(ids[prompt_len:])] = -np.inf
    if len(ids) - prompt_len < rules.min_tokens:
        ended = scores.copy()
        ended[rules.ends] = -np.inf
        return ended if np.isfinite(ended).any() else scores
    return scores


@dataclass(frozen=True)
class Verdict:
    """What the rules say of one draw: the id, and which other ids rounding could have drawn."""

    drawn: int
    near: frozenset[int]


def draw(
    logits: Scores, ids: Sequence[int], prompt_len: int, rules: Rules, tolerance: float = 0.0
) -> Verdict:
    """The id drawn after `ids` (of which `prompt_len` are prompt) from `logits` of shape (vocab,).

    `near` holds the ids that would be drawn if logits, or a top-k, top-p or min-p edge, moved by `tolerance`
    (in units of a logit): those that may be kept and come that close to the best of the ids kept for certain.
    """
    scores = processed(logits, ids, prompt_len, rules)
    if rules.temperature == 0:
        best = int(np.argmax(scores))
        return Verdict(best, frozenset(np.flatnonzero(scores >= scores[best] - tolerance).tolist()))
    scores /= rules.temperature
    slack = tolerance / min(rules.temperature, 1.0)
    order = np.argsort(-scores, kind="stable")
    ranked = scores[order]
    kept, certain, possible = (_kept(ranked, rules, shift) for shift in (0.0, -slack, slack))
    noise = gumbel(order[possible].astype(np.uint64), len(ids), rules.seed, rules.choice)
    keys = np.full(len(scores), -np.inf)
    keys[order[possible]] = ranked[possible] + noise
    winners = np.flatnonzero(keys == np.max(keys[order[kept]]))
    floor = np.max(keys[order[certain]], initial=-np.inf)
    near = order[possible & (keys[order] >= floor - slack)]
    return Verdict(int(np.intersect1d(winners, order[kept])[0]), frozenset(near.tolist()))


def _kept(ranked: Scores, rules: Rules, slack: float) -> Mask:
    """Steps 5 to 7 over scores in falling order (ties by rising id).

    A positive slack keeps all that could be kept if scores or edges moved by so much, a negative one only
    what is kept all the same.
    """
    keep = np.isfinite(ranked)
    count = len(ranked) if rules.top_k <= 0 else min(rules.top_k, len(ranked))
    if count < len(ranked):
        keep &= _within_top_k(ranked, count, slack)
    if rules.top_p < 1.0:
        weights = np.exp(ranked - ranked[0])
        weights[count:] = 0.0
        before = _share_before(ranked, weights / weights.sum(), slack)
        keep &= (before < rules.top_p + slack) | (before <= 0)
    if rules.min_p > 0.0:
        keep &= ranked - ranked[0] >= np.log(rules.min_p) - slack
    return keep


def _within_top_k(ranked: Scores, count: int, slack: float) -> Mask:
    inside = np.arange(len(ranked)) < count
    if slack > 0:
        inside |= ranked >= ranked[count - 1] - slack
    elif slack < 0:
        inside &= ranked > ranked[count] - slack
    return inside


def _share_before(ranked: Scores, shares: Scores, slack: float) -> Scores:
    """Probability of the ids ranked before each one; at its best or worst rank if scores move by `slack`."""
    total = np.concatenate([[0.0], np.cumsum(shares)])
    if slack > 0:
        return total[np.searchsorted(-ranked, -ranked - slack, side="left")]
    if slack < 0:
        return total[np.searchsorted(-ranked, -ranked - slack, side="right")] - shares
    return total[:-1]

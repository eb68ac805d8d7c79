"""A runner without a model: a timing, and KV that shows at once whether it is the right one.

Each token's KV is a digest of (the digest before it, its id, its position), read back from the pool's
memory; the next id is folded from the digests of all tokens of the context, as they stand in the blocks. A
block that is missing, stale, damaged or of another context so changes the next id, and `synthetic_next`
says from the ids alone what it should have been. No torch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from shared.engine.api import Draw, Drawn, SamplingParams, StepPlan, StepResult, WorkItem
from shared.errors import ConfigError, NotBuilt
from shared.kv.layout import KvLayout, full_attention

DIGEST = 16
_NOTHING = bytes(DIGEST)
FORCED = 100.0
"""Logit bias from which an id is always drawn; at its negative, never."""


@dataclass(frozen=True, slots=True)
class SyntheticTiming:
    """Seconds that a step takes: a base, and more for each new token and each token of context read."""

    step: float = 0.0
    token: float = 0.0
    context: float = 0.0

    def seconds(self, plan: StepPlan) -> float:
        new = sum(len(item.ids) for item in plan.items)
        read = sum(item.start + len(item.ids) for item in plan.items)
        return self.step + self.token * new + self.context * read if plan.items else 0.0


def synthetic_layout(block_tokens: int, token_bytes: int = 64) -> KvLayout:
    """A layout with `token_bytes` (a multiple of 16) of KV a token."""
    return full_attention(
        layers=1, kv_heads=1, head_dim=token_bytes // 8, block_tokens=block_tokens, dtype="float32"
    )


class SyntheticRunner:
    """A `Runner` over plain memory. `sleep` makes steps last (None: virtual time, `seconds` is only told).

    A block's memory is `planes` copies of the digests of its tokens, one plane after the other.
    """

    def __init__(
        self,
        layout: KvLayout,
        blocks: int,
        *,
        vocab: int = 1000,
        timing: SyntheticTiming | None = None,
        sleep: Callable[[float], None] | None = None,
    ) -> None:
        self._layout = layout
        self._plane = layout.block_tokens * DIGEST
        self._planes, rest = divmod(layout.block_bytes, self._plane)
        if rest or not self._planes:
            raise ConfigError(
                "model.kv_layout", f"{layout.block_bytes} bytes a block are no multiple of {self._plane}"
            )
        self._vocab = vocab
        self._timing = timing or SyntheticTiming()
        self._sleep = sleep
        self._memory = memoryview(bytearray(blocks * layout.block_bytes))

    @property
    def layout(self) -> KvLayout:
        return self._layout

    def warm_up(self) -> None:
        """Nothing to compile."""

    def close(self) -> None:
        """Nothing to give back."""

    def view(self, block: int) -> memoryview:
        """The bytes of one block, writable."""
        size = self._layout.block_bytes
        return self._memory[block * size : (block + 1) * size]

    def landed(self, block: int) -> None:
        """Nothing to do: there is one memory."""

    @property
    def counters(self) -> Mapping[str, int]:
        return {}

    def execute(self, plan: StepPlan) -> StepResult:
        """Write the new tokens' digests and draw where asked."""
        drawn = tuple(self._run(item) for item in plan.items)
        scores = {at: self._score(item) for at, item in enumerate(plan.items) if item.following}
        seconds = self._timing.seconds(plan)
        if self._sleep is not None and seconds:
            self._sleep(seconds)
        return StepResult(drawn, seconds, scores)

    def _score(self, item: WorkItem) -> tuple[Drawn, ...]:
        """A log-probability of each id from the digest of the one before it."""
        found = []
        for offset, token in enumerate(item.following):
            value = self._digest_at(item, item.start + offset)[0] / 256
            top = tuple(((token + rank) % self._vocab, -value - rank) for rank in range(item.best))
            found.append(Drawn(token, -value, top))
        return tuple(found)

    def _run(self, item: WorkItem) -> Drawn | None:
        tokens = self._layout.block_tokens
        previous = self._digest_at(item, item.start - 1) if item.start else _NOTHING
        position = item.start
        end = item.start + len(item.ids)
        while position < end:
            stop = min(end, (position // tokens + 1) * tokens)
            fresh = []
            for at in range(position, stop):
                previous = token_digest(previous, item.ids[at - item.start], at)
                fresh.append(previous)
            self._write(item.blocks[position // tokens], position % tokens, b"".join(fresh))
            position = stop
        return self._draw(item, end, item.draw) if item.draw is not None else None

    def _digest_at(self, item: WorkItem, position: int) -> bytes:
        tokens = self._layout.block_tokens
        at = (position % tokens) * DIGEST
        return bytes(self.view(item.blocks[position // tokens])[at : at + DIGEST])

    def _write(self, block: int, slot: int, digests: bytes) -> None:
        view = self.view(block)
        for plane in range(self._planes):
            at = plane * self._plane + slot * DIGEST
            view[at : at + len(digests)] = digests

    def _draw(self, item: WorkItem, length: int, draw: Draw) -> Drawn:
        tokens = self._layout.block_tokens
        parts = []
        for index in range(-(-length // tokens)):
            used = min(tokens, length - index * tokens)
            parts.append(self._read(item.blocks[index], used * DIGEST))
        if draw.params.grammar and draw.allowed is None:
            raise NotBuilt("grammar is not served by this engine; leave it out", "grammar")
        digests = b"".join(parts)
        return draw_from(digests, draw.params, self._vocab, length, draw.prompt_len, draw.allowed)

    def _read(self, block: int, used: int) -> bytes:
        """The digests of a block's first tokens; more than that where the planes disagree."""
        view = self.view(block)
        starts = range(0, self._planes * self._plane, self._plane)
        planes = [bytes(view[at : at + used]) for at in starts]
        if planes.count(planes[0]) == len(planes):
            return planes[0]
        return hashlib.blake2b(b"".join(planes)).digest()


def token_digest(previous: bytes, id_: int, position: int) -> bytes:
    """KV of one token: 16 bytes."""
    material = previous + id_.to_bytes(4, "little") + position.to_bytes(8, "little")
    return hashlib.blake2b(material, digest_size=DIGEST).digest()


def draw_from(
    digests: bytes,
    params: SamplingParams,
    vocab: int,
    position: int,
    prompt_len: int,
    allowed: bytes | None = None,
) -> Drawn:
    """The id at `position` given the digests of all tokens before it: the same in every placement.

    `allowed` is a draw's: the next allowed id from where the digests point, before all bias.
    """
    salt = b""
    if params.temperature > 0:
        salt = (params.seed % 2**64).to_bytes(8, "little") + params.choice.to_bytes(4, "little")
    fold = hashlib.blake2b(digests, key=salt).digest()
    forced = [id_ for id_, bias in params.logit_bias.items() if bias >= FORCED]
    never = {id_ for id_, bias in params.logit_bias.items() if bias <= -FORCED}
    if position - prompt_len < params.min_tokens:
        never.update(params.stop_ids)
    id_ = min(forced) if forced else int.from_bytes(fold[:8], "little") % vocab
    while id_ in never and not forced and len(never) < vocab:
        fold = hashlib.blake2b(fold).digest()
        id_ = int.from_bytes(fold[:8], "little") % vocab
    if allowed is not None:
        id_ = _next_allowed(allowed, id_, vocab, never)
    if params.logprobs < 0:
        return Drawn(id_)
    logprob = -fold[8] / 256
    top = tuple(((id_ + rank) % vocab, logprob - rank) for rank in range(params.logprobs))
    return Drawn(id_, logprob, top)


def _next_allowed(allowed: bytes, id_: int, vocab: int, never: Set[int]) -> int:
    """The first allowed id from `id_` on, going round; one that should never come only where it has to."""
    spare = -1
    for step in range(vocab):
        token = (id_ + step) % vocab
        if allowed[token >> 3] >> (token & 7) & 1:
            if token not in never:
                return token
            spare = token if spare < 0 else spare
    return spare if spare >= 0 else id_


def synthetic_next(ids: Sequence[int], params: SamplingParams, vocab: int, prompt_len: int = 0) -> int:
    """The id that must follow `ids`, from the ids alone."""
    digest, digests = _NOTHING, bytearray()
    for position, id_ in enumerate(ids):
        digest = token_digest(digest, id_, position)
        digests += digest
    return draw_from(bytes(digests), params, vocab, len(ids), prompt_len).id


def synthetic_run(
    ids: Sequence[int], params: SamplingParams, vocab: int, prompt_len: int, limit: int | None = None
) -> list[int]:
    """The ids that must follow `ids` until a stop id, `max_pos`, or `limit` new ones."""
    digest, digests = _NOTHING, bytearray()
    known = list(ids)
    made: list[int] = []
    position = 0
    while len(known) < params.max_pos and (limit is None or len(made) < limit):
        while position < len(known):
            digest = token_digest(digest, known[position], position)
            digests += digest
            position += 1
        id_ = draw_from(bytes(digests), params, vocab, position, prompt_len).id
        known.append(id_)
        made.append(id_)
        if id_ in params.stop_ids:
            break
    return made

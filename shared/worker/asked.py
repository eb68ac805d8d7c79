"""What an Admit or a Prefill asks for, checked and in the engine's words."""

from __future__ import annotations

from dataclasses import dataclass, fields

from shared.engine.api import SamplingParams
from shared.kv.hashing import chain_hashes, unpack_ids
from shared.wire.messages import Admit, Prefill, Purpose, Rid, Role, Sampling, TokenLogprob
from shared.worker.worker_site import Site


@dataclass(slots=True)
class Asked:
    """A request as this worker was told of it."""

    rid: Rid
    router: str
    term: int
    ids: list[int]
    prompt_len: int
    sampling: Sampling
    params: SamplingParams
    priority: int
    root: bytes
    hashes: list[bytes]  # of the full blocks of `ids`
    since: float  # when it came here
    trace: str
    deadline: float  # the worker's own backstop, seconds of the caller's clock
    scores: int = -1  # as a Prefill's
    alone: int = 0  # as an Admit's

    def lacks(self, tokens: int) -> int:
        """Ids that nobody has KV of where that of the first `tokens` is there."""
        return len(self.ids) - tokens


class BadAsk(ValueError):
    """The message cannot be served as it is; the text says why."""


def params_of(sampling: Sampling) -> SamplingParams:
    """The engine's copy of the wire's sampling settings."""
    return SamplingParams(**{part.name: getattr(sampling, part.name) for part in fields(SamplingParams)})


def read(site: Site, now: float, router: str, message: Admit | Prefill, payload: bytes) -> Asked:
    """Check and unpack. Raises BadAsk with what is wrong."""
    try:
        ids = unpack_ids(payload)
    except ValueError:
        raise BadAsk(f"{len(payload)} bytes of ids are no multiple of 4") from None
    if not ids:
        raise BadAsk("there are no ids")
    if not 0 < message.prompt_len <= len(ids):
        raise BadAsk(f"prompt_len {message.prompt_len} is not within 1 and {len(ids)}")
    warm = isinstance(message, Admit) and message.purpose is Purpose.WARM
    if not warm and message.sampling.max_pos <= len(ids):
        raise BadAsk(f"max_pos {message.sampling.max_pos} leaves nothing to draw after {len(ids)} ids")
    root = site.root(message.salt)
    return Asked(
        rid=message.rid,
        router=router,
        term=message.term,
        ids=ids,
        prompt_len=message.prompt_len,
        sampling=message.sampling,
        params=params_of(message.sampling),
        priority=message.priority,
        root=root,
        hashes=chain_hashes(root, ids, site.block_tokens),
        since=now,
        trace=message.trace,
        deadline=now + message.remaining_ms / 1e3 + site.policy.backstop,
        scores=message.scores if isinstance(message, Prefill) else -1,
        alone=message.alone if isinstance(message, Admit) and site.role is Role.MAIN else 0,
    )


def wire_logprob(logprob: float | None, top: tuple[tuple[int, float], ...]) -> TokenLogprob | None:
    """The engine's log-probability in the wire's words."""
    return None if logprob is None else TokenLogprob(logprob, top)

"""Admission at a decoder, in one step: pin the match, count what is needed, promise it or refuse.

A promise is a number; blocks are taken when a chunk or a step needs one. Knows nothing of how a request
goes on.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.wire.messages import RefuseReason
from shared.worker.asked import Asked
from shared.worker.kv_in import KvIn
from shared.worker.worker_site import Site

RETRY_SOON = 0.5
"""Seconds after which a refused request may be tried again."""


class Refusal(NamedTuple):
    reason: RefuseReason
    retry_after: float
    detail: str


class Need(NamedTuple):
    """Blocks of a request at a decoder."""

    have: int  # leading ones published here
    expected: int  # further ones on their way under another ticket
    missing: int  # to be brought by its own ticket
    growth: int  # for the prompt's tail and the ids to come


class Admission:
    """Says whether a request fits."""

    def __init__(self, site: Site, kv_in: KvIn) -> None:
        self._site = site
        self._kv_in = kv_in

    def before(self, ask: Asked, parts: int) -> Refusal | None:
        """What speaks against a request before its blocks are looked at; `parts` are the others here."""
        site = self._site
        if site.draining:
            return Refusal(RefuseReason.DRAINING, RETRY_SOON, f"{site.node} drains")
        if len(ask.ids) > site.max_context:
            return Refusal(
                RefuseReason.TOO_LONG, 0.0, f"{len(ask.ids)} ids; the context is {site.max_context}"
            )
        most = site.policy.max_running + site.policy.max_queued
        if parts >= most:
            return Refusal(
                RefuseReason.QUEUE_FULL, RETRY_SOON, f"{parts} requests are here; at most {most} may"
            )
        return None

    def need(self, ask: Asked, have: int, *, yields: bool, warm: bool) -> Need:
        """What a request with `have` leading blocks here needs. `yields`: its transfer is not urgent."""
        upto = len(ask.hashes)
        expected = self._kv_in.expected(ask.hashes, have, yields=yields)
        return Need(have, expected, upto - have - expected, 0 if warm else self._growth(ask))

    def _growth(self, ask: Asked) -> int:
        """Blocks after the full ones: tail, output, and the copy of the last block where nothing is left to
        extend.

        The id drawn last has no KV.
        """
        site = self._site
        length = len(ask.ids)
        output = min(ask.sampling.max_pos - length, site.policy.growth_tokens)
        blocks = site.blocks_for(length + max(output, 1) - 1) - len(ask.hashes)
        return blocks + (length % site.block_tokens == 0)

    def after(self, need: Need) -> Refusal | None:
        """Whether the need can be promised, with the match pinned. Only alignments make room."""
        site, pool = self._site, self._site.pool
        whole = need.have + need.expected + need.missing + need.growth
        if whole > pool.total:
            return Refusal(RefuseReason.TOO_LONG, 0.0, f"{whole} blocks; the pool has {pool.total}")
        wanted = need.missing + need.growth
        if pool.available < wanted:
            self._kv_in.alignments.make_room(wanted - pool.available)
        if pool.available < wanted:
            return Refusal(
                RefuseReason.NO_BLOCKS,
                RETRY_SOON,
                f"{wanted} blocks wanted, {max(pool.available, 0)} to be had",
            )
        unlanded, most = self._kv_in.unlanded, int(site.policy.unlanded_fraction * pool.total)
        if need.missing and unlanded and unlanded + need.missing > most:
            return Refusal(
                RefuseReason.NO_BLOCKS,
                RETRY_SOON,
                f"{unlanded} blocks are still to land, with {need.missing} more over {most}",
            )
        return None

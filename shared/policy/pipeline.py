"""Which pipeline a request takes, from the seconds that each road would need. Pure numbers in, a choice
out.

All times are seconds from now. Knows nothing of workers, messages or the index: placement turns those into
numbers.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shared.policy.config import RouterPolicy


class Pipeline(enum.StrEnum):
    MD = "MD"
    P_MD = "P-MD"
    P_RLD_MD = "P-RLD-MD"
    P_RLD = "P-RLD"  # singular: finishes at the relay while main decode's transfer is parked


@dataclass(frozen=True, slots=True)
class Roads:
    """What is known of a request on one (prefill, relay, main decode) when its pipeline is chosen."""

    lacking_tokens: int  # prompt tokens that main decode has no KV of; blocks on their way count as lacking
    prefill_possible: bool  # some prefill worker can send to this main decode
    line_up: bool  # the line to main decode is there
    local_allowed: bool = True
    relay_allowed: bool = True
    t_main: float = 0.0  # until main decode has every block
    t_relay: float | None = None  # until the relay has every block; None: no relay has room
    line_wait: float = 0.0  # of `t_main`: backlog of the line and this request's own bytes
    relay_output: float = 0.0  # seconds the relay needs for the predicted output
    singular_allowed: bool = False  # by the request, its session, and the relay's room for singular requests


@dataclass(frozen=True, slots=True)
class Choice:
    """`pipeline` is None where the request is refused: `wait` then says by how much the line is too slow."""

    pipeline: Pipeline | None
    reason: str
    wait: float = 0.0
    alone: int = 0  # of `MD`: lacking tokens up to which main decode need not ask


def prefill_seconds(queued_tokens: float, uncached_tokens: float, rate: float) -> float:
    """Until a prefill of `uncached_tokens` ends behind `queued_tokens`, at `rate` tokens/s."""
    return (queued_tokens + max(uncached_tokens, 1.0)) / max(rate, 1e-9)


def line_seconds(outstanding: float, missing: float, rate: float, rtt: float) -> float:
    """Until `missing` bytes have crossed a line on which `outstanding` bytes wait, at `rate` bytes/s (0: no
    limit).
    """
    if missing <= 0:
        return 0.0
    if rate <= 0:
        return rtt
    return (outstanding + missing) / rate + rtt


def local_limit(policy: RouterPolicy, *, line_up: bool, prefill_possible: bool) -> int:
    """Lacking tokens up to which main decode extends by itself."""
    if line_up and prefill_possible:
        return policy.md_local_tokens
    return max(policy.md_local_tokens, policy.md_local_tokens_line_down)


def choose_pipeline(policy: RouterPolicy, roads: Roads, deadline: float) -> Choice:
    """The pipeline for these roads; `deadline` is the seconds that the request has left."""
    lacking = roads.lacking_tokens
    limit = local_limit(policy, line_up=roads.line_up, prefill_possible=roads.prefill_possible)
    possible = roads.line_up and roads.prefill_possible
    if lacking <= limit and (roads.local_allowed or not possible):
        return Choice(Pipeline.MD, f"main decode lacks {lacking} <= {limit} tokens", alone=limit)
    if not possible:
        what = "the line is down" if roads.prefill_possible else "no prefill worker"
        return Choice(None, f"{what}, and main decode lacks {lacking} > {limit} tokens")
    relay = _with_relay(policy, roads)
    bound = min(policy.max_line_wait, deadline)
    if roads.line_wait > bound and relay.pipeline is not Pipeline.P_RLD:
        why = f"the line needs {roads.line_wait:.1f} s, more than {bound:.1f}"
        return Choice(None, why, wait=roads.line_wait - bound)
    return relay


def _with_relay(policy: RouterPolicy, roads: Roads) -> Choice:
    """The choice among the pipelines with prefill: P-MD where a relay gains nothing."""
    if not policy.relay:
        return Choice(Pipeline.P_MD, "relays are switched off")
    if not roads.relay_allowed:
        return Choice(Pipeline.P_MD, "the request takes no relay (any more)")
    if roads.t_relay is None:
        return Choice(Pipeline.P_MD, "no relay has room")
    gain = roads.t_main - roads.t_relay
    if gain <= policy.relay_margin:
        return Choice(Pipeline.P_MD, f"main decode in {roads.t_main:.3f} s, a relay in {roads.t_relay:.3f}")
    singular = policy.singular and roads.singular_allowed and roads.relay_output < gain
    if singular and roads.lacking_tokens >= policy.singular_min_uncached:
        why = f"a relay ends its answer in {roads.relay_output:.3f} s, main decode starts {gain:.3f} s later"
        return Choice(Pipeline.P_RLD, why)
    return Choice(Pipeline.P_RLD_MD, f"a relay is {gain:.3f} s earlier than main decode")

"""What each value of `mesh.toml` may be, one rule per key: the checks, the JSON Schema and the documentation
all read this table.

Rules between several keys are `mesh_checks`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from shared.policy.config import LinePolicy, LinkPolicy, RouterPolicy, WorkerPolicy
from shared.runtime.settings import (
    DatacenterConfig,
    HttpConfig,
    LineConfig,
    ModelConfig,
    NodeConfig,
    SyntheticConfig,
    TracingConfig,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Bounds of a number, or the shape of a text."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    choices: tuple[int, ...] = ()
    pattern: str = ""
    shape: str = ""
    """`pattern` in words."""

    def words(self) -> str:
        """What is allowed, for people."""
        parts = [self.shape] if self.shape else []
        if self.choices:
            parts.append("one of " + ", ".join(map(str, self.choices)))
        if self.above is not None:
            parts.append(f"above {self.above:g}")
        if self.least is not None and self.most is not None:
            parts.append(f"{self.least:g} to {self.most:g}")
        elif self.least is not None:
            parts.append(f"at least {self.least:g}")
        elif self.most is not None:
            parts.append(f"at most {self.most:g}")
        return ", ".join(parts)

    def allows(self, value: object) -> bool:
        """Whether a value of the right type is within the limit."""
        if isinstance(value, str):
            return re.fullmatch(self.pattern, value) is not None if self.pattern else True
        if not isinstance(value, int | float):
            return True
        return (
            (not self.choices or value in self.choices)
            and (self.least is None or value >= self.least)
            and (self.above is None or value > self.above)
            and (self.most is None or value <= self.most)
        )


_POSITIVE = Limit(above=0)
_NOT_NEGATIVE = Limit(least=0)
_AT_LEAST_ONE = Limit(least=1)
_FRACTION = Limit(least=0, most=1)
_PART = Limit(above=0, most=1)
_NAME = Limit(
    pattern=r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}",
    shape="a name of at most 63 letters, digits, dots, dashes and underscores",
)
_CONGESTION = Limit(pattern=r"[a-z0-9_-]{0,15}", shape="a name such as bbr or cubic")

_LIMITS: Mapping[type[msgspec.Struct], Mapping[str, Limit]] = {
    ModelConfig: {
        "path": Limit(pattern=r"(?s).+", shape="not empty"),
        "block_tokens": Limit(choices=(8, 16, 32, 64, 128)),
        "max_context": _NOT_NEGATIVE,
    },
    SyntheticConfig: {
        "block_bytes": _AT_LEAST_ONE,
        "prefill_tokens_per_second": _POSITIVE,
        "step_ms": _NOT_NEGATIVE,
    },
    DatacenterConfig: {"name": _NAME},
    NodeConfig: {
        "name": _NAME,
        "pool_blocks": Limit(least=2),
        "threads": _NOT_NEGATIVE,
        "device": Limit(pattern=r"cpu|cuda(:\d+)?", shape="cpu, cuda or cuda:INDEX"),
        "slowdown": _POSITIVE,
    },
    LineConfig: {
        "name": _NAME,
        "rate_mbit": _NOT_NEGATIVE,
        "rtt_ms": _NOT_NEGATIVE,
        "bulk_connections": Limit(least=0, most=64),
        "congestion": _CONGESTION,
        "dscp": Limit(least=0, most=63),
    },
    HttpConfig: {
        "max_body": _AT_LEAST_ONE,
        "keep_alive": _POSITIVE,
        "splice_bytes": _NOT_NEGATIVE,
        "splice_ttl": _POSITIVE,
        "max_header": Limit(least=1024),
        "body_timeout": _POSITIVE,
        "max_choices": _AT_LEAST_ONE,
        "thread_chars": _NOT_NEGATIVE,
        "tokenize_threads": _AT_LEAST_ONE,
        "responses_bytes": _NOT_NEGATIVE,
        "responses_ttl": _POSITIVE,
    },
    TracingConfig: {
        "endpoint": Limit(pattern=r"(https?://[^\s/]\S*)?", shape="http://host:port, or empty"),
        "sample": _FRACTION,
    },
    LinkPolicy: {"bulk_connections": Limit(least=1, most=64), "lan_congestion": _CONGESTION},
    LinePolicy: {"oldest_share": _FRACTION},
    WorkerPolicy: {
        "send_pin_fraction": _PART,
        "extend_stretch": _AT_LEAST_ONE,
        "unlanded_fraction": _PART,
        "align_fraction": _FRACTION,
    },
    RouterPolicy: {"singular_pool_fraction": _FRACTION, "rewarm_share": _FRACTION},
}

_POLICIES = (LinkPolicy, LinePolicy, WorkerPolicy, RouterPolicy)
# Tunables for which 0 means "none" or "at once"; every other tunable is above 0.
_MAY_BE_ZERO: Mapping[type[msgspec.Struct], frozenset[str]] = {
    LinkPolicy: frozenset(),
    LinePolicy: frozenset(),
    WorkerPolicy: frozenset(
        {
            "max_queued",
            "growth_tokens",
            "local_tokens",
            "attach_wait",
            "align_most",
            "backstop",
            "orphan_pause",
        }
    ),
    RouterPolicy: frozenset(
        {
            "md_local_tokens",
            "md_local_tokens_line_down",
            "md_local_busy",
            "relay_margin",
            "max_line_wait",
            "catch_up_backlog",
            "catch_up_rounds",
            "singular_min_uncached",
            "singular_max_output",
            "tokens_ahead",
            "gap_grace",
            "session_memory",
            "drain",
            "replace_wait",
            "queue_wait",
            "max_waiting",
            "join_ramp",
            "index_expected",
        }
    ),
}


def limit_of(kind: type[msgspec.Struct], key: str) -> Limit | None:
    """The rule for a key of a section's Struct; None where any value of its type will do."""
    limit = _LIMITS.get(kind, {}).get(key)
    if limit is None and kind in _POLICIES:
        return _NOT_NEGATIVE if key in _MAY_BE_ZERO[kind] else _POSITIVE
    return limit


def limit_problem(kind: type[msgspec.Struct], key: str, value: object) -> str:
    """What is impossible about a value of the right type; empty where nothing is."""
    if isinstance(value, bool):
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number"
    limit = limit_of(kind, key)
    if limit is None or limit.allows(value):
        return ""
    return f"{value!r} is not allowed; it must be {limit.words()}"

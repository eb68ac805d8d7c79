"""Traces as OpenTelemetry has them, without OpenTelemetry: contexts, and spans of what has already ended.

A context travels as W3C's `traceparent` in HTTP headers and in the mesh's messages; every process tells its
own spans under the one that the router named. Cores note what was when, in their own clock, and only where
somebody records: a service without `[tracing]` imports nothing of OpenTelemetry and notes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shared.errors import ConfigError
from shared.runtime.settings import TracingConfig

Facts = Mapping[str, str | int | float | bool]
_HEADER = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_SAMPLED = 1
_NO_TRACE, _NO_SPAN = 32 * "0", 16 * "0"


@dataclass(frozen=True, slots=True)
class Context:
    """Which trace something belongs to, and under which of its spans."""

    trace: str
    """32 hex digits."""
    span: str
    """16 hex digits."""
    sampled: bool

    @property
    def header(self) -> str:
        """As `traceparent`."""
        return f"00-{self.trace}-{self.span}-{_SAMPLED if self.sampled else 0:02x}"


def parse(header: str) -> Context | None:
    """The context of a `traceparent` header; None where it is none: W3C then has it ignored."""
    found = _HEADER.fullmatch(header)
    if found is None or found[1] == _NO_TRACE or found[2] == _NO_SPAN or (found[4] and header[:2] == "00"):
        return None
    return Context(found[1], found[2], bool(int(found[3], 16) & _SAMPLED))


@dataclass(frozen=True, slots=True)
class Span:
    """Something that has ended. Times are seconds of this process's monotonic clock."""

    name: str
    parent: str
    """`traceparent` of the span that it belongs under; of a root, its own."""
    start: float
    end: float
    facts: Facts = field(default_factory=dict)
    error: str = ""
    above: str = ""
    """Of a root: `traceparent` of the client's span, or empty. Then `parent` names the root itself."""
    root: bool = False


class Tracer(Protocol):
    """Where spans go."""

    def emit(self, spans: Iterable[Span]) -> None:
        """Take spans; never blocks, and drops them where too many wait."""

    def close(self) -> None:
        """Send what waits. May block for some seconds: not to be called from an event loop."""


class Sampler:
    """Makes the root context of each request."""

    def __init__(self, share: float, random_bits: Callable[[int], int]) -> None:
        """`share`: of the requests whose client has not decided, this part is recorded."""
        self._share = share
        self._random_bits = random_bits

    def begin(self, header: str) -> str:
        """The `traceparent` of a new request: in its client's trace, where the client named one."""
        known = parse(header)
        if known is not None:
            return Context(known.trace, self._id(64), known.sampled).header
        sampled = self._random_bits(32) < self._share * (1 << 32)
        return Context(self._id(128), self._id(64), sampled).header

    def _id(self, bits: int) -> str:
        return f"{self._random_bits(bits) or 1:0{bits // 4}x}"


def is_recorded(header: str) -> bool:
    """Whether spans under this `traceparent` are to be kept; one look at its last byte."""
    return len(header) >= 55 and header[53:55] != "00" and bool(int(header[53:55], 16) & _SAMPLED)


NOT_INSTALLED = (
    "needs OpenTelemetry, which is not installed here; pip install 'pdd-mesh[otel]', or leave it empty"
)


def make_tracer(config: TracingConfig, *, node: str, role: str, datacenter: str) -> Tracer | None:
    """Where this process's spans go; None where the mesh file names no place. Raises ConfigError."""
    if not config.endpoint:
        return None
    try:
        from shared.runtime.tracing_otlp import connect
    except ImportError as error:
        raise ConfigError("tracing.endpoint", f"{NOT_INSTALLED} ({error})") from error
    return connect(config, node=node, role=role, datacenter=datacenter)

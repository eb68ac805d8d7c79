"""Sends spans to a collector by OTLP over HTTP, with OpenTelemetry's SDK, in a thread of its own.

Imported only where `[tracing]` names an endpoint: OpenTelemetry is an extra of this package.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from shared.errors import ConfigError
from shared.runtime.settings import TracingConfig
from shared.runtime.tracing import Context, Span, parse

PATH = "/v1/traces"
TIMEOUT = 5.0
"""Seconds that one batch may take, tries included."""

EVERY_MS = 1000.0
"""Milliseconds between two batches at most."""

MOST_WAITING = 8192
"""Spans that wait for the collector at most; more are dropped."""

CLOSE_MS = 3000
"""Milliseconds that the last spans may take at the end of the process."""


def connect(config: TracingConfig, *, node: str, role: str, datacenter: str) -> Otlp:
    """A tracer to the configured endpoint; nothing is sent yet. Raises ConfigError."""
    endpoint = config.endpoint if config.endpoint.endswith(PATH) else config.endpoint.rstrip("/") + PATH
    headers = _headers(config.headers_file)
    batches = BatchSpanProcessor(
        OTLPSpanExporter(endpoint=endpoint, headers=headers, timeout=TIMEOUT),
        max_queue_size=MOST_WAITING,
        schedule_delay_millis=EVERY_MS,
        export_timeout_millis=1e3 * TIMEOUT,
    )
    service = {"service.name": f"pdd-{role}", "service.namespace": "pdd", "service.instance.id": node}
    resource = Resource.create({**service, "pdd.node": node, "pdd.role": role, "pdd.datacenter": datacenter})
    return Otlp(batches, resource)


def _headers(file: str) -> Mapping[str, str]:
    """`name: value` lines of a file, for collectors that ask for a key. Raises ConfigError."""
    if not file:
        return {}
    try:
        lines = Path(file).expanduser().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("tracing.headers_file", f"{file} cannot be read: {error}") from error
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, value = line.partition(":")
        if not colon or not name.strip() or not value.strip():
            raise ConfigError("tracing.headers_file", f"line {number} of {file} is no `name: value`")
        found[name.strip().lower()] = value.strip()
    return found


class Otlp:
    """Turns spans into the SDK's, and hands them to its batches."""

    def __init__(self, batches: BatchSpanProcessor, resource: Resource) -> None:
        self._batches = batches
        self._resource = resource
        self._ids = RandomIdGenerator()

    def emit(self, spans: Iterable[Span]) -> None:
        """Take spans; never blocks, and drops them where too many wait."""
        offset = time.time_ns() - time.monotonic_ns()
        for span in spans:
            made = self._made(span, offset)
            if made is not None:
                self._batches.on_end(made)

    def close(self) -> None:
        """Send what waits, for `CLOSE_MS` at most."""
        self._batches.force_flush(CLOSE_MS)
        self._batches.shutdown()  # type: ignore[no-untyped-call]

    def _made(self, span: Span, offset: int) -> ReadableSpan | None:
        context = parse(span.parent)
        if context is None or not context.sampled:
            return None
        number = int(context.span, 16) if span.root else self._ids.generate_span_id()
        above = parse(span.above) if span.root else context
        return ReadableSpan(
            name=span.name,
            context=_context(context, number, remote=False),
            parent=None if above is None else _context(above, int(above.span, 16), remote=True),
            resource=self._resource,
            attributes=dict(span.facts),
            kind=SpanKind.SERVER if span.root else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
            start_time=offset + int(1e9 * span.start),
            end_time=offset + int(1e9 * max(span.start, span.end)),
            instrumentation_scope=InstrumentationScope("pdd-mesh"),
        )


def _context(context: Context, number: int, *, remote: bool) -> SpanContext:
    return SpanContext(int(context.trace, 16), number, remote, TraceFlags(TraceFlags.SAMPLED))

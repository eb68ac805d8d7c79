"""A collector of traces: takes OTLP over HTTP on a real socket and keeps the spans."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Told:
    """One span as it came. Times are seconds of the wall clock."""

    service: str
    node: str
    name: str
    trace: str
    span: str
    parent: str
    start: float
    end: float
    facts: dict[str, Any]
    error: str


@dataclass
class Collector:
    """Use as a context manager; `spans` grows while it runs."""

    spans: list[Told] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def __enter__(self) -> Collector:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(self.path, dict(self.headers), body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def take(self, path: str, headers: dict[str, str], body: bytes) -> None:
        assert path == "/v1/traces"
        self.headers.append({name.lower(): value for name, value in headers.items()})
        for batch in ExportTraceServiceRequest.FromString(body).resource_spans:
            resource = {one.key: _value(one.value) for one in batch.resource.attributes}
            for scope in batch.scope_spans:
                self.spans += [_told(resource, span) for span in scope.spans]

    def of(self, service: str) -> list[Told]:
        """Spans of one service, in order of their beginning."""
        return sorted((one for one in self.spans if one.service == service), key=lambda one: one.start)


def _told(resource: dict[str, Any], span: Any) -> Told:
    return Told(
        service=resource["service.name"],
        node=resource["service.instance.id"],
        name=span.name,
        trace=span.trace_id.hex(),
        span=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        start=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        facts={one.key: _value(one.value) for one in span.attributes},
        error=span.status.message if span.status.code == 2 else "",
    )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))

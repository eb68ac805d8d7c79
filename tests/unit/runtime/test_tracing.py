"""Trace contexts by W3C's rules, who is sampled, and a mesh file that asks for what is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from shared.errors import ConfigError
from shared.runtime.settings import TracingConfig
from shared.runtime.tracing import Context, Sampler, Span, is_recorded, make_tracer, parse
from shared.wire.messages import Rid
from shared.worker.journal import Journal
from tests.support.collector import Collector

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"
NODE = {"node": "p0", "role": "prefill", "datacenter": "a"}


@pytest.mark.parametrize(
    ("header", "sampled"),
    [
        (GOOD, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-03", True),
        (f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like", True),
    ],
)
def test_contexts_are_read(header: str, sampled: bool) -> None:
    assert parse(header) == Context(TRACE, SPAN, sampled)
    assert is_recorded(header) is sampled
    assert parse(Context(TRACE, SPAN, sampled).header) == Context(TRACE, SPAN, sampled)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "00",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
        f" {GOOD}",
    ],
)
def test_what_is_no_context_is_ignored(header: str) -> None:
    assert parse(header) is None


def test_a_request_gets_a_span_of_its_own_in_its_clients_trace() -> None:
    sampler = Sampler(0.0, lambda bits: 7)
    assert sampler.begin(GOOD) == f"00-{TRACE}-{7:016x}-01"
    assert sampler.begin(f"00-{TRACE}-{SPAN}-00") == f"00-{TRACE}-{7:016x}-00"
    assert sampler.begin("") == f"00-{7:032x}-{7:016x}-00"


@pytest.mark.parametrize(
    ("share", "drawn", "sampled"), [(0.25, 0, True), (0.25, 1 << 30, False), (1.0, (1 << 32) - 1, True)]
)
def test_a_share_is_sampled(share: float, drawn: int, sampled: bool) -> None:
    context = parse(Sampler(share, lambda bits: drawn or int(bits != 32)).begin(""))
    assert context is not None
    assert context.sampled is sampled


def test_a_journal_keeps_spans_only_where_somebody_records_and_the_trace_is_sampled() -> None:
    journal = Journal()
    journal.span("queue", GOOD, Rid(77, 1), 1.0, 2.0)
    assert journal.take_spans() == []
    journal.tracing = True
    journal.span("queue", "", Rid(77, 1), 1.0, 2.0)
    journal.span("queue", f"00-{TRACE}-{SPAN}-00", Rid(77, 1), 1.0, 2.0)
    journal.span("queue", GOOD, Rid(77, 1), 1.0, 2.0, "revoked", bytes=5)
    assert journal.take_spans() == [
        Span("queue", GOOD, 1.0, 2.0, {"pdd.rid": "4d.1", "pdd.bytes": 5}, "revoked")
    ]
    assert journal.take_spans() == []


def test_without_an_endpoint_there_is_no_tracer() -> None:
    assert make_tracer(TracingConfig(), **NODE) is None


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "shared.runtime.tracing_otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(
        ConfigError, match=r"tracing.endpoint: needs OpenTelemetry.*pip install 'pdd-mesh\[otel\]'"
    ):
        make_tracer(TracingConfig(endpoint="http://127.0.0.1:4318"), **NODE)


def test_headers_for_the_collector_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# the collector's key\n\nAuthorization: Bearer secret\n")
    with Collector() as collector:
        config = TracingConfig(endpoint=f"{collector.address}/v1/traces", headers_file=str(file))
        tracer = make_tracer(config, **NODE)
        assert tracer is not None
        tracer.emit([Span("queue", GOOD, 1.0, 2.5, {"pdd.rid": "1"}), Span("lost", "nonsense", 1.0, 2.0)])
        tracer.close()
    (span,) = collector.spans
    assert (span.name, span.trace, span.parent, span.node) == ("queue", TRACE, SPAN, "p0")
    assert span.end - span.start == pytest.approx(1.5)
    assert collector.headers[0]["authorization"] == "Bearer secret"


@pytest.mark.parametrize(
    ("text", "problem"),
    [("no colon", "line 1 of .* is no `name: value`"), ("a: b\n: c", "line 2 of"), (None, "cannot be read")],
)
def test_headers_that_cannot_be_read_are_refused(tmp_path: Path, text: str | None, problem: str) -> None:
    file = tmp_path / "headers"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=problem):
        make_tracer(TracingConfig(endpoint="http://127.0.0.1:1", headers_file=str(file)), **NODE)

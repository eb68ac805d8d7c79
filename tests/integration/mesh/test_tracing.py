"""Traces over real sockets: one request is one trace through all four services."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shared.runtime.settings import TracingConfig
from tests.support.collector import Collector
from tests.support.live_client import Refused
from tests.support.live_mesh import live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PROMPT = list(range(5, 125))
BODY = {"model": "synthetic", "prompt": PROMPT, "max_tokens": 250, "ignore_eos": True}


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running


def shape(endpoint: str, road: str = "one_shot", *, step_ms: float = 1.0, **more: Any) -> Shape:
    tracing = TracingConfig(endpoint=endpoint, **more)
    return Shape(tracing=tracing, router=ROADS[road][1], rate_mbit=8.0, synthetic={"step_ms": step_ms})


async def test_one_request_is_one_trace_through_four_services(
    synthetic: SyntheticModel, collector: Collector
) -> None:
    async with live_mesh(synthetic, shape(collector.address)) as mesh:
        headers = {"traceparent": f"00-{TRACE}-{CLIENT}-01"}
        began = time.time()
        answer = await mesh.client.http.post("/v1/completions", json=BODY, headers=headers)
        ended = time.time()
        assert answer.status_code == 200
    own = re.fullmatch(f"00-{TRACE}-([0-9a-f]{{16}})-01", answer.headers["traceparent"])
    assert own is not None
    assert own[1] != CLIENT
    assert {span.trace for span in collector.spans} == {TRACE}
    assert {(span.service, span.node) for span in collector.spans} == {
        ("pdd-router", "router-0"),
        ("pdd-prefill", "prefill-0"),
        ("pdd-relay", "relay-0"),
        ("pdd-main_decode", "main-0"),
    }
    (root,) = [span for span in collector.spans if span.name == "request"]
    assert (root.span, root.parent) == (own[1], CLIENT)
    assert {span.parent for span in collector.spans if span is not root} == {root.span}
    assert len({span.span for span in collector.spans}) == len(collector.spans)
    assert root.facts["http.response.status_code"] == 200
    assert root.facts["pdd.completion_tokens"] == 250
    for span in collector.spans:
        assert began - 0.01 <= span.start <= span.end <= ended + 0.5, span
        assert span.error == "", span

    router = [span.name for span in collector.of("pdd-router") if span.name not in ("request", "choice")]
    assert router == [
        "wait for prefill",
        "wait for the first token",
        "wait for KV at the relay",
        "relay answers",
        "cut",
        "main decode answers",
    ]
    prefill = {span.name: span for span in collector.of("pdd-prefill")}
    sent = [span for span in collector.of("pdd-prefill") if span.name == "KV transfer"]
    assert {(span.facts["pdd.road"], span.facts["pdd.target"]) for span in sent} == {
        ("LAN", "relay-0"),
        ("WAN", "main-0"),
    }
    assert all(span.facts["pdd.bytes"] == 30 * 4096 for span in sent)
    assert prefill["queue"].end == prefill["prefill"].start
    assert prefill["prefill"].facts["pdd.tokens"] == len(PROMPT)
    relay = {span.name: span for span in collector.of("pdd-relay")}
    main = {span.name: span for span in collector.of("pdd-main_decode")}
    assert set(relay) == {"KV received", "relay decode"}
    assert set(main) == {"KV received", "cut", "main decode"}
    assert main["cut"].end == main["main decode"].start
    drawn = 1 + relay["relay decode"].facts["pdd.tokens"] + main["main decode"].facts["pdd.tokens"]
    assert drawn >= 250
    assert relay["relay decode"].start < main["cut"].start


async def test_what_a_client_does_not_want_recorded_is_not(
    synthetic: SyntheticModel, collector: Collector
) -> None:
    async with live_mesh(synthetic, shape(collector.address)) as mesh:
        headers = {"traceparent": f"00-{TRACE}-{CLIENT}-00"}
        answer = await mesh.client.http.post("/v1/completions", json=BODY, headers=headers)
    assert re.fullmatch(f"00-{TRACE}-[0-9a-f]{{16}}-00", answer.headers["traceparent"])
    assert collector.spans == []


async def test_a_share_of_the_requests_without_a_trace_is_recorded(
    synthetic: SyntheticModel, collector: Collector
) -> None:
    async with live_mesh(synthetic, shape(collector.address, "MD", sample=0.0)) as mesh:
        answer = await mesh.client.http.post("/v1/completions", json=BODY)
    assert answer.headers["traceparent"].endswith("-00")
    assert collector.spans == []
    async with live_mesh(synthetic, shape(collector.address, "MD", sample=1.0)) as mesh:
        answer = await mesh.client.http.post("/v1/completions", json=BODY)
    assert answer.headers["traceparent"].split("-")[1] == collector.spans[0].trace
    (root,) = [span for span in collector.spans if span.name == "request"]
    assert root.parent == ""


async def test_a_refused_request_and_a_lost_one_are_told_as_errors(
    synthetic: SyntheticModel, collector: Collector
) -> None:
    async with live_mesh(synthetic, shape(collector.address, "MD", step_ms=50.0)) as mesh:
        with pytest.raises(Refused):
            await mesh.client.complete([], 4)
        async with mesh.client.stream(PROMPT, 400, ignore_eos=True) as stream:
            await stream.ids(5)
    roots = [span for span in collector.of("pdd-router") if span.name == "request"]
    assert [span.facts["http.response.status_code"] for span in roots] == [400, 200]
    assert [span.error for span in roots] == ["", "left"]
    (choice,) = [span for span in collector.spans if span.name == "choice"]
    assert choice.error == "cancelled"


async def test_a_collector_that_is_not_there_harms_nothing(synthetic: SyntheticModel) -> None:
    with Collector() as gone:
        address = gone.address
    async with live_mesh(synthetic, shape(address, "MD")) as mesh:
        answer = await mesh.client.http.post("/v1/completions", json=BODY)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 250


async def test_without_tracing_the_clients_trace_is_passed_on_and_nothing_is_noted(
    synthetic: SyntheticModel,
) -> None:
    async with live_mesh(synthetic, Shape(router=ROADS["one_shot"][1])) as mesh:
        header = f"00-{TRACE}-{CLIENT}-01"
        answer = await mesh.client.http.post("/v1/completions", json=BODY, headers={"traceparent": header})
        assert answer.headers["traceparent"] == header
        again = await mesh.client.http.post("/v1/completions", json=BODY, headers={"traceparent": "nonsense"})
        assert "traceparent" not in again.headers
        assert all(one.worker.take_spans() == [] for one in mesh.workers.values())
        assert mesh.router.core.observer.take_ended() == []


def test_services_without_tracing_import_nothing_of_it() -> None:
    code = (
        "import sys, services.router.service, services.prefill.service, shared.runtime.tracing\n"
        "assert not [name for name in sys.modules if name.split('.')[0] == 'opentelemetry'], sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""Metrics of the front door in a registry that is passed in. Knows nothing of requests' contents."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.router.front.delivery import Outcome
from services.router.front.generation import Generation
from services.router.front.splice import SpliceMemory

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)


class Measures:
    """What is counted per request."""

    def __init__(self, registry: CollectorRegistry, memory: SpliceMemory | None) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pdd_http_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str) -> Histogram:
            return Histogram(f"pdd_http_{name}_seconds", text, registry=registry, buckets=_SECONDS)

        self._requests = counter("requests", "Requests by endpoint and status", "endpoint", "status")
        self._ended = counter("generations", "Accepted requests by how they ended", "ended")
        self._prompt = counter("prompt_tokens", "Prompt tokens of accepted requests")
        self._completion = counter("completion_tokens", "Generated tokens")
        self._cached = counter("cached_tokens", "Prompt tokens whose KV was there already")
        self._running = Gauge("pdd_http_running", "Accepted requests that have not ended", registry=registry)
        self._ttft = seconds("ttft", "From the request to its first token")
        self._gap = seconds("first_gap", "From the first token to the second (TTST - TTFT)")
        self._stall = seconds("stall", "The longest gap between tokens of a request")
        self._whole = seconds("duration", "From the request to its end")
        if memory is not None:
            registry.register(_SpliceCollector(memory))

    def answered(self, endpoint: str, status: int) -> None:
        """A request has its status."""
        self._requests.labels(endpoint, str(status)).inc()

    def accepted(self, generation: Generation) -> None:
        """A generation has started."""
        self._running.inc()
        self._prompt.inc(sum(len(job.prompt.ids) for job in generation.jobs))

    def ended(self, generation: Generation, outcome: Outcome, seconds: float) -> None:
        """A generation has ended; `seconds` since its request came."""
        times = generation.times
        self._running.dec()
        self._ended.labels(outcome.ended).inc()
        self._completion.inc(sum(len(choice.ids) for choice in generation.choices))
        self._cached.inc(sum(choice.cached_tokens for choice in generation.choices))
        self._whole.observe(seconds)
        if times.first:
            self._ttft.observe(times.first - times.started)
        if times.second:
            self._gap.observe(times.second - times.first)
            self._stall.observe(times.stall)


class _SpliceCollector(Collector):
    """Reads the splice memory's own counts at every scrape."""

    def __init__(self, memory: SpliceMemory) -> None:
        self._memory = memory

    def collect(self) -> Iterable[Metric]:
        memory = self._memory
        recalls = CounterMetricFamily("pdd_splice_recalls", "Prompts looked up, by result", labels=["result"])
        for result, count in memory.results.items():
            recalls.add_metric([result], count)
        parted = CounterMetricFamily(
            "pdd_splice_divergences", "Answers that came back changed, by reason", labels=["reason"]
        )
        for reason, count in memory.divergences.items():
            parted.add_metric([reason], count)
        held = GaugeMetricFamily("pdd_splice_bytes", "Bytes of prompts and answers kept")
        held.add_metric([], memory.bytes)
        turns = GaugeMetricFamily("pdd_splice_turns", "Prompts kept")
        turns.add_metric([], len(memory))
        return [recalls, parted, held, turns]

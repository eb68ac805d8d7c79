"""Metrics of the front door in a registry that is passed in. Knows nothing of requests' contents."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from services.router.front.delivery import Outcome
from services.router.front.generation import Generation
from services.router.front.splice import SpliceMemory

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_STEPS = (0.002, 0.004, 0.006, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.15, 0.25, 0.5, 1, 2.5, 5)


class Measures:
    """What is counted per request."""

    def __init__(self, registry: CollectorRegistry, memories: Sequence[SpliceMemory] = ()) -> None:
        """`memories`: of all models."""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"pdd_http_{name}", text, labels, registry=registry)

        def seconds(name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
            return Histogram(f"pdd_http_{name}_seconds", text, registry=registry, buckets=buckets)

        self._requests = counter("requests", "Requests by endpoint and status", "endpoint", "status")
        self._ended = counter("generations", "Accepted requests by how they ended", "ended")
        self._prompt = counter("prompt_tokens", "Prompt tokens of accepted requests")
        self._completion = counter("completion_tokens", "Generated tokens")
        self._cached = counter("cached_tokens", "Prompt tokens whose KV was there already")
        self._running = Gauge("pdd_http_running", "Accepted requests that have not ended", registry=registry)
        self._ttft = seconds("ttft", "From the request to its first token")
        self._ttst = seconds("ttst", "From the request to its second token")
        self._itl = seconds("itl", "Between two tokens, the mean of each request", _STEPS)
        self._gap = seconds("first_gap", "From the first token to the second (TTST - TTFT)")
        self._stall = seconds("stall", "The longest gap between tokens of a request")
        self._whole = seconds("duration", "From the request to its end")
        if memories:
            registry.register(_SpliceCollector(memories))

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
            self._ttst.observe(times.second - times.started)
            most = max(len(choice.ids) for choice in generation.choices)
            self._itl.observe((times.last - times.first) / max(1, most - 1))
            self._gap.observe(times.second - times.first)
            self._stall.observe(times.stall)


class _SpliceCollector(Collector):
    """Reads the splice memories' own counts at every scrape."""

    def __init__(self, memories: Sequence[SpliceMemory]) -> None:
        self._memories = memories

    def collect(self) -> Iterable[Metric]:
        results: Tally[str] = Tally()
        divergences: Tally[str] = Tally()
        for memory in self._memories:
            results.update(memory.results)
            divergences.update(memory.divergences)
        recalls = CounterMetricFamily("pdd_splice_recalls", "Prompts looked up, by result", labels=["result"])
        for result, count in results.items():
            recalls.add_metric([result], count)
        parted = CounterMetricFamily(
            "pdd_splice_divergences", "Answers that came back changed, by reason", labels=["reason"]
        )
        for reason, count in divergences.items():
            parted.add_metric([reason], count)
        held = GaugeMetricFamily("pdd_splice_bytes", "Bytes of prompts and answers kept")
        held.add_metric([], sum(memory.bytes for memory in self._memories))
        turns = GaugeMetricFamily("pdd_splice_turns", "Prompts kept")
        turns.add_metric([], sum(map(len, self._memories)))
        return [recalls, parted, held, turns]

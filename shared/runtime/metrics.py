"""Numbers of a core as Prometheus metrics. A core keeps a plain dict; this turns it into samples when asked.

A key is a metric's name, with labels as `name{label="value"}`; names that end in `_total` are counters,
others gauges.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class CoreCollector(Collector):
    """Reads `numbers()` at every scrape; adds the prefix `pdd_` and the labels `node` and `role`."""

    def __init__(self, numbers: Callable[[], Mapping[str, float]], *, node: str, role: str) -> None:
        self._numbers = numbers
        self._fixed = {"node": node, "role": role}

    def collect(self) -> Iterable[Metric]:
        """One family per metric name."""
        families: dict[str, Metric] = {}
        for key, value in sorted(self._numbers().items()):
            name, _, rest = key.partition("{")
            labels = self._fixed | dict(_LABEL.findall(rest))
            family = families.get(name)
            if family is None:
                made = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                family = families[name] = made(f"pdd_{name}", f"{name} of this process", labels=list(labels))
            sample = f"pdd_{name}"
            family.add_sample(sample, labels, value)
        return list(families.values())


def make_registry(numbers: Callable[[], Mapping[str, float]], *, node: str, role: str) -> CollectorRegistry:
    """A registry of its own for one process (no global one is used)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CoreCollector(numbers, node=node, role=role))
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """The text exposition of all metrics."""
    return generate_latest(registry)

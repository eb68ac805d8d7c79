"""Numbers of a core as Prometheus metrics. A core keeps a plain dict; this turns it into samples when asked.

A key is a metric's name, with labels as `name{label="value"}`; names that end in `_total` are counters,
others gauges. What each means is in `meanings`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.runtime.meanings import meaning_of

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")


class CoreCollector(Collector):
    """Reads `numbers()` at every scrape; adds the prefix `pdd_` and the labels `node` and `role`."""

    def __init__(self, numbers: Callable[[], Mapping[str, float]], *, node: str, role: str) -> None:
        self._numbers = numbers
        self._fixed = {"node": node, "role": role}

    def collect(self) -> Iterable[Metric]:
        """One family per metric name; its samples may have different labels."""
        families: dict[str, Metric] = {}
        for key, value in sorted(self._numbers().items()):
            name, labels = parse_key(key)
            family = families.get(name)
            if family is None:
                made = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                family = families[name] = made(f"pdd_{name}", meaning_of(name))
            family.add_sample(f"pdd_{name}", self._fixed | labels, value)
        return list(families.values())


def parse_key(key: str) -> tuple[str, dict[str, str]]:
    """`name{label="value"}` apart. In a value, a backslash takes the next character as it is; what no name of
    a metric may hold becomes an underscore."""
    name, _, rest = key.partition("{")
    labels = {label: _ESCAPED.sub(r"\1", value) for label, value in _LABEL.findall(rest)}
    return _NOT_IN_NAMES.sub("_", name), labels


def make_registry(numbers: Callable[[], Mapping[str, float]], *, node: str, role: str) -> CollectorRegistry:
    """A registry of its own for one process (no global one is used)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(CoreCollector(numbers, node=node, role=role))
    return registry


def render(registry: CollectorRegistry) -> bytes:
    """The text exposition of all metrics."""
    return generate_latest(registry)

"""A core's dict of numbers as a valid Prometheus exposition, whatever its names and labels."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from scripts.metric_names import metric_names
from shared.runtime.meanings import MEANINGS, meaning_of
from shared.runtime.metrics import make_registry, parse_key, render

Sample = tuple[str, dict[str, str], float]


def exposed(numbers: dict[str, float]) -> dict[str, tuple[str, str, list[Sample]]]:
    """Family -> type, help, samples, as a scraper reads them."""
    text = render(make_registry(lambda: numbers, node="p-0", role="prefill")).decode()
    return {
        family.name: (
            family.type,
            family.documentation,
            [(one.name, dict(one.labels), one.value) for one in family.samples],
        )
        for family in text_string_to_metric_families(text)
    }


OWN = {"node": "p-0", "role": "prefill"}


def test_counters_and_gauges() -> None:
    assert exposed({"steps_total": 3, "running": 2.5, "pool_free": 0}) == {
        "pdd_steps": ("counter", "Steps of the engine", [("pdd_steps_total", OWN, 3.0)]),
        "pdd_running": ("gauge", "Sequences that compute now", [("pdd_running", OWN, 2.5)]),
        "pdd_pool_free": ("gauge", "Blocks that hold nothing", [("pdd_pool_free", OWN, 0.0)]),
    }


def test_samples_of_one_name_may_have_different_labels() -> None:
    families = exposed(
        {'refused_x_total{reason="a",line="l"}': 1, "refused_x_total": 2, 'refused_x_total{line="m"}': 3}
    )
    _, _, samples = families["pdd_refused_x"]
    assert sorted(samples, key=lambda one: one[2]) == [
        ("pdd_refused_x_total", OWN | {"reason": "a", "line": "l"}, 1.0),
        ("pdd_refused_x_total", OWN, 2.0),
        ("pdd_refused_x_total", OWN | {"line": "m"}, 3.0),
    ]


def test_label_values_may_hold_anything() -> None:
    key = r'line_rate_bytes{line="a \"b\" \\ {c}, d=e"}'
    assert exposed({key: 1})["pdd_line_rate_bytes"][2] == [
        ("pdd_line_rate_bytes", OWN | {"line": r'a "b" \ {c}, d=e'}, 1.0)
    ]


def test_names_are_made_valid() -> None:
    assert list(exposed({"refused_bad-magic.x_total": 1})) == ["pdd_refused_bad_magic_x"]
    assert parse_key("a-b") == ("a_b", {})


def test_numbers_are_read_at_every_scrape() -> None:
    numbers: dict[str, float] = {"running": 1}
    registry = make_registry(lambda: numbers, node="p-0", role="prefill")
    assert b"pdd_running{" in render(registry)
    numbers["running"] = 7
    numbers["queued"] = float("inf")
    text = render(registry).decode()
    assert 'pdd_running{node="p-0",role="prefill"} 7.0' in text
    assert 'pdd_queued{node="p-0",role="prefill"} +Inf' in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("running", "running"),
        ("failed_drain_total", "failed_*_total"),
        ("requests_broken_nan_total", "requests_broken_*_total"),
        ("requests_prefilling", "requests_*"),
        ("transport_refused_bad_magic_total", "transport_refused_*_total"),
    ],
)
def test_the_closest_meaning_is_taken(name: str, expected: str) -> None:
    assert meaning_of(name) == MEANINGS[expected]


def test_a_name_without_a_meaning_stands_for_itself() -> None:
    assert meaning_of("never_heard_of") == "never_heard_of"


def test_every_metric_in_the_source_has_a_meaning_and_every_meaning_a_metric() -> None:
    named = metric_names()
    assert set(named) - set(MEANINGS) == set(), "say what these mean in shared/runtime/meanings.py"
    assert set(MEANINGS) - set(named) == set(), "nothing counts these any more"

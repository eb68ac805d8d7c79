"""The Grafana dashboard and the alert rules name only metrics and labels that the services report."""

import enum
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from scripts.make_dashboard import FILE, text
from scripts.metric_names import FOLDERS, ROOT, metric_names
from services.router.front.measures import Measures
from services.router.front.splice import SpliceMemory
from services.router.front.vocabulary import Vocabulary
from services.router.phases import Phase
from shared.policy.handoff import CutMode
from shared.policy.pipeline import Pipeline
from shared.runtime.metrics import parse_key
from shared.wire.messages import FailReason, RefuseReason, Role, TransferClass

DASHBOARD = json.loads(FILE.read_text(encoding="utf-8"))
ALERTS = FILE.parent / "alerts.yml"
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
SCRAPED = {"instance", "job"}
# What the parts of names that are made at run time can be.
KINDS: tuple[Iterable[enum.StrEnum], ...] = (FailReason, RefuseReason, Role, Pipeline, CutMode, Phase)
PARTS = {parse_key(str(one))[0] for kind in KINDS for one in kind}
PARTS |= {cls.name.lower() for cls in TransferClass}
NAME = re.compile(r"\bpdd_[A-Za-z0-9_]+")
SELECTOR = re.compile(r"\bpdd_[A-Za-z0-9_]+\{([^}]*)\}")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
NODE_SHOWN = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def core_labels() -> dict[str, set[str]]:
    """Metric -> labels beside node and role, from the keys in the source: `name{{label=...}}`."""
    found: dict[str, set[str]] = {}
    for folder in (*FOLDERS, "services/router"):
        for file in (ROOT / folder).rglob("*.py"):
            for name, labels in re.findall(r"f'(\w+)\{\{(.+?)\}\}'", file.read_text(encoding="utf-8")):
                found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def reported() -> dict[str, set[str]]:
    """Every metric (or pattern of some) as it is scraped -> its labels."""
    labels = core_labels()
    found = {f"pdd_{parse_key(name)[0]}": {"node", "role"} | labels.get(name, set()) for name in plain()}
    registry = CollectorRegistry(auto_describe=False)
    memory = SpliceMemory(Vocabulary([], [], {}), max_bytes=0, max_turns=0, ttl=1.0)
    measures = Measures(registry, [memory])
    measures.answered("/v1/chat/completions", 200)
    measures._ended.labels("finished").inc()
    for metric in registry.collect():
        for sample in metric.samples:
            found.setdefault(sample.name, set()).update(sample.labels)
    return found


def plain() -> Iterator[str]:
    """Names and patterns; those with a pipeline in them as they are in /metrics."""
    for name in metric_names():
        yield name.replace("*", "STAR")


REPORTED = {name.replace("STAR", "*"): labels for name, labels in reported().items()}


def labels_of(name: str) -> set[str] | None:
    """The labels of a metric; None where nobody reports it."""
    exact = REPORTED.get(name)
    if exact is not None:
        return exact
    for pattern in sorted(REPORTED, key=len, reverse=True):
        if "*" in pattern and name in {pattern.replace("*", part) for part in PARTS}:
            return REPORTED[pattern]
    return None


def problems(expr: str, legend: str = "") -> list[str]:
    """What an expression names that is not there."""
    wrong: list[str] = []
    shared: set[str] | None = None
    for name in NAME.findall(expr):
        labels = labels_of(name)
        if labels is None:
            wrong.append(f"nobody reports {name}")
            continue
        shared = labels if shared is None else shared & labels
    for selector in SELECTOR.finditer(expr):
        name = NAME.match(selector.group())
        labels = labels_of(name.group()) if name else None
        asked = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector.group(1)))
        wrong += [f"{selector.group()} has no label {one}" for one in asked - ((labels or set()) | SCRAPED)]
    kept = {one.strip() for group in GROUPING.findall(expr) for one in group.split(",")}
    wrong += [f"by ({one}): no such label" for one in kept - ((shared or set()) | SCRAPED)]
    at_hand = kept or shared or set()
    wrong += [f"{{{{{one}}}}} is not kept" for one in NODE_SHOWN.findall(legend) if one not in at_hand]
    if expr.count("(") != expr.count(")"):
        wrong.append("brackets do not close")
    return wrong


def test_the_file_is_what_the_table_of_panels_makes() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run python -m scripts.make_dashboard"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_names_what_is_reported(panel: dict[str, list[dict[str, str]]]) -> None:
    assert panel["targets"]
    wrong = {
        target["expr"]: found
        for target in panel["targets"]
        if (found := problems(target["expr"], target["legendFormat"]))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    "metric",
    [
        "pdd_http_ttft_seconds_bucket",
        "pdd_http_ttst_seconds_bucket",
        "pdd_http_itl_seconds_bucket",
        "pdd_http_stall_seconds_bucket",
        "pdd_prompt_tokens_cached_total",
        "pdd_line_sent_bytes_total",
        "pdd_transport_control_bytes_out_total",
        "pdd_line_rate_bytes",
        "pdd_requests_oldest_wait_seconds",
        "pdd_refused_no_blocks_total",
        "pdd_cuts_one_shot_total",
        "pdd_pool_free",
        "pdd_requests_broken_total",
    ],
)
def test_what_an_operator_looks_for_has_a_panel(metric: str) -> None:
    assert any(metric in target["expr"] for panel in PANELS for target in panel["targets"])


def test_panels_do_not_overlap_and_have_names_of_their_own() -> None:
    titles = [panel["title"] for panel in PANELS]
    assert len(set(titles)) == len(titles)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def alert_rules(file: Path) -> Iterator[tuple[str, str, str]]:
    """(name, expression, words) of each rule; a folded expression in one line."""
    for rule in file.read_text(encoding="utf-8").split("- alert: ")[1:]:
        name, _, body = rule.partition("\n")
        folded = re.search(r"expr: (?:>-\n)?((?:.*\n)+?) {8}(?:for|labels):", body)
        assert folded, name
        yield name, " ".join(folded.group(1).split()), body


@pytest.mark.parametrize(("name", "expr", "words"), list(alert_rules(ALERTS)), ids=lambda part: part[:24])
def test_an_alert_names_what_is_reported(name: str, expr: str, words: str) -> None:
    assert problems(expr, " ".join(re.findall(r"(?:summary|description): .*", words))) == []
    assert re.fullmatch(r"Pdd\w+", name)
    assert "severity:" in words
    assert "summary:" in words
    assert "description:" in words


@pytest.mark.parametrize(
    ("expr", "legend", "wrong"),
    [
        ("sum(pdd_nothing_total)", "", "nobody reports pdd_nothing_total"),
        ("sum(pdd_refused_because_total)", "", "nobody reports pdd_refused_because_total"),
        ('pdd_running{line="x"}', "", 'pdd_running{line="x"} has no label line'),
        ("sum by (line) (pdd_running)", "", "by (line): no such label"),
        ("sum by (node) (pdd_running)", "{{role}}", "{{role}} is not kept"),
        ("sum(rate(pdd_steps_total[1m])", "", "brackets do not close"),
    ],
)
def test_what_is_wrong_is_found(expr: str, legend: str, wrong: str) -> None:
    assert problems(expr, legend) == [wrong]

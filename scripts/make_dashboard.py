"""Writes the Grafana dashboard from the table of its panels: `python -m scripts.make_dashboard`.

A test holds every metric and label in it, and in the alert rules beside it, against what the services report.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parent.parent / "deploy" / "grafana" / "pdd-mesh.json"
WIDTH, HEIGHT, ACROSS = 8, 8, 3
SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclass(frozen=True)
class Panel:
    """One panel. `lines`: (expression, legend); NODE in an expression is the choice of nodes."""

    title: str
    unit: str
    lines: tuple[tuple[str, str], ...]
    about: str
    stack: bool = False


def quantiles(title: str, metric: str, about: str) -> Panel:
    """A histogram of the front door as its median and its tail."""
    lines = tuple(
        (f"histogram_quantile({q}, sum by (le) (rate({metric}_bucket[$__rate_interval])))", f"P{100 * q:.0f}")
        for q in (0.5, 0.9, 0.99)
    )
    return Panel(title, "s", lines, about)


def rate(metric: str, by: str = "", where: str = "") -> str:
    """Growth per second, summed."""
    kept = f" by ({by})" if by else ""
    return f"sum{kept} (rate({metric}{where}[$__rate_interval]))"


def part(one: str, whole: str) -> str:
    """One expression over another."""
    return f"{one} / {whole}"


def several(*named: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """Growth of several counters: (metric, legend)."""
    return tuple((rate(metric), legend) for metric, legend in named)


ROWS: tuple[tuple[str, tuple[Panel, ...]], ...] = (
    (
        "What clients feel",
        (
            quantiles("TTFT", "pdd_http_ttft_seconds", "From the request to its first token."),
            quantiles(
                "TTST",
                "pdd_http_ttst_seconds",
                "From the request to its second token: the first alone can be shown early by prefill.",
            ),
            quantiles("ITL", "pdd_http_itl_seconds", "Between two tokens, the mean of each request."),
            quantiles("Stall", "pdd_http_stall_seconds", "The longest gap between tokens of a request."),
            Panel(
                "Requests",
                "reqps",
                several(
                    ("pdd_requests_finished_total", "finished"),
                    ("pdd_requests_cancelled_total", "client left"),
                    ("pdd_requests_broken_total", "broken"),
                    ("pdd_requests_refused_total", "no placement"),
                ),
                "How requests end, per second.",
            ),
            Panel(
                "Running and waiting",
                "short",
                (
                    ("sum(pdd_requests_live)", "running"),
                    ("sum(pdd_requests_waiting)", "waiting for room"),
                    ("sum(pdd_streams_live)", "streams"),
                ),
                "Requests at the routers now.",
            ),
            Panel(
                "Queue age",
                "s",
                (
                    ("max(pdd_requests_oldest_wait_seconds)", "longest wait for room"),
                    ("max by (line) (pdd_line_oldest_seconds)", "oldest transfer, {{line}}"),
                ),
                "How long the request that waits longest has waited, and the oldest transfer of each line.",
            ),
            Panel(
                "Refusals",
                "reqps",
                (
                    (rate("pdd_http_requests_total", "status", '{status=~"429|503"}'), "HTTP {{status}}"),
                    (rate("pdd_refused_no_blocks_total"), "a worker: no blocks"),
                    (rate("pdd_refused_queue_full_total"), "a worker: queue full"),
                    (rate("pdd_refused_line_backlog_total"), "a worker: line backlog"),
                ),
                "Load that was shed: at the door with Retry-After, and by workers.",
            ),
            Panel(
                "Errors",
                "reqps",
                (
                    (rate("pdd_http_requests_total", "status", '{status=~"5.."}'), "HTTP {{status}}"),
                    (rate("pdd_requests_broken_total"), "broken after acceptance"),
                    (rate("pdd_divergence_total"), "divergence"),
                    (rate("pdd_chunks_damaged_total"), "damaged chunks"),
                ),
                "What should be zero.",
            ),
        ),
    ),
    (
        "Roads and cuts",
        (
            Panel(
                "Pipelines",
                "reqps",
                several(
                    ("pdd_pipeline_MD_total", "MD"),
                    ("pdd_pipeline_P_MD_total", "P-MD"),
                    ("pdd_pipeline_P_RLD_MD_total", "P-RLD-MD"),
                    ("pdd_pipeline_P_RLD_total", "P-RLD (singular)"),
                ),
                "Requests by the pipeline that they were placed on.",
                stack=True,
            ),
            Panel(
                "Cuts",
                "cps",
                several(("pdd_cuts_one_shot_total", "one-shot"), ("pdd_cuts_catch_up_total", "catch-up")),
                "Changes of owner.",
            ),
            Panel(
                "Tokens by who drew them",
                "short",
                several(
                    ("pdd_tokens_prefill_total", "prefill"),
                    ("pdd_tokens_relay_total", "relay (eager)"),
                    ("pdd_tokens_main_decode_total", "main decode"),
                ),
                "Tokens per second that went into logs.",
                stack=True,
            ),
        ),
    ),
    (
        "Cache",
        (
            Panel(
                "Hit rate",
                "percentunit",
                (
                    (
                        part(
                            rate("pdd_prompt_tokens_cached_total", "role"),
                            rate("pdd_prompt_tokens_total", "role"),
                        ),
                        "{{role}}",
                    ),
                    (
                        part(
                            rate("pdd_kv_bytes_saved_total"),
                            f"({rate('pdd_kv_bytes_saved_total')} + {rate('pdd_kv_bytes_asked_total')})",
                        ),
                        "bytes that need not cross",
                    ),
                ),
                "Known tokens of requests whose KV was there already, by role.",
            ),
            Panel(
                "Pool",
                "percentunit",
                (
                    (
                        "1 - "
                        + part(
                            '(pdd_pool_free{node=~"$node"} + pdd_pool_cached{node=~"$node"})',
                            'pdd_pool_blocks{node=~"$node"}',
                        ),
                        "in use, {{node}}",
                    ),
                    ('pdd_pool_cached{node=~"$node"} / pdd_pool_blocks{node=~"$node"}', "cached, {{node}}"),
                ),
                "Blocks of each worker's pool: in use, and kept for later requests.",
            ),
            Panel(
                "Held blocks",
                "short",
                (
                    ('pdd_held_pins{node=~"$node"}', "pinned, {{node}}"),
                    ('pdd_held_send_pins{node=~"$node"}', "for sending, {{node}}"),
                    ('pdd_held_promises{node=~"$node"}', "promised, {{node}}"),
                ),
                "All are zero when nothing goes on.",
            ),
        ),
    ),
    (
        "Lines",
        (
            Panel(
                "KV sent by line and class",
                "Bps",
                ((rate("pdd_line_sent_bytes_total", "line, class"), "{{line}}: {{class}}"),),
                "uncovered: a client stares at one token; covered: a relay answers; "
                "alignment: the request has ended; parked: singular.",
                stack=True,
            ),
            Panel(
                "Cap, estimate and rate",
                "Bps",
                (
                    ("max by (line) (pdd_line_cap_bytes)", "cap {{line}}"),
                    ('max by (line) (pdd_line_rate_bytes{role="router"})', "estimate {{line}}"),
                    (rate("pdd_line_sent_bytes_total", "line"), "sent {{line}}"),
                ),
                "Of each line: what the mesh file allows, what it is estimated to carry, what it is given.",
            ),
            Panel(
                "Waiting by class",
                "bytes",
                (
                    ("sum by (line, class) (pdd_line_unsent_bytes)", "{{line}}: {{class}}"),
                    ("max by (line) (pdd_line_outstanding_bytes)", "{{line}}: all, as the router counts"),
                ),
                "Bytes of open transfers that are not acknowledged yet.",
            ),
            Panel(
                "Bytes by kind",
                "Bps",
                several(
                    ("pdd_transport_chunk_bytes_out_total", "KV"),
                    ("pdd_transport_control_bytes_out_total", "control (ids, reports)"),
                    ("pdd_transport_control_bytes_resent_total", "control, sent again"),
                    ("pdd_kv_bytes_drained_total", "KV without use"),
                ),
                "What crosses between the processes.",
            ),
            Panel(
                "Round trip",
                "s",
                (("max by (line) (pdd_line_rtt_seconds)", "{{line}}"),),
                "As the transport measures it.",
            ),
            Panel(
                "Transfers and alignments",
                "cps",
                several(
                    ("pdd_transfers_out_done_total", "transfers done"),
                    ("pdd_transfers_out_stalled_total", "stalled"),
                    ("pdd_transfers_out_missing_total", "blocks gone"),
                    ("pdd_alignments_done_total", "alignments done"),
                    ("pdd_alignments_dropped_total", "alignments dropped"),
                ),
                "How transfers of KV end.",
            ),
        ),
    ),
    (
        "Workers",
        (
            Panel(
                "Running and queued",
                "short",
                (
                    ('pdd_running{node=~"$node"}', "running, {{node}}"),
                    ('pdd_queued{node=~"$node"}', "queued, {{node}}"),
                ),
                "Sequences that compute, and what waits.",
            ),
            Panel(
                "Decode step",
                "ms",
                (('pdd_decode_step_ms{node=~"$node",role!="prefill"}', "{{node}}"),),
                "Median of recent steps: what one token costs at the present batch.",
            ),
            Panel(
                "Prefill",
                "short",
                (
                    ('pdd_prefill_tokens_per_second{node=~"$node",role="prefill"}', "tokens/s, {{node}}"),
                    ('pdd_queued_tokens{node=~"$node"}', "tokens queued, {{node}}"),
                ),
                "Measured rate, and new tokens that wait to be computed.",
            ),
            Panel(
                "Given up",
                "cps",
                several(
                    ("pdd_failed_revoked_total", "revoked"),
                    ("pdd_failed_parked_total", "parked"),
                    ("pdd_failed_pressure_total", "relay: pressure"),
                    ("pdd_failed_limit_total", "relay: limit"),
                    ("pdd_failed_stalled_total", "stalled"),
                    ("pdd_failed_nan_total", "nan"),
                    ("pdd_failed_internal_total", "internal"),
                ),
                "Parts of requests that workers gave up, by reason.",
            ),
            Panel(
                "Sessions",
                "cps",
                several(
                    ("pdd_transport_sessions_lost_total", "lost"),
                    ("pdd_transport_sessions_resumed_total", "resumed"),
                    ("pdd_transport_bulk_reconnects_total", "bulk connections made again"),
                    ("pdd_owner_stalls_total", "engines without steps"),
                ),
                "Links between the processes.",
            ),
            Panel(
                "Workers known",
                "short",
                (("min(pdd_workers)", "fewest at a router"),),
                "Workers that the routers have a session with.",
            ),
        ),
    ),
)


def dashboard() -> dict[str, Any]:
    """The whole file."""
    return {
        "title": "PDD mesh",
        "uid": "pdd-mesh",
        "tags": ["llm", "pdd"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "graphTooltip": 1,
        "templating": {"list": [_source(), _nodes()]},
        "panels": list(_panels()),
    }


def _source() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}


def _nodes() -> dict[str, Any]:
    query = "label_values(pdd_tasks, node)"
    return {
        "name": "node",
        "label": "Node",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "nodes"},
        "definition": query,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
        "refresh": 2,
        "sort": 1,
    }


def _panels() -> Iterator[dict[str, Any]]:
    number, top = 0, 0
    for title, panels in ROWS:
        number += 1
        place = {"h": 1, "w": WIDTH * ACROSS, "x": 0, "y": top}
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "gridPos": place,
            "panels": [],
        }
        top += 1
        for at, panel in enumerate(panels):
            number += 1
            down, across = divmod(at, ACROSS)
            place = {"h": HEIGHT, "w": WIDTH, "x": WIDTH * across, "y": top + HEIGHT * down}
            yield _panel(number, panel, place)
        top += HEIGHT * -(-len(panels) // ACROSS)


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    targets: list[dict[str, Any]] = [
        {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expr, "legendFormat": legend}
        for at, (expr, legend) in enumerate(panel.lines)
    ]
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 30 if panel.stack else 8, "showPoints": "never"}
    custom |= {"stacking": {"mode": "normal", "group": "A"}} if panel.stack else {}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }


def text() -> str:
    """The file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


def main() -> int:
    """Write it."""
    FILE.parent.mkdir(parents=True, exist_ok=True)
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

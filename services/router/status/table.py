"""A router's picture as tables in a terminal. Asks nobody."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from services.router.picture import LineRow, Picture, RequestRow, WorkerRow

MOST_REQUESTS = 20
COLOURS = {
    "queue": "bright_black",
    "prefill": "blue",
    "lan": "cyan",
    "wan": "magenta",
    "relay": "yellow",
    "cut": "red",
    "decode": "green",
}
_SHORT = {"prefill": "P", "relay": "RLD", "main_decode": "MD"}


def render(picture: Picture, rates: dict[str, float] | None = None, note: str = "") -> RenderableType:
    """All of it. `rates`: bytes/s on each line, where two pictures were taken."""
    parts: list[RenderableType] = [_head(picture)]
    parts += [Text(f"  {reason}", style="yellow") for reason in picture.reasons]
    parts += [_workers(picture.workers), _lines(picture.lines, rates or {}), _requests(picture)]
    if note:
        parts.append(Text(note, style="bold red"))
    return Group(*parts)


def _head(picture: Picture) -> Text:
    state, style = ("ready", "bold green") if picture.ready else ("not ready", "bold red")
    if picture.draining:
        state, style = "draining", "bold yellow"
    requests = picture.requests
    text = Text.assemble((f"{picture.node} ", "bold"), (state, style), f" in {picture.datacenter}: ")
    text.append(f"{requests.live} running, {requests.waiting} waiting, {picture.finished} finished, ")
    text.append(f"{picture.broken} broken, {picture.cancelled} left, {picture.refused} refused")
    total = sum(picture.pipelines.values())
    if total:
        shares = (f"{name} {100 * count / total:.0f}%" for name, count in picture.pipelines.items())
        text.append("; " + ", ".join(shares))
    return text


def _workers(workers: Iterable[WorkerRow]) -> Table:
    table = _table(
        "worker", "role", "dc", "state", ">running", ">queued", ">pool used", ">hit", ">step", ">rtt"
    )
    for one in workers:
        used = 1 - one.free / one.blocks if one.blocks else 0.0
        speed = f"{one.prefill_rate:.0f} tok/s" if one.role == "prefill" else f"{one.step_ms:.1f} ms"
        table.add_row(
            one.node,
            _SHORT.get(one.role, one.role),
            one.datacenter,
            Text(one.state, style="green" if one.state == "ok" else "bold red"),
            f"{one.running}/{one.most}",
            f"{one.queued} ({one.queued_tokens} tok)",
            f"{100 * used:.0f}% of {one.blocks}",
            _percent(one.hit_tokens, one.looked_up_tokens),
            speed,
            f"{one.rtt_ms:.1f} ms",
        )
    return table


def _lines(lines: Iterable[LineRow], rates: dict[str, float]) -> Table:
    table = _table("line", "between", ">rate", ">cap", ">estimate", ">waiting", "by class", ">oldest", ">rtt")
    for line in lines:
        waiting = ", ".join(f"{name} {size(count)}" for name, count in line.classes.items() if count)
        table.add_row(
            line.name,
            " - ".join(dict.fromkeys(line.between)),
            mbit(rates[line.name]) if line.name in rates else "",
            mbit(line.cap) if line.cap else "none",
            mbit(line.estimate) if line.estimate else "",
            size(max(line.outstanding, sum(line.classes.values()))),
            waiting,
            milliseconds(line.oldest_ms) if line.oldest_ms else "",
            f"{line.rtt_ms:.1f} ms" if line.rtt_ms else "",
        )
    return table


def _requests(picture: Picture) -> RenderableType:
    requests = picture.requests
    table = _table("request", "tenant", "road", ">prompt", ">hit", ">tokens", ">age", "where its time went")
    for row in requests.rows[:MOST_REQUESTS]:
        table.add_row(
            row.id.partition(".")[2],
            row.tenant,
            row.pipeline or row.state,
            str(row.prompt_tokens),
            _percent(row.hit_tokens, row.prompt_tokens),
            f"{row.made}/{row.most}",
            milliseconds(row.age_ms),
            _stages(row),
        )
    if not requests.rows:
        return Text("no request runs", style="bright_black")
    left = requests.live - min(len(requests.rows), MOST_REQUESTS)
    return Group(table, Text(f"and {left} newer ones", style="bright_black")) if left > 0 else table


def _stages(row: RequestRow) -> Text:
    """Milliseconds by stage, in their order; the one that goes on is in bold."""
    text = Text()
    ends = [*(at for _, at in row.stages[1:]), row.age_ms]
    for number, ((stage, start), end) in enumerate(zip(row.stages, ends, strict=True)):
        style = COLOURS.get(stage, "white") + (" bold" if number == len(row.stages) - 1 else "")
        text.append(f"{stage} {milliseconds(end - start)}  ", style=style)
    return text


def _table(*columns: str) -> Table:
    """`>` before a column's name aligns it to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold bright_black", padding=(0, 2, 0, 0))
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.lstrip(">"), justify="right" if right else "left", no_wrap=True)
    table.title_justify = "left"
    return table


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else ""


def size(count: float) -> str:
    """Bytes, readable."""
    for unit, step in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= step:
            return f"{count / step:.1f} {unit}"
    return f"{count:.0f} B"


def mbit(rate: float) -> str:
    """Bytes/s as what lines are sold by."""
    return f"{rate * 8 / 1e6:.1f} Mbit/s"


def milliseconds(value: float) -> str:
    """Milliseconds, or seconds where there are many."""
    return f"{value / 1000:.1f} s" if value >= 10_000 else f"{value:.0f} ms"

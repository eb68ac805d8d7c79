"""What the demo shows in the terminal: answers in their owners' colours, time lines, the table."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from scripts.demo.client import Run

COLOURS = {"prefill": "yellow", "relay": "cyan", "main_decode": "green", "": "default"}
_WIDTH = 56
_WIDE = 132
_BARS = (
    ("prefill", "prefill_sent", "first_id", "yellow"),
    ("KV on LAN", "relay_attached", "relay_complete", "magenta"),
    ("KV on WAN", "main_attached", "main_complete", "blue"),
    ("eager tokens", "relay_start", "cut", "cyan"),
    ("eager tokens", "relay_start", "end", "cyan"),
    ("main decode", "main_first", "end", "green"),
)


class Screen:
    """Writes to one console."""

    def __init__(self, *, color: bool) -> None:
        self.console = Console(no_color=not color, highlight=False, soft_wrap=False)
        if not self.console.is_terminal:
            self.console = Console(no_color=not color, highlight=False, width=_WIDE)

    def say(self, text: str) -> None:
        """One line of progress."""
        self.console.print(text)

    def status(self, text: str) -> None:
        """A line that the next one overwrites; only on a terminal."""
        if self.console.is_terminal:
            self.console.file.write(f"\r\x1b[K{text}")
            self.console.file.flush()

    def legend(self) -> None:
        """Which colour is whose."""
        line = Text("tokens by ")
        for owner, label in (
            ("prefill", "prefill"),
            ("relay", "relay decode"),
            ("main_decode", "main decode"),
        ):
            line.append(f" {label} ", style=f"reverse {COLOURS[owner]}")
            line.append(" ")
        self.console.print(line)

    def title(self, name: str, what: str) -> None:
        """Head of one request."""
        self.console.print()
        self.console.rule(f"[bold]{name}[/bold]  {what}", align="left")

    def piece(self, text: str, owner: str) -> None:
        """A piece of a streamed answer."""
        self.console.print(Text(text, style=COLOURS.get(owner, "default")), end="", soft_wrap=True)

    def time_line(self, run: Run) -> None:
        """Bars of what happened when, from the trace's marks."""
        self.console.print()
        spans = _spans(run)
        last = max([end for _, _, end, _ in spans], default=0.0) or 1.0
        for label, start, end, colour in spans:
            first = round(_WIDTH * start / last)
            width = max(1, round(_WIDTH * (end - start) / last))
            bar = Text(f"  {label:<13}", no_wrap=True, overflow="crop")
            bar.append(" " * first)
            bar.append("█" * min(width, _WIDTH - first + 1), style=colour)
            bar.append(f" {start:.2f}-{end:.2f} s", style="dim")
            self.console.print(bar)
        cut = run.pdd.get("cut", {})
        if cut.get("mode", "none") != "none":
            self.console.print(
                f"  cut: {cut['mode']}, {run.pdd.get('handoff_bytes', 0)} bytes of ids instead of KV",
                style="dim",
            )

    def table(self, rows: list[dict[str, Any]]) -> None:
        """All requests beside one another."""
        table = Table(title="what crossed the line, and what the client felt")
        for column in (
            "request", "pipeline", "prompt", "MD hit", "KV on WAN", "of full", "eager", "handoff",
            "TTFT", "TTST", "stall", "= reference",
        ):  # fmt: skip
            table.add_column(
                column, justify="left" if column in ("request", "pipeline", "handoff") else "right"
            )
        for each in rows:
            table.add_row(
                each["name"],
                each["pipeline"],
                str(each["prompt_tokens"]),
                str(each["md_hit_tokens"]),
                f"{each['kv_bytes_wan'] / 1e6:.1f} MB",
                f"{each['kv_bytes_full'] / 1e6:.1f} MB",
                str(each["eager_tokens"]),
                f"{each['handoff_mode']} {each['handoff_bytes']} B",
                f"{each['ttft_ms'] / 1e3:.2f} s",
                f"{each['ttst_ms'] / 1e3:.2f} s",
                f"{each['stall_ms'] / 1e3:.2f} s",
                "yes" if each["equals_reference"] else "NO",
            )
        self.console.print()
        self.console.print(table)


def _spans(run: Run) -> list[tuple[str, float, float, str]]:
    """(label, start, end, colour) in seconds, of those stages that happened."""
    marks = {"submitted": 0.0, **{name: at / 1e3 for name, at in run.pdd.get("times_ms", {}).items()}}
    found: dict[str, tuple[str, float, float, str]] = {}
    for label, start, end, colour in _BARS:
        if label not in found and start in marks and end in marks and marks[end] >= marks[start]:
            found[label] = (label, marks[start], marks[end], colour)
    return list(found.values())

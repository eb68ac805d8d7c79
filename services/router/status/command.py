"""`python -m services.router --config mesh.toml --status`: how a running router is doing, in a terminal."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live

from services.router.picture import Picture
from services.router.status.asking import Target, ask, read, target_of
from services.router.status.table import render
from shared.errors import ConfigError, NotAnswered
from shared.runtime.command import pick_node
from shared.runtime.mesh_file import load_mesh

PIPED_WIDTH = 160
"""Columns where the output is no terminal."""


def status_main(arguments: Sequence[str]) -> int:
    """The exit code: 0 fine, 1 the router cannot be asked, 2 the command line or the file is wrong."""
    options = _options(arguments)
    try:
        mesh = load_mesh(options.config)
        target = target_of(mesh, pick_node(mesh, "router", options.node))
    except ConfigError as error:
        sys.stderr.write(f"router: {error}\n")
        return 2
    show = _json if options.json else _tables
    try:
        with contextlib.suppress(KeyboardInterrupt):
            show(target, options.watch)
    except NotAnswered as error:
        sys.stderr.write(f"router: {error}\n")
        return 1
    return 0


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m services.router", description=__doc__)
    parser.add_argument("--status", action="store_true", help="ask the running router, and serve nothing")
    parser.add_argument("--config", required=True, metavar="mesh.toml", help="the mesh file")
    parser.add_argument("--node", default="", help="which router to ask (default: the only one)")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=_seconds,
        const=1.0,
        default=0.0,
        metavar="SECONDS",
        help="again and again, every second or so many seconds, until Ctrl-C",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, one object a line")
    return parser.parse_args(arguments)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.1 <= value <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds from 0.1 to 3600")
    return value


def _json(target: Target, watch: float) -> None:
    while True:
        sys.stdout.write(ask(target).decode() + "\n")
        sys.stdout.flush()
        if not watch:
            return
        time.sleep(watch)


def _tables(target: Target, watch: float) -> None:
    console = Console() if sys.stdout.isatty() else Console(width=PIPED_WIDTH)
    look = _Look(target)
    if not watch:
        console.print(render(look.take()))
        return
    picture = look.take()  # what cannot be asked at all ends the command
    with Live(render(picture), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(watch)
            note = ""
            try:
                picture = look.take()
            except NotAnswered as error:
                note = f"lost: {error}"
            live.update(render(picture, look.rates, note), refresh=True)


class _Look:
    """Pictures of one router, and what they say together: rates of lines."""

    def __init__(self, target: Target) -> None:
        self.rates: dict[str, float] = {}
        self._target = target
        self._sent: dict[str, int] = {}
        self._at = 0.0

    def take(self) -> Picture:
        """The picture now. Raises NotAnswered."""
        picture = read(ask(self._target), self._target)
        now = picture.at_ms / 1000
        sent = {line.name: line.sent for line in picture.lines}
        self.rates = {
            name: max(0, count - self._sent[name]) / (now - self._at)
            for name, count in sent.items()
            if name in self._sent and now > self._at
        }
        self._sent, self._at = sent, now
        return picture

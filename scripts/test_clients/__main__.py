"""`python -m scripts.test_clients [CLIENT ...]`: runs other people's clients against a mesh, and writes down
what they said. The exit code is 1 where one of them failed."""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from scripts.model_cache import model_dir
from scripts.test_clients.cases import CLIENTS, DIRECTORY, MODEL, URL, Client
from scripts.test_clients.environments import BASE, NotInstalled, environment, version
from scripts.test_clients.record import Ran, document
from scripts.test_clients.serving import serving

SERVED = "smollm2-135m-instruct"
LIMIT = 600.0
"""Seconds that one client may take."""
_PLACE = "MODEL_DIRECTORY"
_SETTINGS = {
    "NO_COLOR": "1",
    "COLUMNS": "140",
    "PYTHONPATH": "",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.test_clients", description=__doc__)
    names = [client.name for client in CLIENTS]
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(names)} (default: all)")
    parser.add_argument("--out", type=Path, default=Path("docs/clients.md"), help="the file to write")
    parser.add_argument("--url", default="", help="of a mesh that serves already (default: start one)")
    parser.add_argument("--fresh", action="store_true", help="install the clients anew, as they are now")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.clients if name not in names]:
        parser.error(f"no client {unknown[0]!r}; there are {', '.join(names)}")
    chosen = [client for client in CLIENTS if client.name in (options.clients or names)]
    ready = [(client, _installed(client, fresh=options.fresh)) for client in chosen]
    if options.url:
        ran = [_run(client, where, options.url) for client, where in ready]
    else:
        with tempfile.TemporaryDirectory() as directory, serving(Path(directory)) as url:
            ran = [_run(client, where, url) for client, where in ready]
    options.out.write_text(document(ran, _facts()), encoding="utf-8")
    for one in ran:
        print(f"{one.client.name} {one.version}: {one.failure or 'ok'} ({one.seconds:.0f} s)")
    print(f"written: {options.out}")
    return 1 if any(one.failure for one in ran) else 0


def _installed(client: Client, *, fresh: bool) -> Path | NotInstalled:
    _say(f"{client.name}: {' '.join(client.packages)}")
    try:
        return environment(client, fresh=fresh)
    except NotInstalled as error:
        return error


def _run(client: Client, where: Path | NotInstalled, url: str) -> Ran:
    if isinstance(where, NotInstalled):
        return Ran(client, "", client.command, 0.0, f"not installed: {where}", None)
    _say(f"{client.name}: runs")
    words = {URL: url, MODEL: SERVED, DIRECTORY: str(model_dir(thorough=False))}
    command = list(client.command)
    for mark, word in words.items():
        command = [part.replace(mark, word) for part in command]
    began = time.monotonic()
    program = str(where / "bin" / command[0])
    settings = {**os.environ, **_SETTINGS}
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            timeout=LIMIT,
            env=settings,
        )
        output, failure = done.stdout, client.failed(done.returncode, done.stdout)
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode("utf-8", "replace") if isinstance(error.stdout, bytes) else ""
        failure = f"not done after {LIMIT:g} s"
    seconds = time.monotonic() - began
    _say(f"{client.name}: {failure or 'ok'}")
    shown = [part.replace(words[DIRECTORY], _PLACE) for part in command]
    for place in {BASE.resolve().parent.parent, Path.cwd()}:
        output = output.replace(f"{place}/", "")
    output = output.replace(words[DIRECTORY], _PLACE)
    return Ran(client, version(client, where), shown, seconds, failure, output)


def _facts() -> str:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    today = datetime.now(UTC).date().isoformat()
    return (
        f"Last run: {today}, commit {commit}, Python {platform.python_version()}, "
        f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs."
    )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())

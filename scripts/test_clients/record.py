"""docs/clients.md: which clients were run, in which versions, with which commands, and what they said."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from scripts.test_clients.cases import Client

_MOST_LINES = 70
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_HEAD = """# Clients

Written by `make test-clients`: other people's clients, unchanged, each in an environment of its own, against
`python -m services --config deploy/mesh.toml` (four processes on one machine, SmolLM2-135M-Instruct; what the
model says is its own affair). A client that counts errors of the service counts as failed. The commands are
given as they were run; a mesh of your own has another address.
"""


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of one client. `failure` empty: all went well; `output` None: it was not run."""

    client: Client
    version: str
    command: Sequence[str]
    seconds: float
    failure: str
    output: str | None


def document(ran: Sequence[Ran], facts: str) -> str:
    """The whole file."""
    rows = ["| client | version | result | seconds |", "|---|---|---|---|"]
    for one in ran:
        result = f"failed: {one.failure}" if one.failure else "ok"
        name, known = one.client.name, one.version or "-"
        rows.append(f"| [{name}](#{name}) | {known} | {result} | {one.seconds:.0f} |")
    parts = [_HEAD, facts, "\n".join(rows)]
    for one in ran:
        parts.append(f"## {one.client.name}\n\n{_first_up(one.client.what)}.")
        if one.output is not None:
            told = _trimmed(one.output)
            parts.append(f"```\n$ {shlex.join(one.command)}\n{told}\n```")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]


def _trimmed(output: str) -> str:
    """Without colours, with the first and the last lines of very many; ends of lines without white space."""
    lines = [line.rstrip()[:160] for line in _ESCAPES.sub("", output).strip().splitlines()]
    lines = [line for at, line in enumerate(lines) if line or (at and lines[at - 1])]
    if len(lines) > _MOST_LINES:
        left_out = len(lines) - _MOST_LINES
        lines = [*lines[:10], f"... {left_out} lines ...", *lines[10 - _MOST_LINES :]]
    return "\n".join(lines)

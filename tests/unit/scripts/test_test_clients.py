"""What is written down of other people's clients: failures as such, output as it was, long ones cut."""

from __future__ import annotations

import pytest

from scripts.test_clients.cases import CLIENTS, Client
from scripts.test_clients.record import Ran, document


@pytest.mark.parametrize(
    ("code", "output", "failure"),
    [
        (0, "8 done, errored=0", ""),
        (3, "8 done, errored=0", "exit code 3"),
        (0, "8 done, errored=2", "its output says 'errored=2'"),
        (0, "errored=0", "its output does not say '8 done'"),
    ],
)
def test_a_client_that_counts_errors_has_failed(code: int, output: str, failure: str) -> None:
    client = Client("one", "it", ["one"], ["one"], fails=r"errored=[1-9]", needs="8 done")
    assert client.failed(code, output) == failure


def test_the_document_tells_version_command_and_output() -> None:
    long = "\n".join(f"\x1b[1mline {at}\x1b[0m  " for at in range(200))
    text = document(
        [
            Ran(CLIENTS[0], "1.2.3", ["python", "a b.py"], 7.4, "", long),
            Ran(CLIENTS[1], "", ["x"], 0.0, "not installed: no wheel", None),
        ],
        "Facts.",
    )
    assert "| [openai](#openai) | 1.2.3 | ok | 7 |" in text
    assert "| [anthropic](#anthropic) | - | failed: not installed: no wheel | 0 |" in text
    assert "$ python 'a b.py'\nline 0\n" in text
    assert "line 199\n```" in text
    assert "lines ..." in text
    assert "\x1b" not in text
    assert "$ x" not in text


def test_every_client_has_a_name_of_its_own() -> None:
    assert len({client.name for client in CLIENTS}) == len(CLIENTS)

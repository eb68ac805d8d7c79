"""docs/wire.md is true: its lists are those of the source."""

from __future__ import annotations

import re
from pathlib import Path

from shared import errors
from shared.wire import messages as m
from shared.wire.codec import PAYLOAD, PayloadKind
from shared.wire.framing import FrameKind

PAGE = (Path(__file__).parents[3] / "docs" / "wire.md").read_text(encoding="utf-8")


def test_every_message_is_listed_with_its_number_and_payload() -> None:
    listed = re.findall(r"^\| (\w+) \| (\d+) \| (none|ids|hashes|bytes) \|", PAGE, re.MULTILINE)
    assert listed == [
        (kind.__name__, str(kind.__struct_config__.tag), PAYLOAD.get(kind, PayloadKind.NONE).value)
        for kind in m.KINDS
    ]


def test_every_frame_kind_is_listed() -> None:
    listed = re.findall(r"^\| ([A-Z]+) \| (\d) \|", PAGE, re.MULTILINE)
    assert listed == [(kind.name, str(int(kind))) for kind in FrameKind]


def test_every_error_that_ends_a_connection_is_listed() -> None:
    listed = set(re.findall(r"^\| ([a-z_]+) \| ", PAGE.split("## Errors")[1].split("##")[0], re.MULTILINE))
    raised = {kind.code for kind in errors.ProtocolError.__subclasses__()} | {
        errors.ProtocolError.code,
        errors.BadChunk.code,
        errors.Rejected.code,
        errors.Unauthenticated.code,
    }
    assert listed - {"code"} == raised

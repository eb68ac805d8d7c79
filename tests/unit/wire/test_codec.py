"""Headers: golden bytes for each message, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from shared.errors import BadHeader, UnknownKind
from shared.wire import messages as m
from shared.wire.codec import PAYLOAD, check_payload, decode, encode
from shared.wire.messages import Message
from tests.support.samples import MESSAGES, RID, payload_for

GOLDEN: dict[str, str] = json.loads((Path(__file__).parents[2] / "golden" / "wire.json").read_text())


def test_every_message_has_a_sample() -> None:
    assert [type(message) for message in MESSAGES] == list(m.KINDS)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_golden_bytes(message: Message) -> None:
    golden = bytes.fromhex(GOLDEN[type(message).__name__])
    assert encode(message) == golden
    assert decode(golden) == message


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_fields_added_by_a_later_version_are_let_pass(message: Message) -> None:
    fields = msgspec.msgpack.decode(encode(message))
    assert decode(msgspec.msgpack.encode([*fields, "new"])) == message


@pytest.mark.parametrize("kind", [m.LoadReport, m.Attach], ids=lambda kind: kind.__name__)
def test_fields_that_an_earlier_version_lacks_have_defaults(kind: type[m.LoadReport | m.Attach]) -> None:
    message = next(one for one in MESSAGES if isinstance(one, kind))
    fields = msgspec.msgpack.decode(encode(message))
    last = message.__struct_fields__[-1]
    default = message.__struct_defaults__[-1]
    expected = {} if last == "line_gain" else default
    assert decode(msgspec.msgpack.encode(fields[:-1])) == msgspec.structs.replace(message, **{last: expected})


def test_token_rows_of_an_earlier_version() -> None:
    row = m.TokenRow(RID, 3, 102, (6,))
    tag, (fields,) = msgspec.msgpack.decode(encode(m.TokensOut((row,))))
    assert decode(msgspec.msgpack.encode([tag, [fields[:-1]]])) == m.TokensOut((row,))


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_payload_of_the_right_kind_only(message: Message) -> None:
    right = len(payload_for(message))
    check_payload(message, right)
    if type(message) not in PAYLOAD:
        assert right == 0
    with pytest.raises(BadHeader):
        check_payload(message, right + 1)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\xc1",
        b"\x91" * 3000,
        msgspec.msgpack.encode({}),
        msgspec.msgpack.encode([5]),
        msgspec.msgpack.encode([5, "soon"]),
        msgspec.msgpack.encode([5, -1]),
        encode(m.Ping(1)) + b"x",
        encode(m.Ping(1))[:-1],
        encode(m.Release(RID, -1)),
        encode(m.Drain(True)).replace(b"\xc3", b"\xa1\xff"),
        encode(m.LineShare("wan", float("nan"), 1, 1)),
        encode(m.Missing(RID, bytes(17), 0)),
        encode(m.Feed(RID, 1, 0, m.Do.OWN))[:-1] + b"\x09",
        encode(m.TokensOut((m.TokenRow(RID, 1, 5, (1 << 32,)),))),
        encode(m.First(bytes(16), RID, 5, (7, 1 << 32))),
        encode(m.Announce(m.Role.MAIN, "m", 0, 100, 10, 10, 1, False, "")),
    ],
    ids=range(17),
)
def test_headers_that_cannot_be(header: bytes) -> None:
    with pytest.raises(BadHeader):
        decode(header)


def test_unknown_kind_is_named() -> None:
    with pytest.raises(UnknownKind, match="99"):
        decode(msgspec.msgpack.encode([99, 1, 2]))


def test_payload_must_match_what_the_header_counts() -> None:
    with pytest.raises(BadHeader, match="48"):
        check_payload(m.KvEvents(1, 2, 1), 32)
    with pytest.raises(BadHeader, match="multiple of 4"):
        check_payload(m.Feed(RID, 1, 0, m.Do.HOLD), 6)

"""Peers of the version before: their bytes are understood, ours by them, and spoken is what both can."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from shared.errors import Rejected
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.handshake import MAX_VERSION, MIN_VERSION, Dialler, Identity, Listener, Offer
from shared.wire.messages import Message, Role
from tests.support.samples import MESSAGES
from tests.support.version_1 import GOLDEN, added, as_version_1, header_1, known

OLD = [message for message in MESSAGES if known(message)]
P = Identity("p1", Role.PREFILL, "a", 11, "full", "template", b"L" * 16)
ROUTER = Identity("r1", Role.ROUTER, "a", 13, "", "template", templates=("other",))
KEY = b"k" * 32


def test_a_release_speaks_its_version_and_the_one_before() -> None:
    assert (MIN_VERSION, MAX_VERSION) == (1, 2)


def test_no_message_of_version_1_is_gone() -> None:
    assert set(GOLDEN) <= {kind.__name__ for kind in m.KINDS}
    tags = {msgspec.msgpack.decode(header)[0]: name for name, header in GOLDEN.items()}
    now = {kind.__struct_config__.tag: kind.__name__ for kind in m.KINDS}
    assert {tag: now[tag] for tag in tags} == tags


@pytest.mark.parametrize("message", OLD, ids=lambda message: type(message).__name__)
def test_the_bytes_of_version_1_mean_today_what_they_meant(message: Message) -> None:
    """Every field that version 1 set has the same place and value; what came since has its default."""
    name = type(message).__name__
    old = decode(GOLDEN[name])
    assert type(old) is type(message)
    assert old == as_version_1(message)
    assert msgspec.msgpack.decode(encode(old))[: len(msgspec.msgpack.decode(GOLDEN[name]))] == plain(name)


def plain(name: str) -> list[Any]:
    """Version 1's fields, those of rows within it filled up to today's."""
    fields: list[Any] = msgspec.msgpack.decode(GOLDEN[name])
    if name == "TokensOut":
        row = msgspec.msgpack.decode(msgspec.msgpack.encode(m.TokenRow(m.Rid(1, 1), 1, 1, ())))
        fields[1] = [old + row[len(old) :] for old in fields[1]]
    return fields


@pytest.mark.parametrize("name", sorted(added()))
def test_a_reader_of_version_1_lets_todays_fields_pass(name: str) -> None:
    """Array-like Structs with fewer fields read the longer array: the last ones are let pass."""
    message = next(one for one in MESSAGES if type(one).__name__ == name)
    count = len(msgspec.msgpack.decode(GOLDEN[name])) - 1
    then = msgspec.defstruct(
        name,
        [(f"field_{at}", Any) for at in range(count)],
        array_like=True,
        tag=type(message).__struct_config__.tag,
    )
    read = msgspec.msgpack.decode(encode(message), type=then)
    assert [getattr(read, f"field_{at}") for at in range(count)] == msgspec.msgpack.decode(encode(message))[
        1 : count + 1
    ]


def old_hello(identity: Identity) -> bytes:
    """The Hello of a node that speaks version 1 alone and has none of the later fields."""
    return header_1(decode(Dialler(replace(identity, versions=(1, 1)), KEY, b"d" * 16).hello))


def test_a_router_of_two_models_accepts_a_worker_of_version_1() -> None:
    """Its Welcome shows that worker the template that it compares, and agrees on version 1."""
    for template in ("template", "other"):
        worker = replace(P, template=template, versions=(1, 1))
        one = Dialler(worker, KEY, b"d" * 16)
        router = Listener(ROUTER, KEY, b"l" * 16, lambda hello: Offer(5, 0))
        [welcome] = router.receive(one.hello)
        seen = decode(welcome)
        assert isinstance(seen, m.Welcome)
        assert (seen.version, seen.template) == (1, template)
        [proof] = one.receive(welcome)
        router.receive(proof)
        assert one.agreed is not None
        assert router.agreed is not None
        assert one.agreed.peer.version == router.agreed.peer.version == 1
        assert (router.agreed.peer.template, router.agreed.encodings) == (template, 0)


def test_a_hello_without_the_later_fields_opens_a_session() -> None:
    hello = old_hello(P)
    assert len(msgspec.msgpack.decode(hello)) == len(msgspec.msgpack.decode(GOLDEN["Hello"]))
    listener = Listener(ROUTER, None, b"l" * 16, lambda hello: Offer(5, 0))
    [welcome] = listener.receive(hello)
    answer = decode(welcome)
    assert isinstance(answer, m.Welcome)
    assert answer.version == 1
    listener.receive(encode(m.Proof(b"")))
    assert listener.open
    assert listener.agreed is not None
    assert listener.agreed.peer.version == 1


def test_a_welcome_without_the_later_fields_opens_a_session() -> None:
    one = Dialler(P, None, b"d" * 16)
    other = Listener(
        replace(ROUTER, templates=(), versions=(1, 1)), None, b"l" * 16, lambda hello: Offer(5, 0)
    )
    [welcome] = other.receive(one.hello)
    [proof] = one.receive(header_1(decode(welcome)))
    other.receive(proof)
    assert other.open
    assert one.agreed is not None
    assert (one.agreed.peer.version, one.agreed.encodings) == (1, 0)


@pytest.mark.parametrize(
    ("ours", "theirs", "agreed"), [((1, 2), (2, 3), 2), ((2, 3), (1, 2), 2), ((2, 3), (1, 9), 3)]
)
def test_the_highest_version_that_both_speak(
    ours: tuple[int, int], theirs: tuple[int, int], agreed: int
) -> None:
    one = Dialler(replace(P, versions=ours), None, b"d" * 16)
    other = Listener(replace(ROUTER, versions=theirs), None, b"l" * 16, lambda hello: Offer(5, 0))
    [welcome] = other.receive(one.hello)
    one.receive(welcome)
    assert one.agreed is not None
    assert one.agreed.peer.version == agreed


def test_two_versions_apart_is_refused_with_what_to_do() -> None:
    one = Dialler(replace(P, versions=(1, 1)), None, b"d" * 16)
    other = Listener(replace(ROUTER, versions=(2, 3)), None, b"l" * 16, lambda hello: Offer(5, 0))
    with pytest.raises(Rejected, match=r"2-3.*1-1.*upgrade the older"):
        other.receive(one.hello)

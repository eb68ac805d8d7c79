"""Handshake: what must agree, who holds the key, and that no proof serves twice or backwards."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from shared.errors import BadHeader, MeshError, Rejected, Unauthenticated, UnexpectedMessage
from shared.wire import messages as m
from shared.wire.codec import decode, encode
from shared.wire.handshake import MAX_VERSION, Dialler, Identity, Listener, Offer, State
from shared.wire.messages import Role

P = Identity("p1", Role.PREFILL, "a", 11, "full", "template", b"L" * 16, "block_tokens=32")
MD = Identity("md1", Role.MAIN, "b", 12, "full", "template", b"L" * 16, "block_tokens=32")
ROUTER = Identity("r1", Role.ROUTER, "a", 13, "", "template")
KEY = b"k" * 32
NEW = Offer(77, 0)


def dialler(identity: Identity = P, key: bytes | None = KEY, node: str = "md1", **more: int) -> Dialler:
    return Dialler(identity, key, b"d" * 16, node=node, **more)


def listener(identity: Identity = MD, key: bytes | None = KEY, offer: Offer | None = NEW) -> Listener:
    return Listener(identity, key, b"l" * 16, lambda hello: offer)


def shake(one: Dialler, other: Listener) -> None:
    """The whole exchange; the dialler still waits for its confirmation."""
    [welcome] = other.receive(one.hello)
    [proof] = one.receive(welcome)
    assert other.receive(proof) == []


@pytest.mark.parametrize("key", [None, KEY])
def test_both_sides_agree(key: bytes | None) -> None:
    one, other = dialler(key=key), listener(key=key)
    shake(one, other)
    assert other.open
    assert one.state is State.CONFIRM
    one.confirmed()
    assert one.open
    assert one.agreed is not None
    assert other.agreed is not None
    assert (one.agreed.peer.node, other.agreed.peer.node) == ("md1", "p1")
    assert one.agreed.session == other.agreed.session == 77
    assert not one.agreed.resumed
    assert not other.agreed.resumed


def test_a_session_goes_on_where_both_name_it() -> None:
    one = dialler(session=77, peer_incarnation=12, last_seq=5)
    other = listener(offer=Offer(77, 9))
    shake(one, other)
    assert one.agreed is not None
    assert other.agreed is not None
    assert (one.agreed.resumed, one.agreed.peer_last_seq) == (True, 9)
    assert (other.agreed.resumed, other.agreed.peer_last_seq) == (True, 5)


def test_another_session_number_begins_anew_whatever_was_received() -> None:
    one = dialler(session=76, peer_incarnation=12, last_seq=5)
    other = listener(offer=Offer(77, 0))
    shake(one, other)
    assert one.agreed is not None
    assert other.agreed is not None
    assert (one.agreed.resumed, one.agreed.peer_last_seq) == (False, 0)
    assert (other.agreed.resumed, other.agreed.peer_last_seq) == (False, 0)


@pytest.mark.parametrize(
    ("ours", "theirs", "field"),
    [
        (P, replace(MD, fingerprint="other"), "fingerprint"),
        (P, replace(MD, layout=b"M" * 16, layout_text="block_tokens=64"), "layout"),
        (ROUTER, replace(MD, template="other"), "template"),
        (replace(MD, node="p1"), ROUTER, None),
        (replace(P, node="md1"), MD, "node"),
    ],
)
def test_what_differs_is_named_with_both_values(ours: Identity, theirs: Identity, field: str | None) -> None:
    one = dialler(ours, node="")
    other = listener(theirs)
    if field is None:
        shake(one, other)
        return
    [welcome] = other.receive(one.hello)
    with pytest.raises(Rejected) as refused:
        one.receive(welcome)
    assert refused.value.field == field
    assert refused.value.ours in str(refused.value)
    assert refused.value.theirs in str(refused.value)
    assert refused.value.advice
    assert one.farewell is not None
    with pytest.raises(Rejected) as told:  # the other side hears it with the values turned round
        other.receive(one.farewell)
    assert (told.value.field, told.value.ours, told.value.theirs) == (
        field,
        refused.value.theirs,
        refused.value.ours,
    )
    assert other.agreed is None


def test_the_listener_refuses_by_itself_too() -> None:
    other = listener(replace(MD, fingerprint="other"), key=None)
    hello = decode(dialler(key=None).hello)
    assert isinstance(hello, m.Hello)
    other.receive(encode(hello))
    with pytest.raises(Rejected, match="fingerprint"):
        other.receive(encode(m.Proof(b"")))
    assert other.farewell is not None


def test_a_router_compares_the_template_only() -> None:
    shake(dialler(replace(P, fingerprint="any", layout=b"X" * 16), node="r1"), listener(ROUTER))


TWO_MODELS = replace(ROUTER, templates=("template 2", "template 3"))


@pytest.mark.parametrize("template", ["template", "template 2", "template 3"])
def test_a_router_of_several_models_meets_the_workers_of_each(template: str) -> None:
    worker = replace(P, template=template)
    one, other = dialler(worker, node="r1"), listener(TWO_MODELS)
    [welcome] = other.receive(one.hello)
    answer = decode(welcome)
    assert isinstance(answer, m.Welcome)
    assert answer.template == template  # the one that a worker of version 1 compares
    assert {answer.template, *answer.templates} == {"template", "template 2", "template 3"}
    [proof] = one.receive(welcome)
    other.receive(proof)
    assert other.agreed is not None
    assert other.agreed.peer.template == template
    shake(dialler(TWO_MODELS, node="md1"), listener(replace(MD, template=template)))


def test_a_template_that_a_router_of_several_models_lacks_is_refused_with_all_that_it_has() -> None:
    one, other = dialler(replace(P, template="none of them"), node="r1"), listener(TWO_MODELS)
    [welcome] = other.receive(one.hello)
    with pytest.raises(
        Rejected, match=r"ours none of them, theirs template, template 2, template 3"
    ) as refused:
        one.receive(welcome)
    assert refused.value.field == "template"


def test_versions_that_do_not_meet_are_both_named() -> None:
    hello = msgspec.structs.replace(_hello(dialler()), min_version=3, max_version=4)
    other = listener()
    with pytest.raises(Rejected, match=r"1-2.*3-4"):
        other.receive(encode(hello))
    later = msgspec.structs.replace(_hello(dialler()), max_version=9)
    [welcome] = listener().receive(encode(later))
    answer = decode(welcome)
    assert isinstance(answer, m.Welcome)
    assert answer.version == MAX_VERSION


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [(KEY, b"x" * 32, ("set", "another")), (KEY, None, ("set", "none")), (None, KEY, ("none", "set"))],
)
def test_keys_that_differ(ours: bytes | None, theirs: bytes | None, shown: tuple[str, str]) -> None:
    one, other = dialler(key=ours), listener(key=theirs)
    [welcome] = other.receive(one.hello)
    with pytest.raises(Rejected) as refused:
        one.receive(welcome)
    assert refused.value.field == "key"
    assert (refused.value.ours, refused.value.theirs) == shown


@pytest.mark.parametrize("proof", [b"", b"x" * 32])
def test_a_dialler_without_the_key_is_unauthenticated(proof: bytes) -> None:
    one, other = dialler(), listener()
    other.receive(one.hello)
    with pytest.raises(Unauthenticated):
        other.receive(encode(m.Proof(proof)))
    assert other.agreed is None
    assert not other.open


def test_the_listeners_own_proof_sent_back_is_no_proof() -> None:
    one, other = dialler(), listener()
    [welcome] = other.receive(one.hello)
    answer = decode(welcome)
    assert isinstance(answer, m.Welcome)
    with pytest.raises(Unauthenticated):
        other.receive(encode(m.Proof(answer.proof)))


def test_a_proof_of_another_connection_is_no_proof() -> None:
    one, other = dialler(), listener()
    [welcome] = other.receive(one.hello)
    [proof] = one.receive(welcome)
    again = Listener(MD, KEY, b"m" * 16, lambda hello: NEW)
    again.receive(one.hello)
    with pytest.raises(Unauthenticated):
        again.receive(proof)


@pytest.mark.parametrize("field", ["node", "incarnation", "session", "fingerprint", "last_seq"])
def test_a_welcome_that_was_changed_on_the_way_is_refused(field: str) -> None:
    one, other = dialler(node=""), listener()
    [header] = other.receive(one.hello)
    welcome = decode(header)
    assert isinstance(welcome, m.Welcome)
    value = getattr(welcome, field)
    forged = msgspec.structs.replace(welcome, **{field: value + ("x" if isinstance(value, str) else 1)})
    with pytest.raises(Rejected, match="key"):
        one.receive(encode(forged))


def test_a_hello_that_was_changed_on_the_way_is_refused() -> None:
    one, other = dialler(), listener()
    forged = msgspec.structs.replace(_hello(one), incarnation=99)
    [welcome] = other.receive(encode(forged))
    with pytest.raises(Rejected, match="key"):
        one.receive(welcome)


def test_another_node_than_the_one_that_was_dialled() -> None:
    one, other = dialler(node="md2"), listener()
    [welcome] = other.receive(one.hello)
    with pytest.raises(Rejected, match=r"md2.*md1"):
        one.receive(welcome)


def test_a_bulk_connection_of_no_session_is_refused() -> None:
    with pytest.raises(Rejected, match="session"):
        listener(offer=None).receive(dialler(bulk=1, session=5).hello)


def test_a_nonce_of_the_wrong_size() -> None:
    other = listener(key=None)
    other.receive(encode(msgspec.structs.replace(_hello(dialler(key=None)), nonce=b"short")))
    with pytest.raises(BadHeader):
        other.receive(encode(m.Proof(b"")))


@pytest.mark.parametrize("message", [m.Ping(1), m.Drain(True), m.Proof(b""), m.Pong(1), m.Goodbye("x")])
def test_every_message_in_every_state_is_a_step_or_refused(message: m.Message) -> None:
    one, other = dialler(), listener()
    for side in (one, other):
        with pytest.raises(UnexpectedMessage):
            side.receive(encode(message))
    shake(one, other)
    for side in (one, other):
        with pytest.raises(UnexpectedMessage):
            side.receive(encode(message))


def test_nothing_may_come_before_the_welcome() -> None:
    with pytest.raises(UnexpectedMessage):
        dialler().confirmed()


def test_junk_is_a_documented_error() -> None:
    for side in (dialler(), listener()):
        with pytest.raises(MeshError):
            side.receive(b"\xc1")


def _hello(one: Dialler) -> m.Hello:
    hello = decode(one.hello)
    assert isinstance(hello, m.Hello)
    return hello


@pytest.mark.parametrize("limits", [(1 << 18, 1 << 16), (0, 1 << 16), (1 << 18, 0)])
def test_each_side_learns_how_large_a_chunk_the_other_takes(limits: tuple[int, int]) -> None:
    one = dialler(replace(P, max_chunk=limits[0]))
    other = listener(replace(MD, max_chunk=limits[1]))
    shake(one, other)
    assert one.agreed is not None
    assert other.agreed is not None
    assert (other.agreed.max_chunk, one.agreed.max_chunk) == limits


@pytest.mark.parametrize("small", [P, MD], ids=["dialler", "listener"])
def test_a_node_that_takes_next_to_no_bytes_at_once_is_refused(small: Identity) -> None:
    one = dialler(replace(P, max_chunk=16 if small is P else 0))
    other = listener(replace(MD, max_chunk=16 if small is MD else 0))
    with pytest.raises(BadHeader, match="max_chunk of 16"):
        shake(one, other)


@pytest.mark.parametrize("wrong", ["dialler", "listener"])
def test_a_certificate_binds_the_name(wrong: str) -> None:
    """Whoever shows another's certificate is refused, and told so by name."""
    one, other = dialler(), listener()
    one.certified, other.certified = ["md1", "md2"], ["p1"]
    shake(one, other)
    one, other = dialler(), listener()
    (other if wrong == "dialler" else one).certified = ["somebody"]
    with pytest.raises(Rejected, match="somebody") as caught:
        shake(one, other)
    assert caught.value.field == "certificate"
    assert ("p1" if wrong == "dialler" else "md1") in str(caught.value)
    refused = other if wrong == "dialler" else one
    assert refused.agreed is None
    assert refused.farewell is not None

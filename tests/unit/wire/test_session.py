"""Sessions: numbers, acks, sending again, overflow, and what cannot be."""

from __future__ import annotations

import pytest

from shared.errors import (
    BadHeader,
    InvariantBroken,
    Overflow,
    ProtocolError,
    SequenceGap,
    SessionOver,
    UnexpectedMessage,
)
from shared.policy.config import LinkPolicy
from shared.wire import messages as m
from shared.wire.codec import encode
from shared.wire.framing import PART_BYTES, Frame, FrameKind
from shared.wire.messages import Role
from shared.wire.port import PeerInfo
from shared.wire.session import ACK_FRAMES, Session
from tests.support.samples import RID, SAMPLING

POLICY = LinkPolicy()


def session(policy: LinkPolicy = POLICY) -> Session:
    made = Session(1, PeerInfo("peer", Role.PREFILL, "x", 1), policy)
    made.reconnected(0)
    return made


def frames(side: Session, now: float = 0.0) -> list[Frame]:
    found = []
    while (frame := side.next_frame(now)) is not None:
        found.append(frame)
    return found


def admit(count: int, remaining_ms: int = 1000) -> tuple[m.Admit, bytes]:
    return m.Admit(RID, 1, b"", 0, count, SAMPLING, remaining_ms), bytes(4 * count)


def test_messages_arrive_with_their_payload_in_order() -> None:
    left, right = session(), session()
    sent = [(m.Resume(RID, n), b"") for n in range(5)] + [admit(10)]
    for message, payload in sent:
        left.push(0.0, message, payload)
    out = frames(left)
    assert [frame.seq for frame in out] == [1, 2, 3, 4, 5, 6]
    assert [right.receive(frame) for frame in out] == sent
    assert right.last_seq == 6


def test_a_large_message_travels_in_parts_and_comes_out_whole() -> None:
    left, right = session(), session()
    message, payload = admit(100_000)
    left.push(0.0, message, payload)
    out = frames(left)
    assert len(out) == len(encode(message) + payload) // PART_BYTES + 1
    assert {frame.kind for frame in out} == {FrameKind.PART}
    got = [right.receive(frame) for frame in out]
    assert got[-1] == (message, payload)
    assert got[:-1] == [None] * (len(out) - 1)


def test_acks_ride_on_every_frame_and_empty_what_is_kept() -> None:
    left, right = session(), session()
    left.push(0.0, m.Resume(RID, 1))
    [frame] = frames(left)
    right.receive(frame)
    assert left.kept_bytes > 0
    left.receive(right.link_frame(m.Ping(1)))
    assert left.kept_bytes == 0


def test_an_ack_is_sent_at_once_after_many_frames() -> None:
    left, right = session(), session()
    for n in range(ACK_FRAMES):
        left.push(0.0, m.Resume(RID, n))
    out = frames(left)
    for frame in out[:-1]:
        right.receive(frame)
    assert frames(right) == []
    right.receive(out[-1])
    [ack] = frames(right)
    assert (ack.kind, ack.ack) == (FrameKind.ACK, ACK_FRAMES)


def test_after_a_break_only_what_is_lacking_is_sent_again() -> None:
    left, right = session(), session()
    for n in range(4):
        left.push(0.0, m.Resume(RID, n))
    out = frames(left)
    for frame in out[:2]:
        right.receive(frame)
    left.reconnected(right.last_seq)
    left.push(0.0, m.Resume(RID, 4))
    again = frames(left)
    assert [frame.seq for frame in again] == [3, 4, 5]
    assert [right.receive(frame) for frame in again] == [(m.Resume(RID, n), b"") for n in (2, 3, 4)]
    assert left.resent_bytes > 0


def test_frames_that_came_before_are_let_pass() -> None:
    left, right = session(), session()
    left.push(0.0, m.Resume(RID, 0))
    [frame] = frames(left)
    assert right.receive(frame) is not None
    assert right.receive(frame) is None
    assert right.last_seq == 1


def test_a_gap_in_the_numbers_ends_the_connection() -> None:
    left, right = session(), session()
    left.push(0.0, m.Resume(RID, 0))
    left.push(0.0, m.Resume(RID, 1))
    _, second = frames(left)
    with pytest.raises(SequenceGap):
        right.receive(second)


def test_remaining_time_counts_from_when_the_frame_meets_the_socket() -> None:
    left, right = session(), session()
    message, payload = admit(1, remaining_ms=1000)
    left.push(10.0, message, payload)
    [first] = frames(left, 10.2)
    left.reconnected(0)
    [again] = frames(left, 13.0)
    for frame, expected in ((first, 800), (again, 0)):
        found = session().receive(frame)
        assert found is not None
        assert isinstance(found[0], m.Admit)
        assert found[0].remaining_ms == pytest.approx(expected, abs=1)
    assert right.last_seq == 0


def test_overflow_ends_the_session_but_one_message_of_any_size_passes() -> None:
    policy = LinkPolicy(resend_bytes=50_000, max_control_payload=1 << 20)
    left = session(policy)
    left.push(0.0, *admit(200_000))
    with pytest.raises(Overflow, match="resend_bytes"):
        left.push(0.0, m.Resume(RID, 1))


def test_a_message_larger_than_any_may_be_is_refused_by_name() -> None:
    left = session(LinkPolicy(max_control_payload=1000))
    with pytest.raises(Overflow, match=r"Admit.*max_control_payload"):
        left.push(0.0, *admit(1000))


@pytest.mark.parametrize("message", [m.Ping(1), m.Goodbye("x"), m.Proof(b"")])
def test_link_messages_are_none_of_a_session(message: m.Message) -> None:
    with pytest.raises(InvariantBroken):
        session().push(0.0, message)
    with pytest.raises(UnexpectedMessage):
        session().receive(Frame(FrameKind.MESSAGE, encode(message), seq=1))


def test_a_payload_of_the_wrong_kind_is_refused() -> None:
    with pytest.raises(BadHeader):
        session().receive(Frame(FrameKind.MESSAGE, encode(m.Resume(RID, 1)), b"\0\0\0\0", seq=1))


def test_an_ack_of_what_was_never_sent_is_refused() -> None:
    with pytest.raises(ProtocolError):
        session().receive(Frame(FrameKind.ACK, b"", ack=1))


def test_a_peer_that_has_received_what_was_never_sent_cannot_go_on() -> None:
    left = session()
    left.push(0.0, m.Resume(RID, 0))
    frames(left)
    with pytest.raises(SessionOver):
        left.reconnected(2)


def test_a_peer_that_forgot_what_it_acknowledged_cannot_go_on() -> None:
    left, right = session(), session()
    left.push(0.0, m.Resume(RID, 0))
    for frame in frames(left):
        right.receive(frame)
    left.receive(right.ack_frame())
    with pytest.raises(SessionOver):
        left.reconnected(0)


def test_the_same_bad_frame_twice_is_hopeless_and_progress_between_is_not() -> None:
    right = session()
    bad = Frame(FrameKind.MESSAGE, b"\xc1", seq=1)
    with pytest.raises(BadHeader):
        right.receive(bad)
    assert not right.failed()
    assert right.last_seq == 0
    with pytest.raises(BadHeader):
        right.receive(bad)
    assert right.failed()
    right = session()
    assert not right.failed()
    right.receive(Frame(FrameKind.MESSAGE, encode(m.Resume(RID, 1)), seq=1))
    assert not right.failed()

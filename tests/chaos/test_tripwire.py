"""When an armed worker dies, and what a damaged chunk is."""

from __future__ import annotations

from pathlib import Path

from shared.engine.api import SamplingParams
from shared.wire.messages import Attach, Have, Purpose, Rid, TransferClass
from shared.worker.asked import Asked
from shared.worker.known import Known
from shared.worker.part import Part, Stage
from shared.worker.transfer import Transfer
from tests.chaos.tripwire import OFF, Tripwire, Wire, arm, cuts_off, cuts_short, disarm
from tests.support.samples import SAMPLING

RID = Rid(7, 1)
BLOCKS = 10


def transfer(cls: TransferClass = TransferClass.UNCOVERED) -> Transfer:
    hashes = [bytes([at]) * 16 for at in range(BLOCKS)]
    attach = Attach(RID, "main-0", 1, b"t" * 16, 0, 0, BLOCKS, hashes[-1], cls)
    return Transfer(attach, "router-0", hashes, 100, 0.0)


def send(one: Transfer, blocks: int) -> Transfer:
    for at in range(blocks):
        one.held[at] = at
        one.next_span(100)
    return one


def test_a_prefill_dies_with_its_part_sent() -> None:
    wire = Wire("sent", part=0.5)
    assert not cuts_short(wire, send(transfer(), 4))
    assert cuts_short(wire, send(transfer(), 5))
    assert not cuts_short(wire, send(transfer(TransferClass.COVERED), 5))
    assert cuts_short(Wire("sent", part=0.5, covered=True), send(transfer(TransferClass.COVERED), 5))
    assert not cuts_short(OFF, send(transfer(), 9))


def test_what_was_reported_counts_as_sent() -> None:
    one = send(transfer(), 5)
    one.report(Have(one.ticket, RID, published=5))
    assert cuts_short(Wire("sent", part=0.5), one)


def part(made: int) -> Part:
    params = SamplingParams(max_pos=100, seed=0)
    ask = Asked(
        rid=RID,
        router="router-0",
        term=2,
        ids=[1] * 40,
        prompt_len=40,
        sampling=SAMPLING,
        params=params,
        priority=0,
        root=b"",
        hashes=[],
        since=0.0,
        trace="",
        deadline=9.0,
    )
    return Part(ask, 1, Purpose.SERVE, Known([1] * 40, 9), 2, Stage.OWNING, made=made)


def test_a_main_decode_dies_at_its_first_id_in_the_middle_or_one_before_the_end() -> None:
    assert cuts_off(Wire("drawn", moment="first"), part(0), 47)
    assert not cuts_off(Wire("drawn", moment="first"), part(1), 48)
    assert cuts_off(Wire("drawn", moment="middle"), part(9), 70)
    assert not cuts_off(Wire("drawn", moment="middle"), part(9), 71)
    assert cuts_off(Wire("drawn", moment="last"), part(9), 98)
    assert not cuts_off(Wire("drawn", moment="last"), part(9), 99)
    assert not cuts_off(OFF, part(0), 98)


def test_what_is_armed_is_read_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "wire"
    watching = Tripwire(file, lambda: None)
    assert watching.wire == OFF
    for wire in (Wire("sent", part=0.9), Wire("damage", part=0.1)):
        arm(file, wire)
        assert watching.wire == wire
    assert disarm(file)
    assert watching.wire == OFF


def test_a_worker_dies_by_what_is_armed_or_it_is_taken_back_never_both(tmp_path: Path) -> None:
    file, deaths = tmp_path / "wire", list[str]()
    watching = Tripwire(file, lambda: deaths.append("dead"))
    arm(file, Wire("sent", part=0.9))
    assert watching.wire.kind == "sent"
    assert disarm(file)  # after the worker has read it
    watching.strike()
    assert deaths == []
    arm(file, Wire("sent", part=0.9))
    watching.strike()
    assert deaths == ["dead"]
    assert not disarm(file)

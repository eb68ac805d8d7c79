"""Every pair of the attach table, on a real sender: how far the request is x what happens to its transfer."""

from __future__ import annotations

from itertools import product

import pytest

from shared.engine.synthetic import SyntheticTiming
from shared.policy.config import LinePolicy, WorkerPolicy
from shared.wire import messages as m
from shared.worker.attach_table import ATTACH_TABLE, AttachEvent, Outcome
from shared.worker.sources import SourceState
from shared.worker.transfer import Transfer
from tests.support.mesh import LAYOUT, Bench, greedy, hashes_of, worker_node

BLOCK = LAYOUT.block_bytes
IDS = list(range(50, 93))  # ten full blocks
BLOCKS = len(IDS) // 4
LEASE = 5.0
POLICY = WorkerPolicy(
    max_running=1, max_queued=8, token_budget=4, max_chunk_tokens=4, orphan_lease=LEASE, attach_wait=30.0
)


class Scene:
    """A sender whose request is as far as a state says, and a main decode that was admitted."""

    def __init__(self, state: SourceState, *, apart: bool = False) -> None:
        slow = SyntheticTiming(step=0.05, token=0.001)
        self.bench = bench = Bench(
            worker_node("p", m.Role.PREFILL, blocks=128, policy=POLICY, timing=slow),
            worker_node("md", m.Role.MAIN, blocks=128, line=LinePolicy(have_every=0.02)),
            worker_node("rld", m.Role.RELAY, blocks=128),
            chunk=256,
        )
        if apart:
            bench.sim.lose("p", "md")
        else:
            link = bench.sim.link("p", "md")
            assert link is not None
            link.line.rate = 400.0  # some seconds for all of it
        self.rid = bench.rid(1)
        self._come_to(state)
        bench.admit("md", self.rid, IDS, greedy(len(IDS) + 20))
        self.admitted = bench.until(m.Admitted, "md")
        assert bench["p"].worker.rooms.sources.state(self.rid) is state

    def _come_to(self, state: SourceState) -> None:
        bench = self.bench
        if state is SourceState.QUEUED:
            bench.prefill("p", bench.rid(2), [7] * 400, greedy(450))
            bench.run(0.1)
        bench.prefill("p", self.rid, IDS, greedy(len(IDS) + 20))
        bench.run(0.1)
        if state in (SourceState.DONE, SourceState.GONE):
            bench.until(m.TokensOut, "p")
        if state is SourceState.GONE:
            bench.release(self.rid, 1, "p")
            bench.run(0.05)

    def attach(self, cls: m.TransferClass = m.TransferClass.UNCOVERED) -> None:
        self.bench.attach("p", "md", self.admitted, cls=cls, hashes=hashes_of(IDS))
        self.bench.run(0.01)

    @property
    def transfer(self) -> Transfer | None:
        return self.bench["p"].worker.rooms.kv_out.get(self.admitted.ticket)

    def happens(self, event: AttachEvent) -> None:
        bench = self.bench
        match event:
            case AttachEvent.ATTACH_AGAIN:
                self.attach(m.TransferClass.PARKED)
            case AttachEvent.RELEASE | AttachEvent.RELEASE_ALIGN:
                bench.release(self.rid, 9, "p", align=event is AttachEvent.RELEASE_ALIGN)
            case AttachEvent.TARGET_LOST:
                bench.sim.lose("p", "md")
            case AttachEvent.TARGET_RESTARTED:
                bench.sim.kill("md")
                bench.join(worker_node("md", m.Role.MAIN, blocks=128, seed=9))
                bench.sim.connect_all()
            case AttachEvent.TARGET_SESSION:
                bench.sim.connect("p", "md").line.rate = 400.0
            case AttachEvent.OTHER_LOST:
                bench.sim.lose("p", "rld")
            case AttachEvent.ROUTER_LOST:
                bench.sim.lose("p", "r")
        bench.run(0.05)


STATES = {state.value: state for state in SourceState}


@pytest.mark.parametrize("state", STATES)
def test_attach(state: str) -> None:
    scene = Scene(STATES[state])
    scene.attach()
    transfer, outcome = scene.transfer, ATTACH_TABLE[STATES[state], AttachEvent.ATTACH]
    assert transfer is not None
    assert transfer.cls is m.TransferClass.UNCOVERED
    if outcome is Outcome.STREAMS:
        assert transfer.unresolved, "some blocks do not exist yet"
    else:
        assert not transfer.unresolved
    scene.bench.until(m.Have, "md", within=60.0)
    assert scene.bench.router.of(m.Have, "md")[-1].complete
    assert not scene.bench.router.of(m.Missing)


def test_attach_to_a_request_that_is_gone_with_its_blocks() -> None:
    scene = Scene(SourceState.GONE)
    scene.bench["p"].pool.clear_cached()
    scene.attach()
    assert scene.transfer is None
    assert scene.bench.until(m.Missing, "p").ticket == scene.admitted.ticket
    assert ATTACH_TABLE[SourceState.GONE, AttachEvent.ATTACH] is Outcome.CACHED


@pytest.mark.parametrize(
    ("state", "event"), [(s, e) for s, e in product(STATES, AttachEvent) if e is not AttachEvent.ATTACH]
)
def test_what_happens_to_an_open_transfer(state: str, event: AttachEvent) -> None:
    scene = Scene(STATES[state], apart=event is AttachEvent.TARGET_SESSION)
    scene.attach()
    out = scene.bench["p"].worker.rooms.kv_out
    assert scene.transfer is not None
    scene.happens(event)
    transfer = scene.transfer
    match ATTACH_TABLE[STATES[state], event]:
        case Outcome.ENDS:
            assert transfer is None
        case Outcome.ALIGNS:
            assert transfer is not None
            assert transfer.cls is m.TransferClass.ALIGNMENT
            assert scene.admitted.ticket in out.alignments
        case Outcome.RECLASSED:
            assert transfer is not None
            assert transfer.cls is m.TransferClass.PARKED
        case Outcome.GOES_ON:
            assert transfer is not None
            assert transfer.cls is m.TransferClass.UNCOVERED
        case Outcome.ENDS_BY_LEASE:
            assert transfer is not None
            scene.bench.run(LEASE + 1.0)
            assert scene.transfer is None
        case Outcome.ENDS_BY_TARGET:
            scene.bench.run(LEASE + 1.0)
            assert scene.transfer is not None
            scene.bench.release(scene.rid, 9, "md")
            scene.bench.run(0.05)
            assert scene.transfer is None
        case other:
            pytest.fail(f"{other} is no outcome of an open transfer")
    scene.bench["p"].worker.check()


def test_every_pair_is_listed() -> None:
    assert set(ATTACH_TABLE) == set(product(SourceState, AttachEvent))

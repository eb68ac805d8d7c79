"""A line of a simulation keeps to the shares that routers deal as a transport does."""

from __future__ import annotations

from benchmarks.simulation.lanes import Lanes
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh
from benchmarks.simulation.nodes import Debt, Line
from benchmarks.simulation.sim import Sim
from shared.wire.messages import LineShare


def test_a_larger_share_pays_what_is_owed_sooner() -> None:
    sim, line = Sim(), Line(rate=1000.0, name="wan")
    debt = line.debts["p1"] = Debt(left=500.0, since=0.0, rate=10.0)
    assert debt.over == 50.0
    sim.now = 10.0
    Lanes(sim, 64).granted(line, "r", "p1", LineShare("wan", 400.0, 1, 1000, 1, 0.5))
    assert debt.over == 11.0, "400 of the 500 bytes are owed still, at 400 a second"


def test_a_sender_that_waits_goes_on_at_once_with_a_larger_share() -> None:
    mesh = VirtualMesh(MeshPlan(prefills=1, relays=0, mains=1), 1)
    mesh.wan.debts["p1"] = Debt(left=100.0, since=mesh.sim.now, rate=0.1)
    client = mesh.submit(list(range(200)) * 8, 5)
    assert mesh.drain(60.0), "the share of before would have let it send after 1,000 s"
    assert client.ttst < 5.0

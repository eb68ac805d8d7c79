"""How far a request of a live mesh is: the moments of each road at which a client may leave."""

from __future__ import annotations

from collections.abc import Callable

from services.router.legs import LegState
from services.router.lifecycle import Request
from services.router.phases import Phase
from tests.support.live_mesh import LiveMesh


def asked(mesh: LiveMesh, r: Request) -> bool:
    return r.main is not None and r.main.state is LegState.ASKED


def prefilling(mesh: LiveMesh, r: Request) -> bool:
    return mesh["prefill-0"].worker.counts()["prefills"] == 1 and r.made == 0


def prefilled(mesh: LiveMesh, r: Request) -> bool:
    return r.made >= 1


def transferring(mesh: LiveMesh, r: Request) -> bool:
    return mesh.count("main-0", "kv_bytes_in_total") > 3 * 4096 and bool(
        mesh["main-0"].worker.counts()["tickets"]
    )


def relayed(mesh: LiveMesh, r: Request) -> bool:
    return r.owner is not None and r.owner is r.relay and r.made >= 4


def catching_up(mesh: LiveMesh, r: Request) -> bool:
    return r.phase is Phase.CATCHING_UP


def cut(mesh: LiveMesh, r: Request) -> bool:
    return r.owner is not None and r.owner is r.main


def main_draws(mesh: LiveMesh, r: Request) -> bool:
    return any(part.node == "main-0" and part.end - part.start >= 3 for part in r.trace.segments)


MOMENTS: dict[str, tuple[Callable[[LiveMesh, Request], bool], ...]] = {
    "MD": (asked, cut, main_draws),
    "P-MD": (asked, prefilling, prefilled, transferring, cut, main_draws),
    "one_shot": (asked, prefilling, prefilled, transferring, relayed, cut, main_draws),
    "catch_up": (transferring, relayed, catching_up, cut, main_draws),
    "singular": (asked, prefilling, prefilled, relayed),
}

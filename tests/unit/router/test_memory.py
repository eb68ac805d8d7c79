"""Nothing of a request that is over stays in the router, whatever road it took and however it ended."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from services.router.lifecycle import Request
from shared.wire.messages import FailReason, Rid
from tests.support.fake_mesh import FakeMesh
from tests.support.router_steps import PROMPT, fail, until

MakeMesh = Callable[..., FakeMesh]
ROADS: dict[str, dict[str, Any]] = {
    "caught up": {"catch_up_backlog": 0},
    "cut at once, in turn": {"catch_up_backlog": 1000},
    "cut at once": {"catch_up_backlog": 0, "catch_up_rounds": 0},
    "no relay": {"relay": False},
    "main decode alone": {"md_local_tokens": 1000},
}


def run(mesh: FakeMesh, rids: list[Rid], end: str) -> None:
    """Let requests end: by themselves, by their clients, or after a worker gave them up."""
    clients = [mesh.clients[rid] for rid in rids]
    if end != "done":
        until(mesh, lambda: all(client.ids for client in clients))
        for rid in rids:
            if end == "cancelled":
                mesh.cancel(rid)
            elif rid in mesh.workers["m0"].parts:
                fail(mesh, "m0", rid, FailReason.REVOKED)
    until(mesh, lambda: all(client.over for client in clients), 200.0)


@pytest.mark.parametrize("end", ["done", "cancelled", "failed"])
@pytest.mark.parametrize("road", list(ROADS))
def test_nothing_is_kept(make_mesh: MakeMesh, road: str, end: str) -> None:
    mesh = make_mesh(policy=ROADS[road])
    seen: list[weakref.ref[Request]] = []
    for first in range(1, 7, 2):
        rids = [mesh.submit([at, *PROMPT], 40) for at in (first, first + 1)]
        seen += [weakref.ref(mesh.core.requests[rid]) for rid in rids]
        run(mesh, rids, end)
    mesh.settle()
    gc.collect()
    assert [ref().rid for ref in seen if ref() is not None] == []  # type: ignore[union-attr]

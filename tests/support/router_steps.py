"""Steps that tests of the router's core take on a fake mesh."""

from __future__ import annotations

from collections.abc import Callable

from shared.wire import messages as m
from shared.wire.messages import FailReason, Rid
from tests.support.fake_mesh import Client, FakeMesh

PROMPT = [at % 7 for at in range(101)]
SLOW = {"far": 3.0}


def until(mesh: FakeMesh, condition: Callable[[], bool], seconds: float = 30.0) -> None:
    assert mesh.run(mesh.now + seconds, stop=condition)


def start(mesh: FakeMesh, max_tokens: int = 150, **more: object) -> tuple[Rid, Client]:
    rid = mesh.submit(PROMPT, max_tokens, **more)  # type: ignore[arg-type]
    return rid, mesh.clients[rid]


def finish(mesh: FakeMesh, client: Client, seconds: float = 60.0) -> None:
    until(mesh, lambda: client.over, seconds)
    assert client.done is not None, client.broken


def phase(mesh: FakeMesh, rid: Rid) -> str:
    r = mesh.core.requests.get(rid)
    return "over" if r is None else str(r.phase)


def fail(mesh: FakeMesh, name: str, rid: Rid, reason: FailReason) -> None:
    """A worker gives its part of a request up."""
    worker = mesh.workers[name]
    part, prompt = worker.parts.pop(rid, None), worker.prompts.pop(rid, None)
    if part is not None:
        part.over = True
        term, ticket = max(part.term, part.own_term), part.ticket
    else:
        assert prompt is not None
        term, ticket = prompt.term, b""
    worker.net.to_router(worker, m.Failed(rid, term, ticket, reason, "said the test"))


def client_node(mesh: FakeMesh, client: Client) -> str:
    """The prefill worker of a client's request."""
    rid = next(rid for rid, one in mesh.clients.items() if one is client)
    prefill = mesh.core.requests[rid].prefill
    assert prefill is not None
    return prefill.node


def owner_of(mesh: FakeMesh, rid: Rid) -> tuple[str, int]:
    owner = mesh.core.requests[rid].owner
    assert owner is not None
    return owner.node, owner.owns

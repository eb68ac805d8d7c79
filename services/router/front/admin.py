"""The operator's endpoints, behind the admin key: look, flush caches, drain a worker or take it back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.router.front.delivery import error_response, json_response
from services.router.front.keys import Keys
from services.router.picture import Picture
from shared.errors import InvalidRequest, MeshError


class Operator(Protocol):
    """What an operator may have the router do."""

    def picture(self) -> Picture:
        """How it is doing."""

    def flush(self) -> None:
        """Have every worker drop the cached blocks that nothing uses."""

    def drain_worker(self, node: str, *, on: bool) -> bool:
        """Have a worker take no new work, or take it again. False: it is not known."""


def admin_routes(operator: Operator, key: str) -> list[Route]:
    """The routes; none without a key."""
    if not key:
        return []
    keys = Keys([("admin", key)])

    def guarded(
        act: Callable[[Request], dict[str, object] | Picture],
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                keys.tenant(request.headers.get("authorization"))
                return json_response(act(request), {})
            except MeshError as error:
                return error_response(error, {})

        return answer

    def state(_request: Request) -> Picture:
        return operator.picture()

    def flush(_request: Request) -> dict[str, object]:
        operator.flush()
        return {"flushed": True}

    def drain(request: Request) -> dict[str, object]:
        return _set_drain(operator, request, on=True)

    def undrain(request: Request) -> dict[str, object]:
        return _set_drain(operator, request, on=False)

    return [
        Route("/admin/state", guarded(state)),
        Route("/admin/flush", guarded(flush), methods=["POST"]),
        Route("/admin/workers/{node}/drain", guarded(drain), methods=["POST"]),
        Route("/admin/workers/{node}/undrain", guarded(undrain), methods=["POST"]),
    ]


def _set_drain(operator: Operator, request: Request, *, on: bool) -> dict[str, object]:
    node = str(request.path_params["node"])
    if not operator.drain_worker(node, on=on):
        raise InvalidRequest(f"no worker {node[:80]!r} has joined this router", "node")
    return {"node": node, "draining": on}

"""The operator's endpoints, behind the admin key: look, flush caches, drain a worker or take it back, compare
the index with the workers' truth."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.router.audit import Finding
from services.router.front.delivery import error_response, json_response
from services.router.front.keys import Keys
from services.router.picture import Picture
from shared.errors import MeshError, UnknownWorker


class Operator(Protocol):
    """What an operator may have the router do."""

    def picture(self) -> Picture:
        """How it is doing."""

    def flush(self) -> None:
        """Have every worker drop the cached blocks that nothing uses."""

    def flush_worker(self, node: str) -> bool:
        """The same of one worker. False: it is not known."""

    def drain_worker(self, node: str, *, on: bool) -> bool:
        """Have a worker take no new work, or take it again. False: it is not known."""

    async def compare(self) -> Sequence[Finding]:
        """The index against what each worker says that it holds; put right where it is wrong."""


class Flushed(Struct, frozen=True):
    """Workers that were told to drop the cached blocks that nothing uses; empty: all."""

    node: str = ""
    flushed: bool = True


class Draining(Struct, frozen=True):
    """What a worker was told."""

    node: str
    draining: bool


class Compared(Struct, frozen=True, kw_only=True):
    """One worker's cache, in blocks."""

    node: str
    equal: bool
    answered: bool
    """False: it did not answer in time, or left."""
    held: int
    """By the worker's word."""
    known: int
    """To the index, before it was put right."""
    missing: int
    """Held and not known."""
    extra: int
    """Known and not held."""


class Comparison(Struct, frozen=True):
    """Whether the index is what the workers hold."""

    equal: bool
    workers: list[Compared]


def admin_routes(operator: Operator, key: str) -> list[Route]:
    """The routes; none without a key."""
    if not key:
        return []
    keys = Keys([("admin", key)])

    def guarded(act: Callable[[str], Awaitable[Struct]]) -> Callable[[Request], Awaitable[Response]]:
        """`act` is given the node that the path names; empty where it names none."""

        async def answer(request: Request) -> Response:
            try:
                keys.tenant(request.headers.get("authorization"))
                return json_response(await act(str(request.path_params.get("node", ""))), {})
            except MeshError as error:
                return error_response(error, {})

        return answer

    async def state(_node: str) -> Picture:
        return operator.picture()

    async def flush(node: str) -> Flushed:
        if not node:
            operator.flush()
        elif not operator.flush_worker(node):
            raise _unknown(node)
        return Flushed(node)

    async def drain(node: str) -> Draining:
        return _set_drain(operator, node, on=True)

    async def undrain(node: str) -> Draining:
        return _set_drain(operator, node, on=False)

    async def compare(_node: str) -> Comparison:
        return _comparison(await operator.compare())

    return [
        Route("/admin/state", guarded(state), methods=["GET"]),
        Route("/admin/flush", guarded(flush), methods=["POST"]),
        Route("/admin/index/compare", guarded(compare), methods=["POST"]),
        Route("/admin/workers/{node}/flush", guarded(flush), methods=["POST"]),
        Route("/admin/workers/{node}/drain", guarded(drain), methods=["POST"]),
        Route("/admin/workers/{node}/undrain", guarded(undrain), methods=["POST"]),
    ]


def _set_drain(operator: Operator, node: str, *, on: bool) -> Draining:
    if not operator.drain_worker(node, on=on):
        raise _unknown(node)
    return Draining(node, on)


def _unknown(node: str) -> UnknownWorker:
    return UnknownWorker(
        f"no worker {node[:80]!r} has joined this router; /ready lists those that have", "node"
    )


def _comparison(found: Sequence[Finding]) -> Comparison:
    workers = [
        Compared(
            node=one.node,
            equal=one.equal,
            answered=one.answered,
            held=one.held,
            known=one.known,
            missing=one.missing,
            extra=one.extra,
        )
        for one in found
    ]
    return Comparison(all(one.equal for one in workers), workers)

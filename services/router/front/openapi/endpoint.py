"""/openapi.json: the description of the app that it is a route of, made when it is first asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from services.router.front.openapi.document import describe


def openapi_route(models: Sequence[str], *, keyed: bool) -> Route:
    """GET /openapi.json, whenever the app's other routes were added. `keyed`: clients need a key."""
    made: list[bytes] = []

    def make(app: Starlette) -> bytes:
        return msgspec.json.encode(describe(app.routes, models, keyed=keyed))

    async def answer(request: Request) -> Response:
        if not made:  # it takes a tenth of a second: no stream waits for it
            made.append(await asyncio.to_thread(make, request.app))
        return Response(made[0], media_type="application/json")

    return Route("/openapi.json", answer, methods=["GET"])

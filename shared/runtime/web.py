"""Serves an ASGI app inside a service's loop, and the small status app of a worker: /metrics, /health,
/ready."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator

import uvicorn
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from shared.errors import ConfigError
from shared.runtime.bounded_http import bounded_http
from shared.runtime.metrics import CONTENT_TYPE, render


class WebServer:
    """One listening HTTP socket and its uvicorn server, without signal handlers of its own."""

    def __init__(
        self,
        app: ASGIApp,
        host: str,
        port: int,
        *,
        drain: float = 5.0,
        max_header: int = 64 << 10,
        head_timeout: float = 60.0,
        slow_client: float = 30.0,
        keep_alive: float = 75.0,
    ) -> None:
        """Bounds: bytes and seconds of a request's head, seconds that a client may not read, and that a
        connection may be idle: more than clients keep one (5 s is usual), so that they are first to close."""
        config = uvicorn.Config(
            app,
            http=bounded_http(max_header=max_header, head_timeout=head_timeout, slow_client=slow_client),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=max(1, int(drain)),
            timeout_keep_alive=keep_alive,  # type: ignore[arg-type]  # any number of seconds
            server_header=False,
            proxy_headers=False,  # nothing here asks where a client is: a proxy's word for it is not needed
        )
        self._server = _Server(config)
        self._address = (host, port)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Bind and serve; the port. Raises ConfigError where the address cannot be bound."""
        host, port = self._address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            listener.close()
            raise ConfigError("nodes.http", f"cannot listen on {host}:{port}: {error.strerror}") from error
        listener.listen(1024)
        listener.setblocking(False)
        self._task = asyncio.ensure_future(self._server.serve(sockets=[listener]))
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Take no connections any more; running responses have the drain time."""
        self._server.should_exit = True
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)


class _Server(uvicorn.Server):
    """Signals belong to the process's own runner."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def status_app(
    registry: CollectorRegistry,
    ready: Callable[[], dict[str, object]],
    healthy: Callable[[], str],
) -> Starlette:
    """`healthy()` is "" or why not; `ready()["ready"]` decides between 200 and 503."""

    async def metrics(_request: Request) -> Response:
        return Response(render(registry), media_type=CONTENT_TYPE)

    async def health(_request: Request) -> Response:
        reason = healthy()
        return JSONResponse(
            {"status": "failing" if reason else "ok", "reason": reason}, 503 if reason else 200
        )

    async def readiness(_request: Request) -> Response:
        state = ready()
        return JSONResponse(state, 200 if state.get("ready") else 503)

    return Starlette(
        routes=[Route("/metrics", metrics), Route("/health", health), Route("/ready", readiness)]
    )

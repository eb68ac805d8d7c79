"""What is done around every endpoint: keys, bodies, errors in their shape, statuses counted; and the
endpoints that need none of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec
import structlog
from prometheus_client import CollectorRegistry, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive

from services.router.front.delivery import CLOSED, EventStream, error_response, json_response
from services.router.front.dialect import MESSAGES, OPENAI
from services.router.front.failures import error_body, messages_error
from services.router.front.intake import Call, echo_id, read_body, read_call
from services.router.front.keys import Keys
from services.router.front.measures import Measures
from services.router.front.openai import read
from services.router.front.recording import Recording
from services.router.front.unbuilt import ENDPOINTS
from shared.errors import MeshError

_METRICS = "text/plain; version=0.0.4; charset=utf-8"
Ask = TypeVar("Ask", bound=msgspec.Struct)
Answer = Callable[[Request], Awaitable[Response]]
Serve = Callable[[Request, Call], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What the desk goes by."""

    keys: Keys
    max_body: int
    """Bytes of a body at most."""
    body_timeout: float
    """Seconds it may take to come."""
    registry: CollectorRegistry
    ready: Callable[[], Mapping[str, Any]]
    healthy: Callable[[], str]
    clock: Callable[[], float]
    random_bits: Callable[[int], int]
    recording: Recording | None = None
    """None: no traces are recorded."""


class Desk:
    """What is done around every endpoint."""

    def __init__(self, rules: Rules, measures: Measures) -> None:
        self._rules = rules
        self._measures = measures
        self._log = structlog.get_logger()

    def posted(
        self, path: str, kind: type[Ask], act: Callable[[Receive, Call, Ask], Awaitable[Response]]
    ) -> Answer:
        """An endpoint that takes a body of this kind."""

        async def serve(request: Request, call: Call) -> Response:
            data = await read_body(request, self._rules.max_body, self._rules.body_timeout)
            return await act(request.receive, call, read(data, kind))

        return self._guarded(path, serve)

    def named(self, path: str, act: Callable[[Call, str], Response]) -> Answer:
        """An endpoint of one thing, which `name` in its path names (or of all: empty)."""

        async def serve(request: Request, call: Call) -> Response:
            return act(call, str(request.path_params.get("name", "")))

        return self._guarded(path, serve)

    def _guarded(self, path: str, serve: Serve) -> Answer:
        """Behind keys, with errors in their shape and the status counted."""

        dialect = MESSAGES if _is_messages(path) else OPENAI
        recording = self._rules.recording

        async def answer(request: Request) -> Response:
            name = self._name(request)
            call: Call | None = None
            try:
                now = self._rules.clock()
                begin = None if recording is None else recording.begin
                call = read_call(request, self._rules.keys, name=name, now=now, begin=begin)
                response = await serve(request, call)
            except MeshError as error:
                response = error_response(error, {"x-request-id": name}, dialect)
                self._log.info(
                    "request refused",
                    request_id=name,
                    endpoint=path,
                    status=response.status_code,
                    code=error.code,
                    reason=str(error)[:300],
                )
                if recording is not None and call is not None:
                    facts = {"request_id": name, "endpoint": path, "code": error.code}
                    recording.ended(call, self._rules.clock(), response.status_code, facts)
            except ClientDisconnect:
                response = Response(status_code=CLOSED)
            if isinstance(response, EventStream):  # what fails before its first content has another status
                response.answered = lambda status: self._measures.answered(path, status)
            else:
                self._measures.answered(path, response.status_code)
            return response

        return answer

    def _name(self, request: Request) -> str:
        return echo_id(request, f"req-{self._rules.random_bits(96):024x}")

    async def health(self, _request: Request) -> Response:
        """Whether this process lives; 503 where it can never serve again."""
        reason = self._rules.healthy()
        return json_response(
            {"status": "failing" if reason else "ok", "reason": reason}, {}, 503 if reason else 200
        )

    async def ready(self, _request: Request) -> Response:
        """Whether any pipeline is possible, with reasons."""
        state = self._rules.ready()
        return json_response(state, {}, 200 if state.get("ready") else 503)

    async def metrics(self, _request: Request) -> Response:
        """Prometheus' text form."""
        return Response(generate_latest(self._rules.registry), media_type=_METRICS)

    async def no_route(self, request: Request, error: Exception) -> Response:
        """404, 405 and 501 in the API's shape."""
        path = request.url.path
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict((error.headers if isinstance(error, HTTPException) else None) or {})
        headers["x-request-id"] = self._name(request)
        if status == 405:
            headers.pop("Allow", None)  # of the first route that has this path
            headers["allow"] = ", ".join(_methods(request))
        if status == 404 and any(path == one or path.startswith(one + "/") for one in ENDPOINTS):
            self._measures.answered("unbuilt", 501)
            body = _error(path, f"{path}: this endpoint is not served here", 501, "not_implemented")
            return json_response(body, headers | {"x-should-retry": "false"}, 501)
        self._measures.answered("unknown", status)
        said = {
            404: f"{path[:200]}: no such endpoint; /v1/chat/completions and /v1/completions generate",
            405: f"{path[:200]}: {request.method} is not served here; the Allow header names what is",
        }.get(status, str(error))
        code = "not_found" if status == 404 else "not_allowed"
        return json_response(_error(path, said, status, code), headers, status)

    async def crash(self, request: Request, error: Exception) -> Response:
        """A fault of ours: logged with its place, told as no more than that."""
        self._log.error("request crashed", path=request.url.path, exc_info=error)
        self._measures.answered("crashed", 500)
        body = _error(request.url.path, "internal error of the router; it is logged", 500, "internal")
        return json_response(body, {"x-request-id": self._name(request)}, 500)


def _methods(request: Request) -> list[str]:
    """What a path takes, of all routes that are its."""
    found: set[str] = set()
    for route in request.app.routes:
        if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods or set()
    return sorted(found)


def _is_messages(path: str) -> bool:
    """Whether a path speaks Anthropic's dialect."""
    return path == "/v1/messages" or path.startswith("/v1/messages/")


def _error(path: str, message: str, status: int, code: str) -> dict[str, Any]:
    return messages_error(message, status) if _is_messages(path) else error_body(message, status, code)

"""The router's HTTP face: routes, and each request's way from bytes to a delivered answer. Runs without
torch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from services.router.front.chats import Chats
from services.router.front.delivery import CLOSED, Pace, error_response, json_response
from services.router.front.endpoints import Endpoints
from services.router.front.failures import error_body
from services.router.front.generation import Generator
from services.router.front.habits import read_habits
from services.router.front.intake import Call, echo_id, read_body, read_call
from services.router.front.keys import Keys
from services.router.front.measures import Measures
from services.router.front.openai import ChatAsk, CompletionAsk, DetokenizeAsk, TokenizeAsk, read
from services.router.front.prompts import Prompts
from services.router.front.runs import Runs
from services.router.front.splice import SpliceMemory
from services.router.front.tokens import Tokenizer
from services.router.front.unbuilt import ENDPOINTS
from shared.errors import MeshError
from shared.policy.config import RouterPolicy
from shared.runtime.settings import HttpConfig

_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, kw_only=True)
class Front:
    """All that the HTTP face is made of."""

    generator: Generator
    tokenizer: Tokenizer
    model: str
    """The served name."""
    registry: CollectorRegistry
    ready: Callable[[], Mapping[str, Any]]
    """Which pipelines are possible, with reasons; `ready` in it decides between 200 and 503."""
    healthy: Callable[[], str]
    """Empty, or why this process can never serve again."""
    max_context: Callable[[], int]
    """Tokens of prompt and answer together; 0: no worker is known, the model's own limit holds."""
    fingerprint: str | None = None
    """Short name of what is served, shown as system_fingerprint."""
    keys: Keys = field(default_factory=Keys)
    http: HttpConfig = field(default_factory=HttpConfig)
    policy: RouterPolicy = field(default_factory=RouterPolicy)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    random_bits: Callable[[int], int] = secrets.randbits


Serve = Callable[[Request, Call], Awaitable[Response]]


def create_app(front: Front) -> Starlette:
    """The ASGI app."""
    http, policy = front.http, front.policy
    memory = None
    if http.splice:
        memory = SpliceMemory(
            front.tokenizer.vocabulary,
            max_bytes=http.splice_bytes,
            max_turns=policy.session_memory,
            ttl=http.splice_ttl,
        )
    prompts = Prompts(
        front.tokenizer,
        memory,
        thread_chars=http.thread_chars,
        threads=http.tokenize_threads,
        clock=front.clock,
    )
    measures = Measures(front.registry, prompts.memory)
    runs = Runs(
        generator=front.generator,
        prompts=prompts,
        measures=measures,
        model=front.model,
        fingerprint=front.fingerprint,
        max_context=front.max_context,
        max_choices=http.max_choices,
        pace=Pace(http.keep_alive, policy.text_waiting, policy.slow_client),
        clock=front.clock,
        wall=front.wall,
        random_bits=front.random_bits,
        log=structlog.get_logger(),
    )
    facts = front.tokenizer.facts
    habits = read_habits(
        facts.template,
        facts.tool_template,
        tool_format=http.tool_format,
        reasoning_format=http.reasoning_format,
    )
    chats = Chats(runs, habits)
    endpoints = Endpoints(runs, chats)
    desk = _Desk(front, measures)

    async def chat(request: Request, call: Call) -> Response:
        return await chats.chat(request.receive, call, read(await desk.body(request), ChatAsk))

    async def completions(request: Request, call: Call) -> Response:
        return await endpoints.completions(
            request.receive, call, read(await desk.body(request), CompletionAsk)
        )

    async def tokenize(request: Request, call: Call) -> Response:
        return await endpoints.tokenize(call, read(await desk.body(request), TokenizeAsk))

    async def detokenize(request: Request, call: Call) -> Response:
        return endpoints.detokenize(call, read(await desk.body(request), DetokenizeAsk))

    async def models(_request: Request, call: Call) -> Response:
        return endpoints.models(call)

    async def model(request: Request, call: Call) -> Response:
        return endpoints.model_card(call, str(request.path_params["model"]))

    served: list[tuple[str, str, Serve]] = [
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/completions", completions),
        ("POST", "/tokenize", tokenize),
        ("POST", "/detokenize", detokenize),
        ("GET", "/v1/models", models),
        ("GET", "/v1/models/{model:path}", model),
    ]
    routes = [Route(path, desk.serve(path, serve), methods=[method]) for method, path, serve in served]
    routes += [Route("/health", desk.health), Route("/ready", desk.ready), Route("/metrics", desk.metrics)]
    handlers: dict[Any, Any] = {HTTPException: desk.no_route, Exception: desk.crash}
    return Starlette(routes=routes, exception_handlers=handlers)


class _Desk:
    """What is done around every endpoint."""

    def __init__(self, front: Front, measures: Measures) -> None:
        self._front = front
        self._measures = measures
        self._log = structlog.get_logger()

    async def body(self, request: Request) -> bytes:
        """The request's body, within limits."""
        return await read_body(request, self._front.http.max_body, self._front.http.body_timeout)

    def serve(self, path: str, serve: Serve) -> Callable[[Request], Awaitable[Response]]:
        """An endpoint behind keys, with errors in their shape and its status counted."""

        async def answer(request: Request) -> Response:
            name = self._name(request)
            try:
                now = self._front.clock()
                call = read_call(request, self._front.keys, name=name, now=now)
                response = await serve(request, call)
            except MeshError as error:
                response = error_response(error, {"x-request-id": name})
                self._log.info(
                    "request refused",
                    request_id=name,
                    endpoint=path,
                    status=response.status_code,
                    code=error.code,
                    reason=str(error)[:300],
                )
            except ClientDisconnect:
                response = Response(status_code=CLOSED)
            self._measures.answered(path, response.status_code)
            return response

        return answer

    def _name(self, request: Request) -> str:
        return echo_id(request, f"req-{self._front.random_bits(96):024x}")

    async def health(self, _request: Request) -> Response:
        """Whether this process lives; 503 where it can never serve again."""
        reason = self._front.healthy()
        return json_response(
            {"status": "failing" if reason else "ok", "reason": reason}, {}, 503 if reason else 200
        )

    async def ready(self, _request: Request) -> Response:
        """Whether any pipeline is possible, with reasons."""
        state = self._front.ready()
        return json_response(state, {}, 200 if state.get("ready") else 503)

    async def metrics(self, _request: Request) -> Response:
        """Prometheus' text form."""
        return Response(generate_latest(self._front.registry), media_type=_METRICS)

    async def no_route(self, request: Request, error: Exception) -> Response:
        """404, 405 and 501 in the API's shape."""
        path = request.url.path
        status = error.status_code if isinstance(error, HTTPException) else 500
        headers = dict((error.headers if isinstance(error, HTTPException) else None) or {})
        headers["x-request-id"] = self._name(request)
        if status == 404 and any(path == one or path.startswith(one + "/") for one in ENDPOINTS):
            self._measures.answered("unbuilt", 501)
            body = error_body(f"{path}: this endpoint is not served here", 501, "not_implemented")
            return json_response(body, headers | {"x-should-retry": "false"}, 501)
        self._measures.answered("unknown", status)
        said = {
            404: f"{path[:200]}: no such endpoint; /v1/chat/completions and /v1/completions generate",
            405: f"{path[:200]}: {request.method} is not served here; the Allow header names what is",
        }.get(status, str(error))
        code = "not_found" if status == 404 else "not_allowed"
        return json_response(error_body(said, status, code), headers, status)

    async def crash(self, request: Request, error: Exception) -> Response:
        """A fault of ours: logged with its place, told as no more than that."""
        self._log.error("request crashed", path=request.url.path, exc_info=error)
        body = error_body("internal error of the router; it is logged", 500, "internal")
        return json_response(body, {"x-request-id": self._name(request)}, 500)

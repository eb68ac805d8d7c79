"""The router's HTTP face: routes, and each request's way from bytes to a delivered answer. Runs without
torch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive

from services.router.front.chats import Chats
from services.router.front.delivery import Pace
from services.router.front.desk import Desk, Rules
from services.router.front.endpoints import Endpoints
from services.router.front.generation import Generator
from services.router.front.habits import read_habits
from services.router.front.intake import Call
from services.router.front.keys import Keys
from services.router.front.measures import Measures
from services.router.front.messages.bodies import CountAsk, MessagesAsk
from services.router.front.messages.endpoint import MessagesEndpoint
from services.router.front.models import Model, Models, Served
from services.router.front.openai import Ask as CommonAsk
from services.router.front.openai import ChatAsk, CompletionAsk, DetokenizeAsk, TokenizeAsk
from services.router.front.openapi.endpoint import openapi_route
from services.router.front.prompts import Prompts
from services.router.front.recording import Recording
from services.router.front.responses.bodies import ResponsesAsk
from services.router.front.responses.endpoint import ResponsesEndpoint
from services.router.front.responses.memory import ResponseMemory
from services.router.front.runs import Runs
from services.router.front.splice import SpliceMemory
from shared.policy.config import RouterPolicy
from shared.runtime.settings import HttpConfig

Ask = TypeVar("Ask", bound="CommonAsk | CountAsk | ResponsesAsk | TokenizeAsk | DetokenizeAsk")
Act = Callable[[Receive, Call, Ask], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Front:
    """All that the HTTP face is made of."""

    generator: Generator
    models: Sequence[Served]
    """At least one."""
    registry: CollectorRegistry
    ready: Callable[[], Mapping[str, Any]]
    """Which pipelines are possible, with reasons; `ready` in it decides between 200 and 503."""
    healthy: Callable[[], str]
    """Empty, or why this process can never serve again."""
    keys: Keys = field(default_factory=Keys)
    http: HttpConfig = field(default_factory=HttpConfig)
    policy: RouterPolicy = field(default_factory=RouterPolicy)
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    random_bits: Callable[[int], int] = secrets.randbits
    recording: Recording | None = None
    """Where traces go; None: nowhere."""


def create_app(front: Front) -> Starlette:
    """The ASGI app."""
    http = front.http
    prompts = {one.name: _prompts(front, one) for one in front.models}
    measures = Measures(front.registry, [one.memory for one in prompts.values() if one.memory is not None])
    kept = ResponseMemory(max_bytes=http.responses_bytes, ttl=http.responses_ttl)
    models = Models(_model(front, one, prompts[one.name], measures, kept) for one in front.models)
    rules = Rules(
        keys=front.keys,
        max_body=http.max_body,
        body_timeout=http.body_timeout,
        registry=front.registry,
        ready=front.ready,
        healthy=front.healthy,
        clock=front.clock,
        random_bits=front.random_bits,
        recording=front.recording,
    )
    desk = Desk(rules, measures)
    handlers: dict[Any, Any] = {HTTPException: desk.no_route, Exception: desk.crash}
    return Starlette(routes=_routes(desk, models, keyed=bool(front.keys)), exception_handlers=handlers)


def _prompts(front: Front, served: Served) -> Prompts:
    """What makes prompts of one model; the memory of answers is shared out evenly."""
    http = front.http
    memory = None
    if http.splice:
        memory = SpliceMemory(
            served.tokenizer.vocabulary,
            max_bytes=http.splice_bytes // len(front.models),
            max_turns=front.policy.session_memory,
            ttl=http.splice_ttl,
        )
    return Prompts(
        served.tokenizer,
        memory,
        thread_chars=http.thread_chars,
        threads=http.tokenize_threads,
        clock=front.clock,
    )


def _model(front: Front, served: Served, prompts: Prompts, measures: Measures, kept: ResponseMemory) -> Model:
    """One model's endpoints."""
    http, policy = front.http, front.policy
    runs = Runs(
        generator=front.generator,
        prompts=prompts,
        measures=measures,
        model=served.name,
        fingerprint=served.fingerprint,
        max_context=served.max_context,
        max_choices=http.max_choices,
        pace=Pace(http.keep_alive, policy.text_waiting, policy.slow_client),
        clock=front.clock,
        wall=front.wall,
        random_bits=front.random_bits,
        log=structlog.get_logger(),
        recording=front.recording,
    )
    facts = served.tokenizer.facts
    habits = read_habits(
        facts.template,
        facts.tool_template,
        tool_format=http.tool_format,
        reasoning_format=http.reasoning_format,
    )
    chats = Chats(runs, habits)
    return Model(
        runs=runs,
        chats=chats,
        endpoints=Endpoints(runs, chats),
        messages=MessagesEndpoint(chats),
        responses=ResponsesEndpoint(chats, kept, front.clock),
    )


def _routes(desk: Desk, models: Models, *, keyed: bool) -> list[Route]:
    posted: list[Route] = []

    def post(path: str, kind: type[Ask], of: Callable[[Model], Act[Ask]]) -> None:
        async def act(receive: Receive, call: Call, ask: Ask) -> Response:
            return await of(models.of(ask.model))(receive, call, ask)

        posted.append(Route(path, desk.posted(path, kind, act), methods=["POST"]))

    post("/v1/chat/completions", ChatAsk, lambda model: model.chats.chat)
    post("/v1/completions", CompletionAsk, lambda model: model.endpoints.completions)
    post("/v1/messages", MessagesAsk, lambda model: model.messages.create)
    post("/v1/messages/count_tokens", CountAsk, lambda model: model.messages.count)
    post("/v1/responses", ResponsesAsk, lambda model: model.responses.create)
    post("/tokenize", TokenizeAsk, lambda model: model.endpoints.tokenize)
    post("/detokenize", DetokenizeAsk, lambda model: model.endpoints.detokenize)
    responses = models.first.responses  # what is kept is all models'
    named: list[tuple[str, str, Callable[[Call, str], Response]]] = [
        ("GET", "/v1/responses/{name}", responses.retrieve),
        ("DELETE", "/v1/responses/{name}", responses.delete),
        ("GET", "/v1/models", models.listed),
        ("GET", "/v1/models/{name:path}", models.card),
    ]
    return [
        *posted,
        *(Route(path, desk.named(path, act), methods=[method]) for method, path, act in named),
        Route("/health", desk.health, methods=["GET"]),
        Route("/ready", desk.ready, methods=["GET"]),
        Route("/metrics", desk.metrics, methods=["GET"]),
        openapi_route(models.names, keyed=keyed),
    ]

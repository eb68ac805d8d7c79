"""The router's HTTP face: routes, and each request's way from bytes to a delivered answer. Runs without
torch."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive

from services.router.front.chats import Chats
from services.router.front.delivery import Pace
from services.router.front.desk import Ask, Desk, Rules
from services.router.front.endpoints import Endpoints
from services.router.front.generation import Generator
from services.router.front.habits import read_habits
from services.router.front.intake import Call
from services.router.front.keys import Keys
from services.router.front.measures import Measures
from services.router.front.messages.bodies import CountAsk, MessagesAsk
from services.router.front.messages.endpoint import MessagesEndpoint
from services.router.front.openai import ChatAsk, CompletionAsk, DetokenizeAsk, TokenizeAsk
from services.router.front.prompts import Prompts
from services.router.front.responses.bodies import ResponsesAsk
from services.router.front.responses.endpoint import ResponsesEndpoint
from services.router.front.responses.memory import ResponseMemory
from services.router.front.runs import Runs
from services.router.front.splice import SpliceMemory
from services.router.front.tokens import Tokenizer
from shared.policy.config import RouterPolicy
from shared.runtime.settings import HttpConfig


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
    message = MessagesEndpoint(chats)
    kept = ResponseMemory(max_bytes=http.responses_bytes, ttl=http.responses_ttl)
    response = ResponsesEndpoint(chats, kept, front.clock)
    rules = Rules(
        keys=front.keys,
        max_body=http.max_body,
        body_timeout=http.body_timeout,
        registry=front.registry,
        ready=front.ready,
        healthy=front.healthy,
        clock=front.clock,
        random_bits=front.random_bits,
    )
    desk = Desk(rules, measures)
    handlers: dict[Any, Any] = {HTTPException: desk.no_route, Exception: desk.crash}
    return Starlette(routes=_routes(desk, chats, endpoints, message, response), exception_handlers=handlers)


def _routes(
    desk: Desk,
    chats: Chats,
    endpoints: Endpoints,
    messages: MessagesEndpoint,
    responses: ResponsesEndpoint,
) -> list[Route]:
    posted: list[Route] = []

    def post(path: str, kind: type[Ask], act: Callable[[Receive, Call, Ask], Awaitable[Response]]) -> None:
        posted.append(Route(path, desk.posted(path, kind, act), methods=["POST"]))

    post("/v1/chat/completions", ChatAsk, chats.chat)
    post("/v1/completions", CompletionAsk, endpoints.completions)
    post("/v1/messages", MessagesAsk, messages.create)
    post("/v1/messages/count_tokens", CountAsk, messages.count)
    post("/v1/responses", ResponsesAsk, responses.create)
    post("/tokenize", TokenizeAsk, endpoints.tokenize)
    post("/detokenize", DetokenizeAsk, endpoints.detokenize)
    named: list[tuple[str, str, Callable[[Call, str], Response]]] = [
        ("GET", "/v1/responses/{name}", responses.retrieve),
        ("DELETE", "/v1/responses/{name}", responses.delete),
        ("GET", "/v1/models", endpoints.models),
        ("GET", "/v1/models/{name:path}", endpoints.model_card),
    ]
    return [
        *posted,
        *(Route(path, desk.named(path, act), methods=[method]) for method, path, act in named),
        Route("/health", desk.health),
        Route("/ready", desk.ready),
        Route("/metrics", desk.metrics),
    ]

"""The operations of a router's API: what each takes, answers and may fail with. Data; the routes are `app`'s
and `admin`'s, and a test holds the two together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct

from services.router.front.admin import Comparison, Draining, Flushed
from services.router.front.messages.answers import (
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageDelta,
    MessageOut,
    MessageStart,
    MessageStop,
    TokenCount,
)
from services.router.front.messages.bodies import CountAsk, MessagesAsk
from services.router.front.openai import ChatAsk, CompletionAsk, DetokenizeAsk, TokenizeAsk
from services.router.front.replies import (
    ChatAnswer,
    ChatChunk,
    CompletionAnswer,
    DetokenizeAnswer,
    ModelCard,
    ModelList,
    TokenizeAnswer,
)
from services.router.front.responses.answers import Deleted, ResponseOut
from services.router.front.responses.bodies import ResponsesAsk
from services.router.picture import Picture

READ = (400, 404, 408, 413, 415)
"""What may be wrong with a body."""

GENERATE = (*READ, 429, 500, 501, 503, 504)


class Problem(Struct, kw_only=True):
    """What was wrong, in OpenAI's shape."""

    message: str
    type: str
    param: str | None
    code: str


class Failed(Struct):
    """An error's body."""

    error: Problem


class MessagesProblem(Struct):
    """What was wrong, in Anthropic's shape."""

    type: str
    message: str


class MessagesFailed(Struct):
    """An error's body of /v1/messages."""

    type: Literal["error"]
    error: MessagesProblem


class Health(Struct):
    """Whether the process lives."""

    status: Literal["ok", "failing"]
    reason: str


class Ready(Struct):
    """Whether traffic makes sense, and why not; with what is known of pools and workers beside."""

    ready: bool
    reasons: list[str]
    models: dict[str, bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    about: str
    answer: Any = None
    """The body of a 200; a str: its media type, where it is no JSON."""
    body: type[Struct] | None = None
    event: Any = None
    """Data of one server-sent event, where `stream` is true in the body."""
    failures: tuple[int, ...] = ()
    key: Literal["client", "admin", ""] = "client"
    failed: type[Struct] = Failed
    unready: bool = False
    """Whether 503 has the answer's own body."""


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="POST",
        path="/v1/chat/completions",
        about="Answer a conversation",
        body=ChatAsk,
        answer=ChatAnswer,
        event=ChatChunk,
        failures=GENERATE,
    ),
    Operation(
        method="POST",
        path="/v1/completions",
        about="Continue one or several prompts",
        body=CompletionAsk,
        answer=CompletionAnswer,
        event=CompletionAnswer,
        failures=GENERATE,
    ),
    Operation(
        method="POST",
        path="/v1/messages",
        about="Answer a conversation, in Anthropic's shapes",
        body=MessagesAsk,
        answer=MessageOut,
        event=MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop,
        failures=GENERATE,
        failed=MessagesFailed,
    ),
    Operation(
        method="POST",
        path="/v1/messages/count_tokens",
        about="How many tokens a conversation has",
        body=CountAsk,
        answer=TokenCount,
        failures=(*READ, 501),
        failed=MessagesFailed,
    ),
    Operation(
        method="POST",
        path="/v1/responses",
        about="Answer a conversation, in the shapes of OpenAI's Responses",
        body=ResponsesAsk,
        answer=ResponseOut,
        event=dict[str, Any],
        failures=GENERATE,
    ),
    Operation(
        method="GET",
        path="/v1/responses/{name}",
        about="An answer that is kept",
        answer=ResponseOut,
        failures=(400, 404),
    ),
    Operation(
        method="DELETE",
        path="/v1/responses/{name}",
        about="Forget an answer",
        answer=Deleted,
        failures=(400, 404),
    ),
    Operation(method="GET", path="/v1/models", about="What is served", answer=ModelList, failures=(400,)),
    Operation(
        method="GET", path="/v1/models/{name}", about="One model", answer=ModelCard, failures=(400, 404)
    ),
    Operation(
        method="POST",
        path="/tokenize",
        about="Ids of a text or of messages",
        body=TokenizeAsk,
        answer=TokenizeAnswer,
        failures=(*READ, 501),
    ),
    Operation(
        method="POST",
        path="/detokenize",
        about="The text of ids",
        body=DetokenizeAsk,
        answer=DetokenizeAnswer,
        failures=READ,
    ),
    Operation(
        method="GET", path="/health", about="Whether the process lives", answer=Health, key="", unready=True
    ),
    Operation(
        method="GET", path="/ready", about="Whether traffic makes sense", answer=Ready, key="", unready=True
    ),
    Operation(
        method="GET", path="/metrics", about="Numbers, as Prometheus reads them", answer="text/plain", key=""
    ),
    Operation(method="GET", path="/openapi.json", about="This description", answer=dict[str, Any], key=""),
    Operation(
        method="GET", path="/admin/state", about="How this router is doing", answer=Picture, key="admin"
    ),
    Operation(
        method="POST",
        path="/admin/flush",
        about="Every worker drops the cached blocks that nothing uses",
        answer=Flushed,
        key="admin",
    ),
    Operation(
        method="POST",
        path="/admin/index/compare",
        about="Compare the index with what the workers hold, and put it right",
        answer=Comparison,
        key="admin",
    ),
    Operation(
        method="POST",
        path="/admin/workers/{node}/flush",
        about="A worker drops the cached blocks that nothing uses",
        answer=Flushed,
        key="admin",
        failures=(404,),
    ),
    Operation(
        method="POST",
        path="/admin/workers/{node}/drain",
        about="A worker takes no new work",
        answer=Draining,
        key="admin",
        failures=(404,),
    ),
    Operation(
        method="POST",
        path="/admin/workers/{node}/undrain",
        about="A worker takes work again",
        answer=Draining,
        key="admin",
        failures=(404,),
    ),
)

"""Puts the description together: of the operations that this router serves, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from starlette.routing import BaseRoute, Route

from services.router.front.intake import WITHOUT
from services.router.front.openapi.fields import MODELS, WORDS, holes
from services.router.front.openapi.operations import OPERATIONS, Operation
from services.router.front.openapi.schemas import Schema, Schemas
from services.router.front.replies import ModelCard

VERSION = "1"
"""Of the API, as its paths say it."""

_REASONS = {
    400: "The request is wrong: the message names what, the value, and what is allowed",
    401: "No key, or a wrong one",
    404: "What the request names is not here",
    408: "The body did not come in time",
    413: "The body is too large",
    415: "The body comes in an encoding that is not read",
    429: "Full now; try again after Retry-After seconds",
    500: "The request failed on workers again and again",
    501: "A parameter that is known and not served",
    503: "Nobody can serve it now; try again after Retry-After seconds",
    504: "The request's own time limit is over",
}
_RETRY = {"Retry-After": {"schema": {"type": "integer", "minimum": 1}}}
_PARTS = ", ".join(sorted(WITHOUT))
_HEADERS: Mapping[str, tuple[str, Schema]] = {
    "X-Request-Id": ("Echoed where it can be (up to 256 visible characters), and logged", {"type": "string"}),
    "X-Request-Timeout": (
        "Seconds that it may take",
        {"type": "number", "exclusiveMinimum": 0, "maximum": 86400},
    ),
    "X-PDD-Trace": ("1: the answer says how it was made", {"type": "string"}),
    "X-PDD-Without": (f"What is switched off for it: {_PARTS}; commas between", {"type": "string"}),
}


def describe(routes: Iterable[BaseRoute], models: Sequence[str], *, keyed: bool) -> dict[str, Any]:
    """The document, for these routes and names of models."""
    served = {operation for route in routes for operation in operations_of(route)}
    schemas = Schemas(holes(), WORDS | dict.fromkeys(MODELS, (*models, None)))
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        if (operation.method, operation.path) in served:
            told = _operation(operation, schemas, models, keyed=keyed)
            paths.setdefault(operation.path, {})[operation.method.lower()] = told
    schemes: dict[str, Any] = {"admin": {"type": "http", "scheme": "bearer"}}
    if keyed:
        schemes |= {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "PDD mesh", "version": VERSION},
        "paths": paths,
        "components": {"schemas": schemas.components, "securitySchemes": schemes},
    }


def operations_of(route: BaseRoute) -> list[tuple[str, str]]:
    """(method, path as the description writes it) of a route; HEAD goes with GET."""
    if not isinstance(route, Route):
        return []
    path = re.sub(r":\w+}", "}", route.path)
    return [(method, path) for method in sorted(route.methods or ()) if method != "HEAD"]


def _operation(
    operation: Operation, schemas: Schemas, models: Sequence[str], *, keyed: bool
) -> dict[str, Any]:
    asks = operation.key == "admin" or (operation.key == "client" and keyed)
    told: dict[str, Any] = {
        "operationId": _id(operation),
        "summary": operation.about,
        "parameters": _parameters(operation, models),
        "responses": _responses(operation, schemas, asks=asks),
    }
    if operation.body is not None:
        body = {"application/json": {"schema": schemas.of(operation.body)}}
        told["requestBody"] = {"required": True, "content": body}
    if asks:
        told["security"] = [{"admin": []}] if operation.key == "admin" else [{"bearer": []}, {"key": []}]
    return told


def _id(operation: Operation) -> str:
    words = re.findall(r"\w+", operation.path.replace("{", "").replace("}", ""))
    return "_".join([operation.method.lower(), *words])


def _parameters(operation: Operation, models: Sequence[str]) -> list[dict[str, Any]]:
    text: Schema = {"type": "string", "minLength": 1}
    if operation.answer is ModelCard:
        text = {"enum": list(models)}
    made: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": text}
        for name in re.findall(r"{(\w+)}", operation.path)
    ]
    if operation.key == "client":
        made += [
            {"name": name, "in": "header", "required": False, "description": about, "schema": schema}
            for name, (about, schema) in _HEADERS.items()
        ]
    return made


def _responses(operation: Operation, schemas: Schemas, *, asks: bool) -> dict[str, Any]:
    good: dict[str, Any] = {"description": "Done", "content": _content(operation, schemas)}
    made = {"200": good}
    if operation.unready:
        made["503"] = {"description": "Not now", "content": _content(operation, schemas)}
    failed = {"application/json": {"schema": schemas.of(operation.failed)}}
    for status in sorted({*operation.failures, *((401,) if asks else ())}):
        made[str(status)] = {"description": _REASONS[status], "content": failed}
        if status in (429, 503):
            made[str(status)]["headers"] = _RETRY
    return made


def _content(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    if isinstance(operation.answer, str):
        return {operation.answer: {"schema": {"type": "string"}}}
    content: dict[str, Any] = {"application/json": {"schema": schemas.of(operation.answer)}}
    if operation.event is not None:
        content["text/event-stream"] = {"schema": _event(schemas.of(operation.event))}
    return content


def _event(data: Schema) -> Schema:
    """The schema of one server-sent event."""
    inner = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {
        "type": "object",
        "properties": {"event": {"type": "string"}, "data": inner},
        "description": "One event; OpenAI's streams end with the data [DONE].",
    }

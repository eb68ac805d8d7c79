"""The API's description: of every route and no other, from the types that bodies are read into, and true."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import msgspec
import pytest
from msgspec import Raw, Struct, structs

from services.router.front import openai
from services.router.front.admin import admin_routes
from services.router.front.failures import body_of, messages_body_of
from services.router.front.messages import bodies as messages
from services.router.front.openapi.document import describe, operations_of
from services.router.front.openapi.fields import MODELS, WORDS, holes
from services.router.front.openapi.operations import OPERATIONS, Failed, MessagesFailed
from services.router.front.openapi.schemas import Schemas
from services.router.front.responses import bodies as responses
from services.router.front.structure import form
from services.router.front.tokens import Tokenizer
from shared.errors import ApiError, MeshError
from tests.support.fake_generator import says
from tests.support.front_door import MODEL, Door, ask

READ = (
    openai.ChatAsk,
    openai.CompletionAsk,
    openai.TokenizeAsk,
    openai.DetokenizeAsk,
    messages.MessagesAsk,
    messages.Tool,
    responses.ResponsesAsk,
    responses.MessageItem,
    responses.CallItem,
    responses.OutputItem,
    responses.ReasoningItem,
    responses.FunctionTool,
    form.Format,
    form.TextFormat,
    form.Structured,
)
"""All that is read of bodies: each body, and what is read of its raw parts."""


@pytest.fixture
def door(tokenizer: Tokenizer) -> Door:
    door = Door(tokenizer)
    door.generator.script = says(70, 71, 72)
    return door


async def described(door: Door) -> dict[str, Any]:
    response = await door.get("/openapi.json")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    document: dict[str, Any] = response.json()
    return document


def validator(document: dict[str, Any], name: str) -> jsonschema_rs.Draft202012Validator:
    """Of one component."""
    return jsonschema_rs.Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
    )


def structs_in(kind: Any, seen: set[type[Struct]]) -> Iterator[type[Struct]]:
    """The Structs that a type is made of."""
    for inner in getattr(kind, "__args__", ()):
        yield from structs_in(inner, seen)
    if isinstance(kind, type) and issubclass(kind, Struct) and kind not in seen:
        seen.add(kind)
        yield kind
        for field in structs.fields(kind):
            yield from structs_in(field.type, seen)


def has_raw(kind: Any) -> bool:
    return kind is Raw or any(map(has_raw, getattr(kind, "__args__", ())))


async def test_every_route_is_described_and_nothing_else(door: Door) -> None:
    routes = [*door.app.routes, *admin_routes(None, "key")]  # type: ignore[attr-defined, arg-type]
    served = {operation for route in routes for operation in operations_of(route)}
    assert served == {(one.method, one.path) for one in OPERATIONS}
    document = describe(routes, [MODEL], keyed=True)
    told = {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}
    assert told == served
    mine = await described(door)
    assert set(mine["paths"]) == {path for _, path in served if not path.startswith("/admin")}


async def test_references_lead_somewhere_and_names_are_unique(door: Door) -> None:
    document = await described(door)
    text = msgspec.json.encode(document).decode()
    names = {part.partition('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert names == document["components"]["schemas"].keys() & names
    ids = [one["operationId"] for methods in document["paths"].values() for one in methods.values()]
    assert len(ids) == len(set(ids))


async def test_keys_are_asked_for_where_they_are(door: Door) -> None:
    routes = [*door.app.routes, *admin_routes(None, "key")]  # type: ignore[attr-defined, arg-type]
    for keyed in (False, True):
        paths = describe(routes, [MODEL], keyed=keyed)["paths"]
        assert ("security" in paths["/v1/models"]["get"]) is keyed
        assert ("401" in paths["/v1/models"]["get"]["responses"]) is keyed
        assert paths["/admin/flush"]["post"]["security"] == [{"admin": []}]
        assert "security" not in paths["/health"]["get"]


def test_every_field_that_is_kept_raw_is_described() -> None:
    """A new one without a description fails here, and so does a description of what is gone."""
    kinds = [one for kind in READ for one in structs_in(kind, set())]
    told = holes()
    raw = {(kind, field.name) for kind in kinds for field in structs.fields(kind) if has_raw(field.type)}
    missing = {place for place in raw if not any((kind, place[1]) in told for kind in place[0].__mro__)}
    assert missing == set()
    answers = {place for place in told if place[0].__module__.endswith(".answers")}
    fields = {(kind, field.name) for kind in kinds for field in structs.fields(kind)}
    inherited = {(base, name) for kind, name in fields for base in kind.__mro__ if base is not Struct}
    unserved = {(kind, name) for kind, name in told if (kind, name) not in inherited} - answers
    # One table may be of several Structs, each of which has a part of it.
    known = {name for kind in kinds for name in kind.__struct_fields__}
    assert {name for _, name in unserved} <= known
    assert {*WORDS, *MODELS} <= inherited


@pytest.mark.parametrize("kind", READ, ids=lambda kind: f"{kind.__module__.split('.')[-2]}-{kind.__name__}")
def test_the_schema_of_a_body_has_its_fields(kind: type[Struct]) -> None:
    schemas = Schemas(holes(), WORDS)
    name = schemas.of(kind)["$ref"].rpartition("/")[2]
    made = schemas.components[name]
    fields = {field.encode_name: field for field in structs.fields(kind)}
    assert made["properties"].keys() == fields.keys()
    assert set(made.get("required", ())) == {name for name, field in fields.items() if field.required}
    assert made["additionalProperties"] is False


@pytest.mark.parametrize(
    ("change", "good"),
    [
        ({}, True),
        ({"temperature": 1.5, "n": 2, "stop": ["a"], "logit_bias": {"5": -100}}, True),
        ({"response_format": {"type": "json_object"}, "store": False, "modalities": ["text"]}, True),
        ({"temperature": -1}, False),
        ({"n": 0}, False),
        ({"stop": ""}, False),
        ({"logit_bias": {"five": 1}}, False),
        ({"logit_bias": {"5": 101}}, False),
        ({"messages": []}, False),
        ({"messages": [{"role": "nobody", "content": "x"}]}, False),
        ({"store": True}, False),
        ({"what": 1}, False),
        ({"model": "unknown"}, False),
    ],
)
async def test_the_description_and_the_door_say_the_same(
    door: Door, change: dict[str, Any], good: bool
) -> None:
    body = ask(**{"max_tokens": 3, **change})
    document = await described(door)
    assert validator(document, "ChatAsk").is_valid(body) is good
    assert ((await door.chat(**{"max_tokens": 3, **change})).status_code == 200) is good


async def test_answers_are_as_described(door: Door) -> None:
    document = await described(door)
    chat = await door.chat(max_tokens=3, logprobs=True, top_logprobs=2, return_token_ids=True)
    completion = await door.post("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 1})
    message = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    answers = {
        "ChatAnswer": chat,
        "CompletionAnswer": completion,
        "MessageOut": await door.post("/v1/messages", message),
        "ResponseOut": await door.post("/v1/responses", {"input": "hello", "max_output_tokens": 3}),
        "ModelList": await door.get("/v1/models"),
        "TokenizeAnswer": await door.post("/tokenize", {"prompt": "hello"}),
        "Health": await door.get("/health"),
    }
    for name, answer in answers.items():
        assert answer.status_code == 200, answer.text
        assert [str(error) for error in validator(document, name).iter_errors(answer.json())] == []
    for event in (await door.events("/v1/chat/completions", ask(max_tokens=3)))[:-1]:
        validator(document, "ChatChunk").validate(event)


def test_errors_of_every_class_are_as_described() -> None:
    def classes(kind: type[MeshError]) -> Iterator[type[MeshError]]:
        yield kind
        for inner in kind.__subclasses__():
            yield from classes(inner)

    statuses = {int(status) for one in OPERATIONS for status in one.failures} | {401}
    for kind in classes(ApiError):
        error = kind.__new__(kind)
        error.args, error.param = ("it is so",), "n"  # type: ignore[attr-defined]
        assert kind.status in statuses  # type: ignore[attr-defined]
        for body, shape in ((body_of(error), Failed), (messages_body_of(error), MessagesFailed)):
            msgspec.convert(body, shape, strict=True)

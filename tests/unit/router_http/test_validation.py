"""Bad requests: each is answered with its parameter's name, and harms nothing."""

import json
from typing import Any

import pytest

from services.router.front.tokens import Tokenizer, load_tokenizer
from services.router.front.unbuilt import MESSAGE, PARAMETERS, PART
from shared.errors import Overloaded, RequestFailed, Unavailable
from shared.runtime.settings import HttpConfig
from tests.support.fake_generator import FakeGenerator, breaks, says
from tests.support.front_door import MODEL, Door, ask
from tests.support.small_tokenizer import small_tokenizer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@pytest.fixture
def door(tokenizer: Tokenizer) -> Door:
    return Door(tokenizer, FakeGenerator(says(5)))


BAD_CHAT: list[tuple[dict[str, Any], int, str, str]] = [
    ({"temperature": -1}, 400, "temperature", "-1"),
    ({"temperature": "hot"}, 400, "temperature", "hot"),
    ({"temperature": True}, 400, "temperature", "true"),
    ({"top_p": 0}, 400, "top_p", "0"),
    ({"top_p": 1.5}, 400, "top_p", "1.5"),
    ({"top_k": -2}, 400, "top_k", "-2"),
    ({"top_k": 2**31}, 400, "top_k", "2147483648"),
    ({"top_k": 10**400}, 400, "top_k", "1000000"),
    ({"min_p": 2}, 400, "min_p", "2"),
    ({"presence_penalty": 3}, 400, "presence_penalty", "3"),
    ({"repetition_penalty": 0}, 400, "repetition_penalty", "0"),
    ({"logit_bias": {"x": 1}}, 400, "logit_bias", "x"),
    ({"logit_bias": {"5": 101}}, 400, "logit_bias", "101"),
    ({"logit_bias": {"99999": 1}}, 400, "logit_bias", "99999"),
    ({"stop_token_ids": [-1]}, 400, "stop_token_ids", "-1"),
    ({"stop": ""}, 400, "stop", '""'),
    ({"stop": ["a"] * 17}, 400, "stop", "16"),
    ({"stop": [1]}, 400, "stop[0]", "1"),
    ({"n": 0}, 400, "n", "0"),
    ({"n": 129}, 400, "n", "129"),
    ({"seed": 2**64}, 400, "seed", "64 bits"),
    ({"seed": 1.5}, 400, "seed", "1.5"),
    ({"max_tokens": 0}, 400, "max_tokens", "0"),
    ({"max_tokens": 5000}, 400, "max_tokens", "4096"),
    ({"max_completion_tokens": 5000}, 400, "max_completion_tokens", "4096"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, 400, "max_tokens", "differs"),
    ({"min_tokens": 9, "max_tokens": 5}, 400, "min_tokens", "9"),
    ({"top_logprobs": 3}, 400, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "21"),
    ({"stream_options": {"include_usage": True}}, 400, "stream_options", "stream"),
    ({"stream": True, "stream_options": {"nope": 1}}, 400, "stream_options.nope", "unknown"),
    ({"messages": []}, 400, "messages", "[]"),
    ({"messages": [{"role": "user"}]}, 400, "messages[0].content", "required"),
    ({"messages": [{"content": "a"}]}, 400, "messages[0].role", "required"),
    ({"messages": [{"role": "king", "content": "a"}]}, 400, "messages[0].role", "king"),
    ({"messages": [{"role": "function", "content": "a"}]}, 501, "messages[0].role", "role tool"),
    ({"messages": [{"role": "tool", "content": "a"}]}, 400, "messages[0].tool_call_id", "required"),
    ({"messages": [{"role": "user", "content": "a", "x": 1}]}, 400, "messages[0].x", "unknown"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
        501,
        "messages[0].content[0].type",
        "image_url",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        400,
        "messages[0].content[0].text",
        "required",
    ),
    ({"messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "5"),
    ({"model": "other"}, 404, "model", "other"),
    ({"timeout": 0}, 400, "timeout", "0"),
    ({"priority": 2**40}, 400, "priority", "1099511627776"),
    ({"cache_salt": ""}, 400, "cache_salt", '""'),
    ({"chat_template_kwargs": {"messages": []}}, 400, "chat_template_kwargs.messages", "set by"),
    (
        {"chat_template_kwargs": {"a": [[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}},
        400,
        "chat_template_kwargs",
        "levels",
    ),
    ({"nonsense": 1}, 400, "nonsense", "unknown parameter"),
    ({"bootstrap_room": 7}, 400, "bootstrap_room", "unknown parameter"),
    ({"kv_transfer_params": {"remote_host": "evil"}}, 400, "kv_transfer_params", "unknown parameter"),
    ({"request_id": "a"}, 400, "request_id", "unknown parameter"),
    ({"best_of": 2}, 501, "best_of", "n (1)"),
    ({"echo": True}, 501, "echo", "not served"),
]


@pytest.mark.parametrize(("fields", "status", "param", "said"), BAD_CHAT, ids=lambda value: str(value)[:40])
async def test_bad_chat_fields(
    door: Door, fields: dict[str, Any], status: int, param: str, said: str
) -> None:
    response = await door.chat(fields)
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert said in error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert not door.generator.streams
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("name", sorted(PARAMETERS.keys() - {"suffix", "prompt_embeds"}))
async def test_what_is_not_built_is_refused_by_name_unless_neutral(door: Door, name: str) -> None:
    refused = await door.chat({name: "surely not neutral"})
    assert (refused.status_code, refused.json()["error"]["param"]) == (501, name)
    assert refused.json()["error"]["code"] == "not_implemented"
    assert refused.headers["x-should-retry"] == "false"
    for value in (None, *PARAMETERS[name]):
        assert (await door.chat({name: value})).status_code == 200


@pytest.mark.parametrize("name", [*MESSAGE, "part." + next(iter(PART))])
async def test_message_fields_that_are_not_built(door: Door, name: str) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "a", name: [{"id": 1}]}
    if name.startswith("part."):
        part = {"type": "text", "text": "a", name.removeprefix("part."): {"x": 1}}
        message = {"role": "user", "content": [part]}
    response = await door.chat(messages=[message])
    assert response.status_code == 501
    assert response.json()["error"]["param"].endswith(name.removeprefix("part."))


BAD_COMPLETIONS: list[tuple[dict[str, Any], int, str, str]] = [
    ({}, 400, "prompt", "required"),
    ({"prompt": ""}, 400, "prompt", "no tokens"),
    ({"prompt": []}, 400, "prompt", "empty"),
    ({"prompt": [[]]}, 400, "prompt", "no tokens"),
    ({"prompt": ["a", [1]]}, 400, "prompt[1]", "mixture"),
    ({"prompt": [1, "a"]}, 400, "prompt[0]", "mixture"),
    ({"prompt": [[1], 2]}, 400, "prompt[1]", "mixture"),
    ({"prompt": [1, 2.5]}, 400, "prompt[1]", "2.5"),
    ({"prompt": [[1, 99999]]}, 400, "prompt[0][1]", "99999"),
    ({"prompt": [-1]}, 400, "prompt[0]", "-1"),
    ({"prompt": ["a"] * 65, "n": 2}, 400, "prompt", "128"),
    ({"prompt": [5] * 4096}, 400, "prompt", "4096"),
    ({"prompt": "a", "suffix": "b"}, 501, "suffix", "not served"),
    ({"prompt": "a", "prompt_embeds": "b"}, 501, "prompt_embeds", "not served"),
    ({"prompt": "a", "echo": True, "logprobs": 1, "stream": True}, 400, "logprobs", "echo"),
    ({"prompt": "a", "prompt_logprobs": 21}, 400, "prompt_logprobs", "20"),
    ({"prompt": "a", "prompt_logprobs": 1, "stream": True}, 400, "prompt_logprobs", "stream"),
    ({"prompt": "a", "logprobs": 21}, 400, "logprobs", "21"),
    ({"prompt": "a", "messages": []}, 400, "messages", "unknown"),
]


@pytest.mark.parametrize(("fields", "status", "param", "said"), BAD_COMPLETIONS, ids=lambda v: str(v)[:40])
async def test_bad_completion_fields(
    door: Door, fields: dict[str, Any], status: int, param: str, said: str
) -> None:
    response = await door.post(COMPLETIONS, {"model": MODEL, **fields})
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert said in error["message"]
    assert not door.generator.streams


async def test_a_prompt_one_over_the_limit_names_it(door: Door) -> None:
    for size, status in ((4095, 200), (4096, 400), (100_000, 400)):
        response = await door.post(COMPLETIONS, {"prompt": [5] * size, "max_tokens": 1})
        assert response.status_code == status
        if status == 400:
            assert response.json()["error"]["code"] == "context_length_exceeded"
            assert "maximum context length is 4096 tokens" in response.json()["error"]["message"]


async def test_a_text_that_cannot_fit_is_refused_before_it_is_tokenized(door: Door) -> None:
    response = await door.chat(messages=[{"role": "user", "content": "x" * 200_000}])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


RAW: list[tuple[bytes, int, str]] = [
    (b"", 400, "no JSON"),
    (b"{", 400, "no JSON"),
    (b"[]", 400, "object"),
    (b"null", 400, "object"),
    (b'{"messages": "\xff"}', 400, ""),
    (b'{"user": "\\ud800"}', 400, "no JSON"),
    (b"[" * 100_000, 400, ""),
    (b'{"response_format": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400, "nests"),
    (b'{"tools": [{"type": "function", "function": {"parameters": ' + b'{"a":' * 100_000, 400, ""),
    (b'{"chat_template_kwargs": ' + b'{"a":' * 100_000, 400, ""),
    (b'{"temperature": 1e999, "messages": []}', 400, "temperature"),
    (b'{"seed": 123456789012345678901234567890}', 400, ""),
]


@pytest.mark.parametrize(("body", "status", "said"), RAW, ids=range(len(RAW)))
async def test_bodies_that_are_no_request(door: Door, body: bytes, status: int, said: str) -> None:
    async with door.client() as client:
        for path in (CHAT, COMPLETIONS, "/tokenize", "/detokenize"):
            response = await client.post(path, content=body)
            assert response.status_code == status, response.text
            assert response.json()["error"]["message"]
        response = await client.post(CHAT, content=body)
        assert said in response.json()["error"]["message"]
    assert not door.generator.streams


async def test_body_limits(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, FakeGenerator(says(5)), http=HttpConfig(max_body=1000))
    async with door.client() as client:

        async def parts() -> Any:
            for _ in range(3):
                yield b"x" * 400

        assert (await client.post(CHAT, content=b"x" * 1001)).status_code == 413
        assert (await client.post(CHAT, content=parts())).status_code == 413
        answer = await client.post(CHAT, content=b"x", headers={"content-encoding": "gzip"})
        assert answer.status_code == 415
        assert answer.json()["error"]["code"] == "unsupported_body"


async def test_a_body_that_does_not_come(tokenizer: Tokenizer) -> None:
    import asyncio

    door = Door(tokenizer, http=HttpConfig(body_timeout=0.02))
    async with door.client() as client:

        async def never() -> Any:
            yield b"{"
            await asyncio.sleep(5)

        assert (await client.post(CHAT, content=never())).status_code == 408


@pytest.mark.parametrize(
    ("name", "value", "param"),
    [
        ("x-request-timeout", "0", "X-Request-Timeout"),
        ("x-request-timeout", "soon", "X-Request-Timeout"),
        ("x-request-timeout", "nan", "X-Request-Timeout"),
        ("x-pdd-without", "relay, engine", "X-PDD-Without"),
    ],
)
async def test_bad_headers(door: Door, name: str, value: str, param: str) -> None:
    async with door.client(**{name: value}) as client:
        response = await client.post(CHAT, json=ask())
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_headers_reach_the_core(door: Door) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    async with door.client(
        **{"x-request-timeout": "5", "x-pdd-without": "Relay,local", "traceparent": parent}
    ) as client:
        await client.post(CHAT, json=ask(timeout=9))
        await client.post(CHAT, json=ask(timeout=3))
    one, two = door.generator.requests
    assert (one.deadline, two.deadline) == (5.0, 3.0)
    assert (one.relay_allowed, one.local_allowed, one.singular_allowed) == (False, False, True)
    assert one.trace == parent


@pytest.mark.parametrize(
    ("sent", "echoed"),
    [
        (b"abc-1", True),
        (b"", False),
        (b"x" * 4096, False),
        ("ü".encode(), False),
        (b"a\x00b", False),
        (b"a b", False),
    ],
)
async def test_request_ids_are_only_echoed(door: Door, sent: bytes, echoed: bool) -> None:
    async with door.client() as client:
        response = await client.post(CHAT, json=ask(), headers=[(b"x-request-id", sent)])
    assert response.status_code == 200
    given = response.headers["x-request-id"]
    assert (given == sent.decode("latin-1")) is echoed
    assert given
    assert given not in response.json()["id"]


@pytest.mark.parametrize(
    ("error", "status", "retry"),
    [
        (Overloaded("the line is full", 2.2), 429, "3"),
        (Unavailable("no prefill worker is ready", 0.1), 503, "1"),
        (RequestFailed("nan"), 500, None),
    ],
)
async def test_a_refusal_has_its_status(
    tokenizer: Tokenizer, error: Any, status: int, retry: str | None
) -> None:
    for stream in (False, True):
        door = Door(tokenizer)
        door.generator.refusal = error
        response = await door.chat(stream=stream)
        assert response.status_code == status
        assert response.headers.get("retry-after") == retry
        assert response.json()["error"]["code"] == error.code
        assert response.json()["error"]["type"] != "invalid_request_error"


async def test_without_workers_the_models_own_limit_holds(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, max_context=0)
    door.generator.refusal = Unavailable("no main decode worker has joined", 1.0)
    assert (await door.chat()).status_code == 503
    assert (await door.post(COMPLETIONS, {"prompt": [5] * 4096})).status_code == 400
    assert (await door.get("/v1/models")).json()["data"][0]["max_model_len"] == 4096


async def test_a_refused_choice_takes_the_others_with_it(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer)
    door.generator.refusal = Overloaded("full", 1)
    door.generator.refuse_after = 2
    assert (await door.chat(n=4)).status_code == 429
    assert [stream.cancelled for stream in door.generator.streams] == [True, True]


async def test_a_failure_before_any_content_has_its_status_even_in_a_stream(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, FakeGenerator(breaks(Unavailable("prefill worker lost", 1.0))))
    for stream in (False, True):
        response = await door.chat(stream=stream)
        assert response.status_code == 503
        assert "prefill worker lost" in response.json()["error"]["message"]


async def test_a_failure_in_a_whole_answer_is_never_a_200(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, FakeGenerator(breaks(RequestFailed("worker p-1: nan"), 5, 6, 7)))
    response = await door.chat()
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "request_failed"
    assert "choices" not in response.json()


async def test_chat_without_a_template(tmp_path: Any) -> None:
    door = Door(load_tokenizer(small_tokenizer(tmp_path, template=None)), FakeGenerator(says(5)))
    response = await door.chat()
    assert response.status_code == 501
    assert "chat template" in response.json()["error"]["message"]
    assert (await door.post(COMPLETIONS, {"prompt": "a"})).status_code == 200


def test_every_field_of_a_body_is_served_or_listed() -> None:
    from services.router.front.openai import ChatAsk, ChatMessage, CompletionAsk, Part, StreamOptions
    from services.router.front.unbuilt import STREAM_OPTIONS

    tables = [
        (ChatAsk, PARAMETERS.keys() | {"best_of", "echo"}),
        (CompletionAsk, PARAMETERS.keys() | {"best_of"}),
        (ChatMessage, MESSAGE.keys()),
        (Part, PART.keys()),
        (StreamOptions, STREAM_OPTIONS.keys()),
    ]
    for kind, listed in tables:
        parts = [vars(part).get("__annotations__", {}) for part in kind.__mro__]
        raw = {name for part in parts for name, type_name in part.items() if type_name == "Raw"}
        assert raw
        assert raw <= set(listed), kind
    json.dumps({name: list(values) for name, values in PARAMETERS.items()})


@pytest.mark.parametrize("value", [b"1e999", b'"\xff"', b"[-1e999]"])
@pytest.mark.parametrize("field", [b"suffix", b"best_of", b"length_penalty"])
async def test_what_cannot_be_read_of_an_unserved_parameter_is_refused_by_name(
    door: Door, field: bytes, value: bytes
) -> None:
    async with door.client() as client:
        body = b'{"prompt": "a", "%s": %s}' % (field, value)
        response = await client.post(COMPLETIONS, content=body)
    assert response.status_code == 501
    assert field.decode() in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (COMPLETIONS, {"prompt": [99999] * 5000}, "maximum context length"),
        (COMPLETIONS, {"prompt": [[99999] * 5000]}, "maximum context length"),
        (COMPLETIONS, {"prompt": ["a"] * 200 + [[99999]]}, "make 201 choices"),
        (COMPLETIONS, {"prompt": [[]] * 100, "n": 2}, "make 200 choices"),
        (CHAT, {"messages": [{"role": "king", "content": ""}] * 5000}, "maximum context length"),
        ("/detokenize", {"tokens": [99999] * 5000}, "5000 ids are more"),
    ],
    ids=range(6),
)
async def test_what_is_too_much_is_refused_before_it_is_looked_at_one_by_one(
    door: Door, path: str, body: dict[str, Any], said: str
) -> None:
    response = await door.post(path, body)
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]
    assert door.generator.requests == []

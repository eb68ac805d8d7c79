"""/v1/chat/completions: whole answers and streams say the same, counts are exact, nothing accepted is
ignored."""

import asyncio
from typing import Any

import msgspec
import pytest

from services.router.front.tokens import Tokenizer
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import MODEL, Door, ask

EOS = 2


def door(tokenizer: Tokenizer, text: str = "hello world", **options: Any) -> Door:
    return Door(tokenizer, FakeGenerator(says(*tokenizer.encode(text), **options)))


def joined(events: list[Any], index: int = 0) -> str:
    choices = [choice for event in events[:-1] for choice in event["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") for choice in choices)


async def test_a_whole_answer(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, cached=7)
    response = await front.chat()
    assert response.status_code == 200
    body = response.json()
    prompt = tokenizer.encode("<|im_start|>user\nthe question<|im_end|>\n<|im_start|>assistant\n")
    assert front.generator.requests[0].ids == prompt
    assert body["object"] == "chat.completion"
    assert body["model"] == MODEL
    assert body["system_fingerprint"] == "fp_test"
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hello world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    count = len(tokenizer.encode("hello world")) + 1  # the stop id counts
    assert body["usage"] == {
        "prompt_tokens": len(prompt),
        "completion_tokens": count,
        "total_tokens": len(prompt) + count,
        "prompt_tokens_details": {"cached_tokens": 7},
    }
    assert not front.generator.live


async def test_a_stream_says_the_same_and_ends_with_one_usage_chunk(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, "hello 😀 world", cached=7)
    whole = (await front.chat()).json()
    events = await front.events("/v1/chat/completions", ask(stream_options={"include_usage": True}))
    assert events[-1] == "[DONE]"
    assert joined(events) == whole["choices"][0]["message"]["content"] == "hello 😀 world"
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    usage = [event for event in events[:-1] if event["usage"] is not None]
    assert len(usage) == 1
    assert usage[0] is events[-2]
    assert usage[0]["choices"] == []
    assert usage[0]["usage"] == whole["usage"]
    finished = [event["choices"][0]["finish_reason"] for event in events[:-2]]
    assert [reason for reason in finished if reason] == ["stop"]
    assert finished[-1] == "stop"
    assert len({event["id"] for event in events[:-1]}) == 1


async def test_usage_that_runs_along_counts_what_came_so_far(tokenizer: Tokenizer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, body in (
        ("/v1/chat/completions", ask(stream_options=options)),
        ("/v1/completions", {"model": MODEL, "prompt": "hello", "stream": True, "stream_options": options}),
    ):
        events = await door(tokenizer, "hello world and other time").events(path, body)
        counts = [event["usage"]["completion_tokens"] for event in events[:-1]]
        assert counts == sorted(counts)
        assert counts[-1] > 1
        assert all(event["usage"]["prompt_tokens"] for event in events[:-1])


async def test_without_include_usage_no_chunk_has_usage(tokenizer: Tokenizer) -> None:
    events = await door(tokenizer).events("/v1/chat/completions", ask())
    assert all("usage" not in event for event in events[:-1])
    assert all(event["choices"] for event in events[:-1])


async def test_split_characters_never_reach_the_client(tokenizer: Tokenizer) -> None:
    events = await door(tokenizer, "é😀é").events("/v1/chat/completions", ask())
    contents = [event["choices"][0]["delta"].get("content") for event in events[:-1]]
    assert [content for content in contents if content] == ["é", "😀", "é"] or joined(events) == "é😀é"
    assert "\ufffd" not in joined(events)


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_max_tokens_is_exact(tokenizer: Tokenizer, count: int) -> None:
    front = door(tokenizer, "hello world and other time")
    for name in ("max_tokens", "max_completion_tokens"):
        body = (await front.chat({name: count})).json()
        assert body["usage"]["completion_tokens"] == count
        assert body["choices"][0]["finish_reason"] == "length"
        request = front.generator.requests[-1]
        assert request.sampling.max_pos == len(request.ids) + count


async def test_max_tokens_defaults_to_the_room_there_is(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    await front.chat()
    assert front.generator.requests[0].sampling.max_pos == 4096


async def test_every_sampling_parameter_reaches_the_core(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    await front.chat(
        temperature=0.5,
        top_p=0.9,
        top_k=40,
        min_p=0.1,
        presence_penalty=0.2,
        frequency_penalty=-0.3,
        repetition_penalty=1.1,
        logit_bias={"5": -100, "6": 1.5},
        seed=-1,
        min_tokens=3,
        stop_token_ids=[9, EOS],
        logprobs=True,
        top_logprobs=4,
        priority=-2,
        timeout=12.5,
    )
    request = front.generator.requests[0]
    sampling = request.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 40, 0.1)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (0.2, -0.3)
    assert sampling.repetition_penalty == 1.1
    assert sampling.logit_bias == {5: -100.0, 6: 1.5}
    assert sampling.seed == 2**64 - 1
    assert sampling.min_tokens == 3
    assert sampling.stop_ids == (EOS, 9)
    assert sampling.logprobs == 4
    assert (request.priority, request.deadline) == (-2, 12.5)


async def test_without_parameters_nothing_is_changed_and_seeds_differ(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    await front.chat()
    await front.chat(temperature=None, top_k=-1, seed=None, stop=None, n=None, logprobs=False)
    one, two = (request.sampling for request in front.generator.requests)
    assert (one.temperature, one.top_k, one.top_p, one.min_p, one.repetition_penalty) == (
        1.0,
        0,
        1.0,
        0.0,
        1.0,
    )
    assert (two.temperature, two.top_k, one.logprobs, two.logprobs) == (1.0, 0, -1, -1)
    assert one.seed != two.seed


async def test_ignore_eos_leaves_only_the_clients_stop_ids(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, "hello")
    body = (await front.chat(ignore_eos=True, max_tokens=4)).json()
    assert front.generator.requests[0].sampling.stop_ids == ()
    assert body["choices"][0]["message"]["content"] == "hello"
    assert body["usage"]["completion_tokens"] == 4
    shown = (await front.chat(ignore_eos=True, max_tokens=3, skip_special_tokens=False)).json()
    assert shown["choices"][0]["message"]["content"] == "hello<|im_end|><|im_end|>"


async def test_a_stop_string_across_tokens_and_owners(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, "hello world and other")
    for stream in (False, True):
        if stream:
            events = await front.events("/v1/chat/completions", ask(stop=["ld a", "zz"]))
            text = joined(events)
            end = events[-2]["choices"][0]
        else:
            body = (await front.chat(stop=["ld a", "zz"])).json()
            end = body["choices"][0]
            text = end["message"]["content"]
            through = tokenizer.encode("hello world and")  # the token that completed it counts
            assert body["usage"]["completion_tokens"] == len(through)
        assert text == "hello wor"
        assert (end["finish_reason"], end["stop_reason"]) == ("stop", "ld a")
    shown = (await front.chat(stop="ld a", include_stop_str_in_output=True)).json()
    assert shown["choices"][0]["message"]["content"] == "hello world a"


async def test_a_found_stop_string_ends_the_request_in_the_core(tokenizer: Tokenizer) -> None:
    front = Door(tokenizer, FakeGenerator())
    async with front.client() as client:
        asked = asyncio.ensure_future(client.post("/v1/chat/completions", json=ask(stop="END")))
        (stream,) = await front.generator.started()
        stream.tokens([tokenizer.encode(letter)[0] for letter in "aENDb"])
        body = (await asked).json()
    assert stream.stopped_at == len(stream.request.ids) + 4
    assert body["choices"][0]["message"]["content"] == "a"
    assert body["usage"]["completion_tokens"] == 4


async def test_n_choices_share_a_seed_and_are_numbered(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, cached=5)
    body = (await front.chat(n=3, seed=11)).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert [request.sampling.choice for request in front.generator.requests] == [0, 1, 2]
    assert {request.sampling.seed for request in front.generator.requests} == {11}
    usage = body["usage"]
    assert usage["prompt_tokens"] == len(front.generator.requests[0].ids)
    assert usage["completion_tokens"] == 3 * (len(tokenizer.encode("hello world")) + 1)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 5}
    events = await front.events("/v1/chat/completions", ask(n=3))
    assert [joined(events, index) for index in range(3)] == ["hello world"] * 3


async def test_logprobs_are_one_record_with_the_ids(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, "hé")
    body = (await front.chat(logprobs=True, top_logprobs=2, return_token_ids=True)).json()
    choice = body["choices"][0]
    content = choice["logprobs"]["content"]
    ids = [*tokenizer.encode("hé"), EOS]
    assert choice["token_ids"] == ids
    assert body["prompt_token_ids"] == front.generator.requests[0].ids
    assert [entry["logprob"] for entry in content] == [-token / 8 for token in ids]
    assert len(content) == body["usage"]["completion_tokens"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "hé<|im_end|>"
    assert [len(entry["top_logprobs"]) for entry in content] == [2] * len(ids)
    assert content[0]["token"] == "h"
    events = await front.events(
        "/v1/chat/completions", ask(logprobs=True, top_logprobs=2, return_token_ids=True)
    )
    chunks = [event["choices"][0] for event in events[:-1]]
    assert [entry for chunk in chunks for entry in (chunk["logprobs"] or {}).get("content", [])] == content
    assert [token for chunk in chunks for token in chunk.get("token_ids", [])] == ids
    assert events[0]["prompt_token_ids"] == body["prompt_token_ids"]


async def test_the_trace_is_given_where_it_is_asked_for(tokenizer: Tokenizer) -> None:
    front = door(tokenizer, trace={"pipeline": "P-RLD-MD", "hit": 3})
    assert "pdd" not in (await front.chat()).json()
    async with front.client(**{"X-PDD-Trace": "1"}) as client:
        body = (await client.post("/v1/chat/completions", json=ask())).json()
    assert body["pdd"]["pipeline"] == "P-RLD-MD"
    assert body["pdd"]["seen"]["ttft_ms"] >= 0
    for options in (None, {"include_usage": True}):
        events = await front.events("/v1/chat/completions", ask(stream_options=options), x_pdd_trace="1")
        whole = ["pipeline" in event.get("pdd", {}) for event in events[:-1]]
        assert whole == [False] * (len(events) - 2) + [True]
        assert events[-2]["pdd"]["hit"] == 3
        drawn = [event for event in events[:-2] if event["choices"][0]["delta"].get("content")]
        assert drawn
        assert all(list(event["pdd"]) == ["owner"] for event in drawn)
    many = (await front.post("/v1/chat/completions", ask(n=2), x_pdd_trace="1")).json()
    assert [one["hit"] for one in many["pdd"]["choices"]] == [3, 3]


async def test_roles_parts_and_template_options(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": parts, "name": "ann"},
        {"role": "assistant", "content": "yes", "refusal": None, "tool_calls": None, "annotations": []},
        {"role": "user", "content": "go"},
    ]
    response = await front.chat(
        {"messages": messages}, add_generation_prompt=False, chat_template_kwargs={"a": 1}
    )
    assert response.status_code == 200, response.text
    text = tokenizer.decode(front.generator.requests[0].ids)
    assert text.startswith("<|im_start|>system\nrules<|im_end|>\n<|im_start|>user\none\ntwo<|im_end|>")
    assert text.endswith("go<|im_end|>\n")


async def test_sessions_are_named_by_system_prompt_or_cache_key(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    system = {"role": "system", "content": "rules"}
    user = {"role": "user", "content": "go"}
    for fields in (
        {"messages": [system, user]},
        {"messages": [system, user, user]},
        {"messages": [user]},
        {"messages": [user], "prompt_cache_key": "k"},
        {"messages": [system, user], "prompt_cache_key": "k"},
    ):
        await front.chat(fields)
    names = [request.session for request in front.generator.requests]
    assert names[0] == names[1] != b""
    assert names[2] == b""
    assert names[3] == names[4] != names[0]


async def test_the_models_own_defaults_are_used(tokenizer: Tokenizer) -> None:
    facts = msgspec.structs.replace(tokenizer.facts, sampling={"temperature": 0.7, "top_k": 20.0})
    front = door(tokenizer)
    old, tokenizer.facts = tokenizer.facts, facts
    try:
        await front.chat()
        await front.chat(temperature=0)
    finally:
        tokenizer.facts = old
    assert [request.sampling.temperature for request in front.generator.requests] == [0.7, 0.0]
    assert [request.sampling.top_k for request in front.generator.requests] == [20, 20]


async def test_a_temperature_too_low_for_numbers_is_none(tokenizer: Tokenizer) -> None:
    front = door(tokenizer)
    for asked in (5e-324, 1e-308, 1e-40, 1e-7, 1e-5):  # scores over the first of them are infinite
        await front.chat(temperature=asked)
    assert [one.sampling.temperature for one in front.generator.requests] == [0.0, 0.0, 0.0, 0.0, 1e-5]


async def test_the_answers_text_comes_back_as_its_ids(tokenizer: Tokenizer) -> None:
    ids = [token for letter in "hello world" for token in tokenizer.encode(letter)]
    front = Door(tokenizer, FakeGenerator(says(*ids)))
    first = (await front.chat()).json()["choices"][0]["message"]
    turns = [
        *ask()["messages"],
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": "and"},
    ]
    trace = await front.post("/v1/chat/completions", ask(messages=turns), x_pdd_trace="1")
    one, two = front.generator.requests
    log = [*one.ids, *ids, EOS]
    assert two.ids[: len(log)] == log
    assert trace.json()["pdd"]["splice"] == "full"
    assert trace.json()["pdd"]["spliced_ids"] == len(ids) + 1
    off = await front.post(
        "/v1/chat/completions", ask(messages=turns), x_pdd_without="splice", x_pdd_trace="1"
    )
    assert front.generator.requests[2].ids[: len(log)] != log
    assert off.json()["pdd"]["splice"] == "off"
    other = await front.post("/v1/chat/completions", ask(messages=turns, cache_salt="me"), x_pdd_trace="1")
    assert other.json()["pdd"]["splice"] == "none"
    assert front.metric("pdd_splice_recalls_total", result="full") == 1

"""Streams: errors after headers, silence, clients that leave or read slowly; nothing is left behind."""

import asyncio

import pytest

from services.router.front.tokens import Tokenizer
from services.router.requests import Broken, Done, Tokens
from shared.errors import RequestFailed, Unavailable
from shared.policy.config import RouterPolicy
from shared.runtime.settings import HttpConfig
from shared.wire.messages import FinishReason, Role, TokenLogprob
from tests.support.fake_generator import FakeGenerator
from tests.support.front_door import Door, Wire, ask, sse

EOS = 2


def others() -> int:
    """Tasks beside the test's own."""
    return len(asyncio.all_tasks()) - 1


@pytest.fixture
def door(tokenizer: Tokenizer) -> Door:
    return Door(tokenizer, FakeGenerator())


async def test_each_run_is_sent_at_once(door: Door, tokenizer: Tokenizer) -> None:
    wire = Wire(door.app, ask(stream=True))
    (stream,) = await door.generator.started()
    assert not wire.sent  # no headers before there is something to say
    at = len(stream.request.ids)
    for word in ("hello", " world"):
        ids = tokenizer.encode(word)
        stream.tokens(ids, start=at)
        at += len(ids)
        while word not in "".join(_contents(wire)):
            await wire.next()
    stream.push(Done(FinishReason.LENGTH, at, 0, {}))
    await wire.end()
    assert _contents(wire) == ["", "hello", " world"]
    assert sse(wire.text)[-1] == "[DONE]"
    assert wire.sent[-1]["more_body"] is False
    assert others() == 0


async def test_an_error_after_headers_is_an_event_and_then_done(door: Door, tokenizer: Tokenizer) -> None:
    wire = Wire(door.app, ask(stream=True, n=2))
    one, two = await door.generator.started(2)
    one.tokens(tokenizer.encode("hello"))
    await wire.next()
    two.push(Broken(RequestFailed("prefill worker p-1 was lost")))
    await wire.end()
    events = sse(wire.text)
    assert events[-1] == "[DONE]"
    assert events[-2]["error"]["code"] == "request_failed"
    assert "p-1" in events[-2]["error"]["message"]
    finishes = [choice["finish_reason"] for event in events[:-2] for choice in event["choices"]]
    assert finishes == [None] * len(finishes)
    assert one.cancelled
    assert not door.generator.live
    assert others() == 0


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("tokens", [0, 3])
async def test_a_client_that_leaves_ends_everything_at_once(
    door: Door, stream: bool, count: int, tokens: int
) -> None:
    wire = Wire(door.app, ask(stream=stream, n=count))
    streams = await door.generator.started(count)
    for one in streams:
        if tokens:
            one.tokens([40] * tokens)
    await asyncio.sleep(0.01)
    wire.leave()
    await wire.end()
    assert [one.cancelled for one in streams] == [True] * count
    assert not door.generator.live
    assert others() == 0
    assert door.metric("pdd_http_generations_total", ended="left") == 1
    assert door.metric("pdd_http_running") == 0


async def test_a_client_that_leaves_before_the_body_is_whole(door: Door) -> None:
    wire = Wire(door.app, ask())
    wire._inbox.get_nowait()
    wire._inbox.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    wire.leave()
    await wire.end()
    assert not door.generator.streams
    assert others() == 0


async def test_silence_is_bridged_by_comments(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, http=HttpConfig(keep_alive=0.01))
    wire = Wire(door.app, ask(stream=True))
    (stream,) = await door.generator.started()
    while wire.text.count(": waiting\n\n") < 3:
        await wire.next()
    stream.tokens(tokenizer.encode("hello"))
    stream.push(Done(FinishReason.LENGTH, len(stream.request.ids) + 1, 0, {}))
    await wire.end()
    assert "".join(_contents(wire)) == "hello"


async def test_a_failure_after_a_comment_is_an_event(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, http=HttpConfig(keep_alive=0.01))
    wire = Wire(door.app, ask(stream=True))
    (stream,) = await door.generator.started()
    await wire.next()
    stream.push(Broken(Unavailable("no prefill worker", 1.0)))
    await wire.end()
    assert [event if event == "[DONE]" else event["error"]["code"] for event in sse(wire.text)] == [
        "unavailable",
        "[DONE]",
    ]


async def test_a_client_that_reads_nothing_is_released_after_its_time(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, policy=RouterPolicy(slow_client=0.05))
    wire = Wire(door.app, ask(stream=True))
    (stream,) = await door.generator.started()
    wire.reading.clear()
    stream.tokens([40])
    await wire.end()
    assert stream.cancelled
    assert others() == 0
    assert door.metric("pdd_http_generations_total", ended="too_slow") == 1


async def test_text_that_waits_is_bounded_in_bytes(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, policy=RouterPolicy(text_waiting=20_000))
    wire = Wire(door.app, ask(stream=True))
    (stream,) = await door.generator.started()
    wire.reading.clear()
    at, pushed = len(stream.request.ids), 0
    while not stream.cancelled:
        stream.tokens([40] * 10, start=at + pushed)
        pushed += 10
        await asyncio.sleep(0)
        assert pushed < 20_000
    await wire.end()
    assert pushed > 10
    assert others() == 0


async def test_a_slow_reader_within_limits_loses_nothing(door: Door, tokenizer: Tokenizer) -> None:
    wire = Wire(door.app, ask(stream=True, stop="END"))
    (stream,) = await door.generator.started()
    wire.reading.clear()
    ids = [token for letter in "hello world EN" for token in tokenizer.encode(letter)]
    at = len(stream.request.ids)
    for token in ids:
        stream.tokens([token], start=at)
        at += 1
        await asyncio.sleep(0)
    stream.tokens(tokenizer.encode("D"), start=at)
    await stream.ended.wait()  # found though nothing could be sent
    assert stream.stopped_at == at + 1
    wire.reading.set()
    await wire.end()
    assert "".join(_contents(wire)) == "hello world "
    assert sse(wire.text)[-1] == "[DONE]"


async def test_many_streams_dropped_at_random_leave_nothing(door: Door) -> None:
    wires = [Wire(door.app, ask(stream=at % 3 > 0, n=1 + at % 2)) for at in range(60)]
    await door.generator.started(90)
    for at, one in enumerate(door.generator.streams):
        if at % 4:
            one.tokens([40] * (at % 5 + 1))
        if at % 7 == 0:
            one.push(Broken(RequestFailed("x")))
        if at % 10 == 0:
            await asyncio.sleep(0)
    for wire in wires:
        wire.leave()
    await asyncio.gather(*(wire.end() for wire in wires))
    assert not door.generator.live
    assert others() == 0
    assert door.metric("pdd_http_running") == 0


async def test_cancelling_the_servers_task_releases_the_request(door: Door) -> None:
    wire = Wire(door.app, ask(stream=True))
    (stream,) = await door.generator.started()
    stream.tokens([40])
    await wire.next()
    wire.task.cancel()
    await asyncio.gather(wire.task, return_exceptions=True)
    await asyncio.sleep(0)
    assert stream.cancelled
    assert others() == 0


def _contents(wire: Wire) -> list[str]:
    events = [event for event in sse(wire.text) if event != "[DONE]"]
    return [
        choice["delta"]["content"]
        for event in events
        for choice in event["choices"]
        if "content" in choice["delta"]
    ]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_fault_while_rendering_releases_the_request(door: Door, stream: bool) -> None:
    wire = Wire(door.app, ask(stream=stream))
    (one,) = await door.generator.started()
    one.push(Tokens(len(one.request.ids), (40, 41), (TokenLogprob(-1.0),), Role.MAIN))  # one is missing
    await asyncio.gather(wire.task, return_exceptions=True)
    assert one.cancelled
    assert others() == 0
    assert door.metric("pdd_http_requests_total", endpoint="crashed", status="500") == 1
    assert door.metric("pdd_http_requests_total", endpoint="/v1/chat/completions", status="200") == 0
    assert door.metric("pdd_http_generations_total", ended="crashed") == 1

"""Any body gets an answer of its shape and leaves nothing behind: no 5xx but 501, no crash, no stream."""

import asyncio
import json
import subprocess
import sys
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.front.messages.bodies import CountAsk, MessagesAsk
from services.router.front.openai import ChatAsk, CompletionAsk, DetokenizeAsk, TokenizeAsk
from services.router.front.responses.bodies import ResponsesAsk
from services.router.front.tokens import Tokenizer
from shared.runtime.settings import HttpConfig
from tests.support.fake_generator import FakeGenerator, says
from tests.support.front_door import MODEL, Door, named_events, sse

FIELDS = (
    "role content type text 5 include_usage x name function arguments id tool_calls tool_call_id call_id "
    "output input tool_use_id parameters input_schema summary thinking"
).split()
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.integers(-2, 20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8)
    | st.sampled_from([MODEL, "user", "system", "text", "hello", "auto", "none", "tool", "function", "{}"])
    | st.sampled_from(["tool_use", "tool_result", "message", "function_call", "reasoning", "input_text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=3),
    max_leaves=8,
)
PARTS = st.sampled_from(
    [
        {"type": "text", "text": "a"},
        {"type": "input_text", "text": "a"},
        {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
        {"type": "tool_result", "tool_use_id": "1", "content": "b"},
        {"type": "thinking", "thinking": "so", "signature": ""},
    ]
)
CALLS = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.just("1"),
            "function": st.fixed_dictionaries(
                {"name": st.just("f"), "arguments": st.sampled_from(["{}", "", "[]", "{", '{"a": 1}'])}
            ),
        }
    ),
    max_size=2,
)
TURNS = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "assistant", "system", "tool"]),
        "content": st.text(max_size=20) | st.lists(PARTS, max_size=3),
    },
    optional={"tool_calls": CALLS, "tool_call_id": st.just("1"), "reasoning_content": st.text(max_size=5)},
)
MESSAGES = st.lists(TURNS, min_size=1, max_size=3)
ITEMS = st.lists(
    TURNS
    | st.sampled_from(
        [
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "b"},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "so"}], "summary": []},
        ]
    ),
    min_size=1,
    max_size=4,
)
ENDPOINTS: dict[str, tuple[type, st.SearchStrategy[dict[str, Any]]]] = {
    "/v1/chat/completions": (ChatAsk, st.fixed_dictionaries({"messages": MESSAGES})),
    "/v1/messages": (MessagesAsk, st.fixed_dictionaries({"messages": MESSAGES, "max_tokens": st.just(9)})),
    "/v1/messages/count_tokens": (CountAsk, st.fixed_dictionaries({"messages": MESSAGES})),
    "/v1/responses": (ResponsesAsk, st.fixed_dictionaries({"input": st.just("hello") | ITEMS})),
    "/v1/completions": (CompletionAsk, st.fixed_dictionaries({"prompt": st.just("hello")})),
    "/tokenize": (TokenizeAsk, st.just({})),
    "/detokenize": (DetokenizeAsk, st.fixed_dictionaries({"tokens": st.lists(st.integers(0, 300))})),
}


ENDS = ("message_stop", "response.completed", "response.incomplete")


def bodies(path: str) -> st.SearchStrategy[dict[str, Any]]:
    kind, base = ENDPOINTS[path]
    names = [name for part in kind.__mro__ for name in vars(part).get("__annotations__", {})]
    extra = st.dictionaries(st.sampled_from([*names, "unheard_of"]), VALUES, max_size=4)
    return st.builds(lambda one, two: {**one, **two}, base, extra)


def test_any_body_is_answered_and_leaves_nothing(tokenizer: Tokenizer) -> None:
    http = HttpConfig(tool_format="hermes", reasoning_format="think", responses_bytes=20_000)
    door = Door(tokenizer, FakeGenerator(says(40, 41, 42, 43)), http=http)
    seen: set[int] = set()

    @settings(max_examples=200, deadline=None)
    @given(st.sampled_from(sorted(ENDPOINTS)).flatmap(lambda path: st.tuples(st.just(path), bodies(path))))
    def check(asked: tuple[str, dict[str, Any]]) -> None:
        path, body = asked
        response = runner.run(door.post(path, body))
        seen.add(response.status_code)
        assert response.status_code in (200, 400, 404, 501), response.text
        if response.status_code != 200:
            error = response.json()["error"]
            named = {"type", "message"} if "messages" in path else {"message", "type", "param", "code"}
            assert set(error) == named
            assert error["message"]
        elif response.headers["content-type"].startswith("text/event-stream"):
            if path in ("/v1/messages", "/v1/responses"):
                assert named_events(response.text)[-1]["type"] in ENDS
            else:
                assert sse(response.text)[-1] == "[DONE]"
        else:
            json.loads(response.text)
        assert not door.generator.live
        door.generator.streams.clear()

    with asyncio.Runner() as runner:
        check()
    assert {200, 400} <= seen
    assert door.metric("pdd_http_running") == 0


def test_it_runs_where_heavy_packages_cannot_be_imported() -> None:
    program = (
        "import sys\n"
        "class Block:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        heavy = ('torch', 'triton', 'numpy', 'safetensors', 'gguf', 'transformers')\n"
        "        if name.partition('.')[0] in heavy:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Block())\n"
        "import services.router.front.app, services.router.front.tokens\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)

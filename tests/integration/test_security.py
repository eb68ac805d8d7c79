"""What a client cannot do: say what only the mesh says, have a host asked, learn a key, send without end.

What it cannot see of other tenants is `mesh/test_tenants`.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import inspect
import json
import textwrap
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.router.front.keys import Keys
from services.router.front.tokens import Tokenizer, load_tokenizer
from services.router.front.ui.session import Sessions
from shared.runtime.settings import HttpConfig
from shared.wire import handshake
from tests.support.fake_generator import says
from tests.support.front_door import Door
from tests.support.served_front import serving
from tests.support.small_tokenizer import small_tokenizer

TALK = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": TALK,
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/messages": TALK,
    "/v1/messages/count_tokens": {"messages": TALK["messages"]},
    "/v1/responses": {"input": "hello", "max_output_tokens": 4},
    "/tokenize": {"prompt": "hello"},
    "/detokenize": {"tokens": [5]},
}
# What the mesh's own messages carry, and what other systems of this kind let their routers say in the body.
INTERNAL = """
rid term salt ids prompt_len sampling remaining_ms purpose parked trace ticket incarnation node target have
expected hashes choice max_pos grammar tenant request_id worker_id
kv_transfer_params disagg_prefill_resp do_remote_prefill do_remote_decode remote_host remote_port
remote_engine_id remote_block_ids bootstrap_host bootstrap_port bootstrap_room data_parallel_rank
routed_dp_rank disaggregated_params nvext
""".split()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(small_tokenizer(Path(tmp_path_factory.mktemp("small")) / "model"))


@pytest.fixture
def door(tokenizer: Tokenizer) -> Door:
    door = Door(tokenizer)
    door.generator.script = says(70, 71, 72)
    return door


# --- internal fields ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BODIES)
async def test_fields_of_the_mesh_are_refused_by_name(door: Door, path: str) -> None:
    async with door.client() as client:
        assert (await client.post(path, json=BODIES[path])).status_code == 200
        made = len(door.generator.streams)
        for field in INTERNAL:
            for value in ("10.0.0.1", 7, {"host": "10.0.0.1"}, None):
                answer = await client.post(path, json=BODIES[path] | {field: value})
                assert answer.status_code == 400, (field, answer.text)
                assert field in answer.json()["error"]["message"]
    assert len(door.generator.streams) == made


async def test_headers_say_nothing_to_the_mesh(door: Door) -> None:
    names = (
        "X-PDD-Node",
        "X-PDD-Term",
        "X-PDD-Rid",
        "X-Data-Parallel-Rank",
        "X-KV-Host",
        "X-Tenant",
        "Forwarded",
    )
    async with door.client() as client:
        await client.post("/v1/completions", json=BODIES["/v1/completions"])
        headers = dict.fromkeys(names, "10.0.0.1:9999")
        await client.post("/v1/completions", json=BODIES["/v1/completions"], headers=headers)
    first, second = door.generator.requests
    changed = {name for name in first.__slots__ if getattr(first, name) != getattr(second, name)}
    assert changed <= {"sampling"}  # its seed is drawn anew
    assert (second.tenant, second.salt) == ("", b"")


# --- no host ------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[tuple[str, list[object]]]:
    """An address that a request could name, and who has come there."""
    came: list[object] = []

    def arrived(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer.get_extra_info("peername"))
        writer.write(b"you have come")
        writer.close()

    server = await asyncio.start_server(arrived, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"http://127.0.0.1:{port}/x", came
    finally:
        server.close()
        await server.wait_closed()


def with_addresses(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Requests that name an address wherever a client of some API may."""
    parts = [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "file", "file": {"file_data": url}},
        {"type": "input_audio", "input_audio": {"data": url}},
        {"type": "text", "text": "look", "image_url": {"url": url}},
    ]
    for part in parts:
        yield "/v1/chat/completions", TALK | {"messages": [{"role": "user", "content": [part]}]}
    blocks = [
        {"type": "image", "source": {"type": "url", "url": url}},
        {"type": "document", "source": {"type": "url", "url": url}},
        {"type": "text", "text": "look", "source": {"type": "url", "url": url}},
    ]
    for block in blocks:
        yield "/v1/messages", TALK | {"messages": [{"role": "user", "content": [block]}]}
    yield "/v1/messages", TALK | {"mcp_servers": [{"type": "url", "url": url, "name": "x"}]}
    for item in (
        {"type": "input_image", "image_url": url},
        {"type": "input_file", "file_url": url},
        {"type": "input_text", "text": "look", "file_url": url},
    ):
        yield "/v1/responses", {"input": [{"role": "user", "content": [item]}]}
    yield "/v1/responses", {"input": "x", "tools": [{"type": "mcp", "server_url": url, "server_label": "x"}]}
    yield "/v1/responses", {"input": "x", "tools": [{"type": "web_search"}]}
    remote = {"$ref": url, "$schema": url}
    yield "/v1/chat/completions", TALK | {"web_search_options": {"user_location": url}}
    yield "/v1/chat/completions", TALK | {"chat_template": "{% include '" + url + "' %}"}
    yield "/v1/completions", {"prompt": "x", "guided_json": remote}
    yield (
        "/v1/completions",
        {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"schema": remote}}},
    )
    yield "/v1/completions", {"prompt": "x", "model": url}
    yield "/v1/completions", {"prompt": "x", "logits_processors": [url]}


async def test_no_request_has_a_host_asked(door: Door) -> None:
    async with listening() as (url, came), door.client() as client:
        for path, body in with_addresses(url):
            answer = await client.post(path, json=body)
            assert answer.status_code in (400, 404, 501), (body, answer.text)
        reply = await client.post(
            "/v1/chat/completions", json=TALK, headers={"host": url[7:-2], "origin": url, "referer": url}
        )
        assert reply.status_code == 200
        await asyncio.sleep(0)
        assert came == []
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url[:-2].rpartition(":")[2]))
        assert await reader.read() == b"you have come"  # the address is one that would have noticed
        assert len(came) == 1
        writer.close()
    assert len(door.generator.streams) == 1


def test_the_router_opens_no_connection_of_its_own() -> None:
    """Nothing of the HTTP side imports what asks hosts."""
    root = Path(inspect.getfile(Keys)).parent
    asking = {"httpx", "requests", "urllib.request", "http.client", "aiohttp", "socket", "ftplib"}
    for file in root.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not asking & set(names), f"{file}: {names}"


# --- keys ---------------------------------------------------------------------------------------------------


def calls_and_exits(function: Any) -> tuple[int, list[type[ast.AST]]]:
    """(constant-time comparisons, ways out of loops) in a function's source."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    compared = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "compare_digest"
    ]
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)]
    inner = [type(node) for loop in loops for node in ast.walk(loop)]
    return len(compared), [kind for kind in inner if kind in (ast.Break, ast.Return)]


def test_keys_are_compared_in_constant_time() -> None:
    """By digests of equal length, with all keys whatever matched, and nowhere in another way."""
    assert calls_and_exits(Keys.tenant) == (1, [])
    assert calls_and_exits(Sessions.opens) == (1, [])
    assert calls_and_exits(Sessions.left) == (1, [])
    for place in (handshake.Dialler._welcome, handshake.Listener._on_proof):
        assert calls_and_exits(place)[0] == 1
    keys = Keys([("one", "x" * 8), ("two", "y" * 5000)])
    assert {len(digest) for digest, _ in keys._entries} == {32}


async def test_a_refusal_tells_nothing_of_the_keys(tokenizer: Tokenizer) -> None:
    door = Door(tokenizer, keys=Keys([("one", "key-of-tenant-one")]))
    said = set()
    for wrong in ("key-of-tenant-on", "key-of-tenant-onf", "", "x", "key-of-tenant-one2"):
        answer = await door.get("/v1/models", authorization=f"Bearer {wrong}")
        assert answer.status_code == 401
        assert "key-of-tenant" not in answer.text
        if wrong:
            said.add(answer.json()["error"]["message"])
    assert len(said) == 1


# --- limits -------------------------------------------------------------------------------------------------


def nested(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/v1/chat/completions", lambda deep: TALK | {"chat_template_kwargs": deep}),
        ("/v1/chat/completions", lambda deep: TALK | {"tools": [tool({"parameters": deep})]}),
        ("/v1/chat/completions", lambda deep: TALK | {"response_format": schema({"properties": deep})}),
        ("/v1/messages", lambda deep: TALK | {"tools": [{"name": "f", "input_schema": deep}]}),
        ("/v1/messages", lambda deep: TALK | {"chat_template_kwargs": deep}),
        ("/v1/responses", lambda deep: {"input": "x", "tools": [{"type": "function", **named(deep)}]}),
        ("/tokenize", lambda deep: {"messages": TALK["messages"], "chat_template_kwargs": deep}),
    ],
)
async def test_json_that_nests_too_deeply_is_refused(door: Door, path: str, place: Any) -> None:
    """Where values reach a template or a compiler, deeply nested ones are refused by place."""
    async with door.client() as client:
        for levels in (100, 500):
            answer = await client.post(path, content=json.dumps(place(nested(levels))))
            assert answer.status_code == 400, answer.text
        text = json.dumps(place(nested(1))).replace("{}", "[" * 200_000 + "]" * 200_000)
        answer = await client.post(path, content=text)
        assert answer.status_code == 400
        assert "nests too deeply" in answer.text
    assert not door.generator.streams


def named(parameters: Any) -> dict[str, Any]:
    return {"name": "f", "parameters": parameters}


def tool(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


def schema(deep: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": deep}}


async def test_bodies_and_heads_are_read_up_to_their_limits_and_no_further(tokenizer: Tokenizer) -> None:
    """Over a real socket: what is too much is refused, and its sender's connection is closed."""
    door = Door(tokenizer, http=HttpConfig(max_body=4096))
    door.generator.script = says(70)
    async with (
        serving(door, max_header=2048) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        long = await client.post("/v1/completions", json={"prompt": "x" * 5000, "max_tokens": 1})
        assert (long.status_code, long.headers["connection"]) == (413, "close")

        async def pieces() -> AsyncIterator[bytes]:
            for _ in range(50):
                yield b" " * 1024

        assert await refused(client.post("/v1/completions", content=pieces())) in (413, None)
        for headers in ([("x-long", "y" * 4000)], [(f"x-{at}", "y" * 50) for at in range(60)]):
            assert await refused(client.get("/v1/models", headers=headers)) in (431, None)
        assert (await client.get("/v1/models")).status_code == 200


async def refused(answer: Awaitable[httpx.Response]) -> int | None:
    """The status; None where the connection was closed before the client had read it."""
    try:
        return (await answer).status_code
    except httpx.TransportError:
        return None

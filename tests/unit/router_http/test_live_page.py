"""The live page over real sockets: the key and its cookie, the stream of pictures, and who is kept out."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from importlib import resources

import httpx
import pytest
from starlette.applications import Starlette

from services.router.front.ui import page
from services.router.front.ui.feed import BYE, Feed
from services.router.front.ui.page import FILES, LivePage, live_routes
from services.router.front.ui.session import LASTS, Sessions
from shared.runtime.web import WebServer

KEY = "an admin's key"


class Clock:
    """The wall clock, as a test sets it."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Open:
    """A served page."""

    client: httpx.AsyncClient
    feed: Feed
    clock: Clock
    pictures: list[bytes] = field(default_factory=lambda: [b'{"n":1}'])

    async def enter(self, key: str = KEY, **more: object) -> httpx.Response:
        return await self.client.post("/ui/session", json={"key": key}, **more)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def opened(*, every: float = 0.02, most_viewers: int = 2) -> AsyncIterator[Open]:
    pictures = [b'{"n":1}']
    feed = Feed(lambda: pictures[-1], every=every, most_viewers=most_viewers)
    clock = Clock()
    app = Starlette(routes=LivePage(Sessions(KEY, "router-0", clock, lambda _: 7), feed).routes())
    server = WebServer(app, "127.0.0.1", 0, drain=1)
    port = await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10) as client:
        try:
            yield Open(client, feed, clock, pictures)
        finally:
            feed.close()
            await server.stop()
    assert feed.viewers == 0


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if condition():
                return
            await asyncio.sleep(0.005)


# --- files ------------------------------------------------------------------------------------------------


async def test_the_files_are_whole_and_take_nothing_from_elsewhere() -> None:
    async with opened() as at:
        for path in ("/ui", *(f"/ui/{name}" for name in FILES)):
            answer = await at.client.get(path)
            assert answer.status_code == 200
            assert answer.headers["content-security-policy"].startswith(
                "default-src 'none'; script-src 'self'"
            )
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
        assert (await at.client.get("/ui/")).headers["location"] == "../ui"
        assert (await at.client.get("/ui/other.js")).status_code == 404
        assert (await at.client.get("/ui/..%2fpage.py")).status_code == 404


def test_every_file_is_served_and_names_only_its_neighbours() -> None:
    folder = resources.files("services.router.front.ui") / "static"
    texts = {one.name: one.read_text(encoding="utf-8") for one in folder.iterdir()}
    assert set(texts) == set(FILES)
    for name, text in texts.items():
        outside = text.replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in outside, name
        assert "https:" not in outside, name
        assert "innerHTML" not in text, name
        assert "style=" not in text, name
        assert len(text.splitlines()) < 300, name


# --- the way in -------------------------------------------------------------------------------------------


async def test_the_key_is_answered_with_a_cookie_that_scripts_and_other_sites_cannot_use() -> None:
    async with opened() as at:
        answer = await at.enter()
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert f"Max-Age={LASTS}" in cookie
        assert "Path" not in cookie, "the browser's default: below /ui, also behind a proxy's prefix"
        assert KEY not in cookie
        async with at.client.stream("GET", "/ui/events") as stream:
            assert stream.status_code == 200
            assert stream.headers["content-type"].startswith("text/event-stream")


async def test_a_wrong_key_is_refused_and_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "WRONG_KEY_WAIT", 0.05)
    async with opened() as at:
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await at.enter("another key")
        assert answer.status_code == 401
        assert loop.time() - began >= 0.05
        assert "http.admin_key_file" in answer.json()["error"]["message"]
        assert "set-cookie" not in answer.headers
        assert (await at.client.get("/ui/events")).status_code == 401


async def test_many_wrong_keys_at_once_are_turned_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "WRONG_KEY_WAIT", 0.2)
    async with opened() as at:
        answers = await asyncio.gather(*(at.enter("wrong") for _ in range(page.MOST_WAITING + 4)))
        assert sorted({answer.status_code for answer in answers}) == [401, 429]
        assert (await at.enter()).status_code == 200


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"content": b'{"key": "x"}', "headers": {"content-type": "text/plain"}}, 415),
        ({"data": {"key": KEY}}, 415),
        ({"json": {"key": 1}}, 400),
        ({"json": {"key": KEY, "more": 1}}, 400),
        ({"content": b"\xff", "headers": {"content-type": "application/json"}}, 400),
        ({"json": {"key": "x" * 2000}}, 400),
        ({"json": {"key": "x" * 5000}}, 413),
        ({"json": {"key": KEY}, "headers": {"sec-fetch-site": "cross-site"}}, 401),
    ],
)
async def test_what_is_no_key_is_refused(sent: dict[str, object], status: int) -> None:
    async with opened() as at:
        answer = await at.client.post("/ui/session", **sent)  # type: ignore[arg-type]
        assert answer.status_code == status
        assert "set-cookie" not in answer.headers


async def test_other_sites_cannot_watch() -> None:
    async with opened() as at:
        await at.enter()
        answer = await at.client.get("/ui/events", headers={"sec-fetch-site": "same-site"})
        assert answer.status_code == 401


async def test_who_signs_out_watches_no_more() -> None:
    async with opened() as at:
        await at.enter()
        await at.client.delete("/ui/session")
        assert (await at.client.get("/ui/events")).status_code == 401


async def test_tools_may_send_the_key_as_a_bearer_token() -> None:
    async with opened() as at:
        headers = {"authorization": f"Bearer {KEY}"}
        async with at.client.stream("GET", "/ui/events", headers=headers) as stream:
            assert stream.status_code == 200
        headers = {"authorization": "Bearer other"}
        assert (await at.client.get("/ui/events", headers=headers)).status_code == 401


def test_a_cookie_holds_for_its_time_at_its_router_and_its_key() -> None:
    clock = Clock()
    sessions = Sessions(KEY, "router-0", clock, lambda _: 7)
    cookie = sessions.make()
    assert sessions.left(cookie) == LASTS
    clock.now += LASTS - 1
    assert sessions.left(cookie) == 1
    assert Sessions(KEY, "router-0", clock, lambda _: 8).left(cookie) == 1, "its next life knows it"
    assert Sessions(KEY, "router-1", clock, lambda _: 7).left(cookie) == 0
    assert Sessions("another", "router-0", clock, lambda _: 7).left(cookie) == 0
    clock.now += 1
    assert sessions.left(cookie) == 0


@pytest.mark.parametrize("cookie", ["", ".", "..", "9999999999.00.00", "x.y.z", "9" * 500, "é.è.ê"])
def test_a_cookie_that_was_not_made_here_is_nothing(cookie: str) -> None:
    assert Sessions(KEY, "router-0", Clock(), lambda _: 7).left(cookie) == 0


async def test_without_an_admin_key_the_page_says_why_it_is_off() -> None:
    server = WebServer(Starlette(routes=live_routes(Feed(lambda: b"{}"), "", "r")), "127.0.0.1", 0, drain=1)
    port = await server.start()
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:
        answer = await client.get("/ui")
    await server.stop()
    assert answer.status_code == 404
    assert "http.admin_key_file" in answer.text


# --- the stream -------------------------------------------------------------------------------------------


async def read(lines: AsyncIterator[str]) -> dict[str, int]:
    async for line in lines:
        if line.startswith("data: "):
            found: dict[str, int] = json.loads(line.removeprefix("data: "))
            return found
    raise AssertionError("the stream has ended")


async def test_pictures_come_one_a_tick_and_are_made_once_for_all() -> None:
    async with opened(every=0.1) as at:
        await at.enter()
        async with at.client.stream("GET", "/ui/events") as one, at.client.stream("GET", "/ui/events") as two:
            lines, others = one.aiter_lines(), two.aiter_lines()
            for number in range(2, 6):
                at.pictures.append(json.dumps({"n": number}).encode())
                await read(lines)
                await read(others)
            assert at.feed.viewers == 2
            assert at.feed.made <= 6, "not one per viewer"
        await until(lambda: at.feed.viewers == 0)


async def test_one_viewer_too_many_is_turned_away_until_one_leaves() -> None:
    async with opened(most_viewers=1) as at:
        await at.enter()
        async with at.client.stream("GET", "/ui/events") as first:
            assert first.status_code == 200
            answer = await at.client.get("/ui/events")
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "5"
            assert "1 viewers watch" in answer.json()["error"]["message"]
        await until(lambda: at.feed.viewers == 0)
        async with at.client.stream("GET", "/ui/events") as second:
            assert second.status_code == 200


async def test_nobody_watches_nothing_is_made() -> None:
    async with opened() as at:
        await asyncio.sleep(0.1)
        assert at.feed.made == 0


async def test_a_router_that_stops_ends_the_streams() -> None:
    async with opened() as at:
        await at.enter()
        async with at.client.stream("GET", "/ui/events") as stream:
            chunks = stream.aiter_bytes()
            assert (await anext(chunks)).startswith(b"event: picture\ndata: ")
            at.feed.close()
            rest = b"".join([chunk async for chunk in chunks])
            assert rest.endswith(BYE)


async def test_a_stream_ends_with_its_session() -> None:
    async with opened() as at:
        await at.enter()
        at.clock.now += LASTS - 0.1
        async with at.client.stream("GET", "/ui/events") as stream:
            rest = b"".join([chunk async for chunk in stream.aiter_bytes()])
            assert rest.endswith(BYE)
        at.clock.now += 1
        assert (await at.client.get("/ui/events")).status_code == 401


async def test_a_viewer_that_reads_nothing_holds_one_picture_and_no_more() -> None:
    big = b'{"x":"' + b"x" * 200_000 + b'"}'
    async with opened(every=0.01) as at:
        at.pictures.append(big)
        await at.enter()
        port = at.client.base_url.port
        cookie = "; ".join(f"{name}={value}" for name, value in at.client.cookies.items())
        _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(f"GET /ui/events HTTP/1.1\r\nhost: x\r\ncookie: {cookie}\r\n\r\n".encode())
        await until(lambda: at.feed.viewers == 1)
        made = -1
        while made != at.feed.made:  # until its socket takes no more: then nothing is made for it
            made = at.feed.made
            await asyncio.sleep(0.3)
        assert made * len(big) < 16 << 20
        async with at.client.stream("GET", "/ui/events") as other:
            assert len(await read(other.aiter_lines())) == 1, "others go on"
        writer.close()
        await until(lambda: at.feed.viewers == 0)

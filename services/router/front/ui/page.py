"""The live page at /ui: its files, the way in with the admin key, and the stream of pictures.

The files hold no data, and everybody may read them. The key comes in the body of one request, never in an
address, and is answered with a cookie that scripts cannot read and other sites cannot send.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from services.router.front.delivery import error_response, json_response
from services.router.front.intake import read_body
from services.router.front.ui.feed import Feed, Watching
from services.router.front.ui.session import LASTS, Sessions
from shared.errors import BadKey, InvalidRequest, MeshError, Overloaded, UnsupportedBody

FILES = {
    "index.html": "text/html",
    "page.css": "text/css",
    "page.js": "text/javascript",
    "stream.js": "text/javascript",
    "numbers.js": "text/javascript",
    "requests.js": "text/javascript",
    "overview.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}
MOST_BODY = 4096
BODY_SECONDS = 10.0
WRONG_KEY_WAIT = 0.5
"""Seconds until a wrong key is answered."""

MOST_WAITING = 16
"""Wrong keys that wait for their answer at the same time."""


class KeyAsk(msgspec.Struct, forbid_unknown_fields=True):
    """Body of the way in."""

    key: Annotated[str, msgspec.Meta(max_length=1024)]


def live_routes(feed: Feed, key: str, node: str) -> list[Route]:
    """The routes of a router's page; without an admin key they only say so."""
    if not key:
        return [Route("/ui", _closed)]
    return LivePage(Sessions(key, node, time.time, secrets.randbits), feed).routes()


async def _closed(_request: Request) -> Response:
    said = "The live page is off: name a file with a key as http.admin_key_file in the mesh file.\n"
    return Response(said, 404, HEADERS, "text/plain")


class LivePage:
    """Routes of the page."""

    def __init__(self, sessions: Sessions, feed: Feed) -> None:
        self.feed = feed
        self._sessions = sessions
        self._waiting = 0
        folder = resources.files("services.router.front.ui") / "static"
        self._files = {name: (folder / name).read_bytes() for name in FILES}

    def routes(self) -> list[Route]:
        """All of them."""
        return [
            Route("/ui", self._index),
            Route("/ui/", self._to_index),
            Route("/ui/session", self._guarded(self._enter), methods=["POST"]),
            Route("/ui/session", self._guarded(self._leave), methods=["DELETE"]),
            Route("/ui/events", self._guarded(self._watch)),
            Route("/ui/{name}", self._file),
        ]

    async def _index(self, _request: Request) -> Response:
        return self._show("index.html")

    async def _to_index(self, _request: Request) -> Response:
        return RedirectResponse("../ui", headers=HEADERS)

    async def _file(self, request: Request) -> Response:
        return self._show(str(request.path_params["name"]))

    def _show(self, name: str) -> Response:
        if name not in self._files:
            return Response("no such file", 404, HEADERS, "text/plain")
        return Response(self._files[name], 200, HEADERS, FILES[name])

    def _guarded(self, act: Callable[[Request], Awaitable[Response]]) -> Callable[..., Awaitable[Response]]:
        """With errors in their shape; what other sites ask for is refused."""

        async def answer(request: Request) -> Response:
            try:
                if request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
                    raise BadKey("the live page answers only itself; open /ui at this router")
                return await act(request)
            except MeshError as error:
                return error_response(error, HEADERS)

        return answer

    async def _enter(self, request: Request) -> Response:
        """The key for a cookie."""
        if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
            raise UnsupportedBody('the key comes as JSON: {"key": "..."}')
        body = await read_body(request, MOST_BODY, BODY_SECONDS)
        try:
            ask = msgspec.json.decode(body, type=KeyAsk)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f'the key comes as {{"key": "..."}}: {error}') from error
        if not self._sessions.opens(ask.key.strip()):
            await self._hold()
            raise BadKey("this is not the admin key; it is in the file that http.admin_key_file names")
        answer = json_response({"ok": True}, HEADERS)
        answer.set_cookie(
            self._sessions.name,
            self._sessions.make(),
            max_age=LASTS,
            path=None,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return answer

    async def _hold(self) -> None:
        """Let a wrong key wait, so that nobody tries many."""
        if self._waiting >= MOST_WAITING:
            raise Overloaded("too many wrong keys at once; try again in a moment", 1.0)
        self._waiting += 1
        try:
            await asyncio.sleep(WRONG_KEY_WAIT)
        finally:
            self._waiting -= 1

    async def _leave(self, _request: Request) -> Response:
        """Forget the cookie."""
        answer = json_response({"ok": True}, HEADERS)
        answer.set_cookie(self._sessions.name, "", max_age=0, path=None, httponly=True, samesite="strict")
        return answer

    async def _watch(self, request: Request) -> Response:
        """The stream, with the cookie or (for tools) the key as a bearer token."""
        left = self._sessions.left(request.cookies.get(self._sessions.name, ""))
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if not left and scheme.lower() == "bearer" and self._sessions.opens(key.strip()):
            left = LASTS
        if not left:
            raise BadKey("the live page needs the admin key")
        if self.feed.full:
            most = self.feed.most_viewers
            raise Overloaded(f"{most} viewers watch this router, the most that may; close one", 5.0)
        return Watching(self.feed, left, HEADERS | {"x-accel-buffering": "no"})

"""What a request says beside its JSON: headers and the body's bytes, read within limits. Knows no
endpoint."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.requests import Request

from services.router.front.keys import Keys, Tenant
from shared.errors import BodyTimeout, BodyTooLarge, InvalidRequest, UnsupportedBody
from shared.runtime.tracing import parse

_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,256}")
WITHOUT = frozenset({"relay", "singular", "local", "splice"})
"""What the header `X-PDD-Without` may switch off for one request."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request's headers, checked."""

    tenant: Tenant
    echo_id: str
    """The client's X-Request-Id, only ever echoed and logged; our own where it sent none that can be."""
    trace: bool
    """X-PDD-Trace: 1 - the answer tells how it was made."""
    without: frozenset[str]
    timeout: float
    """X-Request-Timeout in seconds; 0: none."""
    parent: str
    """W3C trace context (`traceparent`) of what is done for this request; "" for none."""
    started: float
    """The loop's clock when the request came."""
    client: str = ""
    """The client's own `traceparent`, where this router records traces and `parent` names its own span."""

    def deadline(self, field: float | None) -> float:
        """Seconds the request may take: the smaller of header and body field; 0: the policy's default."""
        given = [value for value in (self.timeout, field or 0.0) if value]
        return min(given, default=0.0)


def echo_id(request: Request, fresh: str) -> str:
    """The client's X-Request-Id where it can be echoed (up to 256 visible ASCII characters), else `fresh`."""
    given = request.headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else fresh


def read_call(
    request: Request,
    keys: Keys,
    *,
    name: str,
    now: float,
    begin: Callable[[str], str] | None = None,
) -> Call:
    """Check the headers. Raises BadKey, InvalidRequest. `begin` makes a span of its own for the request,
    under the client's where there is one."""
    headers = request.headers
    tenant = keys.tenant(_key(headers))
    parent = headers.get("traceparent", "")
    if parse(parent) is None:
        parent = ""
    return Call(
        tenant=tenant,
        echo_id=name,
        trace=headers.get("x-pdd-trace", "") == "1",
        without=_without(headers.get("x-pdd-without", "")),
        timeout=_timeout(headers.get("x-request-timeout")),
        parent=begin(parent) if begin is not None else parent,
        started=now,
        client=parent if begin is not None else "",
    )


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """The whole body. Raises BodyTooLarge, BodyTimeout, UnsupportedBody; starlette's ClientDisconnect."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise UnsupportedBody(f"content-encoding: {encoding!r} is not read here; send the body as it is")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > most:
        raise BodyTooLarge(f"the body has {length[:20]} bytes; at most {most} are read")
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise BodyTooLarge(f"the body has more than {most} bytes; send a smaller one")
                parts.append(part)
    except TimeoutError as error:
        raise BodyTimeout(f"the body did not come within {seconds:g} s; send it without pauses") from error
    return b"".join(parts)


def _key(headers: Headers) -> str | None:
    """The Authorization header; else the key that Anthropic's clients send by itself."""
    alone = headers.get("x-api-key")
    return headers.get("authorization") or (f"Bearer {alone}" if alone else None)


def _without(value: str) -> frozenset[str]:
    names = frozenset(part.strip().lower() for part in value.split(",") if part.strip())
    unknown = names - WITHOUT
    if unknown:
        raise InvalidRequest(
            f"X-PDD-Without: {', '.join(sorted(unknown))} cannot be switched off; known are "
            f"{', '.join(sorted(WITHOUT))}",
            "X-PDD-Without",
        )
    return names


def _timeout(value: str | None) -> float:
    if value is None:
        return 0.0
    try:
        seconds = float(value)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds <= 86400:
        raise InvalidRequest(
            f"X-Request-Timeout: {value[:80]!r} is no number of seconds above 0 and up to 86400",
            "X-Request-Timeout",
        )
    return seconds

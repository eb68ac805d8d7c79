"""Errors as clients see them: OpenAI's shape, status and headers of each class. The one place that maps
them."""

from __future__ import annotations

import math
from typing import Any

from shared.errors import ApiError, MeshError, Overloaded

_TYPES = {401: "authentication_error", 429: "rate_limit_error", 501: "not_implemented_error"}

_MESSAGES_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    501: "not_implemented_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def status_of(error: MeshError) -> int:
    """HTTP status; anything a client has no part in is 500."""
    return error.status if isinstance(error, ApiError) else 500


def body_of(error: MeshError) -> dict[str, Any]:
    """`{"error": {message, type, param, code}}`."""
    param = error.param if isinstance(error, ApiError) else None
    return error_body(str(error), status_of(error), error.code, param)


def error_body(message: str, status: int, code: str, param: str | None = None) -> dict[str, Any]:
    """The same for an error that has no class."""
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def messages_body_of(error: MeshError) -> dict[str, Any]:
    """The same in Anthropic's shape: `{"type": "error", "error": {type, message}}`."""
    return messages_error(str(error), status_of(error))


def messages_error(message: str, status: int) -> dict[str, Any]:
    """The same for an error that has no class."""
    kind = _MESSAGES_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


def headers_of(error: MeshError) -> dict[str, str]:
    """Retry-After where a retry may help, and OpenAI's word to its own client where none does."""
    if isinstance(error, Overloaded):
        return {"retry-after": str(max(1, math.ceil(error.retry_after)))}
    if status_of(error) in (408, 413):
        return {"connection": "close"}  # the rest of the body is not read
    if status_of(error) == 501:
        return {"x-should-retry": "false"}
    if status_of(error) == 401:
        return {"www-authenticate": "Bearer"}
    return {}

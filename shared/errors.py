"""The one tree of errors. Each class carries the code that travels on the wire and in HTTP bodies.

`Local` is our bug or our limit, `Remote` is what a peer or a client did. The edges (HTTP, connection,
engine thread) map a class to a status once; nothing else looks at codes.
"""

from __future__ import annotations

from typing import ClassVar


class MeshError(Exception):
    """Root of all errors of the project. The message names what was wrong, the value, and what to do."""

    code: ClassVar[str] = "internal"


class Local(MeshError):
    """A fault or a limit on this side."""

    code: ClassVar[str] = "local"


class Remote(MeshError):
    """A peer or a client sent something that cannot be accepted."""

    code: ClassVar[str] = "remote"


# --- local --------------------------------------------------------------------------------------------------


class ConfigError(Local):
    """A configuration value is impossible; `path` is the key's dotted path."""

    code: ClassVar[str] = "config"

    def __init__(self, path: str, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


class StartFailed(Local):
    """A node of the mesh did not come up: names it and shows the end of its log."""

    code: ClassVar[str] = "start_failed"


class NotAnswered(Local):
    """A running process could not be asked how it is: names it, what went wrong and what to do."""

    code: ClassVar[str] = "not_answered"


class InvariantBroken(Local):
    """State that cannot be: a bug here. Never caught to go on."""

    code: ClassVar[str] = "invariant"


class OutOfBlocks(Local):
    """The pool has no free block and none that may be evicted."""

    code: ClassVar[str] = "out_of_blocks"


class Overflow(Local):
    """More waits for a peer than may be kept: its session ends."""

    code: ClassVar[str] = "overflow"


class SessionOver(Local):
    """A session cannot go on with what the other side has received."""

    code: ClassVar[str] = "session_over"


class ModelError(Local):
    """A model directory cannot be served: names the file and the key or tensor."""

    code: ClassVar[str] = "model"


class BuildError(Local):
    """The engine's C++ half could not be compiled: names the compiler and what it said."""

    code: ClassVar[str] = "build"


class DeviceLost(Local):
    """A GPU failed as a whole: this process computes nothing more, and ends so that it is started again."""

    code: ClassVar[str] = "device_lost"


class NanLogits(Local):
    """The forward gave no finite score for a sequence; its request fails, the engine lives."""

    code: ClassVar[str] = "nan"


# --- remote: peers ------------------------------------------------------------------------------------------


class ProtocolError(Remote):
    """The bytes of a connection cannot be understood: the connection ends, the process does not."""

    code: ClassVar[str] = "protocol"


class BadMagic(ProtocolError):
    code: ClassVar[str] = "bad_magic"


class BadVersion(ProtocolError):
    code: ClassVar[str] = "bad_version"


class UnknownKind(ProtocolError):
    code: ClassVar[str] = "unknown_kind"


class FrameTooLarge(ProtocolError):
    code: ClassVar[str] = "frame_too_large"


class BadHeader(ProtocolError):
    """The msgpack header of a frame does not decode to a known message."""

    code: ClassVar[str] = "bad_header"


class UnexpectedMessage(ProtocolError):
    """A known message in a state that does not allow it."""

    code: ClassVar[str] = "unexpected_message"


class SequenceGap(ProtocolError):
    """A control frame's number is not the next one."""

    code: ClassVar[str] = "sequence_gap"


class Rejected(Remote):
    """The handshake was refused: names the field, both values and what to do."""

    code: ClassVar[str] = "rejected"

    def __init__(self, field: str, ours: str, theirs: str, advice: str) -> None:
        super().__init__(f"{field} differs: ours {ours}, theirs {theirs}; {advice}")
        self.field = field
        self.ours = ours
        self.theirs = theirs
        self.advice = advice


class Unauthenticated(Remote):
    """A peer or client without the right key."""

    code: ClassVar[str] = "unauthenticated"


class Divergence(Remote):
    """A run overlaps the log with other ids (I1)."""

    code: ClassVar[str] = "divergence"


class BadChunk(Remote):
    """A KV chunk outside its block, of an unknown group, or with a wrong checksum."""

    code: ClassVar[str] = "bad_chunk"


# --- remote: clients ----------------------------------------------------------------------------------------


class ApiError(Remote):
    """An error a client sees: OpenAI-shaped body with `param` and `code`."""

    code: ClassVar[str] = "invalid_request_error"
    status: ClassVar[int] = 400

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class InvalidRequest(ApiError):
    code: ClassVar[str] = "invalid_request_error"
    status: ClassVar[int] = 400


class ContextTooLong(InvalidRequest):
    """Prompt and answer together are more than the model's context."""

    code: ClassVar[str] = "context_length_exceeded"


class BadGrammar(InvalidRequest):
    """A grammar that cannot be compiled, or not be followed within its limits."""


class BodyTooLarge(InvalidRequest):
    """A request's body or headers have more bytes than are read."""

    code: ClassVar[str] = "too_large"
    status: ClassVar[int] = 413


class BodyTimeout(InvalidRequest):
    """A request's body did not come in time."""

    code: ClassVar[str] = "body_timeout"
    status: ClassVar[int] = 408


class UnsupportedBody(InvalidRequest):
    """A request's body comes in an encoding that is not read."""

    code: ClassVar[str] = "unsupported_body"
    status: ClassVar[int] = 415


class BadKey(ApiError):
    code: ClassVar[str] = "invalid_api_key"
    status: ClassVar[int] = 401


class UnknownModel(ApiError):
    code: ClassVar[str] = "model_not_found"
    status: ClassVar[int] = 404


class UnknownResponse(ApiError):
    """An answer that a client names and that is not kept here (any more)."""

    code: ClassVar[str] = "response_not_found"
    status: ClassVar[int] = 404


class UnknownWorker(ApiError):
    """A node that an operator names and that has not joined."""

    code: ClassVar[str] = "worker_not_found"
    status: ClassVar[int] = 404


class NotBuilt(ApiError):
    """A parameter or endpoint this service knows of and does not serve."""

    code: ClassVar[str] = "not_implemented"
    status: ClassVar[int] = 501


class Overloaded(ApiError):
    """Shed load (I8): carries Retry-After in seconds."""

    code: ClassVar[str] = "overloaded"
    status: ClassVar[int] = 429

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Unavailable(Overloaded):
    """No pipeline is possible now: carries Retry-After in seconds."""

    code: ClassVar[str] = "unavailable"
    status: ClassVar[int] = 503


class DeadlineExceeded(ApiError):
    code: ClassVar[str] = "deadline_exceeded"
    status: ClassVar[int] = 504


class RequestFailed(ApiError):
    """A request was accepted and could not be finished: names the worker's reason."""

    code: ClassVar[str] = "request_failed"
    status: ClassVar[int] = 500

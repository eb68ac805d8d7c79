"""What crosses between the HTTP side and the router core: a request going in, its events coming out.

Knows nothing of sockets, JSON, text or workers. Ids are token ids; positions are absolute (the prompt first).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.errors import MeshError
from shared.wire.messages import FinishReason, Role, Sampling, TokenLogprob


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One choice of one client request, tokenized. For n choices submit n requests with `sampling.choice` 0
    .. n - 1.
    """

    ids: list[int]
    """The prompt's ids, at least one. The core keeps this list and does not change it."""
    sampling: Sampling
    """`max_pos` is absolute: len(ids) + max_tokens. The seed is set (the HTTP side draws one when the
    client gives none).
    """
    salt: bytes = b""
    """The tenant's cache salt: prompts of different salts share no block."""
    priority: int = 0
    """Lower is served first."""
    deadline: float = 0.0
    """Seconds from submit after which the request ends with DeadlineExceeded; 0: the policy's default."""
    tenant: str = ""
    """Whose request it is: for fairness and for the prediction of output length."""
    session: bytes = b""
    """Hash of the system prompt or conversation: for prediction and stickiness; b"" for none."""
    relay_allowed: bool = True
    """Whether a relay may cover the transfer."""
    singular_allowed: bool = True
    """Whether the request may finish at a relay (very long uncached input, very short output)."""
    local_allowed: bool = True
    """Whether main decode may extend over the missing tokens by itself (pipeline MD) while a prefill worker
    exists.
    """
    model: str = ""
    """Served name of the model; "" where any will do."""
    trace: str = ""
    """Opaque trace context that travels in the messages."""
    scores: int = -1
    """How many best ids are wanted beside each id of the prompt, with log-probabilities; -1: none are. Only
    prefill gives them: such a request allows no relay and nothing local."""

    @property
    def kind(self) -> str:
        """Whose answers, of which model, tell how long this one may get."""
        return f"{self.model}\n{self.tenant}"


@dataclass(frozen=True, slots=True)
class Tokens:
    """Ids that were appended to the log: each position comes exactly once, in order (I1)."""

    start: int  # absolute position of ids[0]
    ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None  # as long as ids where asked for
    owner: Role  # who drew them
    prompt: tuple[TokenLogprob, ...] | None = None  # with the first: of the prompt's ids, where asked for


@dataclass(frozen=True, slots=True)
class Done:
    """The request ended normally; nothing follows. Stop id included in the log, `at` is the log's final
    length.

    After `stop_at` the reason is STOP and `at` what was given, which may lie before ids that were already
    shown as Tokens: text after it is the caller's to drop.
    """

    reason: FinishReason
    at: int
    cached_tokens: int  # prompt tokens whose KV nobody had to compute for this request
    trace: Mapping[str, Any] = field(default_factory=dict)  # what X-PDD-Trace shows, JSON-ready


@dataclass(frozen=True, slots=True)
class Broken:
    """The request ended without being finished; nothing follows. The error is an ApiError where a client
    may see it.
    """

    error: MeshError


RequestEvent = Tokens | Done | Broken

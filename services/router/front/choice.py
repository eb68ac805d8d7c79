"""One choice of an answer: the core's events in, pieces of text and token records out. Pure; knows nothing of
HTTP.

Ids are turned into text one by one, so that the end at a stop string does not depend on how ids came in runs.
The id that ends a choice (a stop id, or the one that completes a stop string) counts as generated; a stop id
has no text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from services.router.front.detokenizer import Detokenizer
from services.router.front.reading.pieces import Piece, PlainReader, Reader, Said, ToolCall, joined
from services.router.front.stops import StopStrings
from services.router.requests import Broken, Done, RequestEvent, Tokens
from shared.errors import MeshError, RequestFailed
from shared.wire.messages import FinishReason, Role, TokenLogprob


@dataclass(frozen=True, slots=True)
class Drawn:
    """One generated id as the client is told of it: id and log-probability come from one record."""

    id: int
    logprob: TokenLogprob | None
    offset: int  # characters of the choice's text before it


@dataclass(slots=True)
class Delta:
    """What a choice has gained since the last one."""

    index: int
    pieces: list[Piece] = field(default_factory=list)
    drawn: list[Drawn] = field(default_factory=list)
    finish: FinishReason | None = None
    stop: int | str | None = None  # the stop id (not an eos) or stop string that ended it
    owner: Role | None = None  # who drew the last of its ids

    @property
    def text(self) -> str:
        """Its words, without thoughts and calls."""
        return "".join(piece.text for piece in self.pieces if isinstance(piece, Said))


@dataclass(frozen=True, slots=True)
class ChoiceRules:
    """How one request's ids become text."""

    prompt_len: int
    stop_ids: frozenset[int] = frozenset()
    """Ids that end the answer; their text is not shown unless `include_stop`."""
    eos_ids: frozenset[int] = frozenset()
    """Those of `stop_ids` that are the model's own end."""
    stops: Sequence[str] = ()
    min_tokens: int = 0
    """A stop string that completes within the first `min_tokens` ids is plain text."""
    include_stop: bool = False
    one_call: bool = False
    """The answer ends after its first call."""
    scores: bool = False
    """Log-probabilities of the prompt come with the first ids."""


class Choice:
    """State of one choice."""

    def __init__(
        self, index: int, rules: ChoiceRules, detokenizer: Detokenizer, reader: Reader | None = None
    ) -> None:
        self.index = index
        self.rules = rules
        self.ids: list[int] = []
        """Generated ids, the one that ended the choice included, none after it."""
        self.finish: FinishReason | None = None
        self.failure: MeshError | None = None
        self.cached_tokens = 0
        self.trace: dict[str, Any] = {}
        self.prompt: tuple[TokenLogprob, ...] | None = None
        """Of the prompt's ids but the first, where they were asked for."""
        self.stop_at: int | None = None
        """Absolute log length at which a stop string, or the one call that may be, was complete."""
        self.calls = 0
        """Calls that were read."""
        self.thought_ids = 0
        """Generated ids of thoughts, the marks around them included."""
        self._reader = reader or PlainReader()
        self._detokenizer = detokenizer
        self._stops = StopStrings(rules.stops, include=rules.include_stop)
        self._characters = 0
        self._stop: int | str | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing follows."""
        return self.finish is not None or self.failure is not None

    def absorb(self, events: Sequence[RequestEvent]) -> Delta | None:
        """Take events in order; what the client should see of them, or None. After it, see `stop_at`,
        `failure`."""
        delta = Delta(self.index)
        for event in events:
            if self.ended:
                break
            if isinstance(event, Tokens):
                self._take(event, delta)
            elif isinstance(event, Done):
                self._end(event, delta)
            elif self.stop_at is not None:
                self._finish(FinishReason.STOP, delta)  # the answer was whole before the failure
            else:
                self._fail(event)
        return delta if delta.pieces or delta.drawn or delta.finish else None

    def _take(self, event: Tokens, delta: Delta) -> None:
        delta.owner = event.owner
        if self.rules.scores and not self.ids:
            self.prompt = event.prompt
            if event.prompt is None or len(event.prompt) != self.rules.prompt_len - 1:
                self.failure = RequestFailed("the log-probabilities of the prompt did not come; ask again")
                return
        for at, token in enumerate(event.ids):
            if self._stop is not None or self.stop_at is not None:
                break
            self.ids.append(token)
            logprob = event.logprobs[at] if event.logprobs is not None else None
            delta.drawn.append(Drawn(token, logprob, self._characters))
            self._read(self._show(token), delta)

    def _read(self, text: str, delta: Delta) -> None:
        """Have the text of one more id read."""
        before = self._reader.thinking
        if text:
            self._put(self._reader.add(text), delta)
        self.thought_ids += before or self._reader.thinking

    def _put(self, pieces: Sequence[Piece], delta: Delta) -> None:
        for piece in pieces:
            if isinstance(piece, ToolCall):
                if self.calls and self.rules.one_call:
                    continue
                self.calls += 1
                if self.rules.one_call and self.stop_at is None and self.finish is None:
                    self.stop_at = self.rules.prompt_len + len(self.ids)
            elif self.calls and self.rules.one_call:
                continue
            joined(delta.pieces, piece)

    def _show(self, token: int) -> str:
        """Text to show after one more id."""
        rules = self.rules
        if token in rules.stop_ids:
            self._stop = token
            if not rules.include_stop:
                return ""
        text = self._detokenizer.add(token)
        self._characters += len(text)
        shown = self._stops.add(text, armed=len(self.ids) > rules.min_tokens)
        if self._stops.found is not None:
            self._stop = self._stops.found
            self.stop_at = rules.prompt_len + len(self.ids)
        return shown

    def _end(self, event: Done, delta: Delta) -> None:
        self.cached_tokens = event.cached_tokens
        self.trace = dict(event.trace)
        self._finish(FinishReason.STOP if self.stop_at is not None else event.reason, delta)

    def _finish(self, reason: FinishReason, delta: Delta) -> None:
        self.finish = delta.finish = reason
        if self.stop_at is None:
            rest = self._stops.add(self._detokenizer.end(), armed=False) + self._stops.end()
            self._put(self._reader.add(rest) if rest else [], delta)
        self._put(self._reader.end(), delta)
        delta.stop = None if self._stop in self.rules.eos_ids else self._stop

    def _fail(self, event: Broken) -> None:
        self.failure = event.error

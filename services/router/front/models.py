"""The models that are served: which of them a request means, and what is told of them. Each has a tokenizer,
prompts and endpoints of its own; nothing of one is seen by another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.responses import Response

from services.router.front.chats import Chats
from services.router.front.delivery import json_response
from services.router.front.endpoints import Endpoints
from services.router.front.intake import Call
from services.router.front.messages.endpoint import MessagesEndpoint
from services.router.front.replies import ModelCard, ModelList
from services.router.front.responses.endpoint import ResponsesEndpoint
from services.router.front.runs import Runs, headers_for
from services.router.front.tokens import Tokenizer
from shared.errors import InvalidRequest, UnknownModel


@dataclass(frozen=True, kw_only=True)
class Served:
    """One model, as whoever starts the front names it."""

    name: str
    """What clients call it."""
    tokenizer: Tokenizer
    max_context: Callable[[], int]
    """Tokens of prompt and answer together; 0: no worker is known, the model's own limit holds."""
    fingerprint: Callable[[], str] = lambda: ""
    """What runs under the name now, shown as system_fingerprint; empty: not known."""


@dataclass(frozen=True, kw_only=True)
class Model:
    """One model with its endpoints."""

    runs: Runs
    chats: Chats
    endpoints: Endpoints
    messages: MessagesEndpoint
    responses: ResponsesEndpoint

    @property
    def name(self) -> str:
        return self.runs.model


class Models:
    """All of them, in the order in which they are listed."""

    def __init__(self, models: Iterable[Model]) -> None:
        self._by_name = {model.name: model for model in models}

    def of(self, name: str | None) -> Model:
        """What a request's `model` means; it may be left out where there is one. Raises UnknownModel,
        InvalidRequest."""
        if name is None:
            if len(self._by_name) > 1:
                raise InvalidRequest(f"model: required here; {self._known()} are served", "model")
            return self.first
        found = self._by_name.get(name)
        if found is None:
            are = "is" if len(self._by_name) == 1 else "are"
            raise UnknownModel(f"model: {name[:200]!r} is not served here; {self._known()} {are}", "model")
        return found

    @property
    def names(self) -> list[str]:
        return list(self._by_name)

    @property
    def first(self) -> Model:
        return next(iter(self._by_name.values()))

    def listed(self, call: Call, _name: str) -> Response:
        """GET /v1/models."""
        cards = [_card(model) for model in self._by_name.values()]
        return json_response(ModelList(data=cards), headers_for(call))

    def card(self, call: Call, name: str) -> Response:
        """GET /v1/models/NAME."""
        return json_response(_card(self.of(name)), headers_for(call))

    def _known(self) -> str:
        return ", ".join(map(repr, self._by_name))


def _card(model: Model) -> ModelCard:
    runs = model.runs
    return ModelCard(id=runs.model, created=runs.started, max_model_len=runs.context())

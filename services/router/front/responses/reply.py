"""Answers of one /v1/responses request, whole and as numbered events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from services.router.front.answer import Head, Shape, drawn_by, gather, thought_tokens, trace, usage
from services.router.front.choice import Delta
from services.router.front.generation import Generation
from services.router.front.openai import ChatMessage
from services.router.front.responses.answers import (
    Failure,
    Incomplete,
    InputDetails,
    OutputDetails,
    ResponseOut,
    UsageOut,
)
from services.router.front.responses.bodies import ResponsesAsk
from services.router.front.responses.items import read_functions
from services.router.front.responses.output import Event, Output
from shared.errors import MeshError
from shared.wire.messages import FinishReason

Keep = Callable[[ChatMessage, bytes], None]
"""Takes the answer as a message and as the JSON that the client gets."""


class ResponsesReply:
    """One choice as items."""

    def __init__(
        self,
        head: Head,
        shape: Shape,
        generation: Generation,
        body: ResponsesAsk,
        new_id: Callable[[str], str],
        keep: Keep | None,
    ) -> None:
        """`new_id`: makes a name that begins with what it is given; `keep` None: the answer is not stored."""
        self._head = head
        self._shape = shape
        self._generation = generation
        self._body = body
        self._keep = keep
        self._output = Output(new_id)
        self._number = 0
        self._finish: FinishReason | None = None

    def chunks(self, deltas: Sequence[Delta]) -> list[Event]:
        events = self._opening() if deltas else []
        for delta in deltas:
            drawn = drawn_by(delta, self._shape)
            for piece in delta.pieces:
                events += self._output.add(piece)
                if isinstance(drawn, Mapping):
                    events[-1]["pdd"] = drawn
            self._finish = delta.finish or self._finish
        return self._numbered(events)

    def closing(self) -> list[Event]:
        events = self._opening()
        whole, last = self._ended()
        events += [*last, {"type": f"response.{whole.status}", "response": whole}]
        return self._numbered(events)

    def failing(self, error: MeshError) -> list[Event]:
        failed = self._response("failed")
        failed.error = Failure(error.code, str(error))
        return self._numbered([{"type": "response.failed", "response": failed}])

    def whole(self, deltas: Sequence[Delta]) -> ResponseOut:
        (one,) = gather(deltas, 1)
        for piece in one.pieces:
            self._output.add(piece)
        self._finish = FinishReason(one.finish)
        return self._ended()[0]

    def _opening(self) -> list[Event]:
        if self._number:
            return []
        fresh = self._response("in_progress")
        return [{"type": f"response.{kind}", "response": fresh} for kind in ("created", "in_progress")]

    def _numbered(self, events: list[Event]) -> list[Event]:
        for event in events:
            event["sequence_number"] = self._number
            self._number += 1
        return events

    def _ended(self) -> tuple[ResponseOut, list[Event]]:
        """The whole answer, kept where it is to be, and the events that close its last item."""
        cut = self._finish is FinishReason.LENGTH
        status = "incomplete" if cut else "completed"
        last = self._output.close(status)
        whole = self._response(status)
        whole.usage = self._usage()
        whole.incomplete_details = Incomplete("max_output_tokens") if cut else None
        if self._keep is not None:
            self._keep(self._output.message(), msgspec.json.encode(whole))
        whole.pdd = trace(self._generation, self._shape)
        return whole, last

    def _response(self, status: str) -> ResponseOut:
        body, sampling = self._body, self._generation.jobs[0].request.sampling
        return ResponseOut(
            id=self._head.id,
            created_at=self._head.created,
            status=status,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            model=self._head.model,
            output=list(self._output.items),
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            prompt_cache_key=body.prompt_cache_key,
            reasoning={"effort": None, "summary": None},
            safety_identifier=body.safety_identifier,
            store=body.store is not False,
            temperature=sampling.temperature,
            text={"format": _format(body)},
            tool_choice=body.tool_choice or "auto",
            tools=_tools(body),
            top_p=sampling.top_p,
            user=body.user,
        )

    def _usage(self) -> UsageOut:
        counts = usage(self._generation, 1)
        return UsageOut(
            counts.prompt_tokens,
            InputDetails(counts.prompt_tokens_details.cached_tokens),
            counts.completion_tokens,
            OutputDetails(thought_tokens(self._generation)),
            counts.total_tokens,
        )


def _format(body: ResponsesAsk) -> Mapping[str, Any]:
    """The form of its text that was asked for."""
    asked: Mapping[str, Any] | None = msgspec.json.decode(body.text.format) if body.text is not None else None
    return asked or {"type": "text"}


def _tools(body: ResponsesAsk) -> list[Mapping[str, Any]]:
    """The tools that were offered, as the API shows them."""
    functions = [tool.function for tool in read_functions(body) if tool.function is not None]
    return [
        {
            "type": "function",
            "name": function.name,
            "description": function.description,
            "parameters": function.parameters,
            "strict": bool(function.strict),
        }
        for function in functions
    ]

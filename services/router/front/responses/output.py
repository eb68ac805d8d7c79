"""The items of one answer while they grow, and the events that tell of it. Pure."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from typing import Any

from services.router.front.openai import Call, CallFunction, ChatMessage
from services.router.front.reading.pieces import Piece, Said, Thought
from services.router.front.responses.answers import (
    CallOut,
    ItemOut,
    MessageOut,
    ReasoningOut,
    ReasoningPart,
    TextPart,
)

Event = dict[str, Any]


class Output:
    """Pieces in, items and events out. Events have no numbers yet."""

    def __init__(self, new_id: Callable[[str], str]) -> None:
        """`new_id`: makes a name that begins with what it is given."""
        self.items: list[ItemOut] = []
        self._new_id = new_id
        self._open: MessageOut | ReasoningOut | None = None

    def add(self, piece: Piece) -> list[Event]:
        """One more piece."""
        if isinstance(piece, Said):
            return self._grow(MessageOut, piece.text)
        if isinstance(piece, Thought):
            return self._grow(ReasoningOut, piece.text)
        events = self.close("completed")
        call = CallOut(self._new_id("fc_"), self._new_id("call_"), piece.name, "")
        events.append(self._added(call))
        call.arguments = piece.arguments
        kind = "response.function_call_arguments"
        events.append(self._event(f"{kind}.delta", item_id=call.id, delta=call.arguments))
        events.append(self._event(f"{kind}.done", item_id=call.id, name=call.name, arguments=call.arguments))
        call.status = "completed"
        events.append(self._event("response.output_item.done", item=copy(call)))
        return events

    def close(self, status: str) -> list[Event]:
        """The item that grows is whole (`completed`), or ends as it is (`incomplete`)."""
        item, self._open = self._open, None
        if item is None:
            return []
        item.status = status
        part = item.content[0]
        told: Event = {"item_id": item.id, "content_index": 0}
        if isinstance(item, MessageOut):
            events = [self._event("response.output_text.done", **told, text=part.text, logprobs=[])]
        else:
            events = [self._event("response.reasoning_text.done", **told, text=part.text)]
        events.append(self._event("response.content_part.done", **told, part=part))
        events.append(self._event("response.output_item.done", item=copy(item)))
        return events

    def message(self) -> ChatMessage:
        """The answer as the assistant's message."""
        words = [item.content[0].text for item in self.items if isinstance(item, MessageOut)]
        thoughts = [item.content[0].text for item in self.items if isinstance(item, ReasoningOut)]
        calls = [
            Call(id=item.call_id, function=CallFunction(name=item.name, arguments=item.arguments))
            for item in self.items
            if isinstance(item, CallOut)
        ]
        return ChatMessage(
            role="assistant",
            content="".join(words),
            reasoning_content="".join(thoughts) or None,
            tool_calls=calls or None,
        )

    def _grow(self, kind: type[MessageOut] | type[ReasoningOut], text: str) -> list[Event]:
        events: list[Event] = []
        item = self._open
        if not isinstance(item, kind):
            events += self.close("completed")
            item = self._open = self._begin(kind)
            bare = copy(item)
            bare.content = []
            events.append(self._added(bare, item))
            events.append(
                self._event(
                    "response.content_part.added",
                    item_id=item.id,
                    content_index=0,
                    part=copy(item.content[0]),
                )
            )
        item.content[0].text += text
        told: Event = {"item_id": item.id, "content_index": 0, "delta": text}
        if kind is MessageOut:
            events.append(self._event("response.output_text.delta", **told, logprobs=[]))
        else:
            events.append(self._event("response.reasoning_text.delta", **told))
        return events

    def _begin(self, kind: type[MessageOut] | type[ReasoningOut]) -> MessageOut | ReasoningOut:
        if kind is MessageOut:
            return MessageOut(self._new_id("msg_"), [TextPart("")])
        return ReasoningOut(self._new_id("rs_"), [ReasoningPart("")])

    def _added(self, shown: ItemOut, item: ItemOut | None = None) -> Event:
        """A new item; `shown` is what is told of it."""
        self.items.append(item or shown)
        return self._event("response.output_item.added", item=copy(shown))

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, **fields}

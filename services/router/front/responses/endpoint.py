"""/v1/responses: from a decoded body to a response, and what is kept for the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.responses import Response
from starlette.types import Receive

from services.router.front.answer import Reply
from services.router.front.chats import Chats, Names
from services.router.front.delivery import json_response
from services.router.front.dialect import RESPONSES
from services.router.front.intake import Call
from services.router.front.openai import ChatMessage
from services.router.front.responses.answers import Deleted
from services.router.front.responses.bodies import ResponsesAsk
from services.router.front.responses.items import chat_of
from services.router.front.responses.memory import Kept, ResponseMemory
from services.router.front.responses.reply import Keep, ResponsesReply
from services.router.front.runs import Run, headers_for
from services.router.front.structure.form import text_form
from shared.errors import UnknownResponse


class ResponsesEndpoint:
    """Conversations in the shapes of OpenAI's Responses."""

    def __init__(self, chats: Chats, memory: ResponseMemory, clock: Callable[[], float]) -> None:
        self._chats = chats
        self._memory = memory
        self._clock = clock

    async def create(self, receive: Receive, call: Call, body: ResponsesAsk) -> Response:
        """Answer a conversation, which may go on from an earlier answer."""
        before = None
        if body.previous_response_id is not None:
            before = self._kept(call, body.previous_response_id, "previous_response_id")
        earlier = before.conversation() if before is not None else []
        ask, conversation = chat_of(body, earlier)
        form = text_form(body.text.format, "text.format") if body.text is not None else None
        names = Names("input", "max_output_tokens", "parameters")
        asked = await self._chats.read(call, ask, form, names)

        def reply(run: Run) -> Reply:
            added = conversation[len(earlier) :]
            keep = None if body.store is False else self._keeper(call, run.head.id, before, added)
            return ResponsesReply(run.head, run.shape, run.generation, body, self._chats.runs.new_id, keep)

        return await self._chats.answer(receive, call, asked, "resp_", reply, RESPONSES, names)

    def retrieve(self, call: Call, name: str) -> Response:
        """An answer that is kept."""
        kept = self._kept(call, name, "response_id")
        return Response(kept.answer, 200, headers_for(call), media_type="application/json")

    def delete(self, call: Call, name: str) -> Response:
        """Forget an answer."""
        self._kept(call, name, "response_id")
        self._memory.drop(self._clock(), call.tenant.name, name)
        return json_response(Deleted(name), headers_for(call))

    def _keeper(self, call: Call, name: str, before: Kept | None, added: Sequence[ChatMessage]) -> Keep:
        def keep(message: ChatMessage, answer: bytes) -> None:
            now, tenant = self._clock(), call.tenant.name
            self._memory.keep(now, tenant, name, before, [*added, message], answer)

        return keep

    def _kept(self, call: Call, name: str, param: str) -> Kept:
        kept = self._memory.find(self._clock(), call.tenant.name, name)
        if kept is None:
            raise UnknownResponse(
                f"{param}: {name[:80]!r} is not kept here: answers are kept for a while, and not where store "
                "was false; send the whole conversation as input",
                param,
            )
        return kept

"""/v1/messages and /v1/messages/count_tokens: from a decoded body to a response."""

from __future__ import annotations

from starlette.responses import Response
from starlette.types import Receive

from services.router.front.answer import Reply
from services.router.front.chats import Asked, Chats, Names
from services.router.front.delivery import json_response
from services.router.front.dialect import MESSAGES
from services.router.front.intake import Call
from services.router.front.messages.answers import TokenCount
from services.router.front.messages.bodies import CountAsk, MessagesAsk
from services.router.front.messages.reply import MessagesReply
from services.router.front.messages.turns import chat_of, output_form
from services.router.front.runs import Run, headers_for


class MessagesEndpoint:
    """Conversations in Anthropic's shapes."""

    def __init__(self, chats: Chats) -> None:
        self._chats = chats

    async def create(self, receive: Receive, call: Call, body: MessagesAsk) -> Response:
        """Answer a conversation."""
        asked = await self._read(call, body)

        def reply(run: Run) -> Reply:
            return MessagesReply(
                run.head, run.shape, run.generation, lambda: self._chats.runs.new_id("toolu_")
            )

        return await self._chats.answer(receive, call, asked, "msg_", reply, MESSAGES)

    async def count(self, _receive: Receive, call: Call, body: CountAsk) -> Response:
        """How many tokens a conversation has, as a prompt."""
        asked = await self._read(call, body)
        return json_response(TokenCount(len(asked.prompt.ids)), headers_for(call))

    async def _read(self, call: Call, body: CountAsk) -> Asked:
        habits = self._chats.habits
        ask = chat_of(body, can_choose=habits.thought_option, thinks=habits.thinks)
        return await self._chats.read(call, ask, output_form(body), Names(schema="input_schema"))

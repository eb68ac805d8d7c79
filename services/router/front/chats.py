"""What every endpoint of conversations does: messages and tools into a prompt, the prompt into a run. Knows
the shape of no answer but chat's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.responses import Response
from starlette.types import Receive

from services.router.front.answer import Reply
from services.router.front.chat import (
    ChatReply,
    chat_max_tokens,
    chat_top,
    prompt_scores,
    session_of,
    template_options,
)
from services.router.front.conversation import read_messages
from services.router.front.dialect import OPENAI, Dialect
from services.router.front.habits import Habits
from services.router.front.intake import Call
from services.router.front.openai import ChatAsk, ChatMessage, Tool
from services.router.front.prompts import Dialogue, Prompt
from services.router.front.reading import thinking
from services.router.front.reading.formats import Reading
from services.router.front.runs import Plan, Run, Runs
from services.router.front.structure.calls import Calls
from services.router.front.structure.form import Form, form_of
from services.router.front.structure.grammar import Wanted
from services.router.front.tool_prompts import with_tools
from services.router.front.tools import Use, offers, read_choice, read_tools
from shared.errors import ContextTooLong, InvalidRequest


@dataclass(frozen=True, slots=True)
class Names:
    """What an API calls its parameters, for errors."""

    prompt: str = "messages"
    max_tokens: str = ""
    """Empty: chat's own."""
    schema: str = "function.parameters"
    """A tool's parameters, below the tool."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A conversation, read and tokenized."""

    ask: ChatAsk
    prompt: Prompt
    reading: Reading
    session: bytes
    grammar: str
    """What the answer keeps to; empty: nothing."""
    one_call: bool


class Chats:
    """Conversations with one model."""

    def __init__(self, runs: Runs, habits: Habits) -> None:
        self.runs = runs
        self.habits = habits

    async def chat(self, receive: Receive, call: Call, ask: ChatAsk) -> Response:
        """Answer in chat's own shape."""

        def reply(run: Run) -> Reply:
            vocabulary = self.runs.prompts.tokenizer.vocabulary
            new_id = lambda: self.runs.new_id("call_")  # noqa: E731
            return ChatReply(run.head, run.shape, run.generation, vocabulary, new_id)

        return await self.answer(receive, call, await self.read(call, ask), "chatcmpl-", reply)

    async def answer(
        self,
        receive: Receive,
        call: Call,
        asked: Asked,
        kind: str,
        reply: Callable[[Run], Reply],
        dialect: Dialect = OPENAI,
        names: Names | None = None,
    ) -> Response:
        """Generate and deliver. `kind`: what the answer's name begins with."""
        names = names or Names()
        ask = asked.ask
        max_tokens, name = chat_max_tokens(ask)
        plan = Plan(
            max_tokens,
            names.max_tokens or name,
            None,
            chat_top(ask),
            asked.session,
            names.prompt,
            asked.reading,
            asked.one_call,
            asked.grammar,
            prompt_scores(ask),
        )
        run = self.runs.run(call, ask, [asked.prompt], plan, kind)
        return await self.runs.deliver(receive, call, ask, run, reply(run), dialect)

    async def read(
        self, call: Call, ask: ChatAsk, form: Form | None = None, names: Names | None = None
    ) -> Asked:
        """Everything up to the prompt's ids and the answer's grammar. `form`: what the answer must look like,
        where chat's own fields do not say it. Raises InvalidRequest, NotBuilt by place."""
        self.runs.check(ask)
        use = read_choice(ask.tool_choice, ask.tools or ())
        form = form or form_of(ask)
        dialogue = self.dialogue(
            ask.messages,
            ask.tools,
            ask.chat_template_kwargs,
            add_generation_prompt=ask.add_generation_prompt is not False and not ask.continue_final_message,
            open_end=_open_end(ask),
        )
        prompt = await self.runs.prompts.chat(dialogue, self.runs.style(call, ask, add_special=False))
        reading = Reading(
            self.habits.format if use.may else None,
            frozenset(tool.function.name for tool in ask.tools or () if tool.function is not None),
            self.habits.thinks,
            (prompt.text or "").rstrip().endswith(thinking.OPEN),
        )
        one = use.one or ask.parallel_tool_calls is False
        calls = self._calls(ask, use, form, names or Names(), one=one)
        wanted = Wanted(form, calls, reading.thinks, reading.opened)
        return Asked(
            ask if use.may else self._silenced(ask),
            prompt,
            reading,
            session_of(ask, dialogue.messages, call.tenant.name),
            await self.runs.trials.grammar(wanted),
            one,
        )

    def _calls(self, ask: ChatAsk, use: Use, form: Form | None, names: Names, *, one: bool) -> Calls | None:
        """How calls have to be made; None: as the model likes."""
        if not use.may or self.habits.format is None:
            return None
        offered = offers(ask.tools or (), use, names.schema)
        bound = use.must or use.names is not None or any(tool.strict for tool in offered)
        if not bound and form is None:
            return None
        return Calls(self.habits.format.name, offered, use.must, one, form is not None)

    def dialogue(
        self,
        messages: Sequence[ChatMessage],
        tools: Sequence[Tool] | None,
        options: dict[str, Any] | None,
        *,
        add_generation_prompt: bool = True,
        open_end: bool = False,
    ) -> Dialogue:
        """What the template takes, of what the client sent."""
        if not messages:
            raise InvalidRequest("messages: the list is empty; send at least one message", "messages")
        if len(messages) > (most := self.runs.context()):
            raise ContextTooLong(
                f"messages: this model's maximum context length is {most} tokens; {len(messages)} messages "
                "cannot fit it",
                "messages",
            )
        offered = read_tools(tools or ())
        told = with_tools(self.habits, read_messages(messages), offered)
        native = offered if self.habits.takes_tools else ()
        return Dialogue(told, native, template_options(options), add_generation_prompt, open_end)

    def _silenced(self, ask: ChatAsk) -> ChatAsk:
        """With tools on offer and none to be called: they stay in the prompt, so that its cache holds, and
        the mark that begins a call is never drawn, where it is a token."""
        form = self.habits.format
        mark = None
        if ask.tools and form is not None:
            mark = self.runs.prompts.tokenizer.vocabulary.added_id(form.mark)
        if mark is None:
            return ask
        return msgspec.structs.replace(ask, logit_bias={**(ask.logit_bias or {}), mark: -100.0})


def _open_end(ask: ChatAsk) -> bool:
    """Whether the model continues the last message."""
    if not ask.continue_final_message:
        return False
    if ask.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message: cannot go with add_generation_prompt; send one of them",
            "continue_final_message",
        )
    if ask.messages[-1].role != "assistant" or ask.messages[-1].tool_calls:
        raise InvalidRequest(
            "continue_final_message: the last message is no text of the assistant; end with one, or leave "
            "this out",
            "continue_final_message",
        )
    return True

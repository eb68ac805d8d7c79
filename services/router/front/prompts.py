"""From messages or text to ids: template, splice memory, tokenizer, in a thread where the text is long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from services.router.front.splice import Place, SpliceMemory
from services.router.front.tokens import Tokenizer
from shared.errors import ContextTooLong, NotBuilt

T = TypeVar("T")
_TOOL = 512  # characters of a tool, about


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized prompt, and where the splice memory keeps it."""

    ids: list[int]
    text: str | None = None
    """None: the client sent ids."""
    place: Place | None = None
    """None: answers to it are not remembered."""
    chat: bool = False
    splice: str = "off"
    """How splicing went: off, none, prompt, partial, full."""
    spliced_ids: int = 0
    """Drawn ids of the last answer that were taken as they are."""


@dataclass(frozen=True, slots=True)
class Dialogue:
    """What a chat template makes a prompt of."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]] = ()
    options: Mapping[str, Any] | None = None
    add_generation_prompt: bool = True
    open_end: bool = False
    """The model continues the last message."""

    @property
    def size(self) -> int:
        """About how many characters it has."""
        return sum(len(str(one["content"])) for one in self.messages) + _TOOL * len(self.tools)


@dataclass(frozen=True, slots=True)
class Style:
    """How a prompt is to be made."""

    salt: bytes
    add_special: bool
    splice: bool
    limit: int
    """Tokens of the model's context: a text that cannot fit is refused before it is tokenized."""


class Prompts:
    """Makes prompts of one model. Holds the splice memory (None: splicing is off)."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        memory: SpliceMemory | None,
        *,
        thread_chars: int,
        threads: int,
        clock: Callable[[], float],
    ) -> None:
        self.tokenizer = tokenizer
        self.memory = memory if tokenizer.piecewise else None
        self._thread_chars = thread_chars
        self._threads = threads
        self._limiter: anyio.CapacityLimiter | None = None
        self._clock = clock

    async def chat(
        self,
        dialogue: Dialogue,
        style: Style,
    ) -> Prompt:
        """A prompt of messages. Raises InvalidRequest, NotBuilt where the model has no chat template."""
        facts = self.tokenizer.facts
        template = (facts.tool_template if dialogue.tools else None) or facts.template
        if template is None:
            raise NotBuilt("messages: this model has no chat template; use /v1/completions", "messages")
        tools = dialogue.tools or None

        def render() -> str:
            if dialogue.open_end:
                return template.render_open(dialogue.messages, tools=tools, options=dialogue.options)
            return template.render(
                dialogue.messages,
                add_generation_prompt=dialogue.add_generation_prompt,
                tools=tools,
                options=dialogue.options,
            )

        text = await self._aside(render) if dialogue.size >= self._thread_chars else render()
        starts = dialogue.add_generation_prompt and not dialogue.open_end
        return await self._prompt(text, style, "messages", chat=starts)

    async def text(self, text: str, style: Style) -> Prompt:
        """A prompt of plain text."""
        return await self._prompt(text, style, "prompt", chat=False)

    def remember(self, prompt: Prompt, answer: Sequence[int]) -> None:
        """Keep what was drawn after a prompt, for the text's return."""
        if self.memory is not None and prompt.place is not None:
            self.memory.remember(self._clock(), prompt.place, prompt.ids, answer, chat=prompt.chat)

    async def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Ids of a text; a long one is tokenized in a thread, so that no stream waits for it."""
        if len(text) < self._thread_chars:
            return self.tokenizer.encode(text, add_special=add_special)
        return await self._aside(lambda: self.tokenizer.encode_aside(text, add_special=add_special))

    async def _prompt(self, text: str, style: Style, what: str, *, chat: bool) -> Prompt:
        most = style.limit * self.tokenizer.vocabulary.longest
        if len(text) > most:
            raise ContextTooLong(
                f"{what}: this model's maximum context length is {style.limit} tokens; {len(text)} "
                f"characters cannot fit it, send at most {most}",
                what,
            )
        if self.memory is None or not style.splice:
            return Prompt(await self.encode(text, add_special=style.add_special), text)
        salt = style.salt + (b"+" if style.add_special else b"-")
        recall = self.memory.recall(self._clock(), salt, text)
        ids = recall.ids
        if recall.rest or not ids:
            ids = ids + await self.encode(recall.rest, add_special=style.add_special and not ids)
        return Prompt(ids, text, recall.place, chat, recall.result, recall.drawn)

    async def _aside(self, work: Callable[[], T]) -> T:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._threads)
        return await anyio.to_thread.run_sync(work, limiter=self._limiter)

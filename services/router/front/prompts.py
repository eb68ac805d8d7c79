"""From messages or text to ids: template, splice memory, tokenizer, in a thread where the text is long."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from services.router.front.segments import LEAST, SegmentMemory
from services.router.front.splice import Place, SpliceMemory
from services.router.front.tokens import Tokenizer
from shared.errors import ContextTooLong, NotBuilt

T = TypeVar("T")
_TOOL = 512  # characters of a tool, about
_SEGMENT_BYTES = 32 << 20  # of ids of texts that may come again
_BEHIND = 5  # steps of niceness that threads stand behind the loop's
_LEAST_PRIORITY = 19


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
        self._segments = SegmentMemory(_SEGMENT_BYTES)
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

    async def encode(self, text: str, salt: bytes, *, add_special: bool) -> list[int]:
        """Ids of a text: of its parts that are known, what they were, and the rest from the tokenizer. Much
        of it is tokenized in a thread, so that no stream waits for it."""
        if not self.tokenizer.piecewise or len(text) < LEAST:
            return self.tokenizer.encode(text, add_special=add_special)
        parts = self.tokenizer.cutter.parts(text)
        found = [self._segments.recall(salt, part) for part in parts]
        new = [part for part, ids in zip(parts, found, strict=True) if ids is None]
        if sum(map(len, new)) < self._thread_chars:
            made = [self.tokenizer.encode(part) for part in new]
        else:
            made = await self._aside(lambda: list(map(self._encode_aside, new)))
        for part, ids in zip(new, made, strict=True):
            self._segments.remember(salt, part, ids)
        fresh = iter(made)
        joined = self.tokenizer.encode("", add_special=True) if add_special else []
        for known in found:
            joined += next(fresh) if known is None else known
        return joined

    def _encode_aside(self, part: str) -> list[int]:
        """In a thread; after each part the loop may have the core."""
        ids = self.tokenizer.encode_aside(part)
        if sys.platform == "linux":
            os.sched_yield()
        return ids

    async def _prompt(self, text: str, style: Style, what: str, *, chat: bool) -> Prompt:
        most = style.limit * self.tokenizer.vocabulary.longest
        if len(text) > most:
            raise ContextTooLong(
                f"{what}: this model's maximum context length is {style.limit} tokens; {len(text)} "
                f"characters cannot fit it, send at most {most}",
                what,
            )
        if self.memory is None or not style.splice:
            return Prompt(await self.encode(text, style.salt, add_special=style.add_special), text)
        salt = style.salt + (b"+" if style.add_special else b"-")
        recall = self.memory.recall(self._clock(), salt, text)
        ids = recall.ids
        if recall.rest or not ids:
            special = style.add_special and not ids
            ids = ids + await self.encode(recall.rest, style.salt, add_special=special)
        return Prompt(ids, text, recall.place, chat, recall.result, recall.drawn)

    async def _aside(self, work: Callable[[], T]) -> T:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._threads)

        def behind() -> T:
            _stand_back()
            return work()

        return await anyio.to_thread.run_sync(behind, limiter=self._limiter)


def _stand_back() -> None:
    """Have the loop's thread go first wherever the two share a core: each of its steps would wait for this
    thread's time slice else, and a request or a stream takes several."""
    if sys.platform == "linux":  # elsewhere threads have no priority of their own
        wanted = min(_LEAST_PRIORITY, os.getpriority(os.PRIO_PROCESS, os.getpid()) + _BEHIND)
        thread = threading.get_native_id()
        if os.getpriority(os.PRIO_PROCESS, thread) < wanted:
            os.setpriority(os.PRIO_PROCESS, thread, wanted)

"""Answers of one /v1/messages request, whole and as events: a message of blocks, each opened, filled and
closed. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec import Raw, Struct

from services.router.front.answer import Gathered, Head, Shape, drawn_by, gather, thought_tokens, trace, usage
from services.router.front.choice import Delta
from services.router.front.dialect import Chunk
from services.router.front.failures import messages_body_of
from services.router.front.generation import Generation
from services.router.front.messages.answers import (
    EMPTY,
    BlockDelta,
    BlockOut,
    BlockStart,
    BlockStop,
    InputDelta,
    MessageDelta,
    MessageOut,
    MessageStart,
    MessageStop,
    OutputDetails,
    Stopped,
    TextDelta,
    TextOut,
    ThinkingDelta,
    ThinkingOut,
    ToolUseOut,
    UsageOut,
)
from services.router.front.reading.pieces import Piece, Said, Thought, ToolCall
from shared.errors import MeshError
from shared.wire.messages import FinishReason


class MessagesReply:
    """One choice, in the order in which the model wrote it."""

    def __init__(self, head: Head, shape: Shape, generation: Generation, new_id: Callable[[], str]) -> None:
        """`new_id`: makes names for calls."""
        self._head = head
        self._shape = shape
        self._generation = generation
        self._new_id = new_id
        self._started = False
        self._index = -1  # of the last block that was opened
        self._open: type[Piece] | None = None
        self._last = Gathered(0)  # how the choice ended

    def chunks(self, deltas: Sequence[Delta]) -> list[Struct]:
        made = self._start() if deltas else []
        for delta in deltas:
            for piece in delta.pieces:
                made += self._piece(piece)
                if isinstance(made[-1], BlockDelta):
                    made[-1].pdd = drawn_by(delta, self._shape)
            if delta.finish is not None:
                self._last.finish, self._last.stop = delta.finish.value, delta.stop
        return made

    def closing(self) -> list[Struct]:
        made = [*self._start(), *self._close()]
        end = MessageDelta(Stopped(*self._stopped(self._last)), self._usage())
        end.pdd = trace(self._generation, self._shape)
        return [*made, end, MessageStop()]

    def failing(self, error: MeshError) -> list[Chunk]:
        return [messages_body_of(error)]

    def whole(self, deltas: Sequence[Delta]) -> MessageOut:
        (one,) = gather(deltas, 1)
        reason, sequence = self._stopped(one)
        return MessageOut(
            id=self._head.id,
            model=self._head.model,
            content=[self._block(piece) for piece in one.pieces],
            stop_reason=reason,
            stop_sequence=sequence,
            usage=self._usage(),
            pdd=trace(self._generation, self._shape),
        )

    def _start(self) -> list[Struct]:
        """The event that opens the message; how much of its prompt was cached is known only at its end."""
        if self._started:
            return []
        self._started = True
        prompt = len(self._generation.jobs[0].prompt.ids)
        counts = UsageOut(input_tokens=prompt, cache_read_input_tokens=0, output_tokens=0)
        message = MessageOut(id=self._head.id, model=self._head.model, content=[], usage=counts)
        return [MessageStart(message)]

    def _piece(self, piece: Piece) -> list[Struct]:
        made: list[Struct] = []
        if self._open is not type(piece) or isinstance(piece, ToolCall):
            made += self._close()
            self._index += 1
            self._open = type(piece)
            made.append(BlockStart(self._index, self._empty(piece)))
        if isinstance(piece, Said):
            made.append(BlockDelta(self._index, TextDelta(piece.text)))
        elif isinstance(piece, Thought):
            made.append(BlockDelta(self._index, ThinkingDelta(piece.text)))
        else:
            made.append(BlockDelta(self._index, InputDelta(piece.arguments)))
        return made

    def _close(self) -> list[Struct]:
        if self._open is None:
            return []
        self._open = None
        return [BlockStop(self._index)]

    def _block(self, piece: Piece) -> BlockOut:
        if isinstance(piece, Said):
            return TextOut(piece.text)
        if isinstance(piece, Thought):
            return ThinkingOut(piece.text)
        return ToolUseOut(self._new_id(), piece.name, Raw(piece.arguments.encode()))

    def _empty(self, piece: Piece) -> BlockOut:
        block = self._block(piece)
        if isinstance(block, TextOut):
            return TextOut("")
        if isinstance(block, ThinkingOut):
            return ThinkingOut("")
        block.input = EMPTY
        return block

    def _stopped(self, one: Gathered) -> tuple[str, str | None]:
        """(stop_reason, stop_sequence)."""
        if isinstance(one.stop, str):
            return "stop_sequence", one.stop
        if one.finish == FinishReason.LENGTH.value:
            return "max_tokens", None
        return "tool_use" if self._generation.choices[0].calls else "end_turn", None

    def _usage(self) -> UsageOut:
        counts = usage(self._generation, 1)
        cached = counts.prompt_tokens_details.cached_tokens
        made = UsageOut(
            input_tokens=counts.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=counts.completion_tokens,
        )
        if self._generation.jobs[0].reading.thinks:
            made.output_tokens_details = OutputDetails(thought_tokens(self._generation))
        return made

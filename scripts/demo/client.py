"""One streamed chat request through the official client, and everything that was seen of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageParam

Messages = list[dict[str, str]]


@dataclass(slots=True)
class Run:
    """What one request showed. Times are seconds from its start."""

    name: str
    prompt_ids: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    arrivals: list[float] = field(default_factory=list)  # of each id
    text: str = ""
    finish: str = ""
    usage: dict[str, Any] = field(default_factory=dict)
    pdd: dict[str, Any] = field(default_factory=dict)
    kv_bytes_wan: int = 0
    ended: float = 0.0

    @property
    def ttft(self) -> float:
        """To the first id."""
        return self.arrivals[0] if self.arrivals else 0.0

    @property
    def ttst(self) -> float:
        """To the second id."""
        return self.arrivals[1] if len(self.arrivals) > 1 else self.ttft

    @property
    def stall(self) -> float:
        """The largest gap between two ids."""
        gaps = [after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)]
        return max(gaps, default=0.0)


async def ask(
    client: AsyncOpenAI,
    name: str,
    model: str,
    messages: Messages,
    *,
    max_tokens: int,
    min_tokens: int = 0,
    without: Sequence[str] = (),
    on_text: Callable[[str, str], None],
) -> Run:
    """Stream a greedy answer; `on_text(text, owner)` for each piece."""
    run = Run(name)
    headers = {"X-PDD-Trace": "1"}
    if without:
        headers["X-PDD-Without"] = ", ".join(without)
    began = time.perf_counter()
    stream = await client.chat.completions.create(
        model=model,
        messages=cast("list[ChatCompletionMessageParam]", messages),
        stream=True,
        stream_options={"include_usage": True},
        temperature=0.0,
        max_tokens=max_tokens,
        extra_body={"min_tokens": min_tokens, "return_token_ids": True},
        extra_headers=headers,
    )
    async for chunk in stream:
        now = time.perf_counter() - began
        whole = chunk.model_dump()
        run.prompt_ids = whole.get("prompt_token_ids") or run.prompt_ids
        run.usage = whole.get("usage") or run.usage
        pdd = whole.get("pdd") or {}
        if "pipeline" in pdd:
            run.pdd = pdd
        for choice in whole["choices"]:
            new = choice.get("token_ids") or []
            run.ids += new
            run.arrivals += [now] * len(new)
            run.finish = choice.get("finish_reason") or run.finish
            piece = choice["delta"].get("content") or ""
            run.text += piece
            if piece:
                on_text(piece, str(pdd.get("owner", "")))
    run.ended = time.perf_counter() - began
    return run

"""What a model's chat template says of the model: how it writes calls, and whether it thinks. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

from services.router.front.reading import thinking
from services.router.front.reading.formats import FORMATS, ToolFormat
from services.router.front.template import ChatTemplate


@dataclass(frozen=True, slots=True)
class Habits:
    """How one model speaks."""

    format: ToolFormat | None = None
    """How it writes calls; None: in no way that is known here, and tools are refused."""
    takes_tools: bool = False
    """Whether its template writes tools, calls and their results itself."""
    single_calls: bool = False
    """Whether its template refuses a turn with several calls."""
    thinks: bool = False
    thought_option: bool = False
    """Whether its template can keep it from thinking (`enable_thinking`)."""


def read_habits(
    template: ChatTemplate | None,
    tool_template: ChatTemplate | None,
    *,
    tool_format: str,
    reasoning_format: str,
) -> Habits:
    """The habits of a model by its templates; `auto` looks, any other name is taken at its word."""
    source = "\n".join(one.source for one in (template, tool_template) if one is not None)
    if tool_format == "auto":
        tool_format = _format_of(source)
    thinks = (
        thinking.CLOSE in source or thinking.OPEN in source
        if reasoning_format == "auto"
        else (reasoning_format == "think")
    )
    return Habits(
        format=FORMATS.get(tool_format),
        takes_tools=re.search(r"\btools\b", source) is not None,
        single_calls="single tool-calls" in source,
        thinks=thinks,
        thought_option="enable_thinking" in source,
    )


def _format_of(source: str) -> str:
    if "<tool_call>" in source:
        return "none" if "<function=" in source or "<arg_key>" in source else "hermes"
    if '"parameters"' in source and ("ipython" in source or "<|python_tag|>" in source):
        return "llama3_json"
    return "smollm2" if "SmolLM" in source else "none"

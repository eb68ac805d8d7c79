"""The tools of a request: what is offered to the model, and whether it may call. Pure; refuses by place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from services.router.front.depth import LEVELS, check_depth
from services.router.front.openai import Tool
from services.router.front.unbuilt import refuse_function
from shared.errors import InvalidRequest, NotBuilt


def read_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools as chat templates take them. Raises InvalidRequest, NotBuilt by place."""
    made: list[dict[str, Any]] = []
    names: set[str] = set()
    for at, tool in enumerate(tools):
        path = f"tools[{at}]"
        if tool.type != "function":
            raise NotBuilt(
                f"{path}.type: {tool.type[:80]!r} is not served here; offer functions", f"{path}.type"
            )
        function = tool.function
        if function is None:
            raise InvalidRequest(f"{path}.function: required, and not there", f"{path}.function")
        refuse_function(function, f"{path}.function.")
        if function.name in names:
            raise InvalidRequest(
                f"{path}.function.name: {function.name!r} is offered twice; name each tool once",
                f"{path}.function.name",
            )
        names.add(function.name)
        check_depth(function.parameters, LEVELS, f"{path}.function.parameters")
        said = {"name": function.name}
        if function.description is not None:
            said["description"] = function.description
        made.append({"type": "function", "function": said | {"parameters": function.parameters or {}}})
    return made


def may_call(choice: str | Mapping[str, Any] | None, tools: Sequence[object]) -> bool:
    """Whether the model may call tools. Raises NotBuilt for a choice that would force it to."""
    if choice == "none" or not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice: needs tools; offer some, or leave it out", "tool_choice")
        return False
    if choice is None or choice == "auto":
        return True
    if isinstance(choice, str) and choice != "required":
        raise InvalidRequest(
            f"tool_choice: {choice[:80]!r} is not one of auto, none, required", "tool_choice"
        )
    kind = choice if isinstance(choice, str) else f"a choice of type {str(choice.get('type'))[:80]!r}"
    raise NotBuilt(f"tool_choice: {kind} is not served here; send auto or none", "tool_choice")

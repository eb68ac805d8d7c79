"""The tools of a request: what is offered to the model, and whether it may call. Pure; refuses by place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from services.router.front.depth import LEVELS, check_depth
from services.router.front.openai import Tool
from services.router.front.structure.calls import Offer
from services.router.front.unbuilt import TOOL, refuse
from shared.errors import InvalidRequest, NotBuilt


@dataclass(frozen=True, slots=True)
class Use:
    """Whether the model may call tools, and which."""

    may: bool
    must: bool = False
    names: frozenset[str] | None = None
    """None: all that are offered."""
    one: bool = False
    """Exactly one call: a tool was named."""


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
        refuse(tool, TOOL, f"{path}.")
        function = tool.function
        if function is None:
            raise InvalidRequest(f"{path}.function: required, and not there", f"{path}.function")
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


def read_choice(choice: str | Mapping[str, Any] | None, tools: Sequence[Tool]) -> Use:
    """What `tool_choice` says, in the shapes of chat and of /v1/responses. Raises by place."""
    if not tools:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest("tool_choice: needs tools; offer some, or leave it out", "tool_choice")
        return Use(may=False)
    if isinstance(choice, Mapping):
        return _object_choice(choice, tools)
    if choice not in (None, "auto", "none", "required"):
        raise InvalidRequest(
            f"tool_choice: {choice[:80]!r} is not one of auto, none, required", "tool_choice"
        )
    return Use(may=choice != "none", must=choice == "required")


def offers(tools: Sequence[Tool], use: Use, schema: str) -> list[Offer]:
    """The tools that may be called. `schema`: what the API calls a tool's parameters, below the tool."""
    return [
        Offer(
            tool.function.name, tool.function.parameters, bool(tool.function.strict), f"tools[{at}].{schema}"
        )
        for at, tool in enumerate(tools)
        if tool.function is not None and (use.names is None or tool.function.name in use.names)
    ]


def _object_choice(choice: Mapping[str, Any], tools: Sequence[Tool]) -> Use:
    kind = choice.get("type")
    if kind == "function":
        return Use(may=True, must=True, names=frozenset([_name(choice, tools, "tool_choice")]), one=True)
    if kind == "allowed_tools":
        allowed = choice.get("allowed_tools", choice)
        listed = allowed.get("tools") if isinstance(allowed, Mapping) else None
        mode = allowed.get("mode") if isinstance(allowed, Mapping) else None
        if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
            raise InvalidRequest(
                "tool_choice: allowed_tools needs a mode, auto or required, and a list of tools",
                "tool_choice",
            )
        names = frozenset(_name(one, tools, f"tool_choice.tools[{at}]") for at, one in enumerate(listed))
        return Use(may=True, must=mode == "required", names=names)
    raise NotBuilt(
        f"tool_choice: a choice of type {str(kind)[:80]!r} is not served here; send auto, none, required, a "
        "function or allowed_tools",
        "tool_choice",
    )


def _name(one: object, tools: Sequence[Tool], path: str) -> str:
    """The function that an object names, in either shape."""
    function = one.get("function", one) if isinstance(one, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    offered = [tool.function.name for tool in tools if tool.function is not None]
    if not isinstance(name, str) or name not in offered:
        shown = ", ".join(offered)[:200]
        raise InvalidRequest(
            f"{path}: {str(name)[:80]!r} is no tool that is offered ({shown})", "tool_choice"
        )
    return name

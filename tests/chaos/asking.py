"""One request of a client of the mesh under chaos: how it is asked, and what has come of it. No sockets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True)
class Manner:
    """How clients ask: `context` ids from which on a session is given up, lengths of what is said."""

    context: int = 1600
    stem: int = 700
    more: tuple[int, ...] = (1, 7, 40, 150, 400)
    tokens: tuple[int, ...] = (1, 2, 10, 60, 60, 200, 400)
    deadline: float = 300.0


class Knows(Protocol):
    """What a right answer is."""

    def expected(self, ask: Ask) -> Sequence[int] | None:
        """The ids; None where that is not known before `ended`."""

    def ended(self, ask: Ask) -> None:
        """An answer has come to its end, or what there is of it."""


@dataclass
class Ask:
    """One request and what has come of it."""

    prompt: list[int]
    max_tokens: int
    seed: int
    temperature: float
    ignore_eos: bool
    began: float
    told: list[int] = field(default_factory=list)
    finish: str = ""
    error: str = ""
    accepted: bool = False
    done: bool = False
    pipeline: str = ""
    id: str = ""
    deadline: float = 300.0
    owner: str = ""  # who drew what came last

    @property
    def state(self) -> str:
        """How far it is, as its client sees it."""
        if not self.told:
            return "accepted" if self.accepted else "asked"
        return self.owner

    def body(self, *, stream: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "prompt": self.prompt,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "ignore_eos": self.ignore_eos,
            "return_token_ids": True,
            "timeout": self.deadline,
        }
        return body | ({"stream": True} if stream else {})

    def take(self, body: dict[str, Any]) -> int:
        """A chunk or a whole body; ids in it."""
        self.id = body.get("id", self.id)
        if body.get("error"):
            self.error = str(body["error"].get("code"))
        trace = body.get("pdd") or {}
        self.pipeline = trace.get("pipeline", self.pipeline)
        self.owner = trace.get("owner", self.owner)
        count = 0
        for choice in body.get("choices", ()):
            ids = choice.get("token_ids") or ()
            self.told += ids
            count += len(ids)
            self.finish = choice.get("finish_reason") or self.finish
        return count


def short(ask: Ask) -> str:
    """For notes."""
    return (
        f"{ask.id} prompt of {len(ask.prompt)}, {len(ask.told)} of {ask.max_tokens} ids, "
        f"began {ask.began:.2f}, "
        f"{ask.pipeline or 'no pipeline'}, {ask.finish or 'no end'} {ask.error}"
    )

"""Case `retokenisation`: does a second turn find the whole first answer in main decode's cache?

A whole mesh serves the development model. Each conversation's first answer is sampled at temperature 1, comes
back as text in the second turn, and should hit every full block of prompt and answer at main decode. The
baseline is the same conversation, with the same seeds, with splicing switched off by the client's header.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Result
from scripts.demo.stage import MODEL_NAME, open_stage
from scripts.model_cache import model_dir

BLOCK = 32
ANSWER = 192
Say = Callable[[str], None]

QUESTIONS = (
    "Tell me about the city of Paris, its rivers and its people.",
    "Write a short Python function that adds two numbers, and explain it.",
    "Erzähle mir etwas über das Wetter in Hamburg.",
    "List ten animals with one odd fact about each.",
    "Write a poem with emojis about the sea.",
    "Explain how a steam engine works to a child.",
    "Give me a JSON object that describes a person, then change it.",
    "What is the difference between TCP and UDP? Use a table.",
)


@dataclass(frozen=True, slots=True)
class Turns:
    """What a conversation of two turns came to. Full blocks: those that can be in a cache at all."""

    first_prompt: int
    full: int
    """Tokens in full blocks of the first prompt and its answer, without the id that was drawn last."""
    kept: int
    """Of them, leading ones that the second prompt has unchanged."""
    hit: int
    """Of them, those that main decode held."""
    splice: str
    reached: bool
    """Whether the full blocks go on into the answer."""

    @property
    def whole(self) -> bool:
        return self.reached and min(self.kept, self.hit) >= self.full


async def measure(conversations: int, say: Say) -> list[Result]:
    """So many conversations, each with splicing and without."""
    model = model_dir(thorough=False)
    spliced: list[Turns] = []
    plain: list[Turns] = []
    with tempfile.TemporaryDirectory() as directory:
        async with open_stage(
            Path(directory), model, rate_mbit=1000.0, rtt_ms=1.0, progress=_starting
        ) as stage:
            for at in range(conversations):
                for found, headers in ((spliced, {}), (plain, {"X-PDD-Without": "splice"})):
                    found.append(await asyncio.to_thread(_talk, stage.base_url, at, headers))
                one, other = spliced[-1], plain[-1]
                say(
                    f"retokenisation {at + 1}/{conversations}: {one.hit} of {one.full} tokens hit "
                    f"({one.splice}), without splicing {other.hit}"
                )
    hits, others = sum(one.whole for one in spliced), sum(one.whole for one in plain)
    rate, rate_plain = _part(spliced), _part(plain)
    more = {"of": conversations, "tokens": sum(one.full for one in spliced), "answer": ANSWER}
    return [
        Result(
            "retokenisation second turns that hit every full block",
            hits,
            "turns",
            others,
            None,
            float(conversations),
            more=more,
            spread=(hits, hits, hits),
        ),
        Result("retokenisation part of full blocks hit", rate, "part", rate_plain, None, None, more=more),
    ]


def _part(turns: Sequence[Turns]) -> float:
    return sum(min(one.hit, one.full) for one in turns) / sum(one.full for one in turns)


def _talk(url: str, at: int, headers: dict[str, str]) -> Turns:
    """Two turns. The salt keeps the two ways of one conversation out of each other's cache."""
    messages = [{"role": "user", "content": QUESTIONS[at % len(QUESTIONS)]}]
    salt = f"{at} {len(headers)}"
    first = _ask(url, messages, at, salt, headers)
    choice = first["choices"][0]
    log = [*first["prompt_token_ids"], *choice["token_ids"]]
    messages += [
        {"role": "assistant", "content": choice["message"]["content"]},
        {"role": "user", "content": "Go on, with more detail."},
    ]
    second = _ask(url, messages, at, salt, headers)
    full = (len(log) - 1) // BLOCK * BLOCK
    ids = second["prompt_token_ids"]
    other = (place for place in range(full) if ids[place : place + 1] != log[place : place + 1])
    return Turns(
        first_prompt=len(first["prompt_token_ids"]),
        full=full,
        kept=next(other, full),
        hit=min(full, second["pdd"]["md_hit_tokens"]),
        splice=second["pdd"]["splice"],
        reached=full > len(first["prompt_token_ids"]),
    )


def _ask(
    url: str, messages: list[dict[str, str]], seed: int, salt: str, headers: dict[str, str]
) -> dict[str, Any]:
    body = {
        "model": MODEL_NAME,
        "messages": messages,
        "temperature": 1.0,
        "top_p": 1.0,
        "seed": seed,
        "max_tokens": ANSWER,
        "min_tokens": 64,
        "cache_salt": salt,
        "return_token_ids": True,
    }
    sent = {"content-type": "application/json", "x-pdd-trace": "1", **headers}
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), sent)
    with urllib.request.urlopen(request, timeout=600.0) as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def _starting(names: list[str]) -> None:
    """Nobody watches."""

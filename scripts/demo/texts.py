"""The prompts of the demo: an agent's input (long notes, short questions), made to a length."""

from __future__ import annotations

import random
from collections.abc import Callable

_PLACES = (
    "harbour",
    "mill",
    "orchard",
    "library",
    "bridge",
    "market",
    "station",
    "greenhouse",
    "quarry",
    "ferry",
)
_PEOPLE = ("Ada", "Bruno", "Chen", "Dalia", "Edgar", "Farida", "Goran", "Hana", "Ivo", "Jun")
_DEEDS = (
    "repaired the pump and wrote down the pressure",
    "counted the crates twice and found one too many",
    "moved the old ledger to a dry shelf",
    "asked for a second opinion about the beam",
    "painted the door and left the window open to dry it",
    "measured the flow before and after the storm",
    "lent the long ladder to a neighbour until Friday",
    "sorted the letters by year and then by sender",
)


def notes(seed: int, tokens: int, count: Callable[[str], int]) -> str:
    """A log of about `tokens` tokens (`count` says how many a text has), different for each seed."""
    draw = random.Random(seed)
    lines = [f"Log book {draw.randrange(1000)} of the village works."]
    size = count(lines[0])
    while size < tokens:
        line = (
            f"Entry {len(lines)}, {draw.randrange(6, 20)}:{draw.randrange(60):02d}: {draw.choice(_PEOPLE)} "
            f"went to the {draw.choice(_PLACES)}, {draw.choice(_DEEDS)}, "
            f"and noted the number {draw.randrange(10_000)}."
        )
        lines.append(line)
        size += count(line) + 1
    return "\n".join(lines)


QUESTION = (
    "\n\nTell the story of these days in your own words, from the first entry to the last, in many sentences."
)
FOLLOW_UP = (
    "Good. Now rewrite it as a letter from Hana to her sister. She should say what each of the people did, "
    "which places she liked, why the storm worried her, and what she would like to do when the works are "
    "closed for the summer. Keep the tone warm, do not use lists, and end with a question. Mention "
    "the ferry, the greenhouse and the long ladder at least once, and give the letter a date in spring."
)
SHORT_TURN = "Thank you. And her sister's name?"
SINGULAR = "\n\nAnswer with one word: who is named first?"

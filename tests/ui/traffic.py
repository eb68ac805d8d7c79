"""Conversations of agents, for the live page to show: `python -m tests.ui.traffic ADDRESS USERS`."""

import asyncio
import contextlib
import random
import sys

import httpx

WORDS = "alpha bravo charlie delta echo foxtrot golf hotel india juliet kilo lima mike november oscar".split()


def words(dice: random.Random, count: int) -> str:
    """So many words."""
    return " ".join(dice.choice(WORDS) for _ in range(count))


async def user(client: httpx.AsyncClient, number: int) -> None:
    """One conversation after another; what fails is tried again."""
    dice = random.Random(number)
    while True:
        system = f"You are agent {number}. {words(dice, dice.choice((60, 200, 400)))}"
        messages = [{"role": "system", "content": system}]
        for _ in range(dice.randint(2, 5)):
            messages.append({"role": "user", "content": words(dice, dice.choice((10, 30, 80)))})
            body = {
                "model": "smollm2-135m-instruct",
                "messages": messages,
                "max_tokens": dice.choice((40, 120, 300)),
                "ignore_eos": True,
            }
            with contextlib.suppress(httpx.HTTPError, KeyError, ValueError):
                answer = await client.post("/v1/chat/completions", json=body)
                messages.append(answer.json()["choices"][0]["message"])
            await asyncio.sleep(1.5 * dice.random())


async def main(address: str, users: int) -> None:
    """All of them."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        await asyncio.gather(*(user(client, number) for number in range(users)))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))

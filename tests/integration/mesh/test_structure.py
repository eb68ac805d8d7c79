"""Answers that keep to a structure, over sockets: the same ids on every road, cut or not, and what they say
is what was asked for (I4, I7)."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from services.router.front.structure.schema import alone, schema_text
from tests.support.grammar_reader import GrammarReader
from tests.support.live_client import Answer, Refused
from tests.support.live_judge import crowd, rules_of
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SharedModel, SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.random_schemas import an_object, holds
from tests.support.replay import replay
from tests.support.tiny_case import Case
from tests.support.tiny_model import EOS_ID

MOST = 160
SAMPLINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 1.0, "seed": 21},
    {"temperature": 1.2, "seed": 22, "top_p": 0.9},
    {"temperature": 1.0, "seed": 23, "top_k": 5, "repetition_penalty": 1.2},
    {"temperature": 1.0, "seed": 24, "min_p": 0.05, "presence_penalty": 0.5},
    {"temperature": 1.0, "seed": 25, "min_tokens": 12},
)


class Asks:
    """Prompts with random schemas, and what must come of them."""

    def __init__(self, directory: Path, vocab: int, seed: int) -> None:
        rnd = random.Random(seed)
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._reader = GrammarReader(directory, vocab, EOS_ID)
        # White space is allowed between all parts: a random model would write little else.
        blank = [at for at in range(vocab) if self._tokenizer.decode([at]).strip(" \n\r\t") == ""]
        self._bias = {str(at): -100 for at in blank if at != EOS_ID}
        self.schemas = [an_object(rnd) for _ in SAMPLINGS]
        self.prompts = [[rnd.randrange(3, vocab) for _ in range(rnd.randrange(5, 120))] for _ in SAMPLINGS]

    def fields(self, at: int) -> dict[str, Any]:
        return {**SAMPLINGS[at], "logit_bias": self._bias}

    async def answers(self, mesh: LiveMesh) -> list[Answer]:
        """All of them at once, every other one as a stream."""
        ways = (mesh.client.complete, mesh.client.streamed)
        return await crowd(
            *(
                ways[at % 2](prompt, MOST, guided_json=rule, **self.fields(at))
                for at, (prompt, rule) in enumerate(zip(self.prompts, self.schemas, strict=True))
            )
        )

    def check(self, answers: Sequence[Answer]) -> None:
        """Each is a value of its schema, or was cut by the length while it was becoming one."""
        whole = 0
        for rule, answer in zip(self.schemas, answers, strict=True):
            assert answer.error is None, answer
            text = alone(schema_text(rule))
            if answer.finish == "stop":
                assert holds(rule, json.loads(answer.text)), (rule, answer.text)
                whole += 1
            else:
                assert self._reader.begins(text, answer.text), (rule, answer.text)
                assert len(answer.ids) == MOST
        assert whole >= len(answers) // 2

    def replay(self, case: Case, answers: Sequence[Answer]) -> None:
        """Each draw is the reference's among what the schema allows (I7)."""
        for at, (prompt, answer) in enumerate(zip(self.prompts, answers, strict=True)):
            allowed = self._reader.allowed(alone(schema_text(self.schemas[at])), (EOS_ID,))
            rules = {**rules_of(self.fields(at)), "allowed": allowed}
            found = replay(case.reference, prompt, answer.ids, rules)
            assert found.ok, found


def shape_of(road: str) -> Shape:
    rate = 1.5 if road == "singular" else 4.0
    return Shape(blocks=2048, rate_mbit=rate, rtt_ms=2.0, router=ROADS[road][1])


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_schemas_on_every_road(seed: int, tiny: Case, tiny_shared: SharedModel) -> None:
    """What is drawn does not depend on where it is drawn, nor on the cut between."""
    asks = Asks(tiny.directory, tiny_shared.vocab, seed)
    found: dict[str, list[list[int]]] = {}
    handed = 0
    for road in ("MD", "P-MD", "one_shot", "catch_up"):
        async with live_mesh(tiny_shared, shape_of(road)) as mesh:
            answers = await asks.answers(mesh)
        asks.check(answers)
        found[road] = [answer.ids for answer in answers]
        handed += sum(bool(one.owners.get("relay") and one.owners.get("main_decode")) for one in answers)
        if road == "one_shot":
            asks.replay(tiny, answers)
    assert handed
    assert all(ids == found["MD"] for ids in found.values())


async def test_a_new_owner_goes_on_in_the_middle(tiny: Case, tiny_shared: SharedModel) -> None:
    """Main decode dies while it draws: the one that takes its place has the log and follows the grammar along
    it from its start."""
    number = {"type": "integer", "minimum": 0, "maximum": 99}
    rule = {"type": "array", "items": number, "minItems": 20, "maxItems": 25}
    fields: dict[str, Any] = {"temperature": 1.0, "seed": 5, "guided_json": rule, "logit_bias": {"32": -100}}
    shape = Shape(
        blocks=2048,
        rate_mbit=8.0,
        rtt_ms=2.0,
        mains=2,
        router=ROADS["P-MD"][1],
        link={"ping_every": 0.1, "suspect_after": 0.4, "lease": 2.0, "reconnect_first": 0.02},
    )
    prompt = tiny.prompt(60)
    async with live_mesh(tiny_shared, shape) as mesh:
        undisturbed = await mesh.client.complete(prompt, 200, **fields)
        async with mesh.client.stream(prompt, 200, **fields) as stream:
            await stream.ids(20)
            owner = next(r.owner.node for r in mesh.router.core.requests.values() if r.owner is not None)
            await mesh.kill(owner)
            answer = await stream.rest()
    assert answer.error is None
    assert answer.ids == undisturbed.ids


async def test_the_synthetic_engine_keeps_to_structures_too(synthetic: SyntheticModel) -> None:
    asks = Asks(synthetic.directory, synthetic.vocab, 7)
    found = []
    for road in ("MD", "one_shot"):
        async with live_mesh(synthetic, shape_of(road)) as mesh:
            response = await mesh.client.http.post(
                "/v1/completions",
                json={
                    "prompt": [5, 6, 7],
                    "max_tokens": 60,
                    "guided_regex": "(ab|c){3,9}!",
                    "seed": 7,
                    "return_token_ids": True,
                },
            )
            choice = response.json()["choices"][0]
            assert choice["finish_reason"] == "stop", choice
            assert choice["text"].endswith("!")
            found.append(choice["token_ids"])
            answers = await asks.answers(mesh)
            for rule, answer in zip(asks.schemas, answers, strict=True):
                assert answer.finish == "length" or holds(rule, json.loads(answer.text)), answer
    assert found[0] == found[1]


async def test_how_answers_with_a_structure_end(tiny: Case, tiny_shared: SharedModel) -> None:
    async with live_mesh(tiny_shared, shape_of("P-MD")) as mesh:
        ask = mesh.client.complete
        prompt = tiny.prompt(30)
        choice = await ask(prompt, 50, guided_choice=["abc", "abd"], temperature=1.0, seed=1)
        assert choice.text in ("abc", "abd")
        assert (choice.finish, choice.stop, choice.ids[-1]) == ("stop", None, EOS_ID)
        # The end is the only thing left: neither min_tokens nor ignore_eos can go on with anything.
        for fields in ({"min_tokens": 40}, {"ignore_eos": True}):
            again = await ask(prompt, 50, guided_choice=["abc", "abd"], temperature=1.0, seed=1, **fields)
            assert again.ids == choice.ids
        # Where there is more, both go on.
        bias = {str(EOS_ID): 100}
        plus = await ask(prompt, 20, guided_regex="a+", logit_bias=bias)
        assert plus.text == "a"
        least = await ask(prompt, 20, guided_regex="a+", logit_bias=bias, min_tokens=9)
        assert (least.text, least.finish) == ("a" * 9, "stop")
        late = await ask(prompt, 20, guided_regex="a+", logit_bias=bias, ignore_eos=True)
        assert (set(late.text), late.finish, len(late.ids)) == ({"a"}, "length", 20)
        # A bias does not make what is not allowed; a length cuts; a stop string and a stop id end.
        odd = await ask(prompt, 20, guided_regex="[bc]{5}", logit_bias={"300": 100})
        assert len(odd.text) == 5
        cut = await ask(prompt, 3, guided_json={"enum": ["abcdefgh"]})
        assert (cut.finish, len(cut.ids)) == ("length", 3)
        stopped = await ask(prompt, 20, guided_regex="ab{0,3}cd", stop=["c"])
        assert (stopped.finish, stopped.stop) == ("stop", "c")


async def test_many_structures_at_once(tiny: Case, tiny_shared: SharedModel) -> None:
    """Each in its own grammar, in the same steps as requests without one."""
    async with live_mesh(tiny_shared, shape_of("one_shot")) as mesh:
        texts = [f"{word}{at}" for at in range(8) for word in ("x", "yy")]
        answers = await crowd(
            *(
                mesh.client.streamed(tiny.prompt(20 + at), 30, guided_choice=[text], temperature=1.0, seed=at)
                for at, text in enumerate(texts)
            ),
            *(mesh.client.streamed(tiny.prompt(9), 30, ignore_eos=True) for _ in range(4)),
        )
    assert [answer.text for answer in answers[: len(texts)]] == texts


async def test_what_is_refused_reaches_no_worker(tiny_shared: SharedModel) -> None:
    async with live_mesh(tiny_shared, shape_of("MD")) as mesh:
        with pytest.raises(Refused) as refused:
            await mesh.client.complete([5, 6], 9, guided_json={"properties": {"a": {"not": {}}}})
        assert refused.value.status == 400
        assert refused.value.error["param"] == "guided_json.properties.a.not"
        assert not mesh.router.core.requests

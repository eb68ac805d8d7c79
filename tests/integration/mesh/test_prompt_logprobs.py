"""Log-probabilities of prompts over a mesh: the reference's, whatever was cached and however it was cut."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tests.support.live_mesh import live_mesh
from tests.support.live_models import SharedModel, SyntheticModel
from tests.support.live_roads import ROADS
from tests.support.live_shape import Shape
from tests.support.tiny_case import Case


def shape_of(road: str, **worker: Any) -> Shape:
    return Shape(blocks=2048, rate_mbit=20.0, rtt_ms=2.0, router=ROADS[road][1], worker=worker)


ASKED = {"max_tokens": 4, "temperature": 0, "prompt_logprobs": 3, "ignore_eos": True}


@pytest.mark.parametrize(
    "worker", [{}, {"token_budget": 12, "max_chunk_tokens": 20}], ids=["whole", "chunked"]
)
@pytest.mark.parametrize("road", ["MD", "one_shot"])
async def test_the_references(
    road: str, worker: dict[str, Any], tiny: Case, tiny_shared: SharedModel
) -> None:
    """Asked twice: the second time every block of the prompt is cached."""
    prompts = [tiny.prompt(length) for length in (1, 2, 33, 90)]
    async with live_mesh(tiny_shared, shape_of(road, **worker)) as mesh:
        for prompt in [*prompts, *prompts]:
            response = await mesh.client.http.post("/v1/completions", json={"prompt": prompt, **ASKED})
            assert response.status_code == 200, response.text
            (choice,) = response.json()["choices"]
            found = choice["prompt_logprobs"]
            assert found[0] is None
            assert len(found) == len(prompt)
            context = tiny.reference.context()
            rows = torch.log_softmax(context.forward(prompt).double(), -1)
            for at, entries in enumerate(found[1:], 1):
                assert str(prompt[at]) in entries
                assert len(entries) in (3, 4)
                for token, entry in entries.items():
                    assert math.isclose(entry["logprob"], float(rows[at - 1][int(token)]), abs_tol=1e-3)
                best = {int(token) for token, entry in entries.items() if entry["rank"] is not None}
                assert (
                    min(float(rows[at - 1][one]) for one in best)
                    >= float(rows[at - 1].topk(3).values[-1]) - 1e-3
                )


async def test_an_echo_of_a_long_prompt(synthetic: SyntheticModel) -> None:
    """More than one control frame carries."""
    prompt = [3 + at % 200 for at in range(3000)]
    async with live_mesh(synthetic, shape_of("P-MD")) as mesh:
        body = {"prompt": prompt, "max_tokens": 3, "echo": True, "logprobs": 5, "temperature": 0}
        response = await mesh.client.http.post("/v1/completions", json=body)
        (choice,) = response.json()["choices"]
        assert len(choice["logprobs"]["tokens"]) == 3003
        assert all(one <= 0 for one in choice["logprobs"]["token_logprobs"][1:])
        again = await mesh.client.http.post("/v1/completions", json=body)
        assert again.json()["choices"] == response.json()["choices"]

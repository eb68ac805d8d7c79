"""Two models behind one router: each request goes to workers of its model, and these never meet."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.live_client import Refused
from tests.support.live_judge import synthetic_answer
from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_shape import Shape
from tests.support.small_tokenizer import small_tokenizer

PROMPT = [*range(3, 83)]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> SyntheticModel:
    return SyntheticModel(small_tokenizer(tmp_path_factory.mktemp("small") / "model"), name="small")


def two(small: SyntheticModel, **more: Any) -> Shape:
    """Two workers of each role: the first runs `synthetic`, the second `small`."""
    return Shape(prefills=2, relays=2, mains=2, others=(small,), **more)


def peers(mesh: LiveMesh) -> dict[str, set[str]]:
    """With whom each worker has a session, beside the router."""
    return {name: {*one._endpoint.sessions()} - {"router-0"} for name, one in mesh.workers.items()}


async def test_each_request_is_served_by_workers_of_its_model(
    synthetic: SyntheticModel, small: SyntheticModel
) -> None:
    async with live_mesh(synthetic, two(small)) as mesh:
        for name, model, at in (("synthetic", synthetic, 0), ("small", small, 1)):
            answer = await mesh.client.complete(PROMPT, 20, model=name, ignore_eos=True)
            assert answer.ids == synthetic_answer(PROMPT, 20, model.vocab)
            assert set(answer.pdd["nodes"].values()) <= {f"main-{at}", f"relay-{at}", f"prefill-{at}"}
        again = await mesh.client.complete(PROMPT, 20, model="synthetic", ignore_eos=True)
        assert again.cached == len(PROMPT)
        index = mesh.router.core.mesh.index
        assert not index.hashes("main-0") & index.hashes("main-1")
        assert peers(mesh) == {
            f"{role}-{at}": {f"{other}-{at}" for other in ("main", "relay", "prefill") if other != role}
            for role in ("main", "relay", "prefill")
            for at in (0, 1)
        }


async def test_what_the_router_says_of_its_models(synthetic: SyntheticModel, small: SyntheticModel) -> None:
    async with live_mesh(synthetic, two(small, node={"main-1": {"pool_blocks": 40}})) as mesh:
        http = mesh.client.http
        cards = (await http.get("/v1/models")).json()["data"]
        assert {card["id"]: card["max_model_len"] for card in cards} == {
            "synthetic": 255 * 4 + 1,
            "small": 39 * 4 + 1,
        }
        ready = (await http.get("/ready")).json()
        assert ready["models"] == {"synthetic": True, "small": True}
        prints = {}
        for name in ("synthetic", "small"):
            body = {"model": name, "prompt": "hello", "max_tokens": 2}
            prints[name] = (await http.post("/v1/completions", json=body)).json()["system_fingerprint"]
        assert all(one.startswith("fp_") for one in prints.values())
        assert prints["synthetic"] != prints["small"]
        with pytest.raises(Refused) as refused:
            await mesh.client.complete(PROMPT, 20, model="large")
        assert (refused.value.status, refused.value.error["code"]) == (404, "model_not_found")
        with pytest.raises(Refused) as refused:
            await mesh.client.complete(PROMPT, 78, model="small")
        assert refused.value.status == 400
        assert "157 tokens" in refused.value.error["message"]
        assert "158 (80 in the prompt, 78 in the answer)" in refused.value.error["message"]
        await mesh.client.complete(PROMPT, 77, model="small", ignore_eos=True)


async def test_a_model_without_workers_is_unavailable_and_the_other_serves(
    synthetic: SyntheticModel, small: SyntheticModel
) -> None:
    async with live_mesh(synthetic, two(small, router={"queue_wait": 0.2})) as mesh:
        await mesh.stop("main-1")
        await mesh.until(lambda: mesh.router.core.ready()["models"] == {"synthetic": True, "small": False})
        state = mesh.router.core.ready()
        assert state["ready"]
        assert state["reasons"] == ["small: no pipeline is possible"]
        with pytest.raises(Refused) as refused:
            await mesh.client.complete(PROMPT, 5, model="small")
        assert refused.value.status == 503
        await mesh.client.complete(PROMPT, 5, model="synthetic")

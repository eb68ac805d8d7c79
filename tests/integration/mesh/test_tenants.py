"""Tenants in a live mesh: nothing that one has said is seen by another, at any worker or in any memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_shape import Shape
from tests.support.small_tokenizer import small_tokenizer

KEYS = {"one": "key-of-tenant-one", "two": "key-of-tenant-two"}
TEXT = "the question and the answer of the other world " * 8


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> SyntheticModel:
    return SyntheticModel(small_tokenizer(tmp_path_factory.mktemp("small") / "model"))


def shape(folder: Path, **more: Any) -> Shape:
    (folder / "keys").write_text("".join(f"{tenant} {key}\n" for tenant, key in KEYS.items()))
    return Shape(http={"api_keys_file": str(folder / "keys")}, **more)


async def ask(mesh: LiveMesh, tenant: str, path: str, body: dict[str, Any]) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEYS[tenant]}", "x-pdd-trace": "1"}
    return await mesh.client.http.post(path, json=body, headers=headers)


async def complete(mesh: LiveMesh, tenant: str, **fields: Any) -> dict[str, Any]:
    body = {"prompt": TEXT, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **fields}
    answer = await ask(mesh, tenant, "/v1/completions", body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def cached(answer: dict[str, Any]) -> int:
    return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])


async def held(mesh: LiveMesh) -> dict[str, frozenset[bytes]]:
    """Hashes at each worker, which are also what the index knows."""
    await mesh.settled()
    index = mesh.router.core.mesh.index
    found = {name: frozenset(one.worker.site.pool.hashes()) for name, one in mesh.workers.items()}
    assert {name: index.hashes(name) for name in found} == found
    return found


@pytest.mark.parametrize("road", [{}, {"md_local_tokens": 0, "relay_margin": 0.0, "singular": False}])
async def test_equal_prompts_of_two_tenants_share_no_block_at_any_worker(
    model: SyntheticModel, tmp_path: Path, road: dict[str, Any]
) -> None:
    slow = {"rate_mbit": 3.0, "rtt_ms": 2.0} if road else {}
    async with live_mesh(model, shape(tmp_path, router=road, **slow)) as mesh:
        first = await complete(mesh, "one")
        assert cached(await complete(mesh, "one")) > 0
        mine = await held(mesh)
        other = await complete(mesh, "two")
        assert cached(other) == 0
        assert other["choices"][0]["text"] == first["choices"][0]["text"]
        both = await held(mesh)
        for name in ("main-0", "prefill-0", "relay-0") if road else ("main-0",):
            assert both[name] > mine[name], name
        theirs = frozenset[bytes]().union(*(both[name] - mine[name] for name in both))
        assert not theirs & frozenset[bytes]().union(*mine.values())
        salted = await complete(mesh, "one", cache_salt="a user of one")
        assert cached(salted) == 0


async def test_answers_of_one_tenant_are_not_spliced_into_prompts_of_another(
    model: SyntheticModel, tmp_path: Path
) -> None:
    """The text of an answer that was drawn at random means other ids when it is tokenized."""
    async with live_mesh(model, shape(tmp_path)) as mesh:
        drawn = await complete(mesh, "one", temperature=1.0, seed=5, return_token_ids=True, max_tokens=40)
        ids = drawn["choices"][0]["token_ids"]
        text = TEXT + drawn["choices"][0]["text"]
        again = {
            tenant: (await complete(mesh, tenant, prompt=text, return_token_ids=True))["choices"][0]
            for tenant in ("two", "one")
        }
        prompts = {tenant: choice["prompt_token_ids"] for tenant, choice in again.items()}
        assert prompts["one"][-len(ids) :] == ids
        fresh = (await ask(mesh, "two", "/tokenize", {"prompt": text})).json()["tokens"]
        assert prompts["two"] == fresh != prompts["one"]


async def test_what_one_tenants_answers_are_like_is_not_predicted_of_another(
    model: SyntheticModel, tmp_path: Path
) -> None:
    async with live_mesh(model, shape(tmp_path)) as mesh:
        for _ in range(6):
            await complete(mesh, "one", max_tokens=2, prompt_cache_key="same")
        prediction = mesh.router.core._gate._prediction
        keys = {tenant for tenant, _ in prediction._seen}
        assert keys == {"synthetic\none"}
        session = next(session for _, session in prediction._seen if session)
        assert prediction.predict("synthetic\none", session, 500) < 500
        assert prediction.predict("synthetic\ntwo", session, 500) == 500


async def test_a_kept_conversation_is_its_tenants_alone(model: SyntheticModel, tmp_path: Path) -> None:
    async with live_mesh(model, shape(tmp_path)) as mesh:
        body = {"input": "hello", "max_output_tokens": 4}
        name = (await ask(mesh, "one", "/v1/responses", body)).json()["id"]
        for tenant, status in (("two", 404), ("one", 200)):
            headers = {"authorization": f"Bearer {KEYS[tenant]}"}
            seen = await mesh.client.http.get(f"/v1/responses/{name}", headers=headers)
            assert seen.status_code == status
            on = await ask(mesh, tenant, "/v1/responses", body | {"previous_response_id": name})
            assert on.status_code == status
        wrong = {"authorization": f"Bearer {KEYS['two']}"}
        assert (await mesh.client.http.delete(f"/v1/responses/{name}", headers=wrong)).status_code == 404

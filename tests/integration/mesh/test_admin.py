"""The operator's endpoints at a live mesh: behind the admin key, and what each does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from tests.support.live_mesh import LiveMesh, live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_shape import Shape

ADMIN, CLIENT = "admin-key-of-all", "client-key-of-one"
PROMPT = [*range(3, 83)]
PATHS = ("flush", "index/compare", *(f"workers/main-0/{act}" for act in ("flush", "drain", "undrain")))


def shape(folder: Path) -> Shape:
    (folder / "admin").write_text(ADMIN)
    (folder / "keys").write_text(f"one {CLIENT}\n")
    http = {"admin_key_file": str(folder / "admin"), "api_keys_file": str(folder / "keys")}
    return Shape(http=http)


async def post(mesh: LiveMesh, path: str, key: str = ADMIN) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return await mesh.client.http.post(f"/admin/{path}", headers=headers)


async def served(mesh: LiveMesh) -> None:
    body = {"prompt": PROMPT, "max_tokens": 10, "ignore_eos": True}
    answer = await mesh.client.http.post(
        "/v1/completions", json=body, headers={"authorization": f"Bearer {CLIENT}"}
    )
    assert answer.status_code == 200, answer.text
    await mesh.settled()


async def test_nothing_is_done_without_the_admin_key(synthetic: SyntheticModel, tmp_path: Path) -> None:
    async with live_mesh(synthetic, shape(tmp_path)) as mesh:
        await served(mesh)
        held = mesh["main-0"].worker.site.pool.cached
        for path in PATHS:
            for key in ("", CLIENT, ADMIN + "x"):
                answer = await post(mesh, path, key)
                assert answer.status_code == 401, path
        assert mesh["main-0"].worker.site.pool.cached == held > 0
        assert not mesh["main-0"].worker.site.draining
        assert mesh.count("router-0", "index_compared_total") == 0


async def test_a_wrong_index_is_told_and_put_right(synthetic: SyntheticModel, tmp_path: Path) -> None:
    async with live_mesh(synthetic, shape(tmp_path)) as mesh:
        await served(mesh)
        right = (await post(mesh, "index/compare")).json()
        assert right["equal"]
        assert [worker["node"] for worker in right["workers"]] == ["main-0", "prefill-0", "relay-0"]
        mirror = mesh.router.core.mesh.index._mirrors["main-0"]
        held = len(mirror)
        mirror.remove(sorted(mirror.stored)[:4])
        mirror.store([b"x" * 16])
        wrong = (await post(mesh, "index/compare")).json()
        main: dict[str, Any] = wrong["workers"][0]
        assert not wrong["equal"]
        assert main == {
            "node": "main-0",
            "equal": False,
            "answered": True,
            "held": held,
            "known": held - 3,
            "missing": 4,
            "extra": 1,
        }
        assert all(worker["equal"] for worker in wrong["workers"][1:])
        assert not mesh.unknown()
        assert (await post(mesh, "index/compare")).json()["equal"]
        assert mesh.count("router-0", "index_wrong_blocks_total") == 5


async def test_one_workers_cache_is_dropped_and_then_all(synthetic: SyntheticModel, tmp_path: Path) -> None:
    async with live_mesh(synthetic, shape(tmp_path)) as mesh:
        await served(mesh)
        index = mesh.router.core.mesh.index
        others = index.blocks - len(index.hashes("main-0"))
        flushed = await post(mesh, "workers/main-0/flush")
        assert flushed.json() == {"node": "main-0", "flushed": True}
        await mesh.until(lambda: not index.hashes("main-0"))
        assert index.blocks == others
        assert (await post(mesh, "flush")).json() == {"node": "", "flushed": True}
        await mesh.until(lambda: not index.blocks)


async def test_a_worker_is_drained_and_taken_back(synthetic: SyntheticModel, tmp_path: Path) -> None:
    async with live_mesh(synthetic, shape(tmp_path)) as mesh:
        drained = await post(mesh, "workers/relay-0/drain")
        assert drained.json() == {"node": "relay-0", "draining": True}
        await mesh.until(lambda: not mesh.ready())
        state = {one["node"]: one for one in mesh.router.core.ready()["workers"]}["relay-0"]
        assert (state["draining"], state["usable"]) == (True, False)
        assert (await post(mesh, "workers/relay-0/undrain")).json()["draining"] is False
        await mesh.until_ready()
        for path in ("flush", "drain", "undrain"):
            answer = await post(mesh, f"workers/nobody/{path}")
            assert answer.status_code == 404
            assert answer.json()["error"]["code"] == "worker_not_found"

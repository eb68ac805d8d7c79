"""Every endpoint of a live router, fuzzed from the router's own description of it: no answer that is not
described, no 5xx but those, and at the end nothing is left of any request.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import httpx
import pytest

from tests.support.live_mesh import live_mesh
from tests.support.live_models import SyntheticModel
from tests.support.live_shape import Shape
from tests.support.small_tokenizer import small_tokenizer

CONFIG = Path(__file__).parent / "schemathesis.toml"
CLIENT_KEY, ADMIN_KEY = "client-key-of-one", "admin-key-of-all"
EXAMPLES = 8
"""Of each operation, right and wrong ones. For a person with time there is `--phases coverage`: thousands."""


@pytest.mark.timeout(240)
async def test_no_endpoint_can_be_made_to_fail(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"one {CLIENT_KEY}\n")
    (tmp_path / "admin").write_text(ADMIN_KEY)
    model = SyntheticModel(small_tokenizer(tmp_path / "model"))
    http = {"api_keys_file": str(tmp_path / "keys"), "admin_key_file": str(tmp_path / "admin")}
    async with live_mesh(model, Shape(blocks=16, http=http)) as mesh:
        base = str(mesh.client.http.base_url).rstrip("/")
        before = await numbers(mesh.client.http)
        code, said = await fuzz(f"{base}/openapi.json", tmp_path)
        assert code == 0, said
        selected = re.search(r"Selected: (\d+)/(\d+)", said)
        assert selected is not None, said
        described = (await mesh.client.http.get("/openapi.json")).json()["paths"]
        del described["/openapi.json"]  # where it has the description from is not fuzzed
        assert int(selected[1]) == int(selected[2]) == sum(map(len, described.values()))
        await mesh.settled()
        await mesh.until(lambda: len(mesh.router.streams) == 0)
        after = await numbers(mesh.client.http)
        for name in ("pdd_http_running", "pdd_streams_live", "pdd_requests_live", "pdd_requests_waiting"):
            assert after[name] == before[name] == 0, name
        assert after["200"] >= 10, after
        assert "500" not in after


async def fuzz(address: str, folder: Path) -> tuple[int, str]:
    """Run schemathesis in a process of its own; its exit code and what it said."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(CONFIG), "run", address),
        *("--phases", "fuzzing", "--max-examples", str(EXAMPLES), "--seed", "1", "--continue-on-failure"),
        *("--request-timeout", "60"),
        env={**os.environ, "CLIENT_KEY": CLIENT_KEY, "ADMIN_KEY": ADMIN_KEY, "NO_COLOR": "1"},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, said.decode(errors="replace")


async def numbers(http: httpx.AsyncClient) -> dict[str, float]:
    """What /metrics says, by name, summed over labels; answers by status beside it."""
    found: dict[str, float] = {}
    for line in (await http.get("/metrics")).text.splitlines():
        sample, _, value = line.rpartition(" ")
        if not line.startswith("#"):
            status = re.search(r'pdd_http_requests_total.*status="(\d+)"', sample)
            for name in (sample.partition("{")[0], *((status[1],) if status else ())):
                found[name] = found.get(name, 0.0) + float(value)
    return found

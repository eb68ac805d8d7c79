"""The demo's five requests each take the road that they are to show, on machines of any speed: the demo's own
mesh file, requests and policy, in virtual time.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.simulation.clients import Client
from benchmarks.simulation.mesh import MeshPlan, VirtualMesh
from benchmarks.simulation.timed import StepCosts
from scripts.demo.acts import LONG, Act, Measured, acts
from scripts.demo.judge import PIPELINES
from scripts.demo.stage import WORKERS, mesh_file
from scripts.model_cache import model_dir
from services.router.front.tokens import Tokenizer, load_tokenizer
from shared.runtime.mesh_file import parse_mesh
from shared.runtime.settings import MeshConfig

TOKEN_BYTES = 46_080
"""KV of a token of the demo's model in float32: 30 layers, K and V, 3 heads of 64."""

LAN_RATE = 1e9
"""Bytes/s on loopback, about."""

MACHINES = {
    "slow": (12.0, 0.12),
    "shared": (4.1, 0.045),
    "in torch": (2.2, 0.045),
    "two cores": (2.0, 0.014),
    "new": (0.5, 0.005),
}
"""Seconds of the long prefill and of a decode step, on one thread. In float32 a prefill takes 40 times a step
and more wherever products run in vector units.
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(model_dir())


def demo_config(rate_mbit: float, rtt_ms: float) -> MeshConfig:
    """The mesh file that the demo writes."""
    names = ["router-0", *(name for name, _, _ in WORKERS)]
    listen = {name: f"127.0.0.1:{7000 + at}" for at, name in enumerate(names)}
    http = {name: f"127.0.0.1:{8000 + at}" for at, name in enumerate(names)}
    routes = {("a", "main-0"): "127.0.0.1:9000", ("b", "router-0"): "127.0.0.1:9001"}
    return parse_mesh(mesh_file(Path("/demo"), Path("/model"), listen, http, routes, rate_mbit, rtt_ms))


def demo_mesh(measured: Measured, config: MeshConfig, max_context: int) -> VirtualMesh:
    """The demo's mesh on a machine so fast."""
    assert config.model is not None
    blocks = {node.role: node.pool_blocks for node in config.nodes}
    (line,) = config.lines
    costs = StepCosts(measured.step, measured.prefill / LONG, 0.0)
    plan = MeshPlan(
        prefills=1,
        relays=1,
        mains=1,
        token_bytes=TOKEN_BYTES,
        block_tokens=config.model.block_tokens,
        chunk_tokens=4,  # less than the transport's largest chunk
        wan_rate=line.rate_mbit * 1e6 / 8,
        wan_rtt=line.rtt_ms / 1e3,
        lan_rate=LAN_RATE,
        prefill=costs,
        decode=costs,
        prefill_blocks=blocks["prefill"],
        relay_blocks=blocks["relay"],
        main_blocks=blocks["main_decode"],
        max_context=max_context,
        router=config.policy.router,
        worker=config.policy.worker,
        line=config.policy.line,
    )
    return VirtualMesh(plan)


def new_turn(tokenizer: Tokenizer, text: str, *, goes_on: bool) -> list[int]:
    """Ids that a turn adds to its conversation."""
    template = tokenizer.facts.template
    assert template is not None
    said = "\x00"
    before = [{"role": "user", "content": ""}, {"role": "assistant", "content": said}] if goes_on else []
    rendered = template.render([*before, {"role": "user", "content": text}])
    return list(tokenizer.encode(rendered.rpartition(said)[2]))


def play(mesh: VirtualMesh, tokenizer: Tokenizer, played: list[Act]) -> dict[str, Client]:
    """Each act's request as its client saw it."""
    seen = {}
    talk: list[int] = []
    for act in played:
        if act.flushed:
            mesh.flush()
            mesh.run(1.0)
        talk = [*(talk if act.goes_on else ()), *new_turn(tokenizer, act.text, goes_on=act.goes_on)]
        client = mesh.submit(
            talk, act.max_tokens, max_tokens=act.max_tokens, relay_allowed="relay" not in act.without
        )
        assert mesh.drain()
        mesh.run(20.0)
        assert client.outcome == "done", client.error
        seen[act.name] = client
        talk = talk + client.got
    return seen


@pytest.mark.model
@pytest.mark.parametrize("machine", MACHINES)
def test_each_request_takes_the_road_that_the_demo_says(tokenizer: Tokenizer, machine: str) -> None:
    prefill, step = MACHINES[machine]
    measured = Measured(prefill, step, LONG * TOKEN_BYTES)
    rate = measured.line_rate()
    played = acts(measured, rate, lambda text: len(tokenizer.encode(text)))
    mesh = demo_mesh(measured, demo_config(rate, 30.0), tokenizer.facts.max_context)
    seen = play(mesh, tokenizer, played)
    assert {name: client.trace["pipeline"] for name, client in seen.items()} == PIPELINES

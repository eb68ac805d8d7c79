"""Every road from prompt to answer, forced by numbers: pipelines, their edges, what each leaves behind."""

from __future__ import annotations

from typing import Any

import pytest

from shared.errors import InvalidRequest
from shared.wire import messages as m
from tests.support.mesh import BLOCK_TOKENS
from tests.support.mesh_client import Client
from tests.support.whole_mesh import BLOCK_BYTES, WholeMesh, policy, prompt

SLOW, FAST = 12e3, 0.0
"""Lines on which a relay is worth while, and is not."""

ROADS: dict[str, dict[str, Any]] = {
    "MD": {"router": policy(md_local_tokens=1000)},
    "P-MD": {"router": policy(md_local_tokens=0), "wan": FAST},
    "P-RLD-MD": {"router": policy(md_local_tokens=0, singular=False), "wan": SLOW},
    "P-RLD": {"router": policy(md_local_tokens=0, singular_min_uncached=0), "wan": SLOW},
}


def road(pipeline: str, **changes: Any) -> WholeMesh:
    """A mesh in which requests take one pipeline."""
    return WholeMesh(**{**ROADS[pipeline], **changes})


def owners(client: Client) -> dict[m.Role, int]:
    """Ids by who drew them."""
    return {role: client.owners.count(role) for role in dict.fromkeys(client.owners)}


@pytest.mark.parametrize("pipeline", ROADS)
def test_each_pipeline_answers_and_leaves_nothing(pipeline: str) -> None:
    mesh = road(pipeline)
    client = mesh.submit(prompt(82), 4 if pipeline == "P-RLD" else 150)
    mesh.finish()
    assert client.pipeline == pipeline
    drew = owners(client)
    assert (
        drew
        == {
            "MD": {m.Role.MAIN: 150},
            "P-MD": {m.Role.PREFILL: 1, m.Role.MAIN: 149},
            "P-RLD-MD": drew,
            "P-RLD": {m.Role.PREFILL: 1, m.Role.RELAY: 3},
        }[pipeline]
    )
    if pipeline == "P-RLD-MD":
        assert list(drew) == [m.Role.PREFILL, m.Role.RELAY, m.Role.MAIN]
        assert client.trace["cut"]["count"] == 1
    mesh.settle()
    if pipeline != "P-RLD":
        assert mesh.check_prompts() == 0
        assert mesh.dropped() == 0


@pytest.mark.parametrize("old", [(), ("md1",)], ids=["new", "main decode of the version before"])
def test_main_decode_alone_begins_with_its_admission(old: tuple[str, ...]) -> None:
    mesh = road("MD", delay=0.5, old=old)
    asked = mesh.sim.now
    client = mesh.submit(prompt(82), 20)
    mesh.until_ids(client, 1)
    trips = 2 if old else 1
    assert trips <= mesh.sim.now - asked < trips + 0.5
    assert len(mesh.watch.of(m.Feed, client.rid)) == len(old)
    mesh.finish()
    assert owners(client) == {m.Role.MAIN: 20}
    mesh.settle()
    assert mesh.check_prompts() == 0


@pytest.mark.parametrize("pipeline", ROADS)
@pytest.mark.parametrize("length", [1, 3, 4, 5, 39, 40, 41])
@pytest.mark.parametrize("max_tokens", [1, 2, 30])
def test_prompts_around_whole_blocks(pipeline: str, length: int, max_tokens: int) -> None:
    mesh = road(pipeline, warm=0.2)
    client = mesh.submit(prompt(length), max_tokens, seed=3, temperature=1.0, logprobs=0)
    mesh.finish()
    assert client.done is not None
    assert client.done.cached_tokens == 0
    mesh.settle()
    if client.pipeline != "P-RLD":
        assert mesh.check_prompts() == 0


@pytest.mark.parametrize("pipeline", ROADS)
@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_stop_id_ends_the_answer_wherever_it_comes(pipeline: str, at: int) -> None:
    mesh = road(pipeline)
    probe = mesh.submit(prompt(50), 20, salt=b"probe")
    mesh.finish()
    stop = next(id_ for id_ in probe.expected[at - 1 :] if id_ not in probe.expected[: at - 1])
    client = mesh.submit(prompt(50), 20, stop_ids=[stop])
    mesh.finish()
    assert len(client.got) == probe.expected.index(stop) + 1
    assert client.done is not None
    assert client.done.reason is m.FinishReason.STOP
    mesh.settle()


@pytest.mark.parametrize("pipeline", ROADS)
@pytest.mark.parametrize("after", [1, 2, 7])
def test_a_stop_string_ends_the_log_where_it_was_found(pipeline: str, after: int) -> None:
    mesh = road(pipeline)
    client = mesh.submit(prompt(50), 40 if pipeline != "P-RLD" else 8)
    mesh.until_ids(client, after)
    mesh.stop_at(client, 50 + after)
    assert client.outcome == "done"
    assert client.done is not None
    assert (client.done.at, client.done.reason) == (50 + after, m.FinishReason.STOP)
    mesh.settle()
    if client.pipeline != "P-RLD":
        assert mesh.check_prompts() == 0


@pytest.mark.parametrize("pipeline", ["P-MD", "P-RLD-MD"])
def test_a_stop_string_at_the_cut(pipeline: str) -> None:
    mesh = road(pipeline)
    client = mesh.submit(prompt(50), 200)
    mesh.until(lambda: any(msg.do is m.Do.OWN for _, msg in mesh.watch.of(m.Feed, client.rid)))
    mesh.stop_at(client, len(client.log))
    assert client.outcome == "done"
    mesh.settle()
    assert mesh.check_prompts() == 0


@pytest.mark.parametrize("pipeline", ROADS)
def test_sampled_answers_are_the_same_on_every_road(pipeline: str) -> None:
    mesh = road(pipeline)
    client = mesh.submit(prompt(45), 30, seed=1234567, temperature=0.7, logprobs=2)
    other = mesh.submit(prompt(45), 30, seed=1234568, temperature=0.7)
    mesh.finish()
    assert client.got != other.got
    mesh.settle()


# --- what is cached already ---------------------------------------------------------------------------------


def test_a_prompt_that_both_sides_have_needs_no_kv_and_no_prefill() -> None:
    mesh = WholeMesh()
    first = mesh.submit(prompt(80), 30)
    mesh.finish()
    mesh.settle()
    assert mesh.cached("p1", first.ids) == mesh.cached("md1", first.ids) == 20
    bytes_before, prefills = mesh.wan_bytes, mesh.watch.messages["Prefill"]
    again = mesh.submit(prompt(80), 30)
    mesh.finish()
    assert again.pipeline == "MD"
    assert again.done is not None
    assert again.done.cached_tokens == 80
    assert mesh.wan_bytes == bytes_before
    assert mesh.watch.messages["Prefill"] == prefills
    mesh.settle()


def test_a_full_hit_that_may_not_run_alone_sends_no_kv_byte() -> None:
    mesh = road("P-MD")
    mesh.submit(prompt(80), 5)
    mesh.finish()
    mesh.settle()
    before = mesh.wan_bytes
    again = mesh.submit(prompt(80), 5, local_allowed=False)
    mesh.finish()
    assert again.pipeline == "P-MD"
    assert mesh.wan_bytes == before
    mesh.settle()


def test_a_prompt_that_only_prefill_has_is_sent_and_not_computed() -> None:
    mesh = WholeMesh(router=policy(md_local_tokens=0, relay=False))
    mesh.submit(prompt(80), 5)
    mesh.finish()
    mesh.settle()
    mesh.restart("md1")
    mesh.run(0.5)
    before = mesh.wan_bytes
    again = mesh.submit(prompt(80), 5)
    mesh.until_ids(again, 1)
    assert again.times[0] - again.submitted < 0.05, "one block is computed again, for the first id"
    mesh.finish()
    assert mesh.wan_bytes == before + 20 * BLOCK_BYTES
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_a_prompt_that_only_main_decode_has_is_neither_sent_nor_prefilled() -> None:
    mesh = WholeMesh(router=policy(relay=False))
    mesh.submit(prompt(80), 5)
    mesh.finish()
    mesh.settle()
    mesh.restart("p1")
    mesh.run(0.5)
    before = mesh.wan_bytes
    again = mesh.submit(prompt(80), 5)
    mesh.finish()
    assert again.pipeline == "MD"
    assert mesh.wan_bytes == before
    assert mesh.counters("p1").get("prefills_total", 0) == 0
    mesh.settle()


@pytest.mark.parametrize("pipeline", ["P-MD", "P-RLD-MD"])
def test_the_next_turn_sends_only_the_missing_blocks(pipeline: str) -> None:
    mesh = road(pipeline)
    first = mesh.submit(prompt(81), 150)
    mesh.finish()
    mesh.settle()
    assert first.owners[-1] is m.Role.MAIN
    before = mesh.wan_bytes
    turn = first.log + prompt(45, seed=9)
    second = mesh.submit(turn, 20)
    mesh.finish()
    mesh.settle()
    had = (len(first.log) - 1) // BLOCK_TOKENS  # the id drawn last has no KV
    assert second.done is not None
    assert second.done.cached_tokens == BLOCK_TOKENS * had
    assert mesh.wan_bytes - before == (len(turn) // BLOCK_TOKENS - had) * BLOCK_BYTES
    assert mesh.check_prompts() == 0


@pytest.mark.parametrize("wan", [4e3, 20e3, FAST])
@pytest.mark.parametrize("max_tokens", [2, 20, 100])
@pytest.mark.parametrize("apart", [0.0, 0.05])
def test_equal_prompts_at_once_cross_the_line_once(wan: float, max_tokens: int, apart: float) -> None:
    mesh = WholeMesh(wan=wan, blocks=400)
    for seed in range(8):
        mesh.submit(prompt(80), max_tokens, seed=seed, temperature=1.0)
        mesh.run(apart)
    mesh.finish()
    mesh.settle()
    assert 20 * BLOCK_BYTES <= mesh.wan_bytes <= 1.1 * 20 * BLOCK_BYTES
    assert mesh.check_prompts() == 0
    assert mesh.dropped() == 0


def test_tenants_share_nothing() -> None:
    mesh = WholeMesh(router=policy(singular=False))
    mesh.submit(prompt(80), 5, salt=b"one")
    mesh.finish()
    mesh.settle()
    before = mesh.wan_bytes
    other = mesh.submit(prompt(80), 5, salt=b"two")
    mesh.finish()
    assert other.done is not None
    assert other.done.cached_tokens == 0
    mesh.settle()
    assert mesh.wan_bytes - before == 20 * BLOCK_BYTES


# --- alignment and singular requests ------------------------------------------------------------------------


def test_an_answer_that_ends_before_its_cut_leaves_an_alignment() -> None:
    mesh = road("P-RLD-MD")
    client = mesh.submit(prompt(80), 10)
    mesh.finish()
    assert client.owners[-1] is m.Role.RELAY
    assert mesh.cached("md1", client.ids) < 20
    mesh.settle()
    assert mesh.check_prompts() == 0
    assert mesh.counters("md1")["alignments_done_total"] == mesh.counters("p1")["alignments_done_total"] == 1
    assert mesh.wan_bytes == 20 * BLOCK_BYTES


def test_an_answer_that_ends_before_main_decode_was_heard_is_aligned_all_the_same() -> None:
    mesh = road("P-RLD-MD", delay=0.2)
    client = mesh.submit(prompt(80), 1)
    mesh.finish()
    assert client.times[-1] - client.submitted < 0.4, "it has ended before main decode can have answered"
    mesh.settle()
    assert mesh.check_prompts() == 0
    assert mesh.dropped() == 0


def test_a_singular_request_never_crosses_and_its_session_does_the_next_time() -> None:
    mesh = road("P-RLD", wan=500.0)
    client = mesh.submit(prompt(80), 3)
    mesh.finish()
    assert client.pipeline == "P-RLD"
    mesh.settle()
    assert mesh.wan_bytes <= 2 * BLOCK_BYTES
    again = mesh.submit(client.log + prompt(8, seed=2), 3)
    mesh.finish()
    assert again.pipeline == "P-RLD-MD", "not twice in a row"
    mesh.settle()


def test_a_singular_request_that_outgrows_its_prediction_goes_on_at_main_decode() -> None:
    mesh = road("P-RLD")
    for seed in range(4):
        mesh.submit(prompt(40, seed), 2, tenant="short")
        mesh.finish()
    mesh.settle()
    client = mesh.submit(prompt(81, seed=7), 150, tenant="short")
    mesh.finish()
    assert client.pipeline == "P-RLD-MD"
    assert mesh.core.mesh.counters["singular_outgrown_total"] == 1
    assert client.owners[-1] is m.Role.MAIN
    attached = [
        (to, msg.target, msg.cls) for to, msg in mesh.watch.of(m.Attach, client.rid) if msg.target == "md1"
    ]
    assert attached == [
        ("p1", "md1", m.TransferClass.PARKED),
        ("p1", "md1", m.TransferClass.COVERED),
        ("md1", "md1", m.TransferClass.COVERED),
    ], "un-parked by a second Attach of the same ticket, at both ends"
    mesh.settle()
    assert mesh.check_prompts(client) == 0


def test_a_prompt_longer_than_the_context_is_refused_by_name() -> None:
    mesh = WholeMesh()
    with pytest.raises(InvalidRequest, match="4096"):
        mesh.submit(prompt(4096), 5)
    mesh.settle()

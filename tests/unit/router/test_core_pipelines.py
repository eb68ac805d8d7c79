"""A request's life on each pipeline, with workers that keep the protocol and a line that takes its time."""

from collections.abc import Callable
from itertools import pairwise

import pytest

from services.router.requests import Done
from shared.errors import ContextTooLong, InvalidRequest, Unavailable
from shared.policy.pipeline import Pipeline
from shared.wire import messages as m
from shared.wire.messages import FinishReason, Role, TransferClass
from tests.support.fake_mesh import Client, FakeMesh
from tests.support.fake_parts import answer

MakeMesh = Callable[..., FakeMesh]
PROMPT = [at % 7 for at in range(101)]


def serve(mesh: FakeMesh, ids: list[int], max_tokens: int, **more: object) -> tuple[Client, Done]:
    rid = mesh.submit(ids, max_tokens, **more)  # type: ignore[arg-type]
    client = mesh.clients[rid]
    assert mesh.run(mesh.now + 60, stop=lambda: client.over)
    assert client.done is not None, client.broken
    return client, client.done


def test_a_cold_prompt_takes_a_relay_and_ends_at_main_decode(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    client, done = serve(mesh, PROMPT, 60)
    assert client.ids == answer(PROMPT, client.sampling)
    assert done.trace["pipeline"] == Pipeline.P_RLD_MD
    assert client.owners[0] is Role.PREFILL
    assert client.owners[-1] is Role.MAIN
    assert Role.RELAY in client.owners
    assert done.trace["cut"]["mode"] == "one_shot"
    assert done.cached_tokens == 0
    assert done.reason is FinishReason.LENGTH
    assert done.at == len(PROMPT) + 60


def test_the_trace_tells_the_whole_story(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    client, done = serve(mesh, PROMPT, 60)
    trace = done.trace
    times = trace["times_ms"]
    order = ["prefill_sent", "first_id", "relay_start", "main_complete", "cut", "main_first", "end"]
    assert [times[name] for name in order] == sorted(times[name] for name in order)
    assert trace["tokens_by_owner"]["relay"] == trace["eager_tokens"] > 0
    assert sum(trace["tokens_by_owner"].values()) == 60
    spans = [(part["start"], part["end"]) for part in trace["segments"]]
    assert spans[0][0] == len(PROMPT)
    assert spans[-1][1] == len(PROMPT) + 60
    assert all(one[1] == other[0] for one, other in pairwise(spans))
    assert trace["kv_bytes_full"] == trace["kv_bytes_asked"] == 25 * 1000
    assert trace["handoff_bytes"] > 4 * trace["eager_tokens"]
    assert trace["nodes"] == {"main_decode": "m0", "prefill": "p0", "relay": "r0"}
    assert trace["candidates"][0]["node"] == "m0"
    assert any("cut to m0" in reason for reason in trace["reasons"])
    assert len(client.owners) == 60


def test_the_second_turn_asks_only_for_what_is_missing(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    client, _ = serve(mesh, PROMPT, 20)
    mesh.run(mesh.now + 1)
    turn = PROMPT + [1, 2, 3, 4] * 10
    _, done = serve(mesh, turn, 20)
    assert done.cached_tokens == 100
    assert done.trace["kv_bytes_asked"] == (len(turn) // 4 - 25) * 1000
    assert done.trace["pipeline"] in (Pipeline.P_MD, Pipeline.P_RLD_MD)
    assert client.over


def test_a_full_hit_is_main_decodes_alone_and_no_prefill_hears_of_it(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT, 20)
    mesh.run(mesh.now + 1)
    mesh.sent.clear()
    client, done = serve(mesh, PROMPT, 20)
    assert done.trace["pipeline"] == Pipeline.MD
    assert done.trace["cut"]["mode"] == "none"
    assert done.cached_tokens == 100
    assert set(client.owners) == {Role.MAIN}
    assert not mesh.said(m.Prefill)
    assert not mesh.said(m.Attach)
    assert not mesh.said(m.Feed), "it begins with its admission"


def test_main_decode_that_lacks_more_than_the_index_knew_does_not_begin_alone(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT, 20)
    mesh.run(mesh.now + 1)
    mesh.sent.clear()
    mesh.workers["m0"].cache.clear()  # the router has not heard of it yet
    client, done = serve(mesh, PROMPT, 20)
    assert client.ids == answer(PROMPT, client.sampling)
    assert [admit.alone for admit in mesh.said(m.Admit, "m0")] == [8]
    assert done.trace["pipeline"] in (Pipeline.P_MD, Pipeline.P_RLD_MD)
    assert client.owners[0] is Role.PREFILL


def test_what_main_decode_is_to_extend_alone_counts_before_it_reports(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT, 20)
    mesh.run(mesh.now + 1)
    m0 = mesh.core.mesh.fleet.get("m0")
    assert m0 is not None
    before = m0.queued_tokens()
    rids = [mesh.submit([*PROMPT, at], 20) for at in range(3)]
    assert [admit.alone for admit in mesh.said(m.Admit, "m0")[-3:]] == [8, 8, 8]
    assert m0.queued_tokens() - before == 3 * (len(PROMPT) + 1 - 100)
    assert mesh.run(mesh.now + 60, stop=lambda: all(mesh.clients[rid].over for rid in rids))


def test_who_was_not_asked_to_begin_is_no_owner_for_saying_so(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    rid = mesh.submit(PROMPT, 20)
    client, m0 = mesh.clients[rid], mesh.workers["m0"]
    assert [admit.alone for admit in mesh.said(m.Admit, "m0")] == [0]
    mesh.core.on_message(mesh.now, "m0", m.Admitted(rid, 1, b"", 0, 0, 25, b"", m0.incarnation, True), b"")
    mesh.core.on_message(mesh.now, "m0", m.TokensOut((m.TokenRow(rid, 1, len(PROMPT), (7,)),)), b"")
    assert client.ids == []
    assert mesh.core.requests[rid].owner is None


def test_without_a_relay_the_first_id_waits_for_main_decode(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    client, done = serve(mesh, PROMPT, 20, relay_allowed=False)
    assert done.trace["pipeline"] == Pipeline.P_MD
    assert client.owners == [Role.PREFILL] + [Role.MAIN] * 19
    assert not mesh.said(m.Admit, "r0")


def test_prefill_may_be_demanded_although_main_decode_holds_all(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT, 20)
    mesh.run(mesh.now + 1)
    client, done = serve(mesh, PROMPT, 20, local_allowed=False)
    assert done.trace["pipeline"] == Pipeline.P_MD
    assert client.owners[:2] == [Role.PREFILL, Role.MAIN]


def test_a_singular_request_ends_at_the_relay_and_its_transfer_is_dropped(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    client, done = serve(mesh, PROMPT, 4)
    assert done.trace["pipeline"] == Pipeline.P_RLD
    assert client.owners == [Role.PREFILL] + [Role.RELAY] * 3
    admit = next(x for x in mesh.said(m.Admit, "m0"))
    assert admit.parked
    attach = [x for x in mesh.said(m.Attach) if x.target == "m0"]
    assert {x.cls for x in attach} <= {TransferClass.PARKED}
    assert not any(x.align for x in mesh.said(m.Release))


def test_a_session_is_not_singular_twice_in_a_row(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    _, first = serve(mesh, PROMPT, 4)
    _, second = serve(mesh, PROMPT + [1] * 60, 4)
    mesh.run(mesh.now + 2)
    assert first.trace["pipeline"] == Pipeline.P_RLD
    assert second.trace["pipeline"] != Pipeline.P_RLD


def test_an_answer_that_outgrows_the_prediction_is_no_longer_singular(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(far=2.0)
    for at in range(4):
        serve(mesh, [at] * 50, 4, session=b"s")
    mesh.run(mesh.now + 2)
    mesh.sent.clear()
    client, done = serve(mesh, PROMPT, 400, session=b"s")
    assert done.trace["pipeline"] == Pipeline.P_RLD_MD
    assert any("outgrew" in reason for reason in done.trace["reasons"])
    classes = [x.cls for x in mesh.said(m.Attach) if x.target == "m0"]
    covered = TransferClass.COVERED
    assert classes == [TransferClass.PARKED, covered, covered]  # the sender is told, and the receiver
    assert client.owners[-1] is Role.MAIN


def test_catch_up_rounds_before_a_late_cut(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(policy={"catch_up_backlog": 2, "catch_up_rounds": 2})
    _, done = serve(mesh, PROMPT, 120)
    cut = done.trace["cut"]
    assert cut["mode"] == "catch_up"
    assert 1 <= cut["rounds"] <= 2
    assert "backlog" in cut["reason"]
    dos = [x.do for x in mesh.said(m.Feed, "m0")]
    assert dos.count(m.Do.EXTEND) == cut["rounds"]
    assert dos[-1] is m.Do.OWN


@pytest.mark.parametrize("max_tokens", [1, 2])
def test_very_short_answers_have_exactly_their_length(make_mesh: MakeMesh, max_tokens: int) -> None:
    mesh = make_mesh(policy={"singular": False})
    client, done = serve(mesh, PROMPT, max_tokens)
    assert len(client.ids) == max_tokens
    assert done.at == len(PROMPT) + max_tokens


def test_one_id_still_owes_main_decode_the_prompt(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(policy={"singular": False})
    serve(mesh, PROMPT, 1)
    mesh.run(mesh.now + 2)
    releases = {
        to: message.align for _, to, message in mesh.sent if isinstance(message, m.Release) and message.align
    }
    assert releases == {"p0": True, "m0": True}
    assert len(mesh.workers["m0"].cache) == 25


def test_an_end_before_main_decode_answers_still_owes_it_the_prompt(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(policy={"singular": False}, latency=0.5)
    mesh.run(3.0)
    client, _ = serve(mesh, PROMPT[:41], 1)
    mesh.settle()
    mesh.run(mesh.now + 3)
    assert len(mesh.workers["m0"].cache) == 10
    assert client.over


def test_a_stop_id_ends_the_answer(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    due = answer(PROMPT, m.Sampling(max_pos=200, seed=1))
    stop = due[10]
    client, done = serve(mesh, PROMPT, 60, stops=(stop,))
    assert client.ids == due[: due.index(stop) + 1]
    assert done.reason is FinishReason.STOP


def test_prefills_own_id_may_be_the_stop(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    due = answer(PROMPT, m.Sampling(max_pos=200, seed=1))
    client, done = serve(mesh, PROMPT, 60, stops=(due[0],))
    assert client.ids == due[:1]
    assert done.reason is FinishReason.STOP


def test_a_stop_string_ends_where_it_is_said(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    rid = mesh.submit(PROMPT, 200)
    client = mesh.clients[rid]
    mesh.run(mesh.now + 10, stop=lambda: len(client.ids) >= 20)
    mesh.stop_at(rid, len(PROMPT) + 15)
    assert client.done is not None
    assert (client.done.at, client.done.reason) == (len(PROMPT) + 15, FinishReason.STOP)


@pytest.mark.parametrize("moment", [0.0, 0.01, 0.05, 0.2, 0.5, 1.0])
def test_a_client_that_leaves_is_forgotten_everywhere(make_mesh: MakeMesh, moment: float) -> None:
    mesh = make_mesh()
    rid = mesh.submit(PROMPT, 400)
    mesh.run(mesh.now + moment)
    mesh.cancel(rid)
    assert not mesh.core.requests
    mesh.run(mesh.now + 0.1)
    assert not any(worker.parts or worker.prompts for worker in mesh.workers.values())
    assert mesh.clients[rid].done is None


@pytest.mark.parametrize("length", [1, 3, 4, 5, 7, 8, 9])
def test_prompts_around_block_borders(make_mesh: MakeMesh, length: int) -> None:
    mesh = make_mesh(policy={"md_local_tokens": 0})
    for _ in range(2):
        client, _ = serve(mesh, PROMPT[:length], 10)
        assert client.ids == answer(PROMPT[:length], client.sampling)
        mesh.run(mesh.now + 1)


def test_tenants_with_different_salts_share_nothing(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT, 20, salt=b"one")
    mesh.run(mesh.now + 1)
    _, done = serve(mesh, PROMPT, 20, salt=b"two")
    assert done.cached_tokens == 0
    assert done.trace["pipeline"] != Pipeline.MD


def test_terms_and_messages_are_never_from_the_client(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    one, other = mesh.submit(PROMPT, 5), mesh.submit(PROMPT, 5)
    assert one.incarnation == other.incarnation == 77
    assert one.counter != other.counter
    named = [x.term for x in mesh.said(m.Admit) + mesh.said(m.Prefill) if getattr(x, "rid", None) == one]
    assert len(set(named)) == len(named)


@pytest.mark.parametrize("kind", ["empty", "nothing to draw", "longer than the context"])
def test_what_cannot_be_served_is_refused_by_name(make_mesh: MakeMesh, kind: str) -> None:
    mesh = make_mesh()
    ids, max_tokens = {
        "empty": ([], 5),
        "nothing to draw": ([1, 2], 0),
        "longer than the context": ([1] * 4000, 5),
    }[kind]
    with pytest.raises(InvalidRequest):
        mesh.submit(ids, max_tokens)
    assert not mesh.core.requests


def test_what_no_main_decode_could_finish_is_refused_at_once_with_the_numbers(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    said = r"may have 4000 tokens .* has 4001 \(3990 in the prompt, 11 in the answer\)"
    with pytest.raises(ContextTooLong, match=said):
        mesh.submit([at % 5 for at in range(3990)], 11)
    assert mesh.core.drained
    mesh.submit([at % 5 for at in range(3990)], 10)
    assert mesh.settle()


def test_nobody_there_is_unavailable_with_reasons(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(0, 0, 0)
    with pytest.raises(Unavailable, match="no worker"):
        mesh.submit(PROMPT, 5)
    ready = mesh.core.ready()
    assert not ready["ready"]
    assert ready["reasons"]


def test_a_name_that_nobody_serves_is_unavailable(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    assert mesh.core.models() == ["fake"]
    with pytest.raises(Unavailable, match="'other'"):
        mesh.submit(PROMPT, 5, model="other")
    client, _ = serve(mesh, PROMPT, 5, model="fake")
    assert client.over


def test_ready_names_each_pipeline_and_why_not(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 0, 1)
    pipelines = mesh.core.ready()["pools"][0]["pipelines"]
    assert pipelines["MD"]["possible"]
    assert pipelines["P-MD"]["possible"]
    assert not pipelines["P-RLD-MD"]["possible"]
    assert "relay" in pipelines["P-RLD-MD"]["reason"]
    mesh.unlink("p0", "m0", 5.0)
    mesh.run(mesh.now + 0.5)
    assert "KV session" in mesh.core.ready()["pools"][0]["pipelines"]["P-MD"]["reason"]


def test_eight_equal_prompts_at_once_go_to_one_main_decode(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 1, 3)
    rids = [mesh.submit(PROMPT, 20) for _ in range(8)]
    assert mesh.settle()
    ends = [mesh.clients[rid].done for rid in rids]
    assert len({end.trace["nodes"]["main_decode"] for end in ends if end is not None}) == 1

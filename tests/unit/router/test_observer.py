"""What an operator is shown: each request's stages in order, bounded rows, lines and workers by reports."""

from collections.abc import Callable

import msgspec

from services.router.observer import ENDED_SHOWN, MOST_ROWS
from services.router.picture import Picture
from services.router.request_trace import Stage, Trace
from shared.wire import messages as m
from tests.support.fake_mesh import FakeMesh

MakeMesh = Callable[..., FakeMesh]
PROMPT = [at % 7 for at in range(101)]


def serve(mesh: FakeMesh, ids: list[int], max_tokens: int) -> m.Rid:
    rid = mesh.submit(ids, max_tokens)
    assert mesh.run(mesh.now + 60, stop=lambda: mesh.clients[rid].over)
    return rid


def look(mesh: FakeMesh) -> Picture:
    picture = mesh.core.picture(mesh.now)
    assert msgspec.json.decode(msgspec.json.encode(picture), type=Picture) == picture
    return picture


def test_a_relayed_request_goes_through_every_stage_in_order(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT, 60)
    (row,) = look(mesh).requests.ended
    assert [stage for stage, _ in row.stages] == ["queue", "prefill", "lan", "relay", "cut", "decode"]
    times = [at for _, at in row.stages]
    assert times == sorted(times)
    assert times[0] == 0
    assert times[-1] < row.age_ms
    assert row.state == "length"
    assert row.pipeline == "P-RLD-MD"
    assert (row.made, row.most, row.prompt_tokens) == (60, 60, 101)
    assert {crossing.kind for crossing in row.crossings} == {"lan", "wan"}
    wan = next(crossing for crossing in row.crossings if crossing.kind == "wan")
    assert wan.bytes == 25 * 1000
    assert wan.end_ms is not None
    assert wan.start_ms < wan.end_ms <= dict(row.stages)["cut"]


def test_without_a_relay_the_client_waits_for_the_line(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(relay=0)
    serve(mesh, PROMPT, 10)
    (row,) = look(mesh).requests.ended
    assert [stage for stage, _ in row.stages] == ["queue", "prefill", "wan", "cut", "decode"]


def test_a_request_that_main_decode_serves_alone_is_prefilled_nowhere(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT, 20)
    mesh.run(mesh.now + 1)
    serve(mesh, PROMPT, 20)
    row = look(mesh).requests.ended[0]
    assert row.pipeline == "MD"
    assert [stage for stage, _ in row.stages] == ["queue", "cut", "decode"]
    assert row.hit_tokens == 100


def test_a_lost_owner_makes_the_client_wait_again(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(main=2)
    rid = mesh.submit(PROMPT, 300)
    client = mesh.clients[rid]
    assert mesh.run(mesh.now + 60, stop=lambda: bool(client.owners) and client.owners[-1] == m.Role.MAIN)
    mesh.kill(mesh.core.requests[rid].trace.nodes["main_decode"])
    assert mesh.run(mesh.now + 60, stop=lambda: client.over)
    (row,) = look(mesh).requests.ended
    stages = [stage for stage, _ in row.stages]
    assert stages.count("decode") == 2
    assert stages.count("cut") == 2


def test_the_time_that_prefill_waited_there_counts_as_queue() -> None:
    trace = Trace(0.0, stages=[(Stage.QUEUE, 0.0)])
    trace.enter(Stage.PREFILL, 1.0)
    trace.waited(0.5, 2.0)
    assert trace.stages == [(Stage.QUEUE, 0.0), (Stage.PREFILL, 1.5)]
    trace.waited(9.0, 2.0)
    assert trace.stages[-1] == (Stage.PREFILL, 2.0), "never past now"


def test_a_stage_that_goes_on_is_noted_once_and_very_many_are_not_kept() -> None:
    trace = Trace(0.0, stages=[(Stage.QUEUE, 0.0)])
    for at in range(1000):
        trace.enter(Stage.CUT if at // 2 % 2 else Stage.DECODE, float(at))
    assert len(trace.stages) == 64
    assert [at for _, at in trace.stages[1:4]] == [0.0, 2.0, 4.0]


def test_a_relay_that_comes_or_goes_renames_the_wait() -> None:
    trace = Trace(0.0, stages=[(Stage.PREFILL, 0.0)])
    trace.enter_wait(1.0, relay=False)
    trace.enter_wait(2.0, relay=True)
    assert trace.stages[1:] == [(Stage.LAN, 1.0)]


def test_many_requests_are_counted_and_few_are_shown(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(main=4)
    rids = [mesh.submit([at] * 9, 4) for at in range(MOST_ROWS + 20)]
    requests = look(mesh).requests
    assert requests.live == len(rids)
    assert [row.id for row in requests.rows] == [f"4d.{rid.counter}" for rid in rids[:MOST_ROWS]]
    assert mesh.settle()
    picture = look(mesh)
    assert picture.requests.live == 0
    assert len(picture.requests.ended) == ENDED_SHOWN
    assert picture.finished == len(rids)
    assert sum(picture.pipelines.values()) == len(rids)


def test_who_left_and_who_waits(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(blocks=12)
    rids = [mesh.submit([at] * 9, 28) for at in range(6)]
    mesh.run(mesh.now + 0.05)
    picture = look(mesh)
    assert picture.requests.waiting == sum(r.waiting for r in mesh.core.requests.values()) > 0
    assert 0 < picture.requests.oldest_wait_ms <= 60
    assert any(row.note for row in picture.requests.rows)
    for rid in rids:
        mesh.cancel(rid)
    picture = look(mesh)
    assert picture.requests.live == picture.requests.waiting == 0
    assert {row.state for row in picture.requests.ended} == {"cancelled"}


def test_lines_add_up_their_senders_reports(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(prefill=2)
    for node, seq in (("p0", 900), ("p1", 900)):
        report = m.LoadReport(
            seq, 1, 2, 300, 40, 5, 6, 1000.0, 0.0,
            unsent_bytes={"wan": 70}, oldest_age_ms={"wan": 5 if node == "p0" else 9}, line_rate={"wan": 1e4},
            counters={"prompt_tokens": 100.0, "prompt_tokens_cached": 75.0},
            unsent_by_class={"wan": (40, 20, 10, 0, 99)}, sent_bytes={"wan": 1000, "a": 7},
        )  # fmt: skip
        mesh.core.on_message(mesh.now, node, report, b"")
    picture = look(mesh)
    wan, lan = picture.lines
    assert (wan.name, lan.name, lan.between) == ("wan", "a", ("a", "a"))
    assert wan.cap == 1e5
    assert wan.estimate == 2e4
    assert wan.classes == {"uncovered": 80, "covered": 40, "alignment": 20, "parked": 0}
    assert (wan.outstanding, wan.oldest_ms, wan.sent) == (140, 9, 2000)
    assert [sender.node for sender in wan.senders] == ["p0", "p1"]
    assert [one.role for one in picture.workers] == ["prefill", "prefill", "relay", "main_decode"]
    prefill = picture.workers[0]
    assert (prefill.hit_tokens, prefill.looked_up_tokens, prefill.running, prefill.queued) == (75, 100, 1, 2)
    assert prefill.state == "ok"
    mesh.run(mesh.now + 5)


def test_ended_requests_are_kept_for_recording_only_where_somebody_records(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT, 5)
    assert mesh.core.observer.take_ended() == []
    mesh.core.observer.recording = True
    rid = serve(mesh, PROMPT, 5)
    (ended,) = mesh.core.observer.take_ended()
    assert ended.rid == rid
    assert ended.outcome == "length"
    assert mesh.core.observer.take_ended() == []

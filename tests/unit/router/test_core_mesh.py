"""What the core does beside requests: introductions, shares of lines, the index, re-warming, breakers,
metrics.
"""

from collections.abc import Callable

import msgspec

from shared.wire import messages as m
from shared.wire.messages import Purpose, Role, TransferClass
from tests.support.fake_mesh import FakeMesh

MakeMesh = Callable[..., FakeMesh]
PROMPT = [at % 7 for at in range(101)]


def serve(mesh: FakeMesh, ids: list[int], max_tokens: int = 20) -> None:
    rid = mesh.submit(ids, max_tokens)
    assert mesh.run(mesh.now + 60, stop=lambda: mesh.clients[rid].over)
    mesh.run(mesh.now + 2)


def test_workers_are_introduced_once_per_change(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    mesh.run(mesh.now + 1)
    told = mesh.said(m.Peers, "p0")
    assert [node for node, _, _, _ in told[-1].nodes] == ["m0", "p0", "r0"]
    mesh.sent.clear()
    mesh.run(mesh.now + 3)
    assert not mesh.said(m.Peers)
    mesh.start("m1", Role.MAIN)
    mesh.run(mesh.now + 1)
    assert {to for _, to, x in mesh.sent if isinstance(x, m.Peers)} == {"m0", "m1", "p0", "r0"}
    assert ("m1", Role.MAIN, "b", "m1:1") in mesh.said(m.Peers, "p0")[-1].nodes


def test_a_line_is_dealt_among_its_senders_while_it_has_a_backlog(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 0, 1)
    for at, name in enumerate(("p0", "p1")):
        report = m.LoadReport(
            seq=1000,
            running=0,
            queued=0,
            queued_tokens=0,
            free_blocks=10,
            promised_blocks=0,
            pinned_blocks=0,
            prefill_rate=0.0,
            decode_step_ms=0.0,
            unsent_bytes={"wan": 1000 + at},
            smallest_remaining={"wan": 1000 + at},
            oldest_age_ms={"wan": 100 * at},
        )
        mesh.core.on_message(mesh.now, name, report, b"")
    mesh.run(mesh.now + 0.3)
    shares = {to: x for _, to, x in mesh.sent if isinstance(x, m.LineShare)}
    assert set(shares) == {"p0", "p1"}
    assert sum(share.rate for share in shares.values()) <= 1e5 * 1.001
    assert {share.senders for share in shares.values()} == {2}
    mesh.sent.clear()
    for name in ("p0", "p1"):
        quiet = msgspec.structs.replace(report, seq=1001, unsent_bytes={})
        mesh.core.on_message(mesh.now, name, quiet, b"")
    mesh.run(mesh.now + 2)
    assert not mesh.said(m.LineShare)


def test_a_gap_in_the_events_asks_for_a_snapshot_once(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    worker = mesh.workers["m0"]
    mesh.sent.clear()
    worker._seq += 1
    worker.publish([b"0" * 16])
    worker.publish([b"1" * 16])
    mesh.run(mesh.now + 1)
    assert len(mesh.said(m.SnapshotRequest, "m0")) == 1
    assert mesh.core.mesh.index.hashes("m0") == frozenset(worker.cache)


def test_a_worker_that_restarts_has_nothing_in_the_index(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(1, 1, 2)
    serve(mesh, PROMPT)
    held = next(name for name in ("m0", "m1") if mesh.workers[name].cache)
    mesh.kill(held)
    assert mesh.core.mesh.index.hashes(held) == frozenset()
    mesh.workers["p0"].evict()
    mesh.restart(held)
    mesh.run(mesh.now + 1)
    assert mesh.core.mesh.index.hashes(held) == frozenset()


def test_a_main_decode_that_restarts_cold_is_warmed_with_its_recent_sessions(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    other = [at % 5 for at in range(81)]
    serve(mesh, other)
    serve(mesh, PROMPT)
    mesh.kill("m0")
    mesh.sent.clear()
    mesh.restart("m0")
    mesh.run(mesh.now + 10)
    admits = mesh.said(m.Admit, "m0")
    assert {x.purpose for x in admits} == {Purpose.WARM}
    assert [x.prompt_len for x in admits] == [100, 80]
    attaches = mesh.said(m.Attach, "p0")
    assert {x.cls for x in attaches} == {TransferClass.ALIGNMENT}
    assert not mesh.said(m.Prefill)
    assert len(mesh.workers["m0"].cache) == 25 + 20 - 1  # both begin with the same block
    assert mesh.core.mesh.counters["rewarmed_total"] == 2


def test_warming_keeps_to_its_share_of_the_line(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(policy={"rewarm_share": 0.01}, far=0.01)
    serve(mesh, [at % 5 for at in range(81)])
    serve(mesh, PROMPT)
    mesh.kill("m0")
    mesh.restart("m0")
    mesh.sent.clear()
    mesh.run(mesh.now + 10)
    assert mesh.core.mesh.counters["rewarmed_total"] == 1
    mesh.run(mesh.now + 30)
    assert mesh.core.mesh.counters["rewarmed_total"] == 2


def test_warming_goes_on_at_once_where_the_sender_is_lost(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 1, 1, far=1.0)
    serve(mesh, [at % 5 for at in range(81)])
    serve(mesh, PROMPT)
    for one, other in (("p0", "p1"), ("p1", "p0")):
        mesh.workers[one].publish(list(mesh.workers[other].cache))
    mesh.run(mesh.now + 1)
    mesh.kill("m0")
    mesh.restart("m0")
    mesh.sent.clear()
    assert mesh.run(mesh.now + 10, stop=lambda: bool(mesh.said(m.Attach)))
    sender = next(to for _, to, message in mesh.sent if isinstance(message, m.Attach))
    mesh.kill(sender)
    mesh.run(mesh.now + 10)
    assert mesh.core.mesh.counters["rewarmed_total"] == 1  # the one that was lost is not tried again


def test_what_prefill_no_longer_holds_is_not_warmed(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT)
    mesh.workers["p0"].evict()
    mesh.run(mesh.now + 1)
    mesh.kill("m0")
    mesh.restart("m0")
    mesh.run(mesh.now + 5)
    assert mesh.core.mesh.counters["rewarm_skipped_total"] == 1
    assert not mesh.workers["m0"].cache


def test_a_worker_that_keeps_failing_gets_one_probe_at_a_time(make_mesh: MakeMesh) -> None:
    mesh = make_mesh(2, 0, 1, fail=0.0)
    bad = mesh.workers["p0"]
    bad.fail = 1.0
    for at in range(12):
        serve(mesh, [at % 11] * 41, 4)
    counters = mesh.core.mesh.counters
    failed = counters["failed_internal_total"] + counters["failed_nan_total"]
    assert 1 <= failed <= 8
    assert counters["requests_finished_total"] == 12


def test_the_operator_can_flush_and_drain_workers(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    serve(mesh, PROMPT)
    mesh.core.flush()
    mesh.perform()
    mesh.run(mesh.now + 1)
    assert not any(worker.cache for worker in mesh.workers.values())
    mesh.sent.clear()
    assert mesh.core.drain_worker("m0", on=True)
    assert not mesh.core.drain_worker("nobody", on=True)
    mesh.perform()
    assert [x.on for x in mesh.said(m.Drain)] == [True]


def test_numbers_for_metrics(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    rid = mesh.submit(PROMPT, 50)
    assert mesh.run(mesh.now + 0.3, lambda: mesh.core.snapshot()["index_expected_blocks"] > 0)
    assert mesh.core.snapshot()["requests_live"] == 1
    mesh.cancel(rid)
    after = mesh.core.snapshot()
    assert after["requests_live"] == after["index_expected_blocks"] == 0
    assert after["requests_cancelled_total"] == 1
    assert after["workers"] == 3


def test_messages_that_a_router_has_no_business_with_are_counted(make_mesh: MakeMesh) -> None:
    mesh = make_mesh()
    mesh.core.on_message(mesh.now, "p0", m.Flush(), b"")
    mesh.core.on_message(mesh.now, "nobody", m.KvEvents(1, 1, 0), b"0" * 16)
    mesh.core.on_message(mesh.now, "nobody", m.Snapshot(1, 1), b"0" * 16)
    mesh.core.on_suspect(mesh.now, "nobody", True)
    mesh.core.on_lost(mesh.now, "nobody", "gone")
    mesh.core.cancel(mesh.now, m.Rid(77, 5))
    mesh.core.stop_at(mesh.now, m.Rid(77, 5), 3)
    assert mesh.core.mesh.counters["unexpected_messages_total"] == 1

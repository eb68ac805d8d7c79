"""What requests share: blocks on the line, room at a relay, and the urgency of what they wait for."""

from __future__ import annotations

from shared.wire import messages as m
from tests.support.whole_mesh import BLOCK_BYTES, WholeMesh, policy, prompt, worker_policy

RELAYED = policy(md_local_tokens=0, singular=False)


def test_a_sender_that_drops_an_alignment_tells_its_receiver() -> None:
    mesh = WholeMesh(wan=4e3, blocks={"p1": 100, "rld1": 400, "md1": 1000}, router=RELAYED)
    client = mesh.submit(prompt(80), 3)
    mesh.finish()
    mesh.run(0.2)
    assert mesh.counters("p1")["alignments_dropped_total"] == 1, "twenty blocks are more than its tenth"
    assert mesh.counters("md1")["alignments_dropped_total"] == 1
    assert mesh["md1"].worker.idle()
    mesh.settle(1.0)
    assert mesh.check_prompts(client) == 1 <= mesh.dropped()


def test_equal_alignments_count_once() -> None:
    mesh = WholeMesh(wan=4e3, blocks={"p1": 300, "rld1": 600, "md1": 300}, router=RELAYED)
    for seed in range(5):
        mesh.submit(prompt(80), 3, seed=seed, temperature=1.0)
    mesh.finish()
    mesh.settle()
    assert mesh.dropped() == 0
    assert mesh.wan_bytes == 20 * BLOCK_BYTES


def test_bytes_of_a_former_carrier_land_for_its_heir() -> None:
    mesh = WholeMesh(wan=4e3, delay=0.3, blocks=400, router=RELAYED)
    first = mesh.submit(prompt(80), 60)
    mesh.run(0.1)
    mesh.submit(prompt(80), 300)
    mesh.finish(first)
    assert first.owners[-1] is m.Role.RELAY
    mesh.finish()
    mesh.settle()
    assert mesh.counters("md1").get("kv_bytes_drained_total", 0) == 0, "none of what was on its way was lost"
    assert mesh.wan_bytes == 20 * BLOCK_BYTES


def test_what_an_urgent_request_waits_for_becomes_urgent() -> None:
    mesh = WholeMesh(wan=1e3, blocks=1000, router=RELAYED)
    mesh.submit(prompt(80), 3)
    mesh.finish()
    mesh.run(0.02)  # the Release arrives
    transfers = mesh["p1"].worker.rooms.kv_out
    (alignment,) = transfers.all()
    assert alignment.cls is m.TransferClass.ALIGNMENT
    mesh.submit(prompt(80), 300)
    mesh.run(0.1)
    classes = {transfer.rid.counter: transfer.cls for transfer in transfers.all()}
    assert min(classes[1], classes[2]) is m.TransferClass.COVERED
    mesh.finish()
    mesh.settle()
    assert mesh.wan_bytes <= 21 * BLOCK_BYTES
    assert mesh.check_prompts() == 0


def test_the_room_that_a_request_has_at_a_relay_is_not_missing_to_itself() -> None:
    mesh = WholeMesh(wan=4e3, blocks={"p1": 200, "rld1": 30, "md1": 200}, router=RELAYED)
    client = mesh.submit(prompt(82), 30)
    mesh.finish()
    assert client.pipeline == "P-RLD-MD"
    assert m.Role.RELAY in client.owners
    mesh.settle()


def test_a_relay_without_room_leaves_the_road_without_it() -> None:
    mesh = WholeMesh(wan=4e3, blocks={"p1": 200, "rld1": 20, "md1": 200}, router=RELAYED)
    client = mesh.submit(prompt(82), 30)
    mesh.finish()
    assert client.pipeline == "P-MD"
    mesh.settle()
    assert mesh.check_prompts() == 0


def test_where_a_main_decode_is_full_requests_wait_for_room_and_are_served_in_turn() -> None:
    mesh = WholeMesh("p1", "md1", wan=40e3, blocks={"p1": 400, "md1": 60}, router=policy(relay=False))
    clients = [mesh.submit(prompt(80, seed), 40) for seed in range(6)]
    mesh.finish()
    ends = [client.times[-1] for client in clients]
    assert ends == sorted(ends)
    assert mesh.core.mesh.counters["requests_waited_total"] >= 3
    mesh.settle()


def test_growth_that_finds_no_block_parks_the_youngest_and_all_are_answered() -> None:
    mesh = WholeMesh(
        *("p1", "md1"),
        blocks={"p1": 400, "md1": 70},
        wan=0.0,
        router=policy(relay=False),
        worker=worker_policy(growth_tokens=4),
    )
    for seed in range(3):
        mesh.submit(prompt(60, seed), 150)
    mesh.finish()
    assert mesh.counters("md1")["starved_total"] > 0
    mesh.settle()

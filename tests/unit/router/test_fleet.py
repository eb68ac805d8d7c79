"""What the router believes of its workers: reports, its own placements since, lines, sessions between
workers.
"""

import msgspec
import pytest

from services.router.fleet import Fleet
from services.router.lines import INSIDE, OPEN, Line, Lines
from services.router.worker import DEFAULT_PREFILL_RATE, Placed, Worker
from shared.policy.config import RouterPolicy
from shared.wire.codec import decode, encode
from shared.wire.messages import Announce, LoadReport, Role
from shared.wire.port import PeerInfo

ANNOUNCE = Announce(
    role=Role.MAIN,
    model="m",
    block_tokens=4,
    bytes_per_block=100,
    pool_blocks=1000,
    max_context=4000,
    max_running=8,
    draining=False,
    kv_address="",
    fingerprint="f",
    layout=b"l",
)
REPORT = LoadReport(1, 0, 0, 0, 900, 0, 0, 0.0, 0.0)
WAN = Line("wan", ("a", "b"), 1e6, 0.04)


@pytest.fixture
def fleet() -> Fleet:
    made = Fleet(RouterPolicy(), Lines([WAN]), "a")
    for name, role, where in (("p", Role.PREFILL, "a"), ("m", Role.MAIN, "b"), ("n", Role.MAIN, "b")):
        made.opened(0.0, PeerInfo(name, role, where, 1))
        made.announced(name, msgspec.structs.replace(ANNOUNCE, role=role, peers=()))
    return made


def worker(fleet: Fleet, name: str) -> Worker:
    found = fleet.get(name)
    assert found is not None
    return found


def test_own_placements_count_until_a_report_can_know_of_them(fleet: Fleet) -> None:
    main = worker(fleet, "m")
    fleet.reported(1.0, "m", REPORT)
    main.take("one", Placed(1.0, tokens=50, blocks=20))
    assert (main.free_blocks(), main.queued_tokens(), main.load()) == (880, 50, 1)
    # A report that may have been made before the placement arrived there.
    fleet.reported(1.1, "m", msgspec.structs.replace(REPORT, seq=2))
    assert main.free_blocks() == 880
    fleet.reported(2.0, "m", msgspec.structs.replace(REPORT, seq=3, running=1, free_blocks=880))
    assert (main.free_blocks(), main.queued_tokens(), main.load()) == (880, 0, 1)
    main.give("one")
    assert main.load() == 1


def test_a_placement_that_ended_counts_no_more(fleet: Fleet) -> None:
    main = worker(fleet, "m")
    main.take("one", Placed(1.0, tokens=50, blocks=20))
    main.book(("one", "send"), Placed(1.0, line="wan", bytes=500, request=False))
    assert main.load() == 1
    assert main.unsent("wan") == 500
    main.give("one")
    main.give(("one", "send"))
    assert (main.free_blocks(), main.load(), main.unsent("wan")) == (1000, 0, 0)


def test_reports_that_were_overtaken_are_dropped(fleet: Fleet) -> None:
    fleet.reported(1.0, "m", msgspec.structs.replace(REPORT, seq=5, running=3))
    fleet.reported(1.1, "m", msgspec.structs.replace(REPORT, seq=4, running=7))
    assert worker(fleet, "m").load() == 3


def test_an_engine_shows_life_by_steps_or_by_fewer_tokens(fleet: Fleet) -> None:
    main = worker(fleet, "m")
    busy = msgspec.structs.replace(REPORT, running=1, queued_tokens=100)
    fleet.reported(1.0, "m", msgspec.structs.replace(busy, seq=2))
    fleet.reported(2.0, "m", msgspec.structs.replace(busy, seq=3))
    assert main.progress_at == 1.0
    fleet.reported(3.0, "m", msgspec.structs.replace(busy, seq=4, queued_tokens=90))
    assert main.progress_at == 3.0
    steps = {"steps": 7.0}
    fleet.reported(4.0, "m", msgspec.structs.replace(busy, seq=5, counters=steps))
    fleet.reported(5.0, "m", msgspec.structs.replace(busy, seq=6, counters=steps, queued_tokens=1))
    assert main.progress_at == 4.0
    fleet.reported(6.0, "m", msgspec.structs.replace(REPORT, seq=7, counters={}))
    assert main.progress_at == 6.0


def test_two_workers_are_connected_while_both_say_so(fleet: Fleet) -> None:
    assert not fleet.connected("p", "m")
    fleet.announced("p", msgspec.structs.replace(ANNOUNCE, role=Role.PREFILL, peers=("m",)))
    assert not fleet.connected("p", "m")
    fleet.announced("m", msgspec.structs.replace(ANNOUNCE, peers=("p",)))
    assert fleet.connected("m", "p")
    assert fleet.announced("p", msgspec.structs.replace(ANNOUNCE, role=Role.PREFILL, peers=()))
    assert not fleet.connected("p", "m")


def test_pools_are_workers_of_one_model_and_layout(fleet: Fleet) -> None:
    fleet.opened(0.0, PeerInfo("x", Role.MAIN, "b", 1))
    fleet.announced("x", msgspec.structs.replace(ANNOUNCE, fingerprint="other", model="big"))
    pools = fleet.pools()
    assert [pool.fingerprint for pool in pools] == ["f", "other"]
    assert [one.node for one in fleet.of(Role.MAIN, pools[0])] == ["m", "n"]
    assert [pool.fingerprint for pool in fleet.pools("big")] == ["other"]
    assert fleet.models() == ["big", "m"]


def test_a_worker_is_used_for_a_model_only_with_the_tokenizer_that_the_router_has_for_it() -> None:
    fleet = Fleet(RouterPolicy(), Lines([]), "a", {"m": "t1", "big": "t2"})
    for name, model, template in (
        ("m", "m", "t1"),
        ("n", "big", "t1"),
        ("o", "new", "t1"),
        ("p", "big", "t2"),
    ):
        fleet.opened(0.0, PeerInfo(name, Role.MAIN, "b", 1, template=template))
        fleet.announced(
            name, msgspec.structs.replace(ANNOUNCE, model=model, fingerprint=f"{model} {template}")
        )
    assert {model: len(fleet.pools(model)) for model in ("m", "big", "new", "")} == {
        "m": 1,
        "big": 1,
        "new": 0,
        "": 2,
    }
    assert worker(fleet, "n").why_not(0.0) == "serves 'big' with another tokenizer"
    assert worker(fleet, "o").why_not(0.0) == "serves 'new', which this router does not"
    assert worker(fleet, "n").pool is None
    fleet.announced("n", msgspec.structs.replace(ANNOUNCE, model="m"))
    assert worker(fleet, "n").why_not(0.0) is None


def test_the_longest_request_is_the_largest_main_decodes_own(fleet: Fleet) -> None:
    assert fleet.max_context() == fleet.max_context("m") == 999 * 4 + 1
    fleet.announced("n", msgspec.structs.replace(ANNOUNCE, pool_blocks=2000))
    assert fleet.max_context("m") == 4000
    assert fleet.max_context("big") == 0


def test_why_a_worker_gets_no_work(fleet: Fleet) -> None:
    main = worker(fleet, "m")
    assert main.why_not(0.0) is None
    fleet.suspected("m", True)
    assert main.why_not(0.0) == "silent"
    fleet.suspected("m", False)
    fleet.announced("m", msgspec.structs.replace(ANNOUNCE, draining=True))
    assert main.why_not(0.0) == "draining"
    fleet.opened(0.0, PeerInfo("m", Role.MAIN, "b", 2))
    assert worker(fleet, "m").why_not(0.0) == "has not announced itself"
    assert fleet.is_suspect("nobody")


def test_a_worker_that_restarts_keeps_its_breaker(fleet: Fleet) -> None:
    for at in range(3):
        worker(fleet, "m").take("request", Placed(0.1 * at))
        fleet.lost(0.1 * at, "m")
        fleet.opened(0.1 * at, PeerInfo("m", Role.MAIN, "b", 2 + at))
    assert not worker(fleet, "m").breaker.allows(0.2)
    assert worker(fleet, "m").breaker.allows(1.3)


def test_a_worker_that_leaves_idle_has_not_failed(fleet: Fleet) -> None:
    for at in range(5):
        fleet.lost(0.0, "m")
        fleet.opened(0.0, PeerInfo("m", Role.MAIN, "b", 2 + at))
    assert worker(fleet, "m").breaker.allows(0.0)


def test_lines_by_datacenters(fleet: Fleet) -> None:
    assert fleet.line(worker(fleet, "p"), worker(fleet, "m")) is WAN
    assert fleet.line(worker(fleet, "m"), worker(fleet, "n")) is INSIDE
    assert Lines([]).between("a", "c") is OPEN
    assert fleet.rtt("m") == WAN.rtt
    fleet.measured_rtt("m", 0.2)
    assert fleet.rtt("m") == 0.2


def test_a_line_that_carries_less_than_its_cap_is_believed_while_it_has_a_backlog() -> None:
    lines = Lines([WAN])
    assert lines.rate(WAN) == 1e6
    lines.measured("p", {"wan": 2e5}, {"wan": 1000})
    lines.measured("q", {"wan": 1e5}, {"wan": 1000})
    assert lines.rate(WAN) == pytest.approx(3e5)
    lines.measured("p", {"wan": 2e5}, {"wan": 0})
    assert lines.rate(WAN) == pytest.approx(1e5)
    lines.forget("q")
    assert lines.rate(WAN) == 1e6


def test_a_compressed_line_carries_more_kv_than_bytes() -> None:
    lines = Lines([WAN])
    assert lines.kv_rate(WAN) == 1e6
    lines.measured("p", {"wan": 6e5}, {"wan": 1000}, {"wan": 1.5})
    lines.measured("q", {"wan": 2e5}, {"wan": 1000})  # does not say: sends bytes as they are
    assert lines.rate(WAN) == pytest.approx(8e5)
    assert lines.kv_rate(WAN) == pytest.approx(6e5 * 1.5 + 2e5)
    lines.measured("p", {"wan": 6e5}, {"wan": 0})
    lines.measured("q", {"wan": 2e5}, {"wan": 0})
    assert lines.rate(WAN) == 1e6
    assert lines.kv_rate(WAN) == pytest.approx(1e6 * 11 / 8), "the same KV will come again"
    lines.forget("p")
    assert lines.kv_rate(WAN) == 1e6


def test_a_report_of_the_version_before_says_nothing_of_compression(fleet: Fleet) -> None:
    report = msgspec.structs.replace(REPORT, line_rate={"wan": 5e5}, unsent_bytes={"wan": 1000})
    old = decode(msgspec.msgpack.encode(msgspec.msgpack.decode(encode(report))[:-1]))
    assert isinstance(old, LoadReport)
    fleet.reported(1.0, "p", old)
    assert fleet.lines.kv_rate(WAN) == fleet.lines.rate(WAN) == 5e5
    fleet.reported(2.0, "p", msgspec.structs.replace(report, line_gain={"wan": 1.4}))
    assert fleet.lines.kv_rate(WAN) == pytest.approx(7e5)


def test_what_waits_for_a_line_is_summed_over_senders(fleet: Fleet) -> None:
    fleet.opened(0.0, PeerInfo("q", Role.PREFILL, "a", 1))
    fleet.reported(1.0, "p", msgspec.structs.replace(REPORT, unsent_bytes={"wan": 700}))
    worker(fleet, "q").book("x", Placed(1.0, line="wan", bytes=300, request=False))
    assert fleet.outstanding(WAN) == 1000
    assert fleet.outstanding(INSIDE) == 0


def test_a_rate_that_nobody_measured_is_the_peers_median(fleet: Fleet) -> None:
    pool = fleet.pools()[0]
    assert fleet.typical_rate(Role.PREFILL, pool) == DEFAULT_PREFILL_RATE
    fleet.reported(1.0, "p", msgspec.structs.replace(REPORT, prefill_rate=500.0))
    assert fleet.typical_rate(Role.PREFILL, pool) == 500.0

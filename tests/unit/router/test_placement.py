"""Placement: overlap where it helps, load where it does not, and a reason for everything."""

from collections import Counter
from dataclasses import replace

import pytest

from services.router.index import Match
from services.router.wish import NoRoad, Obstacle, Plan, Wish
from services.router.worker import Placed
from shared.policy.pipeline import Pipeline
from tests.support.placing import BLOCK, BLOCK_BYTES, Numbers


def plan(numbers: Numbers, wish: Wish) -> Plan:
    found = numbers.placement.plan(numbers.now, numbers.pool, wish)
    assert isinstance(found, Plan), found
    return found


def no_road(numbers: Numbers, wish: Wish) -> NoRoad:
    found = numbers.placement.plan(numbers.now, numbers.pool, wish)
    assert isinstance(found, NoRoad), found
    return found


def test_a_warm_main_decode_takes_the_request_alone() -> None:
    numbers = Numbers("p1", "r1", "m1", "m2")
    chain = numbers.chain(100)
    numbers.hold("m2", chain[:95])
    found = plan(numbers, numbers.wish(chain))
    assert (found.pipeline, found.chosen.node) == (Pipeline.MD, "m2")
    assert found.chosen.have == 95
    assert "170 <= 256" in found.reason


def test_little_missing_takes_the_line_and_much_takes_a_relay() -> None:
    numbers = Numbers("p1", "r1", "m1", relay_margin=0.5)
    chain = numbers.chain(100)
    numbers.hold("p1", chain[:60])
    assert plan(numbers, numbers.wish(chain)).pipeline is Pipeline.P_RLD_MD
    numbers.hold("m1", chain[:89])
    assert plan(numbers, numbers.wish(chain)).pipeline is Pipeline.P_MD


def test_a_relay_that_lacks_the_whole_context_gains_nothing_over_a_slow_lan() -> None:
    numbers = Numbers("p1", "r1", "m1", rate=1.25e9 / 10)
    chain = numbers.chain(1000)
    numbers.hold("p1", chain)
    numbers.hold("m1", chain[:910])
    found = plan(numbers, numbers.wish(chain))
    assert found.pipeline is Pipeline.P_MD
    assert found.chosen.t_relay == pytest.approx(1000 * BLOCK_BYTES / 1.25e9, rel=0.1)


def test_short_answers_to_long_prompts_are_singular() -> None:
    numbers = Numbers("p1", "r1", "m1")
    chain = numbers.chain(100)
    found = plan(numbers, numbers.wish(chain, output=10, singular_allowed=True))
    assert found.pipeline is Pipeline.P_RLD
    assert plan(numbers, numbers.wish(chain, output=500, singular_allowed=True)).pipeline is Pipeline.P_RLD_MD
    assert plan(numbers, numbers.wish(chain, output=10)).pipeline is Pipeline.P_RLD_MD


def test_singular_requests_hold_a_small_part_of_a_relay_or_are_one() -> None:
    numbers = Numbers("p1", "r1", "m1")
    numbers.announce("r1", pool_blocks=1000)
    wish = numbers.wish(numbers.chain(100), output=10, singular_allowed=True)
    assert plan(numbers, wish).pipeline is Pipeline.P_RLD
    numbers.place("r1")
    next(iter(numbers["r1"].placed.values())).singular = 100
    assert plan(numbers, wish).pipeline is Pipeline.P_RLD_MD


def test_a_line_that_is_too_far_behind_refuses_low_hits_only() -> None:
    numbers = Numbers("p1", "r1", "m1", max_line_wait=30.0)
    chain = numbers.chain(100)
    numbers.report("p1", unsent_bytes={"wan": int(40 * 25e6)})
    refused = no_road(numbers, numbers.wish(chain))
    assert refused.obstacle is Obstacle.LINE
    assert refused.wait == pytest.approx(14.04, rel=0.01)
    assert "30.0" in refused.why()
    numbers.hold("m1", chain)
    assert plan(numbers, numbers.wish(chain)).pipeline is Pipeline.MD


def test_one_whose_ids_were_shown_waits_for_the_line() -> None:
    numbers = Numbers("p1", "m1")
    numbers.report("p1", unsent_bytes={"wan": int(400 * 25e6)})
    assert plan(numbers, numbers.wish(numbers.chain(100), patient=True)).pipeline is Pipeline.P_MD


def test_with_all_prefill_down_main_decode_extends_over_more() -> None:
    numbers = Numbers("p1", "m1")
    numbers["p1"].suspect = True
    small, large = numbers.chain(100), numbers.chain(200)
    assert plan(numbers, numbers.wish(small)).pipeline is Pipeline.MD
    refused = no_road(numbers, numbers.wish(large))
    assert refused.obstacle is Obstacle.SILENT
    assert "p1 silent" in refused.why()


def test_without_any_prefill_worker_the_service_is_unavailable_for_cold_prompts() -> None:
    numbers = Numbers("m1")
    assert no_road(numbers, numbers.wish(numbers.chain(200))).obstacle is Obstacle.NONE
    assert no_road(Numbers("p1"), numbers.wish(numbers.chain(2))).obstacle is Obstacle.NONE


def test_a_pair_without_a_session_is_no_pair() -> None:
    numbers = Numbers("p1", "p2", "m1")
    numbers.announce("p1", peers=("p2",))
    assert plan(numbers, numbers.wish(numbers.chain(100))).chosen.prefill == "p2"
    numbers.announce("p2", peers=("p1",))
    refused = no_road(numbers, numbers.wish(numbers.chain(200)))
    assert "no KV session between p1 and m1" in refused.why()


def test_what_never_fits_is_told_apart_from_what_does_not_fit_now() -> None:
    numbers = Numbers("p1", "m1")
    chain = numbers.chain(100)
    numbers.report("m1", free_blocks=50)
    full = no_road(numbers, numbers.wish(chain))
    assert full.obstacle is Obstacle.FULL
    assert "needs 109 blocks, 50 are free" in full.why()
    numbers.announce("m1", pool_blocks=60)
    assert no_road(numbers, numbers.wish(chain)).obstacle is Obstacle.TOO_LONG
    numbers.announce("m1", max_context=1000)
    assert "context is 1000" in no_road(numbers, numbers.wish(chain)).why()


def test_what_a_main_decode_holds_needs_no_room() -> None:
    numbers = Numbers("p1", "m1")
    chain = numbers.chain(100)
    numbers.hold("m1", chain)
    numbers.report("m1", free_blocks=20)
    assert plan(numbers, numbers.wish(chain)).pipeline is Pipeline.MD


def test_nodes_to_be_avoided_are_and_say_so() -> None:
    numbers = Numbers("p1", "m1", "m2")
    wish = numbers.wish(numbers.chain(10), avoid={"m1": Obstacle.FULL})
    assert plan(numbers, wish).chosen.node == "m2"
    both = numbers.wish(numbers.chain(10), avoid={"m1": Obstacle.FULL, "m2": Obstacle.TOO_LONG})
    assert no_road(numbers, both).obstacle is Obstacle.FULL


def test_simultaneous_requests_spread_over_idle_workers() -> None:
    numbers = Numbers("p1", "p2", "m1", "m2")
    mains: Counter[str] = Counter()
    prefills: Counter[str] = Counter()
    for _ in range(8):
        found = plan(numbers, numbers.wish(numbers.chain(100)))
        assert found.chosen.prefill is not None
        mains[found.chosen.node] += 1
        prefills[found.chosen.prefill] += 1
        numbers.place(found.chosen.node, blocks=109)
        numbers.place(found.chosen.prefill, tokens=3210)
    assert mains == {"m1": 4, "m2": 4}
    assert prefills == {"p1": 4, "p2": 4}


def test_equal_prompts_at_once_go_where_the_first_one_went() -> None:
    numbers = Numbers("p1", "p2", "m1", "m2")
    chain = numbers.chain(100)
    first = plan(numbers, numbers.wish(chain)).chosen
    numbers.place(first.node, blocks=109)
    numbers.index.expect("first", first.node, chain)
    second = plan(numbers, numbers.wish(chain)).chosen
    assert second.node == first.node
    assert second.expected == 100


def test_a_hot_prefix_spreads_once_its_main_decode_is_busy() -> None:
    numbers = Numbers("p1", "m1", "m2", rate=250e6)
    chain = numbers.chain(100)
    numbers.hold("m1", chain)
    numbers.hold("p1", chain)
    assert plan(numbers, numbers.wish(chain)).chosen.node == "m1"
    numbers.report("m1", running=60, decode_step_ms=60.0)
    assert plan(numbers, numbers.wish(chain)).chosen.node == "m2"


def test_a_prefill_worker_with_the_prefix_is_kept_while_its_queue_is_short() -> None:
    numbers = Numbers("p1", "p2", "m1")
    chain = numbers.chain(100)
    numbers.hold("p2", chain[:90])
    assert plan(numbers, numbers.wish(chain)).chosen.prefill == "p2"
    numbers.report("p2", queued_tokens=100_000)
    assert plan(numbers, numbers.wish(chain)).chosen.prefill == "p1"


def test_a_new_empty_worker_is_not_flooded() -> None:
    numbers = Numbers("p1", "p2", "p3", "m1")
    for name in ("p1", "p2", "p3"):
        numbers.report(name, queued_tokens=40_000)
    numbers.join("p4", at=numbers.now)
    for name in ("p1", "p2", "p3", "p4", "m1"):
        numbers.announce(name)
    for name in ("p1", "p2", "p3"):
        numbers.report(name, queued_tokens=40_000)
    numbers.report("p4", prefill_rate=0.0)
    shares: Counter[str] = Counter()
    for _ in range(12):
        found = plan(numbers, numbers.wish(numbers.chain(100)))
        assert found.chosen.prefill is not None
        shares[found.chosen.prefill] += 1
        numbers.place(found.chosen.prefill, tokens=3210)
    assert shares["p4"] <= 4


def test_a_busy_worker_does_not_compute_what_another_busy_one_holds() -> None:
    """The shorter queue would answer a little sooner, and keep all behind it waiting for 0.6 s more."""
    numbers = Numbers("p1", "p2", "m1")
    chain = numbers.chain(200)
    numbers.hold("p1", chain)
    numbers.report("p1", queued_tokens=9_000, running=9)
    numbers.report("p2", queued_tokens=2_000, running=2)
    assert plan(numbers, numbers.wish(chain, tail=320)).chosen.prefill == "p1"
    numbers.report("p1", queued_tokens=20_000, running=1)
    numbers.report("p2", queued_tokens=0, running=0)
    assert plan(numbers, numbers.wish(chain, tail=320)).chosen.prefill == "p2", "nobody waits there"


def test_a_request_waits_for_its_busy_prefill_rather_than_go_to_another() -> None:
    numbers = Numbers("p1", "p2", "m1", max_prefill_wait=1.0)
    chain = numbers.chain(200)
    numbers.hold("p1", chain)
    numbers.hold("m1", chain)
    numbers.report("p1", queued_tokens=11_000, running=9)
    numbers.report("p2", queued_tokens=8_000, running=2)
    waits = no_road(numbers, numbers.wish(chain, tail=320))
    assert waits.obstacle is Obstacle.FULL
    assert waits.demand.seconds == pytest.approx(330 / 20_000, rel=0.1)
    assert waits.demand.backlog == pytest.approx(19_000 / 20_000)


def test_a_main_decode_gets_no_more_requests_than_it_will_have_places_for() -> None:
    numbers = Numbers("p1", "m1")
    numbers.announce("m1", max_running=4)
    for _ in range(6):
        numbers.place("m1", blocks=1)
    numbers.now += 10.0
    numbers.report("m1", running=1)  # the others are still on their way
    assert no_road(numbers, numbers.wish(numbers.chain(10))).obstacle is Obstacle.FULL


def test_what_matches_is_free_until_it_is_pinned() -> None:
    numbers = Numbers("p1", "m1")
    chain = numbers.chain(100)
    numbers.hold("m1", chain[:90])
    numbers.report("m1", free_blocks=100)
    assert not plan(numbers, numbers.wish(chain)).chosen.ample, "90 of the free blocks are those that match"


def test_a_line_that_compresses_is_as_fast_as_the_kv_that_it_carries() -> None:
    seconds = []
    for gain in ({}, {"wan": 1.45}):
        numbers = Numbers("p1", "r1", "m1")
        waiting = {"wan": 100 * BLOCK_BYTES}
        numbers.report("p1", unsent_bytes=waiting, line_rate={"wan": 20e6}, line_gain=gain)
        seconds.append(plan(numbers, numbers.wish(numbers.chain(400))).chosen.t_main - numbers.line.rtt)
    assert seconds[0] == pytest.approx(500 * BLOCK_BYTES / 20e6)
    assert seconds[1] == pytest.approx(seconds[0] / 1.45)


def test_a_small_transfer_does_not_wait_for_all_that_is_queued_on_the_line() -> None:
    numbers = Numbers("p1", "m1", max_line_wait=30.0)
    chain = numbers.chain(100)
    numbers.hold("p1", chain)
    numbers.hold("m1", chain[:80])
    for size in (1_000_000_000, 10_000_000):
        numbers["p1"].book(object(), Placed(numbers.now, line="wan", bytes=size, request=False))
    found = plan(numbers, numbers.wish(chain)).chosen
    assert found.t_main == pytest.approx(1030e6 / 25e6 + 0.04), "what it is sure of"
    for _ in range(20):
        numbers["p1"].book(object(), Placed(numbers.now, line="wan", bytes=50_000_000, request=False))
    assert plan(numbers, numbers.wish(chain)).chosen.t_main > 60.0
    assert no_road(numbers, numbers.wish(numbers.chain(100))).obstacle is Obstacle.LINE


def test_a_few_requests_more_do_not_outweigh_what_a_main_decode_has() -> None:
    """Whatever answer a client allows: nothing is known of it, and steps hardly grow with load."""
    numbers = Numbers("p1", "m1", "m2")
    chain = numbers.chain(200)
    numbers.hold("p1", chain)
    numbers.hold("m1", chain)
    numbers.report("m1", running=6)
    numbers.report("m2", running=2)
    assert plan(numbers, numbers.wish(chain, tail=600, output=32_000)).chosen.node == "m1"
    numbers.report("m1", running=120)
    assert plan(numbers, numbers.wish(chain, tail=600, output=32_000)).chosen.node == "m2"


def test_a_failing_worker_attracts_no_load() -> None:
    numbers = Numbers("p1", "p2", "m1")
    numbers.report("p1", queued_tokens=50_000)
    for _ in range(3):
        numbers["p2"].breaker.failed(numbers.now)
    assert plan(numbers, numbers.wish(numbers.chain(100))).chosen.prefill == "p1"


def test_prefill_waits_for_the_answer_unless_room_is_ample() -> None:
    numbers = Numbers("p1", "m1")
    wish = numbers.wish(numbers.chain(100))
    assert plan(numbers, wish).chosen.ample
    numbers.report("m1", free_blocks=120)
    assert not plan(numbers, wish).chosen.ample
    numbers.report("m1", promised_blocks=49_950)
    assert not plan(numbers, wish).chosen.ample


def test_the_final_road_counts_blocks_on_their_way_as_lacking_but_not_as_bytes() -> None:
    numbers = Numbers("p1", "r1", "m1", relay_margin=0.5)
    chain = numbers.chain(100)
    numbers.hold("p1", chain)
    wish = numbers.wish(chain)
    cold = numbers.placement.road(numbers.now, numbers.pool, wish, numbers["m1"], Match(0, 0))
    awaited = numbers.placement.road(numbers.now, numbers.pool, wish, numbers["m1"], Match(0, 100))
    assert cold.pipeline is Pipeline.P_RLD_MD
    assert awaited.pipeline is Pipeline.P_MD
    assert awaited.t_main < cold.t_main


def test_blocks_on_their_way_cost_what_waits_for_the_line() -> None:
    numbers = Numbers("p1", "r1", "m1")
    chain = numbers.chain(100)
    numbers.hold("p1", chain)
    numbers.report("p1", unsent_bytes={"wan": 100 * BLOCK_BYTES})
    road = numbers.placement.road(
        numbers.now, numbers.pool, numbers.wish(chain), numbers["m1"], Match(0, 100)
    )
    assert road.t_main == pytest.approx(100 * BLOCK_BYTES / 25e6, rel=0.05)
    assert road.pipeline is Pipeline.P_RLD_MD


def test_every_rejected_candidate_is_named_with_its_numbers() -> None:
    numbers = Numbers("p1", "m1", "m2", "m3")
    chain = numbers.chain(100)
    numbers.hold("m2", chain[:50])
    numbers["m3"].suspect = True
    found = plan(numbers, numbers.wish(chain))
    assert found.chosen.node == "m2"
    shown = {one.node: one.show() for one in found.rejected}
    assert shown["m1"]["have_blocks"] == 0
    assert shown["m1"]["cost"] > found.chosen.cost
    assert shown["m3"] == {"node": "m3", "role": "main_decode", "reason": "silent"}


def test_a_prefill_worker_with_a_long_queue_gets_no_more() -> None:
    numbers = Numbers("p1", "p2", "m1", max_prefill_wait=60.0)
    numbers.report("p1", queued_tokens=700_000)
    numbers.report("p2", queued_tokens=500_000)
    chain = numbers.chain(200)
    assert plan(numbers, numbers.wish(chain)).chosen.prefill == "p2"
    numbers.report("p2", queued_tokens=700_000)
    full = no_road(numbers, numbers.wish(chain))
    assert full.obstacle is Obstacle.FULL
    assert "70 s of prefill queued" in full.why()
    assert plan(numbers, numbers.wish(chain, patient=True)).chosen.prefill is not None


def test_a_holder_of_all_blocks_is_found() -> None:
    numbers = Numbers("p1", "p2", "m1")
    chain = numbers.chain(20)
    numbers.hold("p2", chain[:15])
    find = numbers.placement.holder
    wish = numbers.wish(chain)
    found = find(numbers.now, numbers.pool, wish, numbers["m1"], 15)
    assert found is numbers["p2"]
    assert find(numbers.now, numbers.pool, wish, numbers["m1"], 16) is None


def test_a_relay_needs_room_for_the_whole_context() -> None:
    numbers = Numbers("p1", "r1", "m1")
    wish = numbers.wish(numbers.chain(100))
    find = numbers.placement.relay
    assert find(numbers.now, numbers.pool, wish, numbers["p1"]) is numbers["r1"]
    numbers.report("r1", free_blocks=105)
    assert find(numbers.now, numbers.pool, wish, numbers["p1"]) is None
    numbers.report("r1", running=64)
    assert find(numbers.now, numbers.pool, wish, numbers["p1"]) is None


def test_the_local_limit_counts_the_tail_of_the_prompt() -> None:
    numbers = Numbers("p1", "m1", md_local_tokens=2 * BLOCK)
    chain = numbers.chain(10)
    numbers.hold("m1", chain[:9])
    assert plan(numbers, numbers.wish(chain, tail=BLOCK - 1)).pipeline is Pipeline.MD
    assert plan(numbers, numbers.wish(chain, tail=BLOCK)).pipeline is Pipeline.MD
    assert plan(numbers, numbers.wish(chain, tail=BLOCK + 1)).pipeline is Pipeline.P_MD


def busy(
    queued: int, lacking: int = 10, *names: str, rate: float = 25e9, **policy: float
) -> tuple[Numbers, Wish]:
    """Prefills with so much queued hold all of a prompt, main decode lacks so many blocks of it."""
    settings = {"md_local_tokens": 64, "md_local_busy": 8.0, **policy}
    numbers = Numbers("p1", "p2", "m1", *names, rate=rate, **settings)
    chain = numbers.chain(1000)
    for prefill in ("p1", "p2"):
        numbers.hold(prefill, chain)
        numbers.report(prefill, queued_tokens=queued)
    numbers.hold("m1", chain[: 1000 - lacking])
    return numbers, numbers.wish(chain, tail=0)


@pytest.mark.parametrize("relays", [(), ("r1",)])
def test_main_decode_extends_over_more_while_prefill_is_busy(relays: tuple[str, ...]) -> None:
    numbers, wish = busy(50_000, 10, *relays)
    found = plan(numbers, wish)
    assert found.pipeline is Pipeline.MD
    assert "by way of p" in found.reason
    assert found.chosen.alone == 320, "it begins at once only if it has what the index says"
    numbers.report("p2")
    assert plan(numbers, wish).pipeline is not Pipeline.MD, "one of them is idle"


@pytest.mark.parametrize(
    ("lacking", "policy"),
    [(17, {}), (10, {"md_local_busy": 1.0}), (10, {"md_local_busy": 0.0})],
    ids=["too much", "never more than in quiet times", "off"],
)
def test_main_decode_does_not_extend_over_what_is_too_much_for_it(
    lacking: int, policy: dict[str, float]
) -> None:
    numbers, wish = busy(50_000, lacking, **policy)
    assert plan(numbers, wish).pipeline is Pipeline.P_MD


def test_main_decode_extends_over_more_where_the_line_is_slow() -> None:
    numbers, wish = busy(0)
    assert plan(numbers, wish).pipeline is Pipeline.P_MD
    numbers, wish = busy(0, rate=25e6)
    assert plan(numbers, wish).pipeline is Pipeline.MD


def test_a_busy_main_decode_is_no_way_round_a_busy_prefill() -> None:
    numbers, wish = busy(50_000)
    numbers.report("m1", queued_tokens=30_000)
    assert plan(numbers, wish).pipeline is Pipeline.P_MD


def test_who_is_to_be_prefilled_waits_for_a_busy_prefill() -> None:
    numbers, wish = busy(50_000)
    assert plan(numbers, replace(wish, local_allowed=False)).pipeline is Pipeline.P_MD


def test_what_is_being_prefilled_already_is_not_taken_back() -> None:
    numbers, wish = busy(50_000)
    asked = replace(wish, prefill="p1", prefill_end=5.0)
    main, match = numbers["m1"], numbers.index.match("m1", wish.hashes)
    road = numbers.placement.road
    assert road(numbers.now, numbers.pool, wish, main, match).pipeline is Pipeline.MD
    assert road(numbers.now, numbers.pool, asked, main, match, numbers["p1"]).pipeline is Pipeline.P_MD


def test_main_decode_alone_does_not_wait_for_room_at_prefill() -> None:
    numbers, wish = busy(50_000, max_prefill_wait=1.0)
    assert plan(numbers, wish).pipeline is Pipeline.MD
    numbers, wish = busy(50_000, 17, max_prefill_wait=1.0)
    assert no_road(numbers, wish).obstacle is Obstacle.FULL

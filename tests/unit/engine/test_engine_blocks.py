"""The engine's deciding half with the synthetic runner: blocks, ends, faults and numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from shared.engine.api import SamplingParams, StepPlan, StepResult, step_failed
from shared.engine.events import Fault, Finished, Sampled, Starved
from shared.engine.sequence import Goal
from shared.engine.synthetic import synthetic_next, synthetic_run
from shared.errors import InvariantBroken, NanLogits, OutOfBlocks
from shared.policy.config import WorkerPolicy
from tests.support.engine_bench import ROOT, VOCAB, Bench, fill, of, prompt, sampling


def expected(ids: list[int], params: SamplingParams, limit: int | None = None) -> list[int]:
    return synthetic_run(ids, params, VOCAB, len(ids), limit)


# --- blocks, growth, starvation -----------------------------------------------------------------------------


def test_a_prefill_that_does_not_fit_changes_nothing() -> None:
    bench = Bench(blocks=4)
    fill(bench, prompt(4))
    spec = bench.spec(prompt(21), Goal.PREFILL)
    with pytest.raises(OutOfBlocks):
        bench.engine.add(spec, 0.0)
    assert [bench.pool.refs(block) for block in spec.blocks] == [1]
    bench.pool.unpin(spec.blocks)
    assert bench.idle()
    assert bench.step() is None


def test_blocks_come_from_the_promise() -> None:
    bench = Bench(blocks=4)
    bench.pool.promise("mine", 2)
    bench.pool.promise("other", 2)
    spec = bench.spec(prompt(6), more=3)
    spec.promise = "mine"
    bench.engine.add(spec, 0.0)
    events = bench.run()
    assert len(of(events, Sampled)) == 3
    assert (bench.pool.promised("mine"), bench.pool.promised("other")) == (0, 2)


def test_growth_that_finds_no_block_is_told_and_tried_again_when_something_changed() -> None:
    bench = Bench(blocks=3)
    held = bench.pool.take(1)
    seq = bench.add(prompt(7), more=3)
    assert len(of(bench.step(), Sampled)) == 1
    assert len(of(bench.step(), Sampled)) == 1  # position 7: the second block is full
    assert bench.step() == [Starved(seq)]
    assert bench.step() is None
    assert bench.step() is None
    bench.pool.promise("other", 0)
    assert bench.step() is None
    bench.pool.pin(held)
    bench.pool.unpin(held)
    assert bench.step() is None
    bench.pool.unpin(held)
    assert len(of(bench.run(), Sampled)) == 1


def test_starved_is_told_again_when_the_change_did_not_help() -> None:
    bench = Bench(blocks=3)
    held = bench.pool.take(1)
    seq = bench.add(prompt(8), more=3)
    bench.step()
    assert bench.step() == [Starved(seq)]
    bench.pool.promise("other", 0)
    bench.pool.unpin(held)
    bench.pool.promise("other", 1)
    assert bench.step() == [Starved(seq)]
    assert bench.step() is None


def test_others_go_on_while_one_starves() -> None:
    bench = Bench(blocks=3)
    starving = bench.add(prompt(4), more=8)
    going = bench.add(prompt(5, 1), more=3)
    events = bench.run()
    assert of(events, Starved) == [Starved(starving)]
    assert of(events, Finished) == [Finished(going, 8, "length")]
    assert len(of(events, Sampled, starving)) == 1
    bench.engine.end(going)
    assert of(bench.run(), Finished) == [Finished(starving, 12, "length")]


def test_an_extend_takes_what_there_is() -> None:
    bench = Bench(blocks=4)
    held = bench.pool.take(2)
    seq = bench.add(prompt(13), Goal.EXTEND)
    bench.step()
    assert bench.engine.computed(seq) == 8
    assert bench.step() == [Starved(seq)]
    bench.pool.unpin(held[:1])
    bench.run()
    assert bench.engine.computed(seq) == 12


def test_a_starved_owner_that_was_fully_cached() -> None:
    bench = Bench(blocks=2)
    fill(bench, prompt(8))
    keep = bench.spec(prompt(8)).blocks
    seq = bench.add(prompt(8), more=2)
    assert bench.step() == [Starved(seq)]
    bench.pool.unpin(keep)
    assert [event.id for event in of(bench.run(), Sampled)][:1] == expected(prompt(8), sampling(10), 1)


# --- ending, pausing ----------------------------------------------------------------------------------------


def test_end_gives_everything_back_and_tells_the_runner() -> None:
    bench = Bench()
    seq = bench.add(prompt(9), Goal.PREFILL)
    bench.engine.end(seq)
    bench.engine.end(seq)
    assert bench.pool.free == bench.pool.total
    assert bench.step() == []
    assert not bench.plans[-1].items
    assert bench.plans[-1].ended == (seq,)
    assert bench.step() is None
    for touch in (bench.engine.blocks, bench.engine.computed, bench.engine.pause, bench.engine.hashes):
        with pytest.raises(InvariantBroken, match=f"sequence {seq} is not in the engine"):
            touch(seq)


def test_end_while_its_step_runs_keeps_the_blocks_until_the_result() -> None:
    bench = Bench()
    seq = bench.add(prompt(9), more=8)
    pinned = []

    def cancel() -> None:
        bench.engine.end(seq)
        bench.engine.end(seq)
        pinned.append(bench.pool.pinned)
        assert not set(bench.pool.take(bench.pool.available)) & set(bench.plans[-1].items[0].blocks)

    assert bench.step(between=cancel) == []
    assert pinned == [3]
    assert bench.pool.cached == 2  # what was computed is right and stays
    assert [plan.ended for plan in bench.plans] == [()]
    bench.step()
    assert [plan.ended for plan in bench.plans] == [(), (seq,)]
    assert not bench.engine.has_work


def test_events_of_an_ended_sequence_are_not_told() -> None:
    bench = Bench()
    seq = bench.add(prompt(1), Goal.EXTEND)
    bench.engine.end(seq)
    assert bench.step() == []


def test_a_paused_sequence_waits_and_keeps_its_blocks() -> None:
    bench = Bench()
    seq = bench.add(prompt(6), more=4)
    events = bench.step(between=lambda: bench.engine.pause(seq))
    assert len(of(events, Sampled)) == 1
    assert bench.step() is None
    assert bench.pool.pinned == 2
    bench.engine.resume(seq)
    events = (events or []) + bench.run()
    assert [event.id for event in of(events, Sampled)] == expected(prompt(6), sampling(10))


def test_a_paused_sequence_gives_its_place_to_another() -> None:
    bench = Bench(policy=WorkerPolicy(max_running=1))
    first, second = bench.add(prompt(6), more=2), bench.add(prompt(6, 1), more=2)
    assert (bench.engine.stats.running, bench.engine.stats.queued) == (0, 2)
    bench.step()
    assert (bench.engine.stats.running, bench.engine.stats.queued) == (1, 1)
    bench.engine.pause(first)
    assert of(bench.run(), Finished) == [Finished(second, 8, "length")]
    bench.engine.resume(first)
    assert of(bench.run(), Finished) == [Finished(first, 8, "length")]


def test_places_are_limited() -> None:
    bench = Bench(policy=WorkerPolicy(max_running=2))
    for salt in range(5):
        bench.add(prompt(3, salt), more=3)
    events = bench.run()
    assert max(len(plan.items) for plan in bench.plans) == 2
    assert [event.seq for event in of(events, Finished)] == [1, 2, 3, 4, 5]


def test_parking_leaves_blocks_that_a_new_admission_finds() -> None:
    params = sampling(20)
    bench = Bench()
    seq = bench.add(prompt(6), params=params)
    made = [event.id for _ in range(6) for event in of(bench.step(), Sampled)]
    bench.engine.end(seq)
    again = bench.spec([*prompt(6), *made], params=params, prompt_len=6)
    assert len(again.blocks) == 2
    bench.engine.add(again, 0.0)
    assert made + [event.id for event in of(bench.run(), Sampled)] == expected(prompt(6), params)


# --- faults -------------------------------------------------------------------------------------------------


def broken_step(bench: Bench, spoil: Callable[[StepPlan, StepResult], StepResult]) -> list[object]:
    plan = bench.engine.plan(bench.now)
    assert plan is not None
    return list(bench.engine.apply(bench.now, plan, spoil(plan, bench.runner.execute(plan))))


def test_a_fault_stops_one_sequence_only() -> None:
    bench = Bench()
    bad, good = bench.add(prompt(9), more=3), bench.add(prompt(5, 1), more=3)
    events = broken_step(
        bench, lambda plan, result: StepResult((NanLogits("no finite score"), result.drawn[1]), 0.0)
    )
    assert Fault(bad, "nan", "NanLogits: no finite score") in events
    assert bench.engine.computed(bad) == 0
    assert len(bench.pool.hashes()) == 1  # nothing of the failed step is published
    assert [event.seq for event in of(bench.run(), Sampled)] == [good, good]
    bench.engine.end(bad)
    bench.engine.end(good)
    bench.run()
    assert bench.idle()


def test_a_step_that_raises_fails_its_sequences_and_the_engine_goes_on() -> None:
    bench = Bench()
    seqs = [bench.add(prompt(9, salt), more=3) for salt in range(2)]
    events = broken_step(bench, lambda plan, _: step_failed(plan, RuntimeError("out of memory"), 0.1))
    assert events == [Fault(seq, "internal", "RuntimeError: out of memory") for seq in seqs]
    for seq in seqs:
        bench.engine.end(seq)
    assert bench.pool.free == bench.pool.total
    bench.add(prompt(9), more=3)
    assert len(of(bench.run(), Sampled)) == 3


def test_a_fault_of_a_finished_sequence_is_told() -> None:
    bench = Bench()
    seq = bench.add(prompt(6), Goal.EXTEND, params=sampling(6))

    def spoil(plan: StepPlan, _: StepResult) -> StepResult:
        bench.engine.set_goal(seq, Goal.OWN)
        return step_failed(plan, ValueError("x"), 0.0)

    assert broken_step(bench, spoil) == [
        Finished(seq, 6, "length"),
        Fault(seq, "internal", "ValueError: x"),
    ]


def test_a_fault_of_an_ended_sequence_is_not_told() -> None:
    bench = Bench()
    seq = bench.add(prompt(9), more=3)

    def spoil(plan: StepPlan, _: StepResult) -> StepResult:
        bench.engine.end(seq)
        return step_failed(plan, ValueError("x"), 0.0)

    assert broken_step(bench, spoil) == []
    assert bench.pool.free == bench.pool.total


@pytest.mark.parametrize("drawn", [(), (None,), (None, None)])
def test_a_result_that_does_not_belong_is_an_error(drawn: tuple[None, ...]) -> None:
    bench = Bench()
    bench.add(prompt(3), more=3)
    plan = bench.engine.plan(0.0)
    assert plan is not None
    with pytest.raises(InvariantBroken):
        bench.engine.apply(0.0, plan, StepResult(drawn, 0.0))


def test_one_step_at_a_time() -> None:
    bench = Bench()
    bench.add(prompt(3), more=3)
    plan = bench.engine.plan(0.0)
    assert plan is not None
    with pytest.raises(InvariantBroken, match="while another runs"):
        bench.engine.plan(0.0)
    result = bench.runner.execute(plan)
    with pytest.raises(InvariantBroken, match="does not belong"):
        bench.engine.apply(0.0, StepPlan(plan.items), result)
    bench.engine.apply(0.0, plan, result)
    with pytest.raises(InvariantBroken, match="does not belong"):
        bench.engine.apply(0.0, plan, result)


def test_a_specification_must_add_up() -> None:
    bench = Bench()
    blocks = bench.pool.take(3)
    hashes = bench.spec(prompt(12)).hashes
    for ids, known, held in ((prompt(12), hashes[:1], blocks[:2]), (prompt(11), hashes, [])):
        spec = dataclasses.replace(bench.spec(prompt(4)), ids=ids, hashes=known, blocks=held)
        with pytest.raises(InvariantBroken, match="hashes for"):
            bench.engine.add(spec, 0.0)


def test_a_prefill_is_not_fed_while_it_draws() -> None:
    bench = Bench()
    seq = bench.add(prompt(3), Goal.PREFILL)
    with pytest.raises(InvariantBroken):
        bench.step(between=lambda: bench.engine.feed(seq, [1]))


# --- numbers ------------------------------------------------------------------------------------------------


def test_stats() -> None:
    bench = Bench(policy=WorkerPolicy(max_running=1, max_chunk_tokens=8))
    stats = bench.engine.stats
    assert (stats.prefill_rate, stats.decode_step_ms, stats.queue_wait, stats.steps) == (0.0, 0.0, 0.0, 0)
    bench.add(prompt(16), Goal.PREFILL)
    bench.add(prompt(5, 1), more=3)
    assert bench.engine.stats.queued_tokens == 21
    bench.now = 5.0
    bench.step()
    stats = bench.engine.stats
    assert (stats.queued_tokens, stats.steps, stats.computed_tokens) == (13, 1, 8)
    assert stats.prefill_rate == pytest.approx(8 / 0.018)
    assert stats.last_step == bench.now
    bench.run()
    stats = bench.engine.stats
    assert (stats.running, stats.queued, stats.queued_tokens) == (0, 0, 0)
    assert stats.decode_step_ms == pytest.approx(11)
    assert stats.queue_wait == pytest.approx((5.0 + 5.036) / 2)  # the second one: both chunks of the first
    bench.engine.set_goal(1, Goal.OWN)
    bench.step()
    assert bench.engine.stats.queue_wait == stats.queue_wait  # it had its first place long ago


def test_a_root_keeps_tenants_apart() -> None:
    bench = Bench()
    fill(bench, prompt(8))
    spec = bench.spec(prompt(8), match=False)
    other = dataclasses.replace(spec, root=ROOT[::-1], hashes=[])
    seq = bench.engine.add(other, 0.0)
    bench.run()
    assert not set(bench.engine.hashes(seq)) & set(spec.hashes)


def test_the_oracle_itself() -> None:
    params = sampling(12)
    made = expected(prompt(5), params)
    for n in range(len(made)):
        assert synthetic_next([*prompt(5), *made[:n]], params, VOCAB, 5) == made[n]

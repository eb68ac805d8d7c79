"""The engine's deciding half with the synthetic runner: goals, standby, and what the cache gives."""

from __future__ import annotations

import dataclasses

import pytest

from shared.engine.api import SamplingParams
from shared.engine.events import BlocksReady, Extended, Finished, Sampled
from shared.engine.sequence import Goal
from shared.engine.synthetic import synthetic_run
from shared.errors import InvalidRequest, InvariantBroken
from shared.policy.config import WorkerPolicy
from tests.support.engine_bench import BLOCK, VOCAB, Bench, fill, of, prompt, sampling


def expected(ids: list[int], params: SamplingParams, limit: int | None = None) -> list[int]:
    return synthetic_run(ids, params, VOCAB, len(ids), limit)


# --- goals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 11])
def test_prefill_draws_one_id_and_rests_with_its_blocks(length: int) -> None:
    bench = Bench()
    seq = bench.add(prompt(length), Goal.PREFILL)
    assert bench.pool.pinned == -(-length // BLOCK)
    events = bench.run()
    [sampled] = of(events, Sampled)
    assert (sampled.position, sampled.id) == (length, expected(prompt(length), sampling(length + 8), 1)[0])
    assert sampled.logprob is None
    ready = of(events, BlocksReady)
    assert [(event.first, event.end) for event in ready] == (
        [(0, length // BLOCK)] if length >= BLOCK else []
    )
    assert not of(events, Finished)
    assert bench.pool.pinned == -(-length // BLOCK)
    assert bench.engine.computed(seq) == length
    assert not bench.engine.has_work
    bench.engine.feed(seq, [1, 2, 3])
    assert not bench.engine.has_work
    bench.engine.end(seq)
    bench.run()
    assert (bench.pool.pinned, bench.pool.cached) == (0, length // BLOCK)


@pytest.mark.parametrize("length", [1, 4, 7])
def test_an_owner_draws_until_its_length(length: int) -> None:
    bench = Bench()
    seq = bench.add(prompt(length), more=6)
    events = bench.run()
    assert [event.id for event in of(events, Sampled)] == expected(prompt(length), sampling(length + 6))
    assert [event.position for event in of(events, Sampled)] == list(range(length, length + 6))
    assert of(events, Finished) == [Finished(seq, length + 6, "length")]
    assert bench.engine.computed(seq) == length + 5  # the id drawn last has no KV
    bench.engine.end(seq)
    bench.run()
    assert bench.idle()
    assert bench.pool.cached == (length + 5) // BLOCK


def test_a_stop_id_ends_it() -> None:
    bench = Bench()
    [first, second, *_] = expected(prompt(5), sampling(99), 2)
    seq = bench.add(prompt(5), params=sampling(99, stop=[second]))
    events = bench.run()
    assert [event.id for event in of(events, Sampled)] == [first, second]
    assert of(events, Finished) == [Finished(seq, 7, "stop")]
    assert events[-1] == Finished(seq, 7, "stop")


def test_a_stop_id_in_the_prompt_does_not() -> None:
    bench = Bench()
    bench.add(prompt(5), params=sampling(6, stop=[prompt(5)[-1]]))
    assert len(of(bench.run(), Sampled)) == 1


@pytest.mark.parametrize("goal", [Goal.OWN, Goal.PREFILL])
def test_the_first_id_may_be_the_last(goal: Goal) -> None:
    bench = Bench()
    [first] = expected(prompt(4), sampling(99), 1)
    by_stop = bench.add(prompt(4), goal, params=sampling(99, stop=[first]))
    by_length = bench.add(prompt(4), goal, params=sampling(5))
    events = bench.run()
    assert of(events, Finished) == [Finished(by_stop, 5, "stop"), Finished(by_length, 5, "length")]


@pytest.mark.parametrize(
    ("params", "reason"), [(sampling(9, stop=[77]), "stop"), (sampling(6), "length"), (sampling(5), "length")]
)
def test_a_log_that_has_ended_is_told_without_a_step(params: SamplingParams, reason: str) -> None:
    bench = Bench()
    seq = bench.add([*prompt(5), 77], prompt_len=5, params=params)
    assert bench.engine.has_work
    assert bench.step() == [Finished(seq, 6, reason)]  # type: ignore[arg-type]
    assert bench.plans[-1].items == ()
    assert bench.step() is None


def test_the_context_is_the_last_limit() -> None:
    bench = Bench(max_context=7)
    seq = bench.add(prompt(5), more=50)
    events = bench.run()
    assert of(events, Finished) == [Finished(seq, 7, "length")]
    whole = bench.add(prompt(7))
    assert of(bench.run(), Finished) == [Finished(whole, 7, "length")]
    with pytest.raises(InvalidRequest, match="8 token ids do not fit: give 1 to 7"):
        bench.add(prompt(8))
    with pytest.raises(InvalidRequest):
        bench.engine.add(dataclasses.replace(bench.spec(prompt(1)), ids=[]), 0.0)


def test_logprobs_come_where_asked() -> None:
    bench = Bench()
    params = dataclasses.replace(sampling(6), logprobs=2)
    bench.add(prompt(5), params=params)
    [sampled] = of(bench.run(), Sampled)
    assert sampled.logprob is not None
    assert sampled.top[0][0] == sampled.id
    assert len(sampled.top) == 2
    bench.add(prompt(5), params=dataclasses.replace(sampling(6), logprobs=0))
    [sampled] = of(bench.run(), Sampled)
    assert sampled.logprob is not None
    assert not sampled.top


def test_history_is_given_to_those_that_need_it() -> None:
    bench = Bench()
    bench.add(prompt(5), more=1)
    bench.add(prompt(6), params=dataclasses.replace(sampling(7), frequency_penalty=0.5))
    bench.run()
    draws = [item.draw for item in bench.plans[0].items]
    assert draws[0] is not None
    assert draws[1] is not None
    assert (draws[0].history, draws[1].history) == ((), tuple(prompt(6)))
    assert (draws[1].position, draws[1].prompt_len) == (6, 6)


def test_an_item_names_the_blocks_of_its_tokens_and_draws_only_at_the_end() -> None:
    bench = Bench(policy=WorkerPolicy(max_chunk_tokens=6))
    seq = bench.add(prompt(15), Goal.PREFILL)
    standby = bench.add(prompt(3, 1), Goal.EXTEND)
    assert bench.engine.has_work
    bench.run()
    table = tuple(bench.engine.blocks(seq))
    items = [item for plan in bench.plans for item in plan.items if item.seq == seq]
    assert [(item.start, len(item.ids)) for item in items] == [(0, 6), (6, 6), (12, 3)]
    assert [item.blocks for item in items] == [table[:2], table[:3], table]
    assert [item.draw is not None for item in items] == [False, False, True]
    [last] = [item for plan in bench.plans for item in plan.items if item.seq == standby]
    assert last.draw is None


# --- standby ------------------------------------------------------------------------------------------------


def test_a_standby_computes_all_but_the_last_id() -> None:
    bench = Bench()
    seq = bench.add(prompt(9), Goal.EXTEND)
    events = bench.run()
    assert of(events, Extended) == [Extended(seq, 9)]
    assert not of(events, Sampled)
    assert bench.engine.computed(seq) == 8
    bench.engine.feed(seq, [5, 6, 7])
    events = bench.run()
    assert of(events, Extended) == [Extended(seq, 12)]
    assert bench.engine.computed(seq) == 11
    assert bench.engine.length(seq) == 12


def test_a_standby_with_nothing_to_do_says_so() -> None:
    bench = Bench()
    seq = bench.add(prompt(1), Goal.EXTEND)
    assert bench.step() == [Extended(seq, 1)]
    bench.engine.set_goal(seq, Goal.EXTEND)
    assert bench.step() == [Extended(seq, 1)]
    bench.engine.feed(seq, [])
    assert bench.step() is None


def test_progress_is_told_once_and_for_all_that_is_known() -> None:
    bench = Bench()
    seq = bench.add(prompt(9), Goal.EXTEND)
    events = bench.step(between=lambda: bench.engine.feed(seq, [1, 2]))
    assert not of(events, Extended)
    assert of(bench.run(), Extended) == [Extended(seq, 11)]


@pytest.mark.parametrize("length", [1, 4, 5, 8])
@pytest.mark.parametrize("fed", [0, 1, 3, 4])
def test_a_standby_becomes_the_owner(length: int, fed: int) -> None:
    params = sampling(length + 12)
    made = expected(prompt(length), params)
    bench = Bench()
    seq = bench.add(prompt(length), Goal.EXTEND, params=params)
    bench.run()
    bench.engine.feed(seq, made[:fed])
    bench.engine.set_goal(seq, Goal.OWN)
    assert [event.id for event in of(bench.run(), Sampled)] == made[fed:]
    with pytest.raises(InvariantBroken, match="draws its own ids"):
        bench.engine.feed(seq, [1])


def test_a_cut_while_a_step_runs() -> None:
    params = sampling(20)
    made = expected(prompt(6), params)
    bench = Bench()
    seq = bench.add(prompt(6), Goal.EXTEND, params=params)

    def cut() -> None:
        bench.engine.feed(seq, made[:3])
        bench.engine.set_goal(seq, Goal.OWN)

    bench.step(between=cut)
    assert [event.id for event in of(bench.run(), Sampled)] == made[3:]


def test_an_id_drawn_while_ownership_ends_is_dropped() -> None:
    params = sampling(20)
    bench = Bench()
    seq = bench.add(prompt(6), params=params)
    events = bench.step(between=lambda: bench.engine.set_goal(seq, Goal.EXTEND))
    assert not of(events, Sampled)
    assert of(events, Extended) == [Extended(seq, 6)]
    bench.engine.feed(seq, [9, 9])
    bench.engine.set_goal(seq, Goal.OWN)
    [sampled] = of(bench.step(), Sampled)
    assert (sampled.position, sampled.id) == (8, expected([*prompt(6), 9, 9], params, 1)[0])


def test_an_id_drawn_for_another_position_is_dropped() -> None:
    params = sampling(20)
    bench = Bench()
    seq = bench.add(prompt(6), params=params)

    def lose_and_regain() -> None:
        bench.engine.set_goal(seq, Goal.EXTEND)
        bench.engine.feed(seq, [9])
        bench.engine.set_goal(seq, Goal.OWN)

    assert not of(bench.step(between=lose_and_regain), Sampled)
    [sampled] = of(bench.step(), Sampled)
    assert (sampled.position, sampled.id) == (7, expected([*prompt(6), 9], params, 1)[0])


def test_a_finished_prefill_can_go_on() -> None:
    params = sampling(14)
    bench = Bench()
    seq = bench.add(prompt(6), Goal.PREFILL, params=params)
    first = of(bench.run(), Sampled)
    bench.engine.set_goal(seq, Goal.OWN)
    rest = of(bench.run(), Sampled)
    assert [event.id for event in first + rest] == expected(prompt(6), params)


def test_a_prefill_may_be_fed_before_it_runs() -> None:
    bench = Bench()
    params = sampling(20)
    seq = bench.add(prompt(3), Goal.PREFILL, params=params)
    bench.engine.feed(seq, [1, 2, 3])
    [sampled] = of(bench.run(), Sampled)
    assert (sampled.position, sampled.id) == (6, expected([*prompt(3), 1, 2, 3], params, 1)[0])


# --- the cache ----------------------------------------------------------------------------------------------


def test_cached_blocks_are_not_computed_again() -> None:
    bench = Bench()
    fill(bench, prompt(8))
    seq = bench.add(prompt(11), Goal.PREFILL)
    assert bench.engine.computed(seq) == 8
    events = bench.run()
    assert [item.ids for item in bench.plans[-1].items] == [tuple(prompt(11)[8:])]
    assert [event.id for event in of(events, Sampled)] == expected(prompt(11), sampling(19), 1)
    assert not of(events, BlocksReady)


@pytest.mark.parametrize("goal", [Goal.OWN, Goal.PREFILL])
@pytest.mark.parametrize("length", [4, 12])
def test_a_fully_cached_owner_computes_its_last_block_again_in_private(goal: Goal, length: int) -> None:
    bench = Bench()
    fill(bench, prompt(length))
    shared = bench.pool.match(bench.spec(prompt(length)).hashes)
    bench.pool.unpin(shared)
    before = bytes(bench.runner.view(shared[-1]))
    seq = bench.add(prompt(length), goal, more=7)
    assert bench.engine.blocks(seq) == shared
    events = bench.step()
    [item] = bench.plans[-1].items
    assert (item.start, len(item.ids)) == (length - BLOCK, BLOCK)
    table = bench.engine.blocks(seq)
    assert table[:-1] == shared[:-1]
    assert table[-1] != shared[-1]
    assert bench.pool.hash_of(table[-1]) is None
    assert (bench.pool.refs(shared[-1]), bytes(bench.runner.view(shared[-1]))) == (0, before)
    events = (events or []) + bench.run()
    count = 7 if goal is Goal.OWN else 1
    assert [event.id for event in of(events, Sampled)] == expected(
        prompt(length), sampling(length + 7), count
    )
    # The blocks after the private copy are published all the same.
    assert [(event.first, event.end) for event in of(events, BlocksReady)] == (
        [(length // BLOCK, length // BLOCK + 1)] if goal is Goal.OWN else []
    )
    bench.engine.end(seq)
    bench.run()
    assert bench.idle()


def test_a_fully_cached_standby_keeps_the_shared_block_until_it_owns() -> None:
    bench = Bench()
    fill(bench, prompt(8))
    seq = bench.add(prompt(8), Goal.EXTEND, more=4)
    assert bench.step() == [Extended(seq, 8)]
    assert bench.engine.computed(seq) == 8
    bench.engine.set_goal(seq, Goal.OWN)
    assert [event.id for event in of(bench.run(), Sampled)] == expected(prompt(8), sampling(12))


def test_the_private_copy_stands_in_when_the_shared_block_is_evicted() -> None:
    bench = Bench(blocks=6)
    fill(bench, prompt(8))
    seq = bench.add(prompt(8), more=6)
    bench.step()
    others = bench.pool.take(bench.pool.available)  # evicts the shared last block
    last = bench.spec(prompt(8)).hashes[-1]
    bench.pool.unpin(bench.spec(prompt(8), match=False).blocks)
    assert bench.pool.find(last) is None
    bench.pool.unpin(others)
    bench.run()
    assert bench.pool.find(last) == bench.engine.blocks(seq)[1]
    whole = [*prompt(8), *expected(prompt(8), sampling(14))]
    assert len(bench.pool.match(bench.spec(whole[:12], match=False).hashes)) == 3


def test_an_owner_resumed_inside_a_block_computes_one_token_again() -> None:
    bench = Bench()
    seq = bench.add(prompt(6), params=sampling(9))
    bench.step(between=lambda: bench.engine.set_goal(seq, Goal.EXTEND))
    table = bench.engine.blocks(seq)
    bench.engine.set_goal(seq, Goal.OWN)
    events = bench.run()
    assert bench.plans[1].items[0].start == 5
    assert bench.engine.blocks(seq)[: len(table)] == table
    assert [event.id for event in of(events, Sampled)] == expected(prompt(6), sampling(9))


def test_two_sequences_compute_the_same_blocks() -> None:
    bench = Bench()
    first, second = bench.add(prompt(9), Goal.PREFILL), bench.add(prompt(9), Goal.PREFILL)
    events = bench.run()
    assert [(e.seq, e.first, e.end) for e in of(events, BlocksReady)] == [(first, 0, 2), (second, 0, 2)]
    mine, twins = bench.engine.blocks(first), bench.engine.blocks(second)
    assert not set(mine) & set(twins)
    assert [bench.pool.hash_of(block) is None for block in mine] == [False, False, True]
    assert [bench.pool.hash_of(block) is None for block in twins] == [True, True, True]
    for seq in (first, second):
        bench.engine.end(seq)
    bench.run()
    assert (bench.pool.pinned, bench.pool.cached) == (0, 2)


def test_a_sequence_that_does_not_publish_leaves_nothing() -> None:
    bench = Bench()
    spec = bench.spec(prompt(9), Goal.PREFILL)
    spec.publish = False
    seq = bench.engine.add(spec, 0.0)
    assert of(bench.run(), BlocksReady)
    bench.engine.end(seq)
    bench.run()
    assert bench.pool.free == bench.pool.total


def test_hashes_grow_with_the_ids() -> None:
    bench = Bench()
    seq = bench.add(prompt(5), more=7)
    bench.run()
    whole = [*prompt(5), *expected(prompt(5), sampling(12))]
    assert bench.engine.hashes(seq) == bench.spec(whole[:11], match=False).hashes
    assert bench.spec(whole[:11]).blocks == bench.engine.blocks(seq)[:2]

"""Draws under grammars over any runner, and an engine that never waits for one to be ready."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from shared.engine.api import Draw, Drawn, SamplingParams, StepPlan, StepResult, WorkItem
from shared.engine.constrained import ConstrainedRunner
from shared.engine.engine import Engine
from shared.engine.events import Fault, Finished, Sampled, Scored
from shared.engine.grammar import Grammars, load_grammars
from shared.engine.sequence import Goal
from shared.engine.synthetic import SyntheticRunner, synthetic_layout
from shared.errors import BadGrammar, NotBuilt
from tests.support.engine_bench import BLOCK, VOCAB, Bench, of, prompt, sampling
from tests.support.small_tokenizer import EOS, small_tokenizer


@pytest.fixture(scope="module")
def grammars(tmp_path_factory: pytest.TempPathFactory) -> Grammars:
    return load_grammars(small_tokenizer(Path(tmp_path_factory.mktemp("constrained")) / "model"))


def params(grammar: str, most: int = 90) -> SamplingParams:
    return dataclasses.replace(sampling(most, stop=(EOS,)), grammar=grammar)


class Slow:
    """A gate that opens when a test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.open: set[str] = set()

    def ready(self, grammar: str) -> bool:
        self.asked.append(grammar)
        return grammar in self.open


def bench_of(grammars: Grammars, gate: Slow | None = None, blocks: int = 64) -> Bench:
    bench = Bench(blocks)
    bench.runner = ConstrainedRunner(  # type: ignore[assignment]
        SyntheticRunner(synthetic_layout(BLOCK, 32), blocks, vocab=grammars.vocab), grammars
    )
    bench.engine = Engine(bench.pool, block_tokens=BLOCK, policy=bench.policy, max_context=4096, gate=gate)
    return bench


def drawn(bench: Bench, seq: int, events: Sequence[object]) -> list[int]:
    return [event.id for event in events if isinstance(event, Sampled) and event.seq == seq]


def test_ids_do_not_depend_on_who_draws_them(grammars: Grammars) -> None:
    """One sequence draws all; others are told a part of it and go on."""
    rules = params('start: ("the" | "and" | "x" | "y"){6,12}')
    ids = prompt(9)
    bench = bench_of(grammars)
    seq = bench.add(ids, params=rules)
    events = bench.run()
    whole = drawn(bench, seq, list(events))
    assert of(events, Finished, seq)[0].reason == "stop"
    assert whole[-1] == EOS
    for cut in range(1, len(whole) - 1):
        other = bench_of(grammars)
        seq = other.add(ids + whole[:cut], params=rules, prompt_len=len(ids))
        assert drawn(other, seq, list(other.run())) == whole[cut:]


def test_a_sequence_that_is_fed_follows_what_it_was_fed(grammars: Grammars) -> None:
    rules = params('start: ("the" | "and" | "x"){6,9}')
    ids = prompt(9)
    bench = bench_of(grammars)
    whole = drawn(bench, bench.add(ids, params=rules), list(bench.run()))
    other = bench_of(grammars)
    seq = other.add(ids, Goal.EXTEND, params=rules)
    other.run()
    other.engine.feed(seq, whole[:3])
    other.run()
    other.engine.set_goal(seq, Goal.OWN)
    assert drawn(other, seq, list(other.run())) == whole[3:]


def test_a_bad_grammar_harms_nothing_else(grammars: Grammars) -> None:
    bench = bench_of(grammars)
    bad = bench.add(prompt(9), params=params("start: nothing"))
    good = bench.add(prompt(9, 1), params=params('start: "xy"'))
    free = bench.add(prompt(9, 2), params=sampling(14))
    events = list(bench.run())
    (fault,) = of(events, Fault)
    assert (fault.seq, fault.reason) == (bad, "grammar")
    assert "nothing" in fault.detail
    assert drawn(bench, good, events)[-1] == EOS
    assert len(drawn(bench, free, events)) == 5
    for seq in (bad, good, free):
        bench.engine.end(seq)
    bench.run()
    assert bench.idle()


def test_no_step_waits_for_a_grammar(grammars: Grammars) -> None:
    """All but the prompt's last token is computed meanwhile, and others are served."""
    gate = Slow()
    bench = bench_of(grammars, gate)
    text = 'start: "xy"'
    seq = bench.add(prompt(11), params=params(text))
    assert gate.asked == [text]  # its preparation begins with the request
    other = bench.add(prompt(5, 1), params=sampling(8))
    events = list(bench.run())
    assert len(drawn(bench, other, events)) == 3
    assert drawn(bench, seq, events) == []
    assert bench.engine.computed(seq) == 10
    assert bench.step() is None
    gate.open.add(text)
    assert drawn(bench, seq, list(bench.run()))[-1] == EOS


def test_a_prefill_waits_with_its_draw_only(grammars: Grammars) -> None:
    gate = Slow()
    bench = bench_of(grammars, gate)
    seq = bench.add(prompt(8), Goal.PREFILL, params=params('start: "xy"'))
    standby = bench.add(prompt(8, 1), Goal.EXTEND, params=params('start: "xy"'))
    bench.run()
    assert (bench.engine.computed(seq), bench.engine.computed(standby)) == (7, 7)
    gate.open.add('start: "xy"')
    assert len(drawn(bench, seq, list(bench.run()))) == 1
    assert bench.engine.computed(standby) == 7


def test_a_cached_prompt_waits_too(grammars: Grammars) -> None:
    """With nothing left to compute, its last token would come again for the draw."""
    gate = Slow()
    bench = bench_of(grammars, gate)
    first = bench.add([*prompt(8), 1], Goal.EXTEND)
    bench.run()
    bench.engine.end(first)
    bench.run()
    seq = bench.add(prompt(8), params=params('start: "xy"'))
    assert bench.engine.computed(seq) == 8
    assert bench.run() == []
    gate.open.add('start: "xy"')
    assert drawn(bench, seq, list(bench.run()))[-1] == EOS


def test_state_of_sequences_goes_with_them(grammars: Grammars) -> None:
    bench = bench_of(grammars)
    seqs = [bench.add(prompt(6, at), params=params('start: "xy"')) for at in range(3)]
    bench.run()
    for seq in seqs:
        bench.engine.end(seq)
    bench.run()
    runner = bench.runner
    assert isinstance(runner, ConstrainedRunner)
    assert runner._walks == {}
    assert runner.counters["grammar_masks"] >= 6
    assert runner.counters["grammar_mask_us"] > 0


def test_a_runner_alone_refuses() -> None:
    runner = SyntheticRunner(synthetic_layout(BLOCK, 32), 4, vocab=VOCAB)
    draw = Draw((), 1, 1, params('start: "a"'))
    with pytest.raises(NotBuilt, match="grammar"):
        runner.execute(StepPlan((WorkItem(1, 0, (5,), (0,), draw),)))


def test_an_item_whose_grammar_fails_is_still_computed(grammars: Grammars) -> None:
    """Its blocks may be cached: the step leaves nothing half done."""
    inner = SyntheticRunner(synthetic_layout(BLOCK, 32), 4, vocab=grammars.vocab)
    runner = ConstrainedRunner(inner, grammars)
    draw = Draw((), 2, 2, params("start: nothing"))
    [outcome] = runner.execute(StepPlan((WorkItem(1, 0, (5, 6), (0,), draw),))).drawn
    assert isinstance(outcome, BadGrammar)
    assert any(inner.view(0))
    free = Draw((), 3, 2, sampling(9))
    [after] = runner.execute(StepPlan((WorkItem(1, 2, (7,), (0,), free),))).drawn
    assert isinstance(after, Drawn)


def test_scores_of_a_prompt_come_in_order_and_once(grammars: Grammars) -> None:
    """However it is cut into steps, and only by a sequence that asks for them."""
    ids = prompt(11)
    found = []
    for most in (3, 100):
        bench = bench_of(grammars)
        bench.policy = msgspec.structs.replace(bench.policy, max_chunk_tokens=most)
        bench.engine = Engine(bench.pool, block_tokens=BLOCK, policy=bench.policy, max_context=4096)
        spec = bench.spec(ids, Goal.PREFILL, match=False)
        spec.scores = 2
        seq = bench.engine.add(spec, bench.now)
        events = list(bench.run())
        scores = [one for event in of(events, Scored, seq) for one in event.scores]
        assert len(scores) == len(ids) - 1
        assert all(len(top) == 2 for _, top in scores)
        assert isinstance(events[-1], Sampled)
        found.append(scores)
    assert found[0] == found[1]


def test_a_runner_that_gives_no_scores_fails_who_asks(grammars: Grammars) -> None:
    class Silent(SyntheticRunner):
        def execute(self, plan: StepPlan) -> StepResult:
            return dataclasses.replace(super().execute(plan), scores={})

    bench = bench_of(grammars)
    bench.runner = Silent(synthetic_layout(BLOCK, 32), 64, vocab=VOCAB)
    spec = bench.spec(prompt(9), Goal.PREFILL)
    spec.scores = 0
    seq = bench.engine.add(spec, bench.now)
    other = bench.add(prompt(9, 1), Goal.PREFILL)
    events = list(bench.run())
    (fault,) = of(events, Fault)
    assert (fault.seq, fault.reason) == (seq, "grammar")
    assert "log-probabilities" in fault.detail
    assert len(drawn(bench, other, events)) == 1

"""Whatever the numbers: only workers that may be used are chosen, nobody is flooded, and every answer has
reasons.
"""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.wish import NoRoad, Plan
from shared.policy.pipeline import Pipeline
from tests.support.placing import Numbers


def numbers_of(rng: random.Random) -> Numbers:
    """A fleet with random caches, loads, silences and sessions."""
    counts = {"p": rng.randint(0, 4), "r": rng.randint(0, 2), "m": rng.randint(0, 4)}
    names = [f"{letter}{at}" for letter, count in counts.items() for at in range(count)]
    numbers = Numbers(*names, rate=rng.choice((0.0, 25e6, 1e9)))
    for name in names:
        peers = tuple(other for other in names if other != name and rng.random() < 0.9)
        numbers.announce(name, peers=peers, draining=rng.random() < 0.1, pool_blocks=rng.choice((50, 5000)))
        numbers.report(
            name,
            running=rng.randint(0, 80),
            queued_tokens=rng.randint(0, 50_000),
            free_blocks=rng.randint(0, 5000),
            unsent_bytes={"wan": rng.choice((0, 10**6, 10**10))},
            prefill_rate=rng.choice((0.0, 100.0, 10_000.0)),
            decode_step_ms=rng.choice((0.0, 10.0, 100.0)),
        )
        numbers[name].suspect = rng.random() < 0.1
    return numbers


@settings(max_examples=150)
@given(seed=st.integers(0, 1 << 32), blocks=st.integers(0, 200))
def test_a_plan_uses_only_workers_that_can_be_used(seed: int, blocks: int) -> None:
    rng = random.Random(seed)
    numbers = numbers_of(rng)
    chain = numbers.chain(blocks)
    for worker in numbers.fleet.all():
        numbers.hold(worker.node, chain[: rng.randint(0, blocks)])
    wish = numbers.wish(
        chain, tail=rng.randint(1, 31), output=rng.choice((2, 500)), singular_allowed=rng.random() < 0.5
    )
    found = numbers.placement.plan(numbers.now, numbers.pool, wish)
    if isinstance(found, NoRoad):
        assert found.why()
        return
    chosen = found.chosen
    main = numbers[chosen.node]
    assert main.why_not(numbers.now) is None
    assert main.free_blocks() >= len(chain) - chosen.have
    assert found.reason
    if found.pipeline is Pipeline.MD:
        assert chosen.prefill is None
        return
    assert chosen.prefill is not None
    assert numbers[chosen.prefill].why_not(numbers.now) is None
    assert numbers.fleet.connected(chosen.prefill, chosen.node)
    if found.pipeline in (Pipeline.P_RLD, Pipeline.P_RLD_MD):
        assert chosen.relay is not None
        assert numbers[chosen.relay].why_not(numbers.now) is None
        assert numbers.fleet.connected(chosen.prefill, chosen.relay)


@settings(max_examples=50)
@given(seed=st.integers(0, 1 << 32), requests=st.integers(1, 40))
def test_cold_requests_spread_evenly_over_equal_workers(seed: int, requests: int) -> None:
    rng = random.Random(seed)
    prefills = [f"p{at}" for at in range(rng.randint(1, 4))]
    mains = [f"m{at}" for at in range(rng.randint(1, 4))]
    numbers = Numbers(*prefills, *mains)
    chosen: Counter[str] = Counter()
    for _ in range(requests):
        found = numbers.placement.plan(numbers.now, numbers.pool, numbers.wish(numbers.chain(100)))
        assert isinstance(found, Plan)
        assert found.chosen.prefill is not None
        for name, asked in ((found.chosen.node, {"blocks": 109}), (found.chosen.prefill, {"tokens": 3210})):
            chosen[name] += 1
            numbers.place(name, **asked)
    for group in (prefills, mains):
        counts = [chosen[name] for name in group]
        assert max(counts) - min(counts) <= 1


@settings(max_examples=50)
@given(seed=st.integers(0, 1 << 32))
def test_more_overlap_never_makes_a_main_decode_less_attractive(seed: int) -> None:
    rng = random.Random(seed)
    numbers = Numbers("p0", "m0", "m1")
    chain = numbers.chain(100)
    numbers.report("m0", running=rng.randint(0, 60))
    numbers.report("m1", running=rng.randint(0, 60))
    wish = numbers.wish(chain)
    before = numbers.placement.plan(numbers.now, numbers.pool, wish)
    assert isinstance(before, Plan)
    numbers.hold(before.chosen.node, chain[: rng.randint(1, 100)])
    after = numbers.placement.plan(numbers.now, numbers.pool, wish)
    assert isinstance(after, Plan)
    assert after.chosen.node == before.chosen.node

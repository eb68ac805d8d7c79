"""I1 for any order in which an owner's runs, its successor's, repeats and old ones arrive."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.log import Log, Run

PROMPT = 4


def cuts(rng: random.Random, source: list[int], first: int, end: int) -> list[Run]:
    """Runs that together cover [first, end) of the source, some of them twice."""
    made: list[Run] = []
    at = first
    while at < end:
        size = rng.randint(1, 4)
        start = max(first, at - rng.randint(0, 2))
        made.append(Run(start, tuple(source[start : min(at + size, end)])))
        at = min(at + size, end)
    made += rng.sample(made, min(len(made), 2))
    return made


@settings(max_examples=200)
@given(seed=st.integers(0, 1 << 32), length=st.integers(1, 40), seam=st.integers(0, 40))
def test_the_log_is_the_source_whatever_the_order(seed: int, length: int, seam: int) -> None:
    rng = random.Random(seed)
    source = [rng.randrange(100) for _ in range(PROMPT + length)]
    end = len(source)
    seam = PROMPT + min(seam, length - 1)
    log = Log(source[:PROMPT], 10_000, (), 10_000)
    log.own(1)
    log.follow(2)
    # The owner has drawn up to some point behind the seam; its successor repeats from the seam on.
    runs = [(1, run) for run in cuts(rng, source, PROMPT, min(end, seam + 1))]
    runs += [(2, run) for run in cuts(rng, source, seam, end)]
    runs += [(rng.choice((0, 7, 9)), Run(rng.randrange(end), (1, 2, 3))) for _ in range(3)]
    rng.shuffle(runs)
    seen = list(source[:PROMPT])
    pending = list(runs)
    for _ in range(len(runs) + 2):
        late: list[tuple[int, Run]] = []
        for term, run in pending:
            outcome = log.append(0.0, term, run)
            assert outcome.fault is None
            for _, part in outcome.runs:
                assert part.start == len(seen)
                seen.extend(part.ids)
            if term in (1, 2) and outcome.stale and term == 1 and log.current == 2:
                continue
            if term == 2 and outcome.stale:
                late.append((term, run))
        assert seen == log.ids == source[: len(seen)]
        pending = late
        if log.current == 2 and len(log) < end:
            # What the owner's dropped runs would have brought is asked for again (Resume).
            pending.append((2, Run(len(log), tuple(source[len(log) :]))))
    assert log.ids == source
    assert log.held == 0


@settings(max_examples=200)
@given(
    seed=st.integers(0, 1 << 32),
    stops=st.sets(st.integers(0, 9), max_size=2),
    limit=st.integers(1, 30),
)
def test_the_end_is_where_the_source_ends(seed: int, stops: set[int], limit: int) -> None:
    rng = random.Random(seed)
    source = [rng.randrange(10) for _ in range(PROMPT + 30)]
    log = Log(source[:PROMPT], PROMPT + limit, tuple(stops), 10_000)
    log.own(1)
    runs = cuts(rng, source, PROMPT, len(source))
    rng.shuffle(runs)
    for run in runs:
        log.append(0.0, 1, run)
    at = next(at + 1 for at in range(PROMPT, len(source)) if source[at] in stops or at + 1 >= PROMPT + limit)
    assert log.end is not None
    assert log.end.at == len(log) == at
    assert log.ids == source[:at]

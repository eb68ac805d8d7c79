"""The index mirrors pools whatever comes; look-ups by bisection equal a scan; placements leave nothing."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.index import Index
from shared.wire.messages import KvEvents, Snapshot


class Pool:
    """A pool of chains that evicts leaf first, with its events."""

    def __init__(self, rng: random.Random, chains: list[list[bytes]]) -> None:
        self.rng = rng
        self.chains = chains
        self.lengths = [0] * len(chains)
        self.seq = 0

    def held(self) -> set[bytes]:
        return {h for chain, length in zip(self.chains, self.lengths, strict=True) for h in chain[:length]}

    def change(self) -> tuple[KvEvents, bytes]:
        """One message: something is stored, evicted or cleared."""
        before = self.held()
        cleared = self.rng.random() < 0.05
        if cleared:
            self.lengths = [0] * len(self.chains)
            before = set()
        for _ in range(self.rng.randint(1, 3)):
            at = self.rng.randrange(len(self.chains))
            self.lengths[at] = self.rng.randint(0, len(self.chains[at]))
        stored, removed = sorted(self.held() - before), sorted(before - self.held())
        self.seq += 1
        return KvEvents(self.seq, len(stored), len(removed), cleared), b"".join(stored + removed)

    def snapshot(self) -> tuple[Snapshot, bytes]:
        return Snapshot(self.seq, len(self.held())), b"".join(sorted(self.held()))


def chains(rng: random.Random) -> list[list[bytes]]:
    """Chains of which some share a beginning."""
    made = [[rng.randbytes(16) for _ in range(rng.randint(1, 20))] for _ in range(3)]
    made.append(made[0][: len(made[0]) // 2] + [rng.randbytes(16) for _ in range(5)])
    return made


@settings(max_examples=100)
@given(seed=st.integers(0, 1 << 32), steps=st.integers(1, 60))
def test_the_index_is_the_pool(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    index = Index(10_000)
    pool = Pool(rng, chains(rng))
    index.opened("w")
    wanted = index.sized("w", 1000)
    assert wanted
    for _ in range(steps):
        events = pool.change()
        if rng.random() < 0.9:
            wanted = index.on_events("w", *events) or wanted
        if wanted and rng.random() < 0.5:
            index.on_snapshot("w", *pool.snapshot())
            wanted = False
        if index.hashes("w") and not wanted and rng.random() < 0.1:
            index.opened("w")
            wanted = index.sized("w", 1000)
            pool.seq = 0
    wanted = index.on_events("w", *pool.change()) or wanted
    if index.hashes("w") != pool.held():
        assert wanted, "the index differs and has not asked"
        index.on_snapshot("w", *pool.snapshot())
    assert index.hashes("w") == pool.held()
    for chain, length in zip(pool.chains, pool.lengths, strict=True):
        scan = next((at for at, h in enumerate(chain) if h not in pool.held()), len(chain))
        assert index.match("w", chain).have == scan >= length


@settings(max_examples=100)
@given(seed=st.integers(0, 1 << 32))
def test_placements_are_expected_until_they_are_settled(seed: int) -> None:
    rng = random.Random(seed)
    index = Index(200)
    made = chains(rng)
    nodes = ["a", "b"]
    for node in nodes:
        index.opened(node)
        index.sized(node, 1000)
        index.on_snapshot(node, Snapshot(0, 0), b"")
    open_: dict[int, tuple[str, list[bytes]]] = {}
    for key in range(40):
        node, chain = rng.choice(nodes), rng.choice(made)
        index.expect(key, node, chain)
        if index.match(node, chain).expected == len(chain):
            open_[key] = (node, chain)
        if open_ and rng.random() < 0.5:
            gone = rng.choice(list(open_))
            index.settle(gone)
            del open_[gone]
        if rng.random() < 0.03:
            index.lost("b")
            index.opened("b")
            open_ = {k: v for k, v in open_.items() if v[0] != "b"}
    for key in range(40):
        index.settle(key)
    assert index.expected_blocks == 0
    assert all(index.match(node, chain) == (0, 0) for node in nodes for chain in made)

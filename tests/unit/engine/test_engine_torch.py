"""Both halves of the engine together, over torch: prefill here, blocks across as bytes, decode there (I7)."""

import random
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest

from shared.engine.api import SamplingParams
from shared.engine.device.runner import DeviceRunner
from shared.engine.engine import Engine
from shared.engine.events import Fault, Sampled
from shared.engine.runner import TorchRunner
from shared.engine.sequence import Goal, SequenceSpec
from shared.kv.hashing import chain_hashes
from shared.kv.pool import BlockPool
from shared.policy.config import WorkerPolicy
from tests.support.replay import combined, replay
from tests.support.tiny_case import BLOCK_TOKENS, KINDS, SHAPES, Case

ROOT = b"r" * 16
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 77},
    {"temperature": 0.9, "top_k": 12, "top_p": 0.9, "seed": 1 << 60},
    {"temperature": 1.2, "min_p": 0.05, "presence_penalty": 0.7, "repetition_penalty": 1.1, "choice": 1},
    {"temperature": 0.0, "frequency_penalty": 0.4, "logit_bias": {9: 3.0}},
]


@dataclass
class Node:
    """A worker's compute: pool, runner and engine, stepped by hand."""

    case: Case
    policy: WorkerPolicy
    blocks: int = 300
    ids: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.blocks)
        self.runner: TorchRunner | DeviceRunner = self.case.runner(self.blocks)
        limit = self.case.model.config.max_context
        self.engine = Engine(self.pool, block_tokens=BLOCK_TOKENS, policy=self.policy, max_context=limit)
        self.now = 0.0

    def add(self, ids: list[int], prompt_len: int, goal: Goal, params: SamplingParams) -> int:
        hashes = chain_hashes(ROOT, ids, BLOCK_TOKENS)
        usable = hashes[: (len(ids) - 1) // BLOCK_TOKENS] if goal is Goal.PREFILL else hashes
        held = self.pool.match(usable)
        self.pool.pin(held)
        spec = SequenceSpec(ids, prompt_len, params, ROOT, hashes, held, goal)
        return self.engine.add(spec, self.now)

    def step(self) -> bool:
        plan = self.engine.plan(self.now)
        if plan is None:
            return False
        result = self.runner.execute(plan)
        self.now += 0.01
        for event in self.engine.apply(self.now, plan, result):
            assert not isinstance(event, Fault), event
            if isinstance(event, Sampled):
                self.ids.setdefault(event.seq, []).append(event.id)
        return True

    def run(self) -> None:
        while self.step():
            pass

    def land(self, blocks: list[tuple[bytes, bytes]]) -> None:
        """Publish (hash, bytes) of a chain as they would come from a peer."""
        for (hash_, data), parent in zip(blocks, [ROOT, *(each for each, _ in blocks)], strict=False):
            if self.pool.find(hash_) is None:
                [block] = self.pool.take(1)
                self.runner.view(block)[:] = data
                self.runner.landed(block)
                self.pool.publish(block, hash_, None if parent == ROOT else parent)
                self.pool.unpin([block])

    def cached(self, ids: list[int]) -> list[tuple[bytes, bytes]]:
        """Full blocks of `ids` held here, with their hashes."""
        hashes = chain_hashes(ROOT, ids, BLOCK_TOKENS)
        found = self.pool.match(hashes)
        return [(hash_, bytes(self.runner.view(block))) for hash_, block in zip(hashes, found, strict=False)]


@pytest.fixture(scope="module", params=KINDS)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("model"), SHAPES["groups"], request.param)


def sampling(settings: dict[str, Any], prompt_len: int, tokens: int) -> SamplingParams:
    return SamplingParams(**({"seed": 0} | settings | {"max_pos": prompt_len + tokens}))


@hypothesis.settings(max_examples=12)
@hypothesis.given(
    st.integers(0, 1 << 30), st.sampled_from([7, 32, 512]), st.sampled_from([5, 64]), st.integers(1, 6)
)
def test_prefill_here_cut_there(case: Case, seed: int, chunk: int, budget: int, requests: int) -> None:
    """Requests with a common beginning, cut after some ids, fed in pieces, decoded in one batch."""
    choose = random.Random(seed)
    policy = WorkerPolicy(token_budget=budget, max_chunk_tokens=chunk)
    here, there = Node(case, policy), Node(case, policy)
    common = case.prompt(choose.choice((1, BLOCK_TOKENS, 3 * BLOCK_TOKENS, 30)))
    prompts, owners, first = [], [], []
    for at in range(requests):
        prompts.append(common + case.prompt(choose.randrange(0, 3 * BLOCK_TOKENS)))
        params = sampling(SETTINGS[at % len(SETTINGS)], len(prompts[at]), 12)
        first.append(here.add(prompts[at].copy(), len(prompts[at]), Goal.PREFILL, params))
        if choose.random() < 0.5:
            here.step()
    here.run()
    for at, prompt in enumerate(prompts):
        params = sampling(SETTINGS[at % len(SETTINGS)], len(prompt), 12)
        log = prompt + here.ids[first[at]]
        if choose.random() < 0.8:
            there.land(here.cached(prompt))
        goal = choose.choice((Goal.EXTEND, Goal.OWN))
        owners.append(there.add(log.copy(), len(prompt), goal, params))
        there.step()
        if goal is Goal.EXTEND and choose.random() < 0.5:
            there.run()
    for seq in owners:
        there.engine.set_goal(seq, Goal.OWN)
    there.run()
    replays = []
    for at, prompt in enumerate(prompts):
        output = here.ids[first[at]] + there.ids[owners[at]]
        assert len(output) == 12
        replays.append(replay(case.reference, prompt, output, SETTINGS[at % len(SETTINGS)]))
    assert combined(replays).ok, [str(each) for each in replays]
    for node, numbers in ((here, first), (there, owners)):
        for seq in numbers:
            node.engine.end(seq)
        node.run()
        node.pool.check()
        assert node.pool.pinned == 0
        assert node.runner.held == 0


def test_the_next_turn_reuses_what_was_decoded(case: Case) -> None:
    node = Node(case, WorkerPolicy())
    prompt = case.prompt(18)
    seq = node.add(prompt.copy(), 18, Goal.OWN, sampling(SETTINGS[0], 18, 20))
    node.run()
    node.engine.end(seq)
    turn = prompt + node.ids[seq] + case.prompt(7)
    again = node.add(turn.copy(), len(turn), Goal.OWN, sampling(SETTINGS[0], len(turn), 10))
    assert len(node.engine.blocks(again)) == 37 // BLOCK_TOKENS
    node.run()
    assert node.ids[again] == case.answer(turn, 10)


def test_a_prompt_that_is_wholly_cached_draws_the_same_id(case: Case) -> None:
    node = Node(case, WorkerPolicy())
    prompt = case.prompt(6 * BLOCK_TOKENS)
    for goal in (Goal.PREFILL, Goal.PREFILL, Goal.OWN):
        seq = node.add(prompt.copy(), len(prompt), goal, sampling(SETTINGS[0], len(prompt), 1))
        node.run()
        assert node.ids[seq] == case.answer(prompt, 1)
        node.engine.end(seq)

"""What goes wrong in a step harms its own item alone."""

import copy
from collections.abc import Sequence

import pytest
from torch import Tensor

from shared.engine.api import Draw, Drawn, StepPlan, WorkItem
from shared.engine.contexts import Part
from shared.engine.device.batch import Batch
from shared.engine.device.model import DeviceModel
from shared.engine.device.runner import DeviceRunner
from shared.engine.model import LlamaModel
from shared.engine.native.model import NativeModel
from shared.engine.rope import Turns
from shared.engine.runner import TorchRunner
from shared.errors import ConfigError, InvalidRequest, InvariantBroken, NanLogits
from tests.support.stepper import Row, finish, greedy, step
from tests.support.tiny_case import BLOCK_TOKENS, KINDS, SHAPES, Case


@pytest.fixture(scope="module", params=KINDS)
def one(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("model"), SHAPES["groups"], request.param)


FATAL = 77


class Brittle(LlamaModel):
    """A model whose forward fails wherever one id takes part."""

    def forward(self, ids: Tensor, turns: Turns, parts: Sequence[Part]) -> Tensor:
        if FATAL in ids.tolist():
            raise RuntimeError("cannot allocate memory")
        return super().forward(ids, turns, parts)


class BrittleNative(NativeModel):
    """The same in compiled code."""

    def forward(self, ids: Tensor, turns: Turns, parts: Sequence[Part]) -> Tensor:
        if FATAL in ids.tolist():
            raise RuntimeError("cannot allocate memory")
        return super().forward(ids, turns, parts)


class BrittleDevice(DeviceModel):
    """The same on a device."""

    def forward(self, batch: Batch, pool: Tensor) -> Tensor:
        if FATAL in batch.ids.tolist():
            raise RuntimeError("cannot allocate memory")
        return super().forward(batch, pool)


def brittle(one: Case) -> TorchRunner | DeviceRunner:
    if one.device_model is None:
        host = copy.copy(one.model)
        host.__class__ = Brittle if isinstance(host, LlamaModel) else BrittleNative
        return TorchRunner(host, kv_blocks=64, block_tokens=BLOCK_TOKENS)
    model = copy.copy(one.device_model)
    model.__class__ = BrittleDevice
    return DeviceRunner(model, kv_blocks=64, block_tokens=BLOCK_TOKENS, device="cpu")


def test_bad_items_fail_alone(one: Case) -> None:
    good = one.prompt(12)
    expected = one.answer(good, 1)[0]
    draw = Draw((), 12, 12, greedy())
    items = (
        WorkItem(1, 0, (3, one.model.config.vocab), (0,)),
        WorkItem(2, 0, tuple(good), (1, 2, 3), draw),
        WorkItem(3, 0, tuple(good), (4, 5)),
        WorkItem(4, 4094, (1, 2, 3), tuple(range(1030))),
        WorkItem(5, 0, (1,), (999,)),
        WorkItem(6, 0, (), (6,)),
        WorkItem(7, 0, tuple(good), (7, 8, 9), Draw((), 12, 12, greedy(logit_bias={-4: 1.0}))),
    )
    kinds = (InvalidRequest, Drawn, InvariantBroken, InvalidRequest, InvariantBroken, InvariantBroken)
    drawn = one.runner().execute(StepPlan(items)).drawn
    assert [type(each) for each in drawn] == [*kinds, InvalidRequest]
    assert drawn[1] == Drawn(expected)


def test_a_forward_that_raises_fails_its_own_item(one: Case) -> None:
    """The batch is tried again one by one, and the next step runs."""
    runner = brittle(one)
    good = [token for token in one.prompt(30) if token != FATAL]
    expected = one.answer(good, 6)
    assert FATAL not in expected
    row = Row(2, good.copy(), range(10, 30))
    broken = WorkItem(1, 0, (1, FATAL, 2), (0,))
    for _ in range(3):
        item = row.item(20, BLOCK_TOKENS)
        first, second = runner.execute(StepPlan((broken, item))).drawn
        assert isinstance(first, RuntimeError)
        row.done += len(item.ids)
        if isinstance(second, Drawn):
            row.drawn.append(second)
            row.ids.append(second.id)
    assert finish(runner, [row], 6) == [expected]


def test_nan_kv_fails_its_request_and_spoils_no_later_one(one: Case) -> None:
    runner = one.runner(400)
    for block in range(9):
        runner.view(block)[:] = b"\xff" * len(runner.view(block))
        runner.landed(block)
    poisoned = WorkItem(1, 36, (1, 2), tuple(range(10)), Draw((), 38, 38, greedy()))
    prompts = [one.prompt(20), one.prompt(9)]
    rows = [Row(2, prompts[0].copy(), range(10, 40)), Row(3, prompts[1].copy(), range(50, 90))]
    outcome, _ = runner.execute(StepPlan((poisoned, rows[0].item(5, BLOCK_TOKENS)))).drawn
    assert isinstance(outcome, NanLogits)
    rows[0].done = 5
    step(runner, [(rows[1], 4)], ended=[1])  # takes the lane that held the NaN, beside a longer neighbour
    assert finish(runner, rows, 12) == [one.answer(prompt, 12) for prompt in prompts]


@pytest.mark.parametrize(("key", "value"), [("threads", 0), ("kv_blocks", 0), ("block_tokens", 0)])
def test_impossible_values_are_refused(one: Case, key: str, value: int) -> None:
    settings = {"threads": 1, "kv_blocks": 4, "block_tokens": 4} | {key: value}
    with pytest.raises(ConfigError):
        TorchRunner(one.model, **settings)  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["mps", "cuda:99"])
def test_devices_that_are_not_there_are_refused(one: Case, device: str) -> None:
    with pytest.raises(ConfigError, match=device):
        DeviceRunner(one.directory, kv_blocks=4, block_tokens=4, device=device)

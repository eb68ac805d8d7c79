"""`python -m services`: what it waits for, what it says meanwhile, and that a signal comes first."""

import asyncio
import socket

import pytest

from services.__main__ import _unless, _Waiting, is_ready
from shared.runtime.metrics import make_registry
from shared.runtime.settings import NodeConfig
from shared.runtime.web import WebServer, status_app


def node(http: str) -> NodeConfig:
    return NodeConfig(name="p", role="prefill", datacenter="a", listen="127.0.0.1:0", http=http)


async def test_work_ends_or_the_signal_ends_it() -> None:
    stopped: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    assert await _unless(stopped, asyncio.sleep(0, "done")) == ("done",)
    cancelled = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    waiting = asyncio.ensure_future(_unless(stopped, endless()))
    await asyncio.sleep(0)
    stopped.set_result(True)
    assert await waiting is None
    assert cancelled.is_set()


async def test_what_fails_is_told() -> None:
    async def fails() -> None:
        raise OSError("no")

    with pytest.raises(OSError, match="no"):
        await _unless(asyncio.get_running_loop().create_future(), fails())


async def test_a_node_is_ready_when_it_says_so() -> None:
    state: dict[str, object] = {"ready": False}
    app = status_app(make_registry(dict, node="p", role="prefill"), lambda: state, lambda: "")
    server = WebServer(app, "127.0.0.1", 0)
    port = await server.start()
    here = node(f"127.0.0.1:{port}")
    assert not await asyncio.to_thread(is_ready, here)
    state["ready"] = True
    assert await asyncio.to_thread(is_ready, here)
    await server.stop()


def test_a_node_that_cannot_be_asked() -> None:
    assert is_ready(node(""))  # it has nothing to ask
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert not is_ready(node(f"127.0.0.1:{unused.getsockname()[1]}"))


def test_waiting_is_told_once_for_each_change(capsys: pytest.CaptureFixture[str]) -> None:
    waiting = _Waiting()
    for names in (["a", "b"], ["a", "b"], ["b"], ["b"], []):
        waiting(names)
    assert capsys.readouterr().out == "waiting for a, b\nwaiting for b\nready\n"

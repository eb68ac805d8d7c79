"""The HTTP socket of a process: status codes that a load balancer and Prometheus can act on."""

import asyncio
import signal
import socket
import sys
from typing import Any

import httpx
import pytest

from shared.errors import ConfigError
from shared.runtime.metrics import make_registry
from shared.runtime.web import WebServer, status_app


class Worker:
    """What a worker says of itself."""

    def __init__(self) -> None:
        self.state: dict[str, object] = {"ready": True, "reasons": []}
        self.trouble = ""

    def app(self) -> Any:
        registry = make_registry(lambda: {"running": 1.0}, node="p-0", role="prefill")
        return status_app(registry, lambda: self.state, lambda: self.trouble)


async def ask(worker: Worker, path: str, method: str = "GET") -> httpx.Response:
    transport = httpx.ASGITransport(app=worker.app())
    async with httpx.AsyncClient(transport=transport, base_url="http://worker") as client:
        return await client.request(method, path)


async def test_ready_follows_the_state_and_gives_its_reasons() -> None:
    worker = Worker()
    answer = await ask(worker, "/ready")
    assert (answer.status_code, answer.json()) == (200, {"ready": True, "reasons": []})
    worker.state = {"ready": False, "reasons": ["draining"]}
    answer = await ask(worker, "/ready")
    assert (answer.status_code, answer.json()) == (503, {"ready": False, "reasons": ["draining"]})


async def test_health_fails_with_its_reason() -> None:
    worker = Worker()
    answer = await ask(worker, "/health")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok", "reason": ""})
    worker.trouble = "a step has been running for 130 s"
    answer = await ask(worker, "/health")
    assert (answer.status_code, answer.json()["reason"]) == (503, worker.trouble)


async def test_metrics_are_what_prometheus_reads() -> None:
    answer = await ask(Worker(), "/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert 'pdd_running{node="p-0",role="prefill"} 1.0' in answer.text


@pytest.mark.parametrize(("path", "method", "status"), [("/", "GET", 404), ("/ready", "POST", 405)])
async def test_nothing_else_is_served(path: str, method: str, status: int) -> None:
    assert (await ask(Worker(), path, method)).status_code == status


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_a_server_serves_until_it_is_stopped(host: str) -> None:
    server = WebServer(Worker().app(), host, 0)
    try:
        port = await server.start()
    except ConfigError:
        pytest.skip("this machine has no IPv6")
    base = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{base}/health")
        assert answer.status_code == 200
        assert "server" not in answer.headers
    await server.stop()
    async with httpx.AsyncClient() as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(f"{base}/health")


SERVING = """
import asyncio, uvloop
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
from shared.runtime.web import WebServer

async def main():
    app = Starlette(routes=[Route("/", lambda _: Response("yes"))])
    print(await WebServer(app, "127.0.0.1", 0, head_timeout=2.0, keep_alive=2.0).start(), flush=True)
    await asyncio.sleep(30)

uvloop.run(main())
"""


async def answered(sock: socket.socket) -> None:
    """Read one whole answer, in as many pieces as it comes."""
    got = b""
    while not got.endswith(b"yes"):
        piece = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(sock, 4096), 10)
        assert piece, f"closed after {got!r}"
        got += piece
    assert got.startswith(b"HTTP/1.1 200 ")


async def test_a_process_that_stood_still_answers_what_came_meanwhile() -> None:
    """After SIGCONT an event loop finds its timers before its sockets."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", SERVING, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    loop = asyncio.get_running_loop()
    ask = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    try:
        port = int(await process.stdout.readline())
        with socket.socket() as idle, socket.socket() as half:
            for each in (idle, half):
                each.setblocking(False)
                await loop.sock_connect(each, ("127.0.0.1", port))
            idle.send(ask)
            await answered(idle)
            half.send(ask[:20])
            await asyncio.sleep(0.1)  # half a head has been read; were it not, the test would be easier
            process.send_signal(signal.SIGSTOP)
            idle.send(ask)
            half.send(ask[20:])
            await asyncio.sleep(2.1)  # all bounds are over, and both requests are in their sockets
            process.send_signal(signal.SIGCONT)
            for each in (idle, half):
                await answered(each)
            assert await asyncio.wait_for(loop.sock_recv(idle, 4096), 10) == b""  # it ends when it is idle
    finally:
        process.kill()
        await process.wait()


async def test_a_port_in_use_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(
            ConfigError, match=rf"nodes\.http: cannot listen on 127\.0\.0\.1:{port}: .*in use"
        ):
            await WebServer(Worker().app(), "127.0.0.1", port).start()


async def test_a_host_of_another_machine_is_named() -> None:
    with pytest.raises(ConfigError, match=r"nodes\.http: cannot listen on 192\.0\.2\.1:0: Cannot assign"):
        await WebServer(Worker().app(), "192.0.2.1", 0).start()


async def test_stopping_what_never_started_is_nothing() -> None:
    await WebServer(Worker().app(), "127.0.0.1", 0).stop()

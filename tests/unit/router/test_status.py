"""`--status` against a real HTTP socket: tables, JSON, and a clear word for everything that can be wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from services.router.audit import Finding
from services.router.front.admin import admin_routes
from services.router.picture import Crossing, LineRow, Picture, RequestRow, Requests, SenderRow, WorkerRow
from services.router.status.asking import Target, target_of
from services.router.status.command import _Look, status_main
from services.router.status.table import milliseconds, size
from shared.runtime.mesh_file import load_mesh
from shared.runtime.web import WebServer

KEY = "an admin's key"

ROW = RequestRow(
    id="4d.7",
    tenant="acme",
    model="smol",
    state="relaying",
    pipeline="P-RLD-MD",
    prompt_tokens=1000,
    hit_tokens=640,
    made=12,
    most=64,
    age_ms=1500.0,
    ago_ms=0.0,
    stages=[("queue", 0.0), ("prefill", 20.0), ("lan", 500.0), ("relay", 530.0)],
    crossings=[Crossing("wan", 10.0, None, 5_000_000)],
    nodes={"main_decode": "main-0"},
    tokens={"relay": 12},
    note="",
)
WORKER = WorkerRow(
    node="main-0",
    role="main_decode",
    datacenter="b",
    model="smol",
    state="ok",
    running=3,
    queued=1,
    queued_tokens=400,
    most=64,
    blocks=200,
    free=50,
    promised=7,
    pinned=9,
    hit_tokens=640,
    looked_up_tokens=1000,
    rtt_ms=30.0,
    step_ms=12.5,
    prefill_rate=0.0,
)
LINE = LineRow(
    name="a-b",
    between=("a", "b"),
    cap=6.25e6,
    estimate=6e6,
    rtt_ms=30.0,
    outstanding=5_000_000,
    classes={"uncovered": 0, "covered": 5_000_000, "alignment": 0, "parked": 0},
    oldest_ms=1490,
    sent=1000,
    senders=[SenderRow("prefill-0", 5_000_000, 6e6, 1000)],
)


def picture(**changed: object) -> Picture:
    whole = Picture(
        node="router-0",
        datacenter="a",
        at_ms=10_000.0,
        draining=False,
        ready=True,
        reasons=[],
        requests=Requests(live=1, waiting=0, oldest_wait_ms=0.0, rows=[ROW], ended=[]),
        lines=[LINE],
        workers=[WORKER],
        pipelines={"MD": 1, "P-MD": 0, "P-RLD-MD": 3, "P-RLD": 0},
        tokens={"relay": 12},
        cuts={"one_shot": 3},
        finished=3,
        broken=0,
        cancelled=0,
        refused=0,
    )
    return msgspec.structs.replace(whole, **changed)


class Operator:
    """A router that shows what it is given."""

    def __init__(self, shown: Picture) -> None:
        self.shown = shown

    def picture(self) -> Picture:
        return self.shown

    def flush(self) -> None: ...

    def flush_worker(self, node: str) -> bool:
        return False

    async def compare(self) -> list[Finding]:
        return []

    def drain_worker(self, node: str, *, on: bool) -> bool:
        return False


@contextlib.asynccontextmanager
async def serving(routes: list[Route]) -> AsyncIterator[int]:
    server = WebServer(Starlette(routes=routes), "127.0.0.1", 0, drain=1)
    port = await server.start()
    try:
        yield port
    finally:
        await server.stop()


def mesh_file(folder: Path, port: int, *, key: str | None = KEY, http: str = "127.0.0.1:{}") -> str:
    admin = ""
    if key is not None:
        (folder / "admin.key").write_text(key)
        admin = f'[http]\nadmin_key_file = "{folder}/admin.key"\n'
    model = folder / "model"
    model.mkdir(exist_ok=True)
    (folder / "mesh.toml").write_text(
        f'{admin}[model]\npath = "{model}"\nengine = "synthetic"\n[[datacenters]]\nname = "a"\n'
        f'[[nodes]]\nname = "router-0"\nrole = "router"\ndatacenter = "a"\nlisten = "127.0.0.1:7000"\n'
        f'http = "{http.format(port)}"\n'
    )
    return str(folder / "mesh.toml")


async def status(*arguments: str) -> int:
    return await asyncio.to_thread(status_main, ["--status", *arguments])


async def test_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(admin_routes(Operator(picture()), KEY)) as port:
        assert await status("--config", mesh_file(tmp_path, port)) == 0
    shown = capsys.readouterr().out
    assert "router-0 ready in a: 1 running, 0 waiting, 3 finished" in shown
    assert "MD 25%" in shown
    assert "P-RLD-MD 75%" in shown
    assert "queue 20 ms  prefill 480 ms  lan 30 ms  relay 970 ms" in shown
    assert "covered 5.0 MB" in shown
    assert "50.0 Mbit/s" in shown
    assert "75% of 200" in shown
    assert all(len(line) <= 160 for line in shown.splitlines())


async def test_json_is_the_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(admin_routes(Operator(picture()), KEY)) as port:
        assert await status("--config", mesh_file(tmp_path, port), "--json") == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert msgspec.json.decode(line, type=Picture) == picture()
    assert json.loads(line)["workers"][0]["node"] == "main-0"


@pytest.mark.parametrize(
    ("http", "place"),
    [("0.0.0.0:80", "127.0.0.1:80"), ("[::]:80", "[::1]:80"), ("10.0.0.1:80", "10.0.0.1:80")],
)
def test_a_router_that_listens_everywhere_is_asked_here(tmp_path: Path, http: str, place: str) -> None:
    mesh = load_mesh(mesh_file(tmp_path, 7001))
    node = msgspec.structs.replace(mesh.node("router-0"), http=http)
    assert target_of(mesh, node).place == place


async def test_why_a_router_is_not_ready(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = Requests(live=0, waiting=0, oldest_wait_ms=0.0, rows=[], ended=[])
    shown = picture(ready=False, reasons=["no worker has joined"], requests=nothing, workers=[], lines=[])
    async with serving(admin_routes(Operator(shown), KEY)) as port:
        assert await status("--config", mesh_file(tmp_path, port)) == 0
    out = capsys.readouterr().out
    assert "not ready" in out
    assert "no worker has joined" in out
    assert "no request runs" in out


async def test_many_requests_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = Requests(live=1000, waiting=0, oldest_wait_ms=0.0, rows=[ROW] * 100, ended=[])
    async with serving(admin_routes(Operator(picture(requests=many)), KEY)) as port:
        assert await status("--config", mesh_file(tmp_path, port)) == 0
    assert "and 980 newer ones" in capsys.readouterr().out


async def test_nothing_listens_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving([]) as port:
        pass
    assert await status("--config", mesh_file(tmp_path, port)) == 1
    error = capsys.readouterr().err
    assert f"nothing listens on 127.0.0.1:{port}: router-0 is not running there; start it" in error


async def test_the_key_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(admin_routes(Operator(picture()), "another key")) as port:
        assert await status("--config", mesh_file(tmp_path, port)) == 1
    error = capsys.readouterr().err
    assert "does not know the key in" in error
    assert KEY not in error


async def test_something_else_listens_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with serving([]) as port:
        assert await status("--config", mesh_file(tmp_path, port)) == 1
    assert "has no /admin/state" in capsys.readouterr().err
    other = Route("/admin/state", lambda _: PlainTextResponse("hello"))
    async with serving([other]) as port:
        assert await status("--config", mesh_file(tmp_path, port)) == 1
    assert "no picture of a router of this version" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"key": None}, "http.admin_key_file: is not set: the router serves no admin endpoints without it"),
        ({"key": " "}, "is empty; write a key to a file and name it there"),
        ({"http": "127.0.0.1:0"}, "takes any free port, which is not known here; set a fixed one"),
    ],
)
async def test_a_file_that_does_not_say_enough(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str | None], expected: str
) -> None:
    assert await status("--config", mesh_file(tmp_path, 1, **changed)) == 2  # type: ignore[arg-type]
    assert expected in capsys.readouterr().err


async def test_watching_counts_the_rate_of_a_line_and_survives_a_lost_router(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = Operator(picture())
    async with serving(admin_routes(shown, KEY)) as port:
        look = _Look(Target("router-0", "127.0.0.1", port, KEY, "file"))
        await asyncio.to_thread(look.take)
        assert look.rates == {}
        shown.shown = picture(at_ms=12_000.0, lines=[msgspec.structs.replace(LINE, sent=2_001_000)])
        await asyncio.to_thread(look.take)
    assert look.rates == {"a-b": 1e6}
    assert capsys.readouterr().err == ""


def test_watch_takes_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        status_main(["--status", "--config", "x", "--watch", "0"])
    assert "'0' is no number of seconds from 0.1 to 3600" in capsys.readouterr().err


def test_numbers_are_readable() -> None:
    assert [size(count) for count in (12, 1500, 2.5e6, 3e9)] == ["12 B", "1.5 kB", "2.5 MB", "3.0 GB"]
    assert [milliseconds(value) for value in (3.2, 9999.0, 61_000.0)] == ["3 ms", "9999 ms", "61.0 s"]

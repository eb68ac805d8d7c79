"""A process's life: start, serve, drain, stop; what signals do and which exit code follows."""

import asyncio
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from structlog.testing import capture_logs

from shared.errors import ConfigError, InvariantBroken, MeshError
from shared.runtime.service import notify, run_service

Step = Callable[["FakeService"], Awaitable[None]]


async def pass_by(_service: "FakeService") -> None:
    """Nothing to do."""


async def forever(_service: "FakeService") -> None:
    await asyncio.Event().wait()


async def terminated(_service: "FakeService") -> None:
    """The process gets SIGTERM while this runs on."""
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()


async def interrupted(_service: "FakeService") -> None:
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.Event().wait()


async def broken(_service: "FakeService") -> None:
    raise RuntimeError("a bug")


async def refused(_service: "FakeService") -> None:
    raise ConfigError("nodes[0].listen", "cannot be listened on")


async def taken(_service: "FakeService") -> None:
    raise OSError(98, "Address already in use")


class FakeService:
    """Does in each step what it is given, and notes the order."""

    def __init__(
        self, start: Step = pass_by, run: Step = forever, drain: Step = pass_by, stop: Step = pass_by
    ) -> None:
        self.steps = {"start": start, "run": run, "drain": drain, "stop": stop}
        self.seen: list[str] = []
        self.reloaded = asyncio.Event()
        self.reload_error: MeshError | None = None

    def reload(self) -> None:
        self.reloaded.set()
        if self.reload_error is not None:
            raise self.reload_error

    async def start(self) -> None:
        await self._do("start")

    async def run(self) -> None:
        await self._do("run")

    async def drain(self) -> None:
        await self._do("drain")

    async def stop(self) -> None:
        await self._do("stop")

    async def _do(self, name: str) -> None:
        self.seen.append(name)
        try:
            await self.steps[name](self)
        except asyncio.CancelledError:
            self.seen.append(f"{name} cancelled")
            raise


@pytest.fixture(autouse=True)
def _plain_logs() -> Iterator[None]:
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def live(service: FakeService) -> tuple[int, list[str], list[dict[str, object]]]:
    """Exit code, order of steps, events logged."""
    with capture_logs() as events:
        code = run_service(lambda: service)
    return code, service.seen, [dict(event) for event in events]


@pytest.mark.parametrize(("run", "name"), [(terminated, "SIGTERM"), (interrupted, "SIGINT")])
def test_a_signal_drains_and_the_exit_is_clean(run: Step, name: str) -> None:
    code, seen, events = live(FakeService(run=run))
    assert code == 0
    assert seen == ["start", "run", "drain", "run cancelled", "stop"]
    assert [event["event"] for event in events] == ["started", "draining", "stopped"]
    assert events[1]["signal"] == name


def test_the_service_still_runs_while_it_drains() -> None:
    async def needs_run(service: FakeService) -> None:
        assert "run cancelled" not in service.seen

    assert live(FakeService(run=terminated, drain=needs_run))[0] == 0


def test_a_second_signal_stops_at_once() -> None:
    code, seen, events = live(FakeService(run=terminated, drain=terminated))
    assert code == 0
    assert seen == ["start", "run", "drain", "drain cancelled", "run cancelled", "stop"]
    assert events[2]["event"] == "drain cut short"


def test_a_signal_during_the_start_ends_it_there() -> None:
    code, seen, events = live(FakeService(start=terminated))
    assert code == 0
    assert seen == ["start", "start cancelled", "stop"]
    assert events[0]["event"] == "stopped while starting"


@pytest.mark.parametrize(
    ("start", "code", "reason"),
    [
        (refused, "config", "nodes[0].listen: cannot be listened on"),
        (taken, "os", "[Errno 98] Address already in use"),
        (broken, "internal", "RuntimeError: a bug"),
    ],
)
def test_a_start_that_fails_says_why(start: Step, code: str, reason: str) -> None:
    exit_code, seen, events = live(FakeService(start=start, stop=broken))
    assert exit_code == 1
    assert seen == ["start", "stop"]  # what half a start left is stopped; that this fails is no news
    assert events[0] | {"exc_info": None} == {
        "event": "cannot start",
        "log_level": "error",
        "code": code,
        "reason": reason,
        "exc_info": None,
    }
    assert ("exc_info" in events[0]) == (start is broken)  # a bug shows its place


def test_a_service_that_cannot_be_made_says_why() -> None:
    def make() -> FakeService:
        raise ConfigError("security.key_file", "holds 3 bytes")

    with capture_logs() as events:
        assert run_service(make) == 1
    assert events[0]["reason"] == "security.key_file: holds 3 bytes"


def test_a_service_that_dies_is_stopped_and_exits_with_1() -> None:
    code, seen, events = live(FakeService(run=broken))
    assert code == 1
    assert seen == ["start", "run", "stop"]
    assert events[1]["event"] == "service died"
    assert events[1]["reason"] == "RuntimeError: a bug"


def test_a_service_that_returns_has_died_too() -> None:
    code, _, events = live(FakeService(run=pass_by))
    assert code == 1
    assert "returned" in str(events[1]["reason"])


@pytest.mark.parametrize("step", ["drain", "stop"])
def test_what_fails_on_the_way_out_shows_in_the_exit_code(step: str) -> None:
    service = FakeService(run=terminated)
    service.steps[step] = broken
    code, seen, events = live(service)
    assert code == 1
    assert seen[-1] == "stop"
    assert f"{step} failed" in [event["event"] for event in events]


# --- systemd --------------------------------------------------------------------------------------------


def listener(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sock.bind("\0" + address[1:] if address.startswith("@") else address)
    sock.setblocking(False)
    return sock


def told(sock: socket.socket) -> list[str]:
    found = []
    while True:
        try:
            found.append(sock.recv(4096).decode())
        except BlockingIOError:
            return found


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_when_it_serves_and_when_it_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, abstract: bool
) -> None:
    address = f"@pdd-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with closing(listener(address)) as sock:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        assert live(FakeService(run=terminated))[0] == 0
        assert told(sock) == ["READY=1", "STOPPING=1"]


def test_systemd_is_not_told_that_a_service_is_ready_that_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(listener(str(tmp_path / "notify"))) as sock:
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        live(FakeService(start=refused))
        assert told(sock) == []


def test_the_watchdog_is_answered_from_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(listener(str(tmp_path / "notify"))) as sock:

        async def until_two_beats(service: FakeService) -> None:
            heard: list[str] = []
            beat = asyncio.Event()

            def on_message() -> None:
                heard.extend(told(sock))
                if heard.count("WATCHDOG=1") >= 2:
                    beat.set()

            asyncio.get_running_loop().add_reader(sock, on_message)
            await beat.wait()
            asyncio.get_running_loop().remove_reader(sock)
            await terminated(service)

        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        monkeypatch.setenv("WATCHDOG_USEC", "2000")
        assert live(FakeService(run=until_two_beats))[0] == 0
        told(sock)
        monkeypatch.setenv("WATCHDOG_PID", "1")  # meant for another process
        assert live(FakeService(run=terminated))[0] == 0
        assert told(sock) == ["READY=1", "STOPPING=1"]


def test_that_nobody_listens_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify("READY=1")


async def stumble(_service: FakeService, error: Exception, *, then_stop: bool) -> None:
    """A callback of the loop raises, then the process may get SIGTERM; the service would go on."""

    def fall() -> None:
        raise error

    loop = asyncio.get_running_loop()
    loop.call_soon(fall)
    if then_stop:
        loop.call_soon(os.kill, os.getpid(), signal.SIGTERM)
    await asyncio.Event().wait()


def test_a_broken_invariant_in_a_callback_ends_the_process() -> None:
    service = FakeService(run=lambda each: stumble(each, InvariantBroken("two owners"), then_stop=False))
    with capture_logs() as logs:
        assert run_service(lambda: service) == 1
    assert [log["reason"] for log in logs if log["event"] == "service died"] == ["two owners"]
    assert service.seen[-1] == "stop"


def test_another_error_in_a_callback_is_logged_and_the_service_goes_on() -> None:
    service = FakeService(run=lambda each: stumble(each, ValueError("one connection"), then_stop=True))
    with capture_logs() as logs:
        assert run_service(lambda: service) == 0
    assert ["one connection" in log["reason"] for log in logs if log["event"] == "callback failed"] == [True]


@pytest.mark.parametrize("error", [None, ConfigError("security.tls_cert", "cannot be read")])
def test_sighup_reloads_and_a_failed_reload_changes_nothing(error: MeshError | None) -> None:
    async def hung_up(service: FakeService) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await service.reloaded.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.Event().wait()

    service = FakeService(run=hung_up)
    service.reload_error = error
    with capture_logs() as logs:
        assert run_service(lambda: service) == 0
    events = [log["event"] for log in logs]
    assert ("reload failed" in events, "reloaded" in events) == (error is not None, error is None)

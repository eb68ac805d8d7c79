"""Logs: one JSON object a line, with ids bound once, from every thread and from the standard library too."""

import io
import json
import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from shared.runtime.logs import set_up_logs
from shared.runtime.settings import LogConfig


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Logging is the process's: put it back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    quiet = {name: logging.getLogger(name).level for name in ("uvicorn.access", "uvicorn.error", "asyncio")}
    yield
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    for name, old in quiet.items():
        logging.getLogger(name).setLevel(old)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def start(config: LogConfig | None = None, stream: io.StringIO | None = None) -> io.StringIO:
    out = stream or io.StringIO()
    set_up_logs(config or LogConfig(), node="relay-0", role="relay", stream=out)
    return out


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_events_are_json_lines_with_node_role_and_time() -> None:
    out = start()
    structlog.get_logger().info("transfer", ticket="ab", bytes=7, odd=object())
    (event,) = lines(out)
    assert list(event)[:5] == ["timestamp", "level", "event", "node", "role"]
    assert event["event"] == "transfer"
    assert event["level"] == "info"
    assert (event["node"], event["role"]) == ("relay-0", "relay")
    assert (event["ticket"], event["bytes"]) == ("ab", 7)
    assert "object object" in event["odd"]
    assert event["timestamp"].endswith("Z")


def test_ids_are_bound_once() -> None:
    out = start()
    log = structlog.get_logger().bind(rid=7)
    structlog.contextvars.bind_contextvars(term=2)
    log.info("first")
    log.bind(ticket="ab").warning("second")
    first, second = lines(out)
    assert (first["rid"], first["term"]) == (second["rid"], second["term"]) == (7, 2)
    assert second["ticket"] == "ab"
    assert "ticket" not in first


def test_an_event_may_name_a_peer_as_its_node() -> None:
    out = start()
    structlog.get_logger().info("worker joined", node="main-0")
    assert lines(out)[0]["node"] == "main-0"


def test_other_threads_log_under_the_same_name() -> None:
    out = start()
    thread = threading.Thread(target=lambda: structlog.get_logger().info("step"))
    thread.start()
    thread.join()
    assert lines(out)[0]["node"] == "relay-0"


def test_exceptions_stay_on_one_line() -> None:
    out = start()
    try:
        raise ValueError("bad\nvalue")
    except ValueError:
        structlog.get_logger().exception("failed")
    (event,) = lines(out)
    assert "ValueError: bad\nvalue" in event["exception"]


def test_the_standard_library_logs_through_the_same_door() -> None:
    out = start()
    logging.getLogger("some.library").warning("hello %s", "you")
    logging.getLogger("some.library").debug("not shown")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", UserWarning, stacklevel=1)
    told, warned = lines(out)
    assert (told["event"], told["level"], told["logger"]) == ("hello you", "warning", "some.library")
    assert told["node"] == "relay-0"
    assert "UserWarning: old" in warned["event"]


def test_noisy_libraries_are_heard_only_when_something_is_wrong() -> None:
    out = start(LogConfig(level="debug"))
    logging.getLogger("uvicorn.access").info("GET /")
    logging.getLogger("asyncio").debug("slow")
    logging.getLogger("asyncio").error("lost task")
    assert [event["event"] for event in lines(out)] == ["lost task"]


@pytest.mark.parametrize(("level", "count"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_levels(level: Any, count: int) -> None:
    out = start(LogConfig(level=level))
    log = structlog.get_logger()
    for method in (log.debug, log.info, log.warning, log.error):
        method("event")
    assert len(lines(out)) == count


@pytest.mark.parametrize(
    ("form", "stream", "pretty"),
    [
        ("auto", Terminal(), True),
        ("auto", io.StringIO(), False),
        ("json", Terminal(), False),
        ("pretty", io.StringIO(), True),
    ],
)
def test_pretty_on_a_terminal_unless_told_otherwise(form: Any, stream: io.StringIO, pretty: bool) -> None:
    start(LogConfig(format=form), stream)
    structlog.get_logger().info("listening", port=7100)
    assert ("{" not in stream.getvalue()) == pretty
    assert "listening" in stream.getvalue()
    assert ("\x1b[" in stream.getvalue()) == (pretty and stream.isatty())

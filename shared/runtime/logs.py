"""structlog set up once per process: JSON lines, or pretty on a terminal. Ids are bound by callers, never
formatted in."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from shared.runtime.settings import LogConfig


def set_up_logs(config: LogConfig, *, node: str, role: str, stream: TextIO | None = None) -> None:
    """Send structlog, and the standard library's loggers and warnings through it, to `stream` (stderr). Every
    event names node and role, from whatever thread."""
    out = stream or sys.stderr
    pretty = config.format == "pretty" or (config.format == "auto" and out.isatty())
    level = logging.getLevelNamesMapping()[config.level.upper()]
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        _Origin(node, role),
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[structlog.types.Processor]
    if pretty:
        last = [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    else:
        last = [structlog.processors.format_exc_info, _in_order, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    bridge = logging.StreamHandler(out)
    bridge.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
            foreign_pre_chain=[structlog.stdlib.add_logger_name, *shared],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [bridge]
    root.setLevel(level)
    logging.captureWarnings(True)
    for noisy in ("uvicorn.access", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


_FIRST = ("timestamp", "level", "event", "node", "role")


def _in_order(
    _logger: structlog.types.WrappedLogger, _name: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """What every event has comes first."""
    return {key: event[key] for key in _FIRST if key in event} | dict(event)


class _Origin:
    """Adds this process's node and role where an event does not name its own."""

    def __init__(self, node: str, role: str) -> None:
        self._node = node
        self._role = role

    def __call__(
        self, _logger: structlog.types.WrappedLogger, _name: str, event: structlog.types.EventDict
    ) -> structlog.types.EventDict:
        event.setdefault("node", self._node)
        event.setdefault("role", self._role)
        return event

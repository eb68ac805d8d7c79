"""structlog set up once per process: JSON lines, or pretty on a terminal. Ids are bound by callers, never
formatted in."""

from __future__ import annotations

import logging
import sys
from typing import TextIO

import structlog

from shared.runtime.settings import LogConfig


def set_up_logs(config: LogConfig, *, node: str, role: str, stream: TextIO | None = None) -> None:
    """Send structlog, and the standard library's loggers through it, to `stream` (stderr)."""
    out = stream or sys.stderr
    pretty = config.format == "pretty" or (config.format == "auto" and out.isatty())
    level = logging.getLevelNamesMapping()[config.level.upper()]
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    last: list[structlog.types.Processor]
    if pretty:
        last = [structlog.dev.ConsoleRenderer(colors=out.isatty())]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=out),
        cache_logger_on_first_use=True,
    )
    structlog.contextvars.bind_contextvars(node=node, role=role)
    bridge = logging.StreamHandler(out)
    bridge.setFormatter(
        structlog.stdlib.ProcessorFormatter(processors=[_drop_record, *last], foreign_pre_chain=shared)
    )
    root = logging.getLogger()
    root.handlers[:] = [bridge]
    root.setLevel(level)
    for noisy in ("uvicorn.access", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(max(level, logging.WARNING))


def _drop_record(
    _logger: structlog.types.WrappedLogger, _name: str, event: structlog.types.EventDict
) -> structlog.types.EventDict:
    """Take the standard library's record out of the event before it is rendered."""
    return structlog.stdlib.ProcessorFormatter.remove_processors_meta(_logger, _name, event)

"""Log lines as a machine reads them, caught in memory."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog

from lucius.telemetry import configure_logging


class Lines:
    def __init__(self, buffer: io.StringIO) -> None:
        self._buffer = buffer

    @property
    def text(self) -> str:
        return self._buffer.getvalue()

    def all(self, event: str | None = None) -> list[dict[str, Any]]:
        lines: list[dict[str, Any]] = [json.loads(line) for line in self.text.splitlines()]
        return [line for line in lines if event is None or line["event"] == event]

    def one(self, event: str) -> dict[str, Any]:
        found = self.all(event)
        assert len(found) == 1, (event, self.text)
        return found[0]


@contextmanager
def caught(level: str) -> Iterator[Lines]:
    """Logs as a server writes them, but kept; afterwards everything is as it was."""
    before, root = structlog.get_config(), logging.getLogger()
    handlers, root_level = root.handlers[:], root.level
    buffer = io.StringIO()
    configure_logging(level, plain=False)
    structlog.configure(
        logger_factory=structlog.WriteLoggerFactory(file=buffer), cache_logger_on_first_use=False
    )
    added = [handler for handler in root.handlers if handler not in handlers]
    for handler in added:
        assert isinstance(handler, logging.StreamHandler)
        handler.setStream(buffer)
    try:
        yield Lines(buffer)
    finally:
        structlog.configure(**before)
        root.handlers[:] = handlers
        root.setLevel(root_level)

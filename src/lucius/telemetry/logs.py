"""Logs: one JSON document a line on stderr, or plain lines on a terminal.

In: events with fields, from here and from libraries that use `logging`. Out: lines that carry the ids of the
request and the job they belong to. Secrets do not get through: a field whose name says that it holds one is
blanked, and so is whatever looks like a credential inside a text.
"""

import logging
import re
import sys
from collections.abc import Mapping, MutableMapping
from typing import Any

import structlog

from lucius.contracts.credentials import BLANK, blank_in_log
from lucius.telemetry.context import current_ids

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
TEXT_LENGTH_MAX = 16_384
DEPTH_MAX = 6

_secret_name = re.compile(
    r"authorization|cookie|passw|secret|token|credential|signature|payload|api.?key|^key$|idempotency_key",
    re.IGNORECASE,
).search

_Event = MutableMapping[str, Any]


def configure_logging(level: str, *, plain: bool) -> None:
    """`plain`: for people at a terminal; else JSON for machines."""
    renderer: Any = (
        structlog.dev.ConsoleRenderer(colors=False) if plain else structlog.processors.JSONRenderer()
    )
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        add_ids,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        blank_secrets,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    _adopt_libraries(shared, renderer)


def _adopt_libraries(shared: list[Any], renderer: Any) -> None:
    """What libraries say through `logging` comes out in the same form; their chatter is left out."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    for known in root.handlers[:]:
        if isinstance(known.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(known)
    root.addHandler(handler)
    root.setLevel(logging.WARNING)


def request_log() -> Any:
    """The access log. It was asked for by a setting of its own, so the level does not silence it."""
    logger: Any = structlog.get_logger("lucius.access")
    unfiltered = structlog.make_filtering_bound_logger(logging.INFO)
    return structlog.wrap_logger(logger.bind()._logger, wrapper_class=unfiltered)


def add_ids(logger: Any, method: str, event: _Event) -> _Event:
    """The ids of the running task. A line that names a job or an attempt itself is believed, and is not given
    those of another; `request_id` is left out where it says nothing new."""
    found = current_ids()
    if any(event.get(name, found.get(name)) != found.get(name) for name in ("jobId", "stepId", "attempt_no")):
        found = {
            name: found["request_id"] for name in ("correlation_id", "request_id") if "request_id" in found
        }
    for name, value in found.items():
        event.setdefault(name, value)
    if event.get("request_id") == event.get("correlation_id"):
        event.pop("request_id", None)
    return event


def blank_secrets(logger: Any, method: str, event: _Event) -> _Event:
    for name, value in event.items():
        event[name] = BLANK if _secret_name(name) else _blanked(value, DEPTH_MAX)
    return event


def _blanked(value: Any, depth_left: int) -> Any:
    if isinstance(value, str):
        return blank_text(value)
    if isinstance(value, int | float | None):
        return value
    if depth_left == 0:
        return BLANK
    if isinstance(value, Mapping):
        return {
            name: BLANK if _secret_name(str(name)) else _blanked(inner, depth_left - 1)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_blanked(inner, depth_left - 1) for inner in value]
    return blank_text(repr(value))


def blank_text(text: str) -> str:
    """A text without what looks like a credential, and of a bounded length."""
    if len(text) > TEXT_LENGTH_MAX:
        text = f"{text[:TEXT_LENGTH_MAX]}…"
    return blank_in_log(text)

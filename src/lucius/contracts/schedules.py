"""Schedules: a command, and when it is given.

In: a JSON document. Out: a `ScheduleSpec`, or a refusal that names every field at fault; and back to what is
shown of one. Whether the command would be taken is decided further in.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from functools import lru_cache
from typing import Final
from zlib import crc32
from zoneinfo import ZoneInfo

import msgspec
from cronsim import CronSim, CronSimError

from lucius.contracts.envelope import parse_envelope
from lucius.contracts.times import parse_rfc3339, rfc3339
from lucius.core.durations import SPANS, parse_duration_ms
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused

CRON_LENGTH_MAX: Final = 200
TIMEZONE_LENGTH_MAX: Final = 64
INTERVAL_MS_MIN: Final = 1_000
CATCH_UP_DEFAULT: Final = "1h"
MEMBERS: Final = (
    "schedule_id",
    "command",
    "cron",
    "timezone",
    "every",
    "at",
    "jitter",
    "overlap",
    "catch_up",
)
_ANY_DAY: Final = datetime(2026, 1, 1, tzinfo=UTC)
_SCHEDULE_ID: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}", re.ASCII)


class Overlap(StrEnum):
    """What a tick does while the job of the one before is still open."""

    SKIP = "skip"
    QUEUE = "queue"
    CANCEL_PREVIOUS = "cancel_previous"


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One of `cron`, `every_ms` and `at_ms` says when. `catch_up_ms`: how late a tick may still be run."""

    schedule_id: str
    command: dict[str, Json]
    tenant_norm: str
    cron: str | None = None
    timezone: str = "UTC"
    every_ms: int | None = None
    at_ms: int | None = None
    jitter_ms: int = 0
    overlap: Overlap = Overlap.SKIP
    catch_up_ms: int = 3_600_000


def is_schedule_id(text: str) -> bool:
    return _SCHEDULE_ID.fullmatch(text) is not None


def parse_schedule(doc: Mapping[str, Json]) -> ScheduleSpec | Refused:
    found = [
        FieldError(f"/{name}", "is not a member of a schedule")
        for name in sorted(doc.keys() - frozenset(MEMBERS))
    ]
    schedule_id = doc.get("schedule_id")
    if not isinstance(schedule_id, str) or not is_schedule_id(schedule_id):
        found.append(
            FieldError(
                "/schedule_id", "must be 1 to 64 of a-z, 0-9, '.', '_' and '-', a letter or digit first"
            )
        )
    command, tenant = _command(doc.get("command"), found)
    times = [name for name in ("cron", "every", "at") if doc.get(name) is not None]
    if len(times) != 1:
        found.append(FieldError("", "needs one of cron, every and at"))
    timezone = _timezone(doc, found)
    overlap = doc.get("overlap", Overlap.SKIP.value)
    if overlap not in list(Overlap):
        found.append(FieldError("/overlap", f"must be one of {', '.join(Overlap)}"))
    spec = {
        "cron": _cron(doc, found),
        "every_ms": _span(doc, "every", None, found, least_ms=INTERVAL_MS_MIN),
        "at_ms": _time(doc, "at", found),
        "jitter_ms": _span(doc, "jitter", 0, found),
        "catch_up_ms": _span(doc, "catch_up", parse_duration_ms(CATCH_UP_DEFAULT), found),
    }
    if found:
        return Refused(Code.INVALID_REQUEST, "this is not a schedule", tuple(found))
    return msgspec.convert(
        {
            "schedule_id": schedule_id,
            "command": command,
            "tenant_norm": tenant,
            "timezone": timezone,
            "overlap": overlap,
            **spec,
        },
        ScheduleSpec,
    )


def _command(value: Json, found: list[FieldError]) -> tuple[Json, str]:
    envelope = parse_envelope(value)
    if isinstance(envelope, Refused):
        found += [FieldError(f"/command{error.pointer}", error.message) for error in envelope.errors]
        return value, ""
    if envelope.idempotency_key is not None:
        found.append(FieldError("/command/idempotency_key", "is made from the schedule and the tick"))
    return value, envelope.tenant_norm


def _timezone(doc: Mapping[str, Json], found: list[FieldError]) -> str:
    name = doc.get("timezone")
    if name is None:
        return "UTC"
    if doc.get("cron") is None:
        found.append(FieldError("/timezone", "says when a cron expression is due, and there is none"))
        return "UTC"
    if isinstance(name, str) and len(name) <= TIMEZONE_LENGTH_MAX and zone_of(name) is not None:
        return name
    found.append(FieldError("/timezone", "must be a time zone such as Europe/Zurich"))
    return "UTC"


def _cron(doc: Mapping[str, Json], found: list[FieldError]) -> str | None:
    text = doc.get("cron")
    if text is None:
        return None
    if isinstance(text, str) and len(text) <= CRON_LENGTH_MAX and len(text.split()) == 5:
        try:
            next(CronSim(text, _ANY_DAY))
        except (CronSimError, StopIteration):
            pass
        else:
            return text
    found.append(
        FieldError(
            "/cron", "must be minute, hour, day of month, month and day of week, such as '0 3 * * MON-FRI'"
        )
    )
    return None


def _span(
    doc: Mapping[str, Json], name: str, default: int | None, found: list[FieldError], *, least_ms: int = 0
) -> int | None:
    value = doc.get(name)
    if value is None:
        return default
    span_ms = parse_duration_ms(value)
    if span_ms is None or span_ms < least_ms:
        least = f"of at least {least_ms // 1000}s" if least_ms else SPANS
        found.append(FieldError(f"/{name}", f"must be a span of time, such as 30s or 2h, {least}"))
        return default
    return span_ms


def _time(doc: Mapping[str, Json], name: str, found: list[FieldError]) -> int | None:
    value = doc.get(name)
    if value is None:
        return None
    at_ms = parse_rfc3339(value) if isinstance(value, str) else None
    if at_ms is None:
        found.append(FieldError(f"/{name}", "must be a time such as 2026-12-01T03:00:00Z"))
    return at_ms


@lru_cache(maxsize=64)
def zone_of(name: str) -> ZoneInfo | None:
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def next_tick_ms(spec: ScheduleSpec, after_ms: int, *, from_ms: int) -> int | None:
    """The first tick after this time; None if there is none. `from_ms`: where intervals begin to count."""
    if spec.at_ms is not None:
        return spec.at_ms if spec.at_ms > after_ms else None
    if spec.every_ms is not None:
        return from_ms + max(1, (after_ms - from_ms) // spec.every_ms + 1) * spec.every_ms
    assert spec.cron is not None
    after = datetime.fromtimestamp(after_ms // 1000, UTC).astimezone(zone_of(spec.timezone))
    try:
        return round(next(CronSim(spec.cron, after)).timestamp()) * 1000
    except StopIteration:
        return None


def due_ms(spec: ScheduleSpec, tick_ms: int) -> int:
    """When a tick is run: the same for all who ask."""
    if not spec.jitter_ms:
        return tick_ms
    return tick_ms + crc32(f"{spec.schedule_id}:{tick_ms}".encode()) % (spec.jitter_ms + 1)


def tick_key(spec: ScheduleSpec, tick_ms: int) -> str:
    """The idempotency key of the command of one tick."""
    return f"schedule:{spec.schedule_id}:{rfc3339(tick_ms)}"


def spec_view(spec: ScheduleSpec) -> dict[str, Json]:
    """The document that this was parsed from, with what it left open."""
    view: dict[str, Json] = {"schedule_id": spec.schedule_id, "command": spec.command}
    if spec.cron is not None:
        view |= {"cron": spec.cron, "timezone": spec.timezone}
    if spec.every_ms is not None:
        view["every"] = _span_text(spec.every_ms)
    if spec.at_ms is not None:
        view["at"] = rfc3339(spec.at_ms)
    return view | {
        "jitter": _span_text(spec.jitter_ms),
        "overlap": spec.overlap.value,
        "catch_up": _span_text(spec.catch_up_ms),
    }


def _span_text(span_ms: int) -> str:
    return f"{span_ms}ms" if span_ms % 1000 else f"{span_ms // 1000}s"

"""Schedules, described."""

from typing import Final

from lucius.api.described.groups import (
    Operation,
    OperationGroup,
    RequestBody,
    ResponseDescription,
    in_path,
    query,
)
from lucius.api.described.jobs import page_of
from lucius.api.schedules import PAGE_ITEMS_MAX
from lucius.contracts.examples import EXAMPLES
from lucius.contracts.schedules import CRON_LENGTH_MAX, TIMEZONE_LENGTH_MAX, Overlap
from lucius.contracts.schemas import MAYBE_TEXT, MAYBE_TIME, TEXT, TIME, Schema, closed, named, opened
from lucius.core.model import Json
from lucius.core.refusal import Code

_ID: Final[Schema] = {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,63}$"}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_SPAN: Final[Schema] = {
    "type": ["string", "number"],
    "description": "Such as `30s`, `15m`, `2h`; a number is seconds.",
}
_DEFINITION: Final[dict[str, Schema]] = {
    "schedule_id": _ID,
    "command": {
        "allOf": [named("Envelope")],
        "description": "Without `idempotency_key`: that is made from the tick.",
    },
    "cron": {
        "type": "string",
        "maxLength": CRON_LENGTH_MAX,
        "description": "Minute, hour, day of month, month, day of week. A time that a change of clocks "
        "leaves out is made up for right after it; one that comes twice is run once.",
    },
    "timezone": {
        "type": "string",
        "maxLength": TIMEZONE_LENGTH_MAX,
        "description": "Of `cron`; UTC by default.",
    },
    "every": {
        **_SPAN,
        "description": "Instead of `cron`: a tick so often, counted from the making of the schedule.",
    },
    "at": {**TIME, "description": "Instead of `cron`: one tick."},
    "jitter": {
        **_SPAN,
        "description": "Each tick is run up to so much later, by an amount that its time decides.",
    },
    "overlap": {
        "type": "string",
        "enum": [each.value for each in Overlap],
        "description": "What a tick does while the job before is open: nothing, wait, or cancel that job.",
    },
    "catch_up": {
        **_SPAN,
        "description": "How late a tick may still be run, after a standstill say; 1h by default.",
    },
}
_COMMAND: Final[Json] = {**EXAMPLES["Envelope"]} if isinstance(EXAMPLES["Envelope"], dict) else {}
_WISH: Final[dict[str, Json]] = {
    "schedule_id": "invoices-of-the-night",
    "command": {name: value for name, value in _COMMAND.items() if name != "idempotency_key"},
    "cron": "0 3 * * MON-FRI",
    "timezone": "Europe/Zurich",
    "overlap": "skip",
}
_SHOWN: Final[dict[str, Json]] = {
    **_WISH,
    "jitter": "0s",
    "catch_up": "3600s",
    "paused": False,
    "next": ["2026-01-27T02:00:00.000Z", "2026-01-28T02:00:00.000Z"],
    "last_tick": "2026-01-26T02:00:00.000Z",
    "last_job_id": "job_01k5z3w8e6t9r4c2m7x1q0hv5b",
    "problem": None,
    "runs": 1,
    "skipped": 0,
    "missed": 0,
    "created_at": "2026-01-25T09:00:00.000Z",
    "updated_at": "2026-01-26T02:00:00.000Z",
}

_ALWAYS: Final = [name for name in _SHOWN if name not in ("cron", "timezone")]

_SCHEMAS: Final[dict[str, Schema]] = {
    "ScheduleWish": closed(
        "A command, and when it is given. One of cron, every and at.", _DEFINITION, ["schedule_id", "command"]
    ),
    "Schedule": opened(
        "A schedule, and how far it has got.",
        {
            **_DEFINITION,
            "paused": {"type": "boolean"},
            "next": {
                "type": "array",
                "items": TIME,
                "description": "The next five ticks; none while it is paused.",
            },
            "last_tick": MAYBE_TIME,
            "last_job_id": {**MAYBE_TEXT, "description": "The job of that tick."},
            "problem": {**MAYBE_TEXT, "description": "Why the tick after it brought no job, or none yet."},
            "runs": _COUNT,
            "skipped": {**_COUNT, "description": "Ticks that met an open job."},
            "missed": {**_COUNT, "description": "How often ticks were too late, or refused."},
            "created_at": TIME,
            "updated_at": TIME,
        },
        _ALWAYS,
    ),
    "SchedulePage": page_of("Schedule"),
    "ScheduledRun": opened("The job.", {"jobId": TEXT, "duplicate": {"type": "boolean"}}),
    "BackfillWish": closed(
        "A range of time, with its ends, up to now.", {"from": TIME, "to": TIME}, ["from", "to"]
    ),
    "Backfill": opened(
        "What was done.",
        {
            "job_ids": {
                "type": "array",
                "items": TEXT,
                "description": "The new jobs, in the order of their ticks.",
            },
            "duplicates": {**_COUNT, "description": "Ticks that had brought their job before."},
            "more_from": {**MAYBE_TIME, "description": "Where to go on: a call runs 500 ticks at most."},
            "problem": {**MAYBE_TEXT, "description": "Why it stopped before its end."},
        },
    ),
}
_EXAMPLES: Final[dict[str, Json]] = {
    "ScheduleWish": _WISH,
    "Schedule": _SHOWN,
    "SchedulePage": {"items": [_SHOWN], "next_cursor": None},
    "ScheduledRun": {"jobId": "job_01k5z3w8e6t9r4c2m7x1q0hv5b", "duplicate": False},
    "BackfillWish": {"from": "2026-01-20T00:00:00Z", "to": "2026-01-26T00:00:00Z"},
    "Backfill": {
        "job_ids": ["job_01k5z3w8e6t9r4c2m7x1q0hv5b"],
        "duplicates": 3,
        "more_from": None,
        "problem": None,
    },
}
_BODY_REFUSALS: Final = (
    Code.MALFORMED_JSON,
    Code.INVALID_ENVELOPE,
    Code.INVALID_REQUEST,
    Code.BODY_TOO_LARGE,
)
_COMMAND_REFUSALS: Final = (
    Code.UNKNOWN_REQUEST_TYPE,
    Code.INVALID_PAYLOAD,
    Code.REF_NOT_ALLOWED,
    Code.DOC_ID_REQUIRED,
)


def _change(summary: str, description: str) -> Operation:
    return Operation(
        summary=summary,
        description=description,
        answers=(ResponseDescription(description="The schedule.", schema="Schedule"),),
        refusals=(Code.NOT_FOUND,),
    )


AREA: Final = OperationGroup(
    tag="schedules",
    description="Commands that are given by the clock. Each tick brings exactly one job: its time is the "
    "idempotency key of its command.",
    operations={
        "listSchedules": Operation(
            summary="List schedules",
            description="Those of the caller's tenants, in the order of their ids.",
            parameters=("ScheduleCursor", "ScheduleLimit"),
            answers=(ResponseDescription(description="A page.", schema="SchedulePage"),),
            refusals=(Code.INVALID_REQUEST,),
        ),
        "writeSchedule": Operation(
            summary="Make or change a schedule",
            description="Makes the schedule, or gives the one of this id a new definition; its counts stay.",
            body=RequestBody(schema="ScheduleWish", description="The schedule."),
            answers=(
                ResponseDescription(description="There was one of this id.", schema="Schedule"),
                ResponseDescription(status=201, description="It is new.", schema="Schedule"),
            ),
            refusals=(*_BODY_REFUSALS, *_COMMAND_REFUSALS),
        ),
        "getSchedule": _change("Show a schedule", "What it is, its next ticks, and how the last one went."),
        "pauseSchedule": _change(
            "Pause a schedule", "No ticks until it is resumed. A job that is open goes on."
        ),
        "resumeSchedule": _change(
            "Resume a schedule",
            "From the next tick on. Ticks that passed stay undone unless a backfill asks for them.",
        ),
        "deleteSchedule": _change("Delete a schedule", "Its jobs stay."),
        "runSchedule": Operation(
            summary="Run a schedule now",
            description="Gives its command now, beside its ticks. With an Idempotency-Key, as often as one.",
            parameters=("IdempotencyKey",),
            answers=(
                ResponseDescription(
                    status=202, description="The job.", schema="ScheduledRun", headers=("Location",), links=()
                ),
            ),
            refusals=(
                Code.NOT_FOUND,
                *_COMMAND_REFUSALS,
                Code.TENANT_LIMIT,
                Code.BUDGET_EXCEEDED,
                Code.SYSTEM_SATURATED,
            ),
        ),
        "backfillSchedule": Operation(
            summary="Run the ticks of a range of time",
            description="Those that brought a job before bring no second one.",
            body=RequestBody(schema="BackfillWish", description="The range."),
            answers=(ResponseDescription(status=202, description="What was done.", schema="Backfill"),),
            refusals=(
                Code.NOT_FOUND,
                *_BODY_REFUSALS,
                *_COMMAND_REFUSALS,
                Code.TENANT_LIMIT,
                Code.BUDGET_EXCEEDED,
                Code.SYSTEM_SATURATED,
            ),
        ),
    },
    schemas=_SCHEMAS,
    examples=_EXAMPLES,
    parameters={
        "ScheduleId": in_path("scheduleId", _ID, "The id of the schedule."),
        "ScheduleCursor": query("cursor", TEXT, "`next_cursor` of the page before."),
        "ScheduleLimit": query(
            "limit",
            {"type": "integer", "minimum": 1, "maximum": PAGE_ITEMS_MAX, "default": 50},
            "Items on a page.",
        ),
    },
)

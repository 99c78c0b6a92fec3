"""Jobs, described."""

from typing import Final

from lucius.api.bulk import JOBS_MAX, REFUSALS_SHOWN_MAX, SAMPLE_MAX, BulkAction
from lucius.api.described.groups import (
    Operation,
    OperationGroup,
    RequestBody,
    ResponseDescription,
    header,
    in_path,
    query,
)
from lucius.api.jobs import EVENTS_MAX, PAGE_ITEMS_MAX, WAIT_SECONDS_MAX
from lucius.api.parameters import (
    FILTER_PARAMETERS,
    JOB_ID_LENGTH_MAX,
    NEWEST_FIRST,
    OLDEST_FIRST,
    SEARCH_LENGTH_MAX,
)
from lucius.contracts.examples import EVENT, JOB, STEP
from lucius.contracts.schemas import (
    COUNT,
    MAYBE_TEXT,
    MAYBE_TIME,
    TEXT,
    TIME,
    Schema,
    closed,
    named,
    one_of,
    opened,
    or_null,
)
from lucius.core.explain import ActionName, WaitsFor
from lucius.core.model import Json
from lucius.core.refusal import Code
from lucius.ledger.job_search import Searched

_ABOUT_A_JOB: Final = (
    "getSteps",
    "getEvents",
    "explainJob",
    "cancelJob",
    "pauseJob",
    "resumeJob",
    "rerunJob",
)


INSTANT_OR_AGO: Final[Schema] = {
    "type": "string",
    "anyOf": [{"format": "date-time"}, {"pattern": "^[0-9]{1,6}[smhd]$"}],
    "description": "An RFC 3339 time, or how long ago: `90s`, `15m`, `1h`, `7d`.",
}


def page_of(name: str) -> Schema:
    cursor = {**MAYBE_TEXT, "description": "Give it as `cursor` for the next page; null on the last one."}
    return opened("A page.", {"items": {"type": "array", "items": named(name)}, "next_cursor": cursor})


_SCHEMAS: Final[dict[str, Schema]] = {
    "JobPage": opened(
        "A page of jobs.",
        {
            **page_of("Job")["properties"],
            "partial": {
                "type": "boolean",
                "description": "The page is short because it looked at as many rows as one page may.",
            },
            "looked_back_to": {
                **MAYBE_TIME,
                "description": "Of a partial page: how far back in time it looked.",
            },
            "searched": or_null(
                {
                    "type": "array",
                    "items": one_of("What `q` was looked for in.", [kind.value for kind in Searched]),
                }
            ),
        },
        ["items", "next_cursor", "partial", "looked_back_to"],
    ),
    "StepPage": page_of("Step"),
    "EventPage": page_of("Event"),
    "EventStream": {
        "type": "string",
        "description": "Server-sent events: `id` is the event's seq, `event` its type, `data` the event.",
    },
    "JobStream": {
        "type": "string",
        "description": "Server-sent events: `event` is `job`, `overview` or `missed`, `data` JSON.",
    },
    "BulkAction": closed(
        "One action for many jobs. Either `job_ids` or `filter`.",
        {
            "action": one_of("What is to be done.", list(BulkAction)),
            "job_ids": {
                "type": ["array", "null"],
                "items": {"type": "string", "minLength": 1, "maxLength": JOB_ID_LENGTH_MAX},
                "minItems": 1,
                "maxItems": JOBS_MAX,
            },
            "filter": or_null(named("JobFilter")),
            "dry_run": {
                "type": "boolean",
                "default": True,
                "description": "Whether nothing is to be done yet.",
            },
            "max": {"type": "integer", "minimum": 1, "maximum": JOBS_MAX, "default": JOBS_MAX},
            "cursor": {
                **MAYBE_TEXT,
                "description": "The `next_cursor` of the call before; with `filter` alone.",
            },
        },
        ["action"],
    ),
    "JobFilter": {
        **closed(
            "As the parameters of `GET /v1/jobs`; one at least.",
            {
                **{name: TEXT for name in FILTER_PARAMETERS if name != "state"},
                "state": {
                    "anyOf": [
                        {"type": "string", "description": "One, or several with commas."},
                        {"type": "array", "items": named("JobState"), "minItems": 1},
                    ]
                },
            },
            [],
        ),
        "minProperties": 1,
    },
    "BulkOutcome": opened(
        "What a bulk action did, or would do.",
        {
            "action": TEXT,
            "dry_run": {"type": "boolean"},
            "matched": {**COUNT, "description": "Jobs that were looked at."},
            "affected": {**COUNT, "description": "Those of them that it changed, or would change."},
            "refused": {"type": "array", "items": named("BulkRefusal"), "maxItems": REFUSALS_SHOWN_MAX},
            "refused_count": COUNT,
            "sample": {"type": "array", "items": TEXT, "maxItems": SAMPLE_MAX},
            "partial": {
                "type": "boolean",
                "description": "Fewer than `max` were found among the rows that one call may look at.",
            },
            "next_cursor": {
                **MAYBE_TEXT,
                "description": "Give it as `cursor` to go on; null where no more are.",
            },
        },
    ),
    "BulkRefusal": opened("A job that refused.", {"job_id": TEXT, "code": TEXT, "message": TEXT}),
    "Rerun": closed(
        "Where to begin. Left out: at the first step that did not succeed.",
        {"from_step": {**MAYBE_TEXT, "description": "A step id, such as `step_02`."}},
        [],
    ),
}

_EXAMPLES: Final[dict[str, Json]] = {
    "JobPage": {
        "items": [JOB],
        "next_cursor": None,
        "partial": False,
        "looked_back_to": None,
        "searched": None,
    },
    "StepPage": {"items": [STEP], "next_cursor": None},
    "EventPage": {"items": [EVENT], "next_cursor": None},
    "EventStream": 'id: 1\nevent: JOB_CREATED\ndata: {"seq":1,"type":"JOB_CREATED"}\n\n',
    "JobStream": 'event: job\ndata: {"job_id":"job_01m7","tenant_id":"acme","state":"SUCCEEDED"}\n\n',
    "BulkAction": {"action": "cancel", "filter": {"tenant_id": "acme", "state": "QUEUED"}, "dry_run": True},
    "BulkOutcome": {
        "action": "cancel",
        "dry_run": True,
        "matched": 12,
        "affected": 11,
        "refused": [
            {"job_id": JOB["jobId"], "code": "JOB_TERMINAL", "message": "the job has ended: SUCCEEDED"}
        ],
        "refused_count": 1,
        "sample": [JOB["jobId"]],
        "partial": False,
        "next_cursor": None,
    },
    "Rerun": {"from_step": "step_01"},
}

_PARAMETERS: Final = {
    "JobId": in_path(
        "jobId", {"type": "string", "minLength": 1, "maxLength": JOB_ID_LENGTH_MAX}, "The id of the job."
    ),
    "Wait": query(
        "wait",
        {"type": "number", "minimum": 0, "maximum": WAIT_SECONDS_MAX, "default": 0},
        "Hold the answer for up to so many seconds, until the job has ended.",
    ),
    "Times": query(
        "times",
        {"type": "string", "enum": ["clock", "rfc3339"], "default": "clock"},
        "How times are written in the words: as a clock shows them, in UTC, or as RFC 3339.",
    ),
    "After": query(
        "after", {"type": "integer", "minimum": 0, "default": 0}, "Only events with a higher seq."
    ),
    "LastEventId": header(
        "Last-Event-ID",
        {"type": "integer", "minimum": 0},
        "For a stream: the last event that the caller has.",
    ),
    "EventsLimit": query(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": EVENTS_MAX, "default": EVENTS_MAX},
        "Events a page.",
    ),
    "TenantId": query("tenant_id", TEXT, "Only this tenant's."),
    "State": query(
        "state",
        {"type": "array", "items": named("JobState")},
        "Only jobs in one of these states: several parameters, or one with commas in it.",
    ),
    "Service": query(
        "service",
        TEXT,
        "With open states: only jobs whose step is at this service now. With `FAILED_FINAL` or `CANCELLED`: "
        "only those that ended there.",
    ),
    "ErrorCode": query(
        "error_code", TEXT, "Only jobs that failed with this; `state` is then `FAILED_FINAL`."
    ),
    "CreatedAfter": query("created_after", INSTANT_OR_AGO, "Only jobs created later than this."),
    "CreatedBefore": query("created_before", INSTANT_OR_AGO, "Only jobs created earlier than this."),
    "Search": query(
        "q",
        {"type": "string", "minLength": 1, "maxLength": SEARCH_LENGTH_MAX},
        "Only jobs that are called so: a job id, its beginning or any part of at least 4 characters; the id "
        "of a document or a correlation id, whole or its beginning, whatever its capitals; with `tenant_id`, "
        "an idempotency key.",
    ),
    "Sort": query(
        "sort",
        {"type": "string", "enum": [NEWEST_FIRST, OLDEST_FIRST], "default": NEWEST_FIRST},
        "In which order. Only the newest first is served by an index.",
    ),
    "RequestType": query("request_type", TEXT, "Only jobs of this request type."),
    "Cursor": query("cursor", TEXT, "The `next_cursor` of the page before."),
    "Limit": query(
        "limit",
        {"type": "integer", "minimum": 1, "maximum": PAGE_ITEMS_MAX, "default": 50},
        "Items a page.",
    ),
}


def _control(summary: str, description: str, *refusals: Code) -> Operation:
    return Operation(
        summary=summary,
        description=description,
        answers=(
            ResponseDescription(
                status=202, description="The job as it is now.", schema="Job", links=("getJob", *_ABOUT_A_JOB)
            ),
        ),
        refusals=(Code.JOB_NOT_FOUND, *refusals),
    )


NEW_JOB: Final = ResponseDescription(
    status=202,
    description="The new job.",
    schema="Job",
    headers=("Location", "Idempotent-Replayed"),
    links=("getJob", *_ABOUT_A_JOB),
)
RERUN_REFUSALS: Final = (
    Code.MALFORMED_JSON,
    Code.INVALID_ENVELOPE,
    Code.IDEMPOTENCY_KEY_REUSED,
    Code.JOB_NOT_FOUND,
    Code.JOB_NOT_TERMINAL,
    Code.NOTHING_TO_RERUN,
    Code.BODY_TOO_LARGE,
    Code.TENANT_LIMIT,
    Code.BUDGET_EXCEEDED,
)

_READING: Final = {
    "getJob": Operation(
        summary="Get a job",
        description="The job with its steps. With `wait`, the answer is held until the job has ended or the "
        "time is up, whichever comes first.",
        parameters=("Wait",),
        answers=(ResponseDescription(description="The job.", schema="Job", links=_ABOUT_A_JOB),),
        refusals=(Code.JOB_NOT_FOUND, Code.INVALID_REQUEST, Code.TENANT_LIMIT, Code.BUDGET_EXCEEDED),
    ),
    "getSteps": Operation(
        summary="Get a job's steps",
        description="The steps in the order in which they run.",
        answers=(ResponseDescription(description="All steps, on one page.", schema="StepPage"),),
        refusals=(Code.JOB_NOT_FOUND,),
    ),
    "getEvents": Operation(
        summary="Get a job's events",
        description="The audit trail, the oldest first. With `Accept: text/event-stream` it is a stream of "
        "server-sent events that goes on until the job has ended; a client that comes back says in "
        "`Last-Event-ID` how far it got, and is answered `204` once there is nothing more to come.",
        parameters=("After", "Cursor", "EventsLimit", "LastEventId"),
        answers=(
            ResponseDescription(description="A page of events, or a stream.", schema="EventPage"),
            ResponseDescription(description="A stream.", schema="EventStream", media="text/event-stream"),
            ResponseDescription(
                status=204, description="To a stream that was resumed: there is nothing more to come."
            ),
        ),
        refusals=(Code.JOB_NOT_FOUND, Code.INVALID_REQUEST, Code.TENANT_LIMIT, Code.BUDGET_EXCEEDED),
    ),
    "listJobs": Operation(
        summary="List jobs",
        description="Jobs that the caller may see, the newest first. A page looks at a bounded number of "
        "rows: where few jobs pass the filters it may be short, says so in `partial`, and `next_cursor` goes "
        "on. Filters that no index serves together are refused with `FILTER_NOT_SERVED`, which says what to "
        "add or leave out.",
        parameters=(
            "TenantId",
            "State",
            "RequestType",
            "Service",
            "ErrorCode",
            "CreatedAfter",
            "CreatedBefore",
            "Search",
            "Sort",
            "Cursor",
            "Limit",
        ),
        answers=(ResponseDescription(description="A page of jobs.", schema="JobPage"),),
        refusals=(Code.INVALID_REQUEST, Code.FILTER_NOT_SERVED),
    ),
}

_STREAMING: Final = {
    "streamJobs": Operation(
        summary="Follow jobs",
        description="Server-sent events about the jobs that the caller may see, as long as the caller "
        "listens; needs `Accept: text/event-stream`. `job`: the newest state of a job that moved, at most 20 "
        "a second. `overview`: the figures of `GET /v1/overview` of this moment, once a second while jobs "
        "move. `missed`: how many jobs moved that were left out. Nothing is replayed: after a reconnect, "
        "read the list again.",
        parameters=("TenantId",),
        answers=(
            ResponseDescription(description="A stream.", schema="JobStream", media="text/event-stream"),
        ),
        refusals=(Code.INVALID_REQUEST, Code.TENANT_LIMIT, Code.BUDGET_EXCEEDED, Code.SYSTEM_SATURATED),
    ),
}

_CONTROLLING: Final = {
    "actOnJobs": Operation(
        summary="Act on many jobs",
        description="Cancels, pauses, resumes, reruns or redrives the jobs that are named, or those that a "
        "filter of the list finds, each by itself. Without `dry_run: false` it only says what it would do. A "
        "redrive needs the role `admin`, too. At most `max` jobs a call; `next_cursor` goes on behind them.",
        body=RequestBody(schema="BulkAction", description="What is to be done, and with which jobs."),
        answers=(ResponseDescription(description="What became of it.", schema="BulkOutcome"),),
        refusals=(
            Code.MALFORMED_JSON,
            Code.INVALID_ENVELOPE,
            Code.INVALID_REQUEST,
            Code.FILTER_NOT_SERVED,
            Code.BODY_TOO_LARGE,
        ),
    ),
    "cancelJob": _control(
        "Cancel a job",
        "A step under way may end first; the job is `CANCELLING` until then. Cancelling again changes "
        "nothing.",
        Code.JOB_TERMINAL,
    ),
    "pauseJob": _control(
        "Pause a job",
        "A step under way may end first, or is told to stop if its protocol says `stop_on_pause`; the job is "
        "`PAUSING` until then. Nothing new begins until it is resumed.",
        Code.JOB_TERMINAL,
        Code.JOB_CANCELLING,
    ),
    "resumeJob": _control(
        "Resume a job",
        "A paused job goes on with its first step that has not succeeded. An open job that is not paused "
        "is left as it is.",
        Code.JOB_TERMINAL,
        Code.JOB_CANCELLING,
    ),
    "rerunJob": Operation(
        summary="Run a job again",
        description="A new job that begins with the first step that did not succeed, or with `from_step`, "
        "and reuses the results before it. Without an idempotency key a job has at most one open rerun, and "
        "asking again gives that one.",
        parameters=("IdempotencyKey",),
        body=RequestBody(schema="Rerun", description="Where to begin.", required=False),
        answers=(NEW_JOB,),
        refusals=RERUN_REFUSALS,
    ),
}

_EXPLAIN_SCHEMAS: Final[dict[str, Schema]] = {
    "Explanation": opened(
        "Why a job is where it is.",
        {
            "jobId": TEXT,
            "state": named("JobState"),
            "summary": {"type": "string", "description": "All of it in words for an operator."},
            "waiting_for": or_null(
                one_of("What has to happen for it to go on.", [thing.value for thing in WaitsFor])
            ),
            "since": TIME,
            "next": or_null(named("NextMove")),
            "stepId": TEXT,
            "attempt": named("AttemptCount"),
            "service": named("ServiceSeen"),
            "late_answers": {
                "type": "array",
                "items": named("Event"),
                "description": "Replies that came too late; a success among them can be adopted.",
            },
            "limits": opened("How full it is.", {"tenant": named("Fullness")}),
            "hints": {"type": "array", "items": TEXT, "description": "What may be done about it, in words."},
            "actions": {
                "type": "array",
                "items": named("JobAction"),
                "description": "What may be done about it, to be offered.",
            },
            "again_as": {
                **MAYBE_TEXT,
                "description": "Of an ended job: the job that runs it again, open or succeeded.",
            },
            "adoptions": {
                "type": "array",
                "items": named("Adopted"),
                "description": "Late successes with which other jobs began that are open or succeeded.",
            },
        },
    ),
    "JobAction": opened(
        "An action on a job, by its name.",
        {
            "action": one_of("Its call has the same name.", [name.value for name in ActionName]),
            "stepId": {"type": "string", "description": "Of `adopt`: the step whose result it becomes."},
            "seq": {"type": "integer", "minimum": 1, "description": "Of `adopt`: the event of the success."},
            "from_step_needed": {
                "type": "boolean",
                "description": "Of `rerun`: it needs `from_step`.",
            },
        },
        ["action"],
    ),
    "Adopted": opened(
        "A late success, and the job that adopted it.", {"stepId": TEXT, "seq": COUNT, "jobId": TEXT}
    ),
    "NextMove": opened("What happens next if nothing else does.", {"what": TEXT, "at": MAYBE_TIME}),
    "AttemptCount": opened("Which attempt, of how many.", {"number": COUNT, "of": COUNT}),
    "ServiceSeen": opened(
        "The step's service, and when a worker of it last asked this process for work; those that take their "
        "work from a bus do not.",
        {"name": TEXT, "last_asked_at": MAYBE_TIME},
    ),
    "Adoption": closed(
        "Which late success is to count.",
        {
            "stepId": {"type": "string", "minLength": 1, "description": "The step whose result it becomes."},
            "seq": {"type": "integer", "minimum": 1, "description": "The event that recorded the success."},
        },
    ),
}

_FULL: Final[Json] = {"in_flight": 12, "max": 1000}
_EXPLANATION: Final[Json] = {
    "jobId": JOB["jobId"],
    "state": "DISPATCHING",
    "summary": "waiting for an ACK from ocr since 10:00:00; attempt 2 of 3 begins at 10:01:30",
    "waiting_for": "ACK",
    "since": JOB["created_at"],
    "next": {"what": "attempt 2 of 3 begins", "at": "2026-01-27T10:01:30.000Z"},
    "stepId": "step_01",
    "attempt": {"number": 1, "of": 3},
    "service": {"name": "ocr", "last_asked_at": "2026-01-27T10:00:00.000Z"},
    "late_answers": [{**EVENT, "type": "REPLY_LATE"}],
    "limits": {"tenant": _FULL},
    "hints": [],
    "actions": [],
    "again_as": None,
    "adoptions": [],
}

_EXPLAINING: Final[dict[str, Operation]] = {
    "explainJob": Operation(
        summary="Explain a job",
        description="Why the job is where it is, what it waits for and since when, what happens next and "
        "when, and which answers came too late; in words and as fields.",
        parameters=("Times",),
        answers=(
            ResponseDescription(description="The explanation.", schema="Explanation", links=("adoptResult",)),
        ),
        refusals=(Code.INVALID_REQUEST, Code.JOB_NOT_FOUND),
    ),
    "adoptResult": Operation(
        summary="Adopt a late success",
        description="A rerun that takes a success which came too late, recorded as event `seq`, as the "
        "step's result. Asked again without an `Idempotency-Key`, the same event is answered with the "
        "job that took it, even if that has ended.",
        parameters=("IdempotencyKey",),
        body=RequestBody(schema="Adoption", description="Which success, for which step."),
        answers=(NEW_JOB,),
        refusals=(
            Code.MALFORMED_JSON,
            Code.INVALID_ENVELOPE,
            Code.IDEMPOTENCY_KEY_REUSED,
            Code.JOB_NOT_FOUND,
            Code.JOB_NOT_TERMINAL,
            Code.BODY_TOO_LARGE,
            Code.TENANT_LIMIT,
            Code.BUDGET_EXCEEDED,
        ),
    ),
}

AREA: Final = OperationGroup(
    tag="jobs",
    description="A job is a row of steps, run one after the other. Another tenant's job is like one that is "
    "not there.",
    operations={**_READING, **_STREAMING, **_CONTROLLING, **_EXPLAINING},
    schemas={**_SCHEMAS, **_EXPLAIN_SCHEMAS},
    examples={**_EXAMPLES, "Explanation": _EXPLANATION, "Adoption": {"stepId": "step_01", "seq": 14}},
    parameters=_PARAMETERS,
)

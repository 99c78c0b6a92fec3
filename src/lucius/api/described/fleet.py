"""The state of the installation, described: session, overview, services, lanes, tenants, counts."""

from typing import Final

from lucius.api.described.groups import Operation, OperationGroup, ResponseDescription, query
from lucius.api.fleet import CHART_WINDOWS, COUNT_WINDOWS
from lucius.contracts.schemas import (
    COUNT,
    LANE,
    MAYBE_TEXT,
    MAYBE_TIME,
    TEXT,
    TIME,
    Schema,
    named,
    one_of,
    opened,
    or_null,
)
from lucius.core.model import Json
from lucius.core.refusal import Code

_FLAG: Final[Schema] = {"type": "boolean"}
_TEXTS: Final[Schema] = {"type": "array", "items": TEXT}
_MAYBE_NUMBER: Final[Schema] = {"type": ["number", "null"], "minimum": 0}
_MAYBE_COUNT: Final[Schema] = {"type": ["integer", "null"], "minimum": 0}
_COUNTS: Final[Schema] = {"type": "object", "additionalProperties": COUNT}
_LIMITED_TO: Final[Schema] = {
    "anyOf": [{"type": "string", "const": "*"}, _TEXTS],
    "description": "`*` for all, else their names.",
}
_SERIES: Final[Schema] = {"type": "array", "items": COUNT}
_DAY: Final[Schema] = {"type": "string", "format": "date"}
_MAYBE_SERIES: Final[Schema] = {"type": "array", "items": _MAYBE_COUNT}


def _page(name: str, what: str, **more: Schema) -> Schema:
    return opened(what, {"items": {"type": "array", "items": named(name)}, **more, "as_of": TIME})


def _array(name: str) -> Schema:
    return {"type": "array", "items": named(name)}


_ENDS: Final = {"accepted": COUNT, "succeeded": COUNT, "failed": COUNT, "cancelled": COUNT}
_MOMENT: Final[dict[str, Schema]] = {
    "as_of": TIME,
    "totals": opened("Jobs in the window, by what became of them.", _ENDS),
    "in_flight": _array("TenantInFlight"),
    "lanes": _array("LaneState"),
    "outbox": opened(
        "Directives that wait for a worker or the bus.", {"pending": COUNT, "oldest_seconds": _MAYBE_NUMBER}
    ),
    "dlq": {
        **_MAYBE_COUNT,
        "description": "Finally failed jobs not taken up again; null for callers who see some tenants only.",
    },
    "dependencies": _array("DependencyState"),
    "attention": _array("Attention"),
}

_SCHEMAS: Final[dict[str, Schema]] = {
    "Session": opened(
        "Who the caller is, and what they meet here.",
        {
            "authenticated": _FLAG,
            "problem": {**MAYBE_TEXT, "description": "Why the caller is not known."},
            "auth": one_of("Whether calls need a credential.", ["open", "required"]),
            "login": opened(
                "How to say who is calling.",
                {
                    "key": {**_FLAG, "description": "Whether API keys are asked for."},
                    "oidc": {
                        "anyOf": [
                            opened(
                                "The issuer whose tokens are taken.",
                                {
                                    "issuer": TEXT,
                                    "audience": _TEXTS,
                                    "client_id": {
                                        **MAYBE_TEXT,
                                        "description": "Who a page is to the issuer; null: no login there.",
                                    },
                                    "scopes": {**TEXT, "description": "What a page asks the issuer for."},
                                },
                            ),
                            {"type": "null"},
                        ]
                    },
                },
            ),
            "name": MAYBE_TEXT,
            "roles": _TEXTS,
            "tenants": _LIMITED_TO,
            "services": _LIMITED_TO,
            "engine": one_of("The engine of new jobs.", ["outbox", "temporal"]),
            "links": opened(
                "Addresses of other systems.",
                {"trace": {**MAYBE_TEXT, "description": "With `{trace_id}` where the id goes."}},
            ),
            "artifacts": {**_FLAG, "description": "Whether the API gives out what jobs wrote."},
            "version": TEXT,
            "now": TIME,
        },
    ),
    "Overview": opened(
        "The installation over a window of time, and now.",
        {
            "window_seconds": COUNT,
            "step_seconds": COUNT,
            "starts_at": {**TIME, "description": "When the first step of each series began."},
            "series": opened(
                "Jobs in each step of time.",
                {"accepted": _SERIES, "succeeded": _SERIES, "failed": _SERIES, "cancelled": _SERIES},
            ),
            "latency": _array("ServiceLatency"),
            **_MOMENT,
        },
    ),
    "ServiceLatency": opened(
        "From hand-out to result, of one service.",
        {
            "service": TEXT,
            "step_type": MAYBE_TEXT,
            "p50_ms": _MAYBE_COUNT,
            "p99_ms": _MAYBE_COUNT,
            "count": COUNT,
            "p50_series": _MAYBE_SERIES,
            "p99_series": _MAYBE_SERIES,
        },
    ),
    "TenantInFlight": opened(
        "Jobs of a tenant in flight.", {"tenant_id": TEXT, "jobs": COUNT, "limit": COUNT}
    ),
    "LaneState": opened(
        "One of the 16 lanes. `tenants`: those with jobs in flight that the caller may see.",
        {
            "lane": LANE,
            "topic": TEXT,
            "depth": COUNT,
            "oldest_seconds": _MAYBE_NUMBER,
            "tenants": _TEXTS,
            "services": {**_COUNTS, "description": "Directives that wait, by service."},
        },
    ),
    "DependencyState": opened("One check of readiness.", {"name": TEXT, "ok": _FLAG, "note": MAYBE_TEXT}),
    "Attention": opened(
        "What an operator should look at.",
        {
            "severity": one_of("How bad it is.", ["error", "warning", "info"]),
            "code": TEXT,
            "text": TEXT,
            "link": {"type": "object", "description": "`page`, and what that page should show."},
        },
    ),
    "FleetExplanation": opened(
        "What the open jobs wait for, in groups, the worst first.",
        {
            "items": {"type": "array", "items": named("WaitGroup")},
            "more": {**_FLAG, "description": "Whether there are more groups than are shown."},
            "open": {**COUNT, "description": "Open jobs of the tenants that are asked about."},
            "counted_at": {
                **MAYBE_TIME,
                "description": "When the open jobs were counted last; null: not all of them are counted yet.",
            },
            "as_of": TIME,
        },
    ),
    "WaitGroup": opened(
        "Jobs that wait for the same.",
        {
            "code": {**TEXT, "description": "What for; there may be more codes than this version knows."},
            "severity": one_of("How bad it is.", ["error", "warning", "info"]),
            "jobs": COUNT,
            "text": TEXT,
            "service": MAYBE_TEXT,
            "since": {**MAYBE_TIME, "description": "Since when the first one waits, where that is known."},
            "lanes": {**_COUNTS, "description": "Jobs by lane."},
            "tenants": {"type": "array", "items": named("TenantWaiting")},
        },
    ),
    "TenantWaiting": opened(
        "One of the tenants with most jobs of a group.", {"tenant_id": TEXT, "jobs": COUNT}
    ),
    "UsageReport": opened(
        "What services reported with their results, summed once an attempt.",
        {
            "items": {"type": "array", "items": named("DailyUsage")},
            "more": {**_FLAG, "description": "Whether there are more lines or tenants than are shown."},
            "totals": named("Usage"),
            "from": _DAY,
            "to": _DAY,
            "as_of": TIME,
        },
    ),
    "DailyUsage": opened(
        "What a tenant used at a service, of attempts that began on a day (UTC).",
        {
            "tenant_id": TEXT,
            "day": _DAY,
            "service": TEXT,
            "results": {**COUNT, "description": "Results that reported something."},
            "usage": named("Usage"),
        },
    ),
    "LanePage": _page("LaneState", "The 16 lanes."),
    "ServicePage": _page("ServiceState", "All services.", window_seconds=COUNT),
    "ServiceState": opened(
        "A platform service: who works for it, what waits, how it does. Counts and latencies are of the "
        "page's window.",
        {
            "service": TEXT,
            "protocols": _TEXTS,
            "step_type": MAYBE_TEXT,
            "waiting": {**COUNT, "description": "Calls for directives that wait now."},
            "concurrency": {**_MAYBE_COUNT, "description": "Directives that its workers would take now."},
            "in_process": {**_FLAG, "description": "Whether it runs inside a process of Lucius."},
            "clients": {**_TEXTS, "description": "What its workers call themselves, with their versions."},
            "last_seen_at": MAYBE_TIME,
            "depth": COUNT,
            "oldest_seconds": _MAYBE_NUMBER,
            "ack": named("Latency"),
            "work": named("Latency"),
            "succeeded": COUNT,
            "failed": COUNT,
            "retried": COUNT,
            "flow": named("ServiceFlow"),
        },
    ),
    "ServiceFlow": opened(
        "What a service may have, what it has, and what keeps its directives from leaving.",
        {
            "concurrency": {**_MAYBE_COUNT, "description": "Most attempts at once."},
            "in_use": {
                **_MAYBE_COUNT,
                "description": "Places that attempts have; null: not counted.",
            },
            "rate": {**MAYBE_TEXT, "description": "In words, such as `100 a second`."},
            "share": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1,
                "description": "Less than 1 while the service asks to be given less.",
            },
            "tenant_concurrency": _MAYBE_COUNT,
            "tenant_rate": MAYBE_TEXT,
            "breaker": or_null(named("OpenBreaker")),
            "pause": or_null(named("Pause")),
        },
    ),
    "OpenBreaker": opened(
        "The service failed in a row: one attempt at a time looks whether it answers again.",
        {
            "opened_at": TIME,
            "failures": COUNT,
            "error": TEXT,
            "probe_at": TIME,
            "probing": {**_FLAG, "description": "Whether an attempt looks now."},
        },
    ),
    "Latency": opened(
        "Times since hand-out; read from steps, a fifth off at most.",
        {"p50_ms": _MAYBE_COUNT, "p99_ms": _MAYBE_COUNT, "count": COUNT},
    ),
    "TenantPage": _page(
        "TenantState",
        "Tenants, those with most jobs in flight first.",
        more={**_FLAG, "description": "Whether there are more than are shown."},
        limits=opened(
            "How many jobs may be in flight, and are.",
            {
                "tenant_max": COUNT,
                "total_max": COUNT,
                "default_max": COUNT,
                "burst_max": COUNT,
                "total_in_flight": COUNT,
                "default_in_flight": COUNT,
                "burst_in_flight": COUNT,
            },
        ),
        counted_since={**TIME, "description": "Since when the ends are counted."},
    ),
    "TenantState": opened(
        "A tenant: what it has in flight, and what became of its jobs since `counted_since`.",
        {
            "tenant_id": TEXT,
            "in_flight": COUNT,
            "limit": COUNT,
            "share": {"type": "number", "minimum": 0},
            "lane": {**LANE, "description": "Of its jobs in mode DEFAULT."},
            "mode": named("Mode"),
            "burst_denied": _FLAG,
            "budgets": _array("BudgetState"),
            **_ENDS,
        },
    ),
    "JobCounts": opened(
        "Open states: jobs in them now. Terminal ones: jobs that ended in the window.",
        {
            "states": _COUNTS,
            "request_types": {**_COUNTS, "description": "Jobs accepted in the window."},
            "window_seconds": COUNT,
            "as_of": TIME,
        },
    ),
}

_NOW: Final = "2026-01-27T10:02:30.000Z"
_LANE: Final[dict[str, Json]] = {
    "lane": 15,
    "topic": "global-bus-p15",
    "depth": 3,
    "oldest_seconds": 1.5,
    "tenants": ["tenant_a"],
    "services": {"ocr": 3},
}
_TOTALS: Final[dict[str, Json]] = {"accepted": 12, "succeeded": 9, "failed": 1, "cancelled": 0}
_IN_MS: Final[dict[str, Json]] = {"p50_ms": 180, "p99_ms": 900, "count": 10}
_EXAMPLES: Final[dict[str, Json]] = {
    "Session": {
        "authenticated": True,
        "problem": None,
        "auth": "required",
        "login": {
            "key": True,
            "oidc": {
                "issuer": "https://login.example.com/",
                "audience": ["lucius"],
                "client_id": "lucius-console",
                "scopes": "openid",
            },
        },
        "name": "key 0123456789abcdef",
        "roles": ["read", "submit"],
        "tenants": ["tenant_a"],
        "services": "*",
        "engine": "outbox",
        "links": {"trace": "https://traces.example.com/trace/{trace_id}"},
        "artifacts": False,
        "version": "0.1.0",
        "now": _NOW,
    },
    "Overview": {
        "window_seconds": 45,
        "step_seconds": 15,
        "starts_at": "2026-01-27T10:01:45.000Z",
        "series": {
            "accepted": [4, 4, 4],
            "succeeded": [3, 3, 3],
            "failed": [0, 1, 0],
            "cancelled": [0, 0, 0],
        },
        "latency": [
            {
                "service": "ocr",
                "step_type": "OCR",
                **_IN_MS,
                "p50_series": [180, None, 181],
                "p99_series": [900, None, 800],
            }
        ],
        "as_of": _NOW,
        "totals": _TOTALS,
        "in_flight": [{"tenant_id": "tenant_a", "jobs": 12, "limit": 1000}],
        "lanes": [_LANE],
        "outbox": {"pending": 3, "oldest_seconds": 1.5},
        "dlq": 1,
        "dependencies": [{"name": "ledger", "ok": True, "note": None}],
        "attention": [
            {
                "severity": "error",
                "code": "NO_WORKER",
                "text": "3 directives wait for ocr, the oldest for 2 minutes, and no worker asks for them: "
                "start one",
                "link": {"page": "services", "service": "ocr"},
            }
        ],
    },
    "FleetExplanation": {
        "items": [
            {
                "code": "WORKER",
                "severity": "error",
                "jobs": 412,
                "text": "412 jobs wait for a worker of `ocr`; its last worker was seen at 09:14:05",
                "service": "ocr",
                "since": "2026-01-27T09:14:06.000Z",
                "lanes": {"15": 412},
                "tenants": [{"tenant_id": "tenant_a", "jobs": 412}],
            }
        ],
        "more": False,
        "open": 430,
        "counted_at": _NOW,
        "as_of": _NOW,
    },
    "UsageReport": {
        "items": [
            {
                "tenant_id": "tenant_a",
                "day": "2026-01-27",
                "service": "ocr",
                "results": 12,
                "usage": {"pages": 96, "usd": 0.24},
            }
        ],
        "more": False,
        "totals": {"pages": 96, "usd": 0.24},
        "from": "2026-01-01",
        "to": "2026-01-27",
        "as_of": _NOW,
    },
    "LanePage": {"items": [_LANE], "as_of": _NOW},
    "ServicePage": {
        "items": [
            {
                "service": "ocr",
                "protocols": ["ocr_v1"],
                "step_type": "OCR",
                "waiting": 2,
                "concurrency": 8,
                "in_process": False,
                "clients": ["lucius-worker/1.0"],
                "last_seen_at": _NOW,
                "depth": 3,
                "oldest_seconds": 1.5,
                "ack": _IN_MS,
                "work": _IN_MS,
                "succeeded": 9,
                "failed": 1,
                "retried": 2,
                "flow": {
                    "concurrency": 20,
                    "in_use": 4,
                    "rate": "100 a second",
                    "share": 1.0,
                    "tenant_concurrency": None,
                    "tenant_rate": None,
                    "breaker": None,
                    "pause": None,
                },
            }
        ],
        "window_seconds": 3600,
        "as_of": _NOW,
    },
    "TenantPage": {
        "items": [
            {
                "tenant_id": "tenant_a",
                "in_flight": 12,
                "limit": 1000,
                "share": 0.012,
                "lane": 15,
                "mode": "DEFAULT",
                "burst_denied": False,
                "budgets": [],
                **_TOTALS,
            }
        ],
        "more": False,
        "limits": {
            "tenant_max": 1000,
            "total_max": 50000,
            "default_max": 50000,
            "burst_max": 10000,
            "total_in_flight": 12,
            "default_in_flight": 12,
            "burst_in_flight": 0,
        },
        "counted_since": "2026-01-27T00:00:00.000Z",
        "as_of": _NOW,
    },
    "JobCounts": {
        "states": {"QUEUED": 2, "IN_PROGRESS": 10, "SUCCEEDED": 900, "FAILED_FINAL": 12, "CANCELLED": 1},
        "request_types": {"OCR": 925},
        "window_seconds": 86400,
        "as_of": _NOW,
    },
}


def _look(summary: str, description: str, schema: str, *parameters: str) -> Operation:
    refusals = (Code.INVALID_REQUEST,)
    answers = (ResponseDescription(description="The answer.", schema=schema),)
    return Operation(
        summary=summary, description=description, answers=answers, refusals=refusals, parameters=parameters
    )


AREA: Final = OperationGroup(
    tag="fleet",
    description="The state of the whole installation, for people who operate it. These calls read what the "
    "processes count and report, never the jobs; figures are some seconds old, and survive a restart.",
    operations={
        "getSession": Operation(
            summary="Who am I?",
            description="Who the caller is, what they may do, and what kind of installation this is. Answers "
            "without a credential, too: then it says how to present one.",
            answers=(ResponseDescription(description="The session.", schema="Session"),),
        ),
        "getOverview": _look(
            "How is it going?",
            "Throughput, latencies, lanes, tenants and dependencies, and what needs attention, in words.",
            "Overview",
            "TenantId",
            "ChartWindow",
        ),
        "explainFleet": _look(
            "Why do jobs wait?",
            "What all open jobs wait for, in groups and in words: workers, ACKs, results, retries, a resume, "
            "the publisher; and which tenants are at their limit. Nothing is counted for the call.",
            "FleetExplanation",
            "TenantId",
            "Times",
        ),
        "getUsage": _look(
            "What was used?",
            "What services reported with their results (pages, tokens, money), by tenant, day and service.",
            "UsageReport",
            "TenantId",
            "FromDay",
            "ToDay",
        ),
        "listServices": _look("List services", "Who works, what waits, how it goes.", "ServicePage"),
        "listLanes": _look("List lanes", "What waits in each of the 16 lanes.", "LanePage"),
        "listTenants": _look("List tenants", "What each tenant uses of its limit.", "TenantPage"),
        "countJobs": _look(
            "Count jobs",
            "How many jobs are in each open state now, and how many ended in a window of time. Nothing is "
            "counted for the call: the figures are kept as jobs move.",
            "JobCounts",
            "TenantId",
            "CountWindow",
        ),
    },
    schemas=_SCHEMAS,
    examples=_EXAMPLES,
    parameters={
        "FromDay": query("from", _DAY, "The first day; that of the month unless given."),
        "ToDay": query("to", _DAY, "The last day; today unless given. At most 400 days later."),
        "ChartWindow": query(
            "window", {"type": "string", "enum": list(CHART_WINDOWS), "default": "1h"}, "How far back."
        ),
        "CountWindow": query(
            "window", {"type": "string", "enum": list(COUNT_WINDOWS), "default": "24h"}, "How far back."
        ),
    },
)

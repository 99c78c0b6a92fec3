"""Query parameters, checked."""

import math
import re

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request

from lucius.contracts.envelope import TENANT_ID_LENGTH_MAX, text_problem
from lucius.contracts.times import parse_rfc3339
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.routing import normalise
from lucius.core.states import JobState
from lucius.ledger.lists import DlqFilter, ListCursor, ListFilter, decode_cursor
from lucius.ledger.names import month_of

JOB_ID_LENGTH_MAX = 128
# Months are counted back from a cursor's: one from a far future would never arrive.
CURSOR_AHEAD_MAX_MS = 2 * 86_400_000
# The years that a list has months for: 1970 to 9999.
LISTED_MS_MAX = 253_402_300_799_999
NAME_SHOWN_MAX = 64
FILTER_PARAMETERS = (
    "tenant_id",
    "state",
    "request_type",
    "service",
    "error_code",
    "created_after",
    "created_before",
    "q",
)
LIST_PARAMETERS = (*FILTER_PARAMETERS, "sort", "cursor", "limit")
REPEATED = frozenset({"state"})
DLQ_PARAMETERS = (
    "tenant_id",
    "request_type",
    "error_code",
    "failed_after",
    "failed_before",
    "cursor",
    "limit",
)
NEWEST_FIRST, OLDEST_FIRST = "-created_at", "created_at"
SEARCH_LENGTH_MAX = 256
AGO_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)
_BLANKS = b" \t"
_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?", re.ASCII)


class ListQuery(msgspec.Struct, frozen=True, kw_only=True):
    """`text`: what is searched for."""

    filter: ListFilter
    text: str | None
    cursor: ListCursor | None


def refuse(name: str, message: str) -> Refused:
    return Refused(Code.INVALID_REQUEST, f"{name} {message}", (FieldError(f"?{name}", message),))


def is_job_id(text: str) -> bool:
    """Whether a job could be called so. What could not is not worth a question to the store."""
    return 0 < len(text) <= JOB_ID_LENGTH_MAX and text.isprintable()


def header_text(request: Request, name: str) -> str | None:
    """A header as its sender wrote it: UTF-8, or else Latin-1. Blanks around a value are not part of it."""
    wanted = name.lower().encode()
    for given, value in request.headers.raw:
        if given == wanted:
            return _text(value.strip(_BLANKS))
    return None


def idempotency_key(request: Request) -> str | Refused | None:
    """The header. Of two keys, none says which command this is."""
    given = [value.strip(_BLANKS) for name, value in request.headers.raw if name == b"idempotency-key"]
    if not given:
        return None
    if any(value != given[0] for value in given):
        fault = FieldError("/idempotency_key", "the Idempotency-Key header must not be sent with two values")
        return Refused(Code.INVALID_ENVELOPE, "there are two idempotency keys", (fault,))
    return _text(given[0])


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def stray(request: Request, *known: str) -> Refused | None:
    """A parameter that the call does not have, or that is there twice. To pass over it would be to answer
    another question than the one that was asked: a list without its filter, say."""
    seen: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name not in known:
            return refuse(_shown(name), f"is not a parameter of this call, which has {', '.join(known)}")
        if name in seen and name not in REPEATED:
            return refuse(name, "is there twice")
        seen.add(name)
    return None


def _shown(name: str) -> str:
    return "".join(mark if mark.isprintable() else "?" for mark in name[:NAME_SHOWN_MAX])


def whole_number(request: Request, name: str, default: int, least: int, most: int) -> int | Refused:
    text = request.query_params.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or not least <= int(text) <= most:
        return refuse(name, f"must be a whole number from {least} to {most}")
    return int(text)


def number(request: Request, name: str, default: float, least: float, most: float) -> float | Refused:
    text = request.query_params.get(name)
    if text is None:
        return default
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    if not least <= value <= most:
        return refuse(name, f"must be a number from {least:g} to {most:g}")
    return value


def list_filter(
    given: QueryParams, now_ms: int, seen_tenants: frozenset[str] | None = None
) -> ListQuery | Refused:
    """What is to be listed, within the tenants that the caller sees (None: all)."""
    states = _states(given)
    if isinstance(states, Refused):
        return states
    text = _search_text(given)
    if isinstance(text, Refused):
        return text
    order = given.get("sort", NEWEST_FIRST)
    if order == OLDEST_FIRST:
        return Refused(
            Code.FILTER_NOT_SERVED,
            f"jobs lie newest first: leave out sort, or say sort={NEWEST_FIRST}, and begin further back with "
            "created_before",
        )
    if order != NEWEST_FIRST:
        return refuse("sort", f"must be {NEWEST_FIRST} or {OLDEST_FIRST}")
    tenant = _tenant_wanted(given.get("tenant_id"), seen_tenants)
    if isinstance(tenant, Refused):
        return tenant
    times = _times(given, now_ms, "created_after", "created_before")
    if isinstance(times, Refused):
        return times
    wanted = ListFilter(
        tenant_norm=tenant,
        states=states,
        request_type=given.get("request_type"),
        service=given.get("service"),
        error_code=given.get("error_code"),
        created_after_ms=times["created_after"],
        created_before_ms=times["created_before"],
    )
    place = given.get("cursor")
    cursor = None if place is None else decode_cursor(place)
    latest = month_of(now_ms + CURSOR_AHEAD_MAX_MS)
    if place is not None and (
        cursor is None
        or cursor.scope != wanted.scope()
        or cursor.month > latest
        or cursor.source is not wanted.source
    ):
        return refuse("cursor", "is not one that this list gave out")
    return ListQuery(filter=wanted, text=text, cursor=cursor)


def _states(given: QueryParams) -> frozenset[str] | Refused:
    """One parameter with commas in it, or several."""
    states = {state.strip() for text in given.getlist("state") for state in text.split(",")}
    if not states <= JobState.__members__.keys():
        return refuse("state", f"must be one of {', '.join(JobState.__members__)}, or several with commas")
    if "error_code" in given and not states:
        return frozenset({JobState.FAILED_FINAL.value})
    return frozenset(states)


def _search_text(given: QueryParams) -> str | Refused | None:
    text = given.get("q")
    if text is None:
        return None
    problem = text_problem(text, SEARCH_LENGTH_MAX) or (None if text.strip() else "must not be blank")
    return text if problem is None else refuse("q", problem)


def dlq_filter(
    request: Request, now_ms: int, seen_tenants: frozenset[str] | None = None
) -> DlqFilter | Refused:
    """Which of the finally failed jobs; a tenant that the caller may not see is refused."""
    given = request.query_params
    tenant = _tenant_wanted(given["tenant_id"], seen_tenants) if "tenant_id" in given else None
    if isinstance(tenant, Refused):
        return tenant
    times = _times(given, now_ms, "failed_after", "failed_before")
    if isinstance(times, Refused):
        return times
    return DlqFilter(
        tenant_norm=tenant,
        request_type=given.get("request_type"),
        error_code=given.get("error_code"),
        failed_after_ms=times["failed_after"],
        failed_before_ms=times["failed_before"],
    )


def _times(given: QueryParams, now_ms: int, *names: str) -> dict[str, int | None] | Refused:
    """An instant, or how long ago: `90s`, `15m`, `1h`, `7d`."""
    times: dict[str, int | None] = {}
    for name in names:
        text = given.get(name)
        ago = None if text is None else _AGO.fullmatch(text)
        at_ms = None if text is None else parse_rfc3339(text)
        if ago is not None:
            at_ms = now_ms - int(ago[1]) * AGO_MS[ago[2]]
        if text is not None and at_ms is None:
            return refuse(name, "must be an RFC 3339 time, or how long ago, such as 15m, 1h or 7d")
        times[name] = None if at_ms is None else min(max(at_ms, 0), LISTED_MS_MAX)
    return times


def _tenant_wanted(given: str | None, seen: frozenset[str] | None) -> str | Refused | None:
    """The one tenant to list; None for all of them."""
    if given is not None:
        if text_problem(given.strip(), TENANT_ID_LENGTH_MAX) is not None:
            return refuse("tenant_id", "is not the name of a tenant")
        tenant = normalise(given)
        if seen is None or tenant in seen:
            return tenant
        return Refused(Code.FORBIDDEN, "the caller may not list the jobs of this tenant")
    if seen is None:
        return None
    if not seen:
        return Refused(Code.FORBIDDEN, "the caller has no tenant whose jobs could be listed")
    if len(seen) > 1:
        return refuse("tenant_id", "must be given, because the caller has several tenants")
    (only,) = seen
    return only

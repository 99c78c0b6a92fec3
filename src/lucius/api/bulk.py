"""One action for many jobs: those that are named, or those that a filter of the list finds.

In: the action, and which jobs. Out: how many were matched, how many it changed, and which refused it and why.
A dry run decides the same and writes nothing. Each job is acted upon by itself, as its own call would: what
moves on between the preview and the action is judged anew.
"""

import asyncio
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

import msgspec
from starlette.datastructures import QueryParams

from lucius.api.bodies import read_object
from lucius.api.jobs import not_found, search_of, unknown_members
from lucius.api.parameters import FILTER_PARAMETERS, ListQuery, is_job_id, list_filter
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.contracts.keys import Role
from lucius.core.decide import decide
from lucius.core.draft import Outcome
from lucius.core.inputs import Cancel, Control, Pause, Resume
from lucius.core.model import JobRecord, Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.jobs.reruns import Reruns, first_step_to_run
from lucius.ledger.lists import FilterNotServed, decode_cursor
from lucius.ledger.store import Unreadable

JOBS_MAX: Final = 1_000
PAGE_JOBS: Final = 200
PAGES_MAX: Final = 10
AT_ONCE: Final = 16
SAMPLE_MAX: Final = 10
REFUSALS_SHOWN_MAX: Final = 100


class BulkAction(StrEnum):
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    RERUN = "rerun"
    REDRIVE = "redrive"


_CONTROLS: Final[dict[BulkAction, type[Control]]] = {
    BulkAction.CANCEL: Cancel,
    BulkAction.PAUSE: Pause,
    BulkAction.RESUME: Resume,
}
_MEMBERS: Final = ("action", "job_ids", "filter", "dry_run", "max", "cursor")


class BulkRequest(msgspec.Struct, frozen=True, kw_only=True):
    action: BulkAction
    job_ids: tuple[str, ...] | None
    query: ListQuery | None
    dry_run: bool
    jobs_max: int


class MatchedJobs(msgspec.Struct, frozen=True, kw_only=True):
    """`next_cursor`: where more may be found; `partial`: the rows looked at did not reach `max` jobs."""

    job_ids: Sequence[str]
    next_cursor: str | None = None
    partial: bool = False


async def act_on_jobs(call: Call) -> Result:
    document = await read_object(call.request)
    if isinstance(document, Refused):
        return document
    wanted = _read(call, document)
    if isinstance(wanted, Refused):
        return wanted
    if wanted.action is BulkAction.REDRIVE and Role.ADMIN not in call.caller.roles:
        return Refused(Code.FORBIDDEN, f"a redrive needs the role {Role.ADMIN.value}")
    try:
        matched = await _matched(call, wanted)
    except FilterNotServed as fault:
        return Refused(Code.FILTER_NOT_SERVED, str(fault))
    affected, refused = await _act(call, wanted, matched.job_ids)
    return answer(
        {
            "action": wanted.action.value,
            "dry_run": wanted.dry_run,
            "matched": len(matched.job_ids),
            "affected": affected,
            "refused": [
                {"job_id": job_id, "code": each.code.value, "message": each.message}
                for job_id, each in refused[:REFUSALS_SHOWN_MAX]
            ],
            "refused_count": len(refused),
            "sample": list(matched.job_ids[:SAMPLE_MAX]),
            "partial": matched.partial,
            "next_cursor": matched.next_cursor,
        }
    )


def _read(call: Call, document: dict[str, Json]) -> BulkRequest | Refused:
    faults = unknown_members(document, *_MEMBERS)
    action, dry_run = document.get("action"), document.get("dry_run", True)
    jobs_max, ids, given = document.get("max", JOBS_MAX), document.get("job_ids"), document.get("filter")
    if not isinstance(action, str) or action not in list(BulkAction):
        faults.append(FieldError("/action", f"must be one of {', '.join(BulkAction)}"))
    if not isinstance(dry_run, bool):
        faults.append(FieldError("/dry_run", "must be true or false"))
    if isinstance(jobs_max, bool) or not isinstance(jobs_max, int) or not 1 <= jobs_max <= JOBS_MAX:
        faults.append(FieldError("/max", f"must be a whole number from 1 to {JOBS_MAX}"))
    if (ids is None) == (given is None):
        faults.append(FieldError("", "needs either `job_ids` or `filter`"))
    if ids is not None:
        faults += _id_faults(ids)
        if document.get("cursor") is not None:
            faults.append(FieldError("/cursor", "goes with `filter` alone"))
    if faults:
        return _malformed(faults)
    query = None if given is None else _query(call, given, document.get("cursor"))
    if isinstance(query, Refused):
        return query
    return BulkRequest(
        action=BulkAction(str(action)),
        job_ids=None if ids is None else tuple(dict.fromkeys(ids)),
        query=query,
        dry_run=dry_run,
        jobs_max=jobs_max,
    )


def _malformed(faults: Sequence[FieldError]) -> Refused:
    return Refused(
        Code.INVALID_ENVELOPE, f"the bulk action is not well formed: {faults[0].message}", tuple(faults)
    )


def _id_faults(ids: Json) -> list[FieldError]:
    if not isinstance(ids, list) or not 1 <= len(ids) <= JOBS_MAX:
        return [FieldError("/job_ids", f"must be a list of 1 to {JOBS_MAX} job ids")]
    return [
        FieldError(f"/job_ids/{place}", "is not a job id")
        for place, job_id in enumerate(ids)
        if not isinstance(job_id, str) or not is_job_id(job_id)
    ][:REFUSALS_SHOWN_MAX]


def _query(call: Call, given: Json, cursor: Json) -> ListQuery | Refused:
    """The filter says what the list's parameters say."""
    if not isinstance(given, dict):
        return _malformed([FieldError("/filter", "must be an object")])
    faults = [
        FieldError(f"/filter{fault.pointer}", fault.message)
        for fault in unknown_members(given, *FILTER_PARAMETERS)
    ]
    if not given:
        faults.append(FieldError("/filter", f"must name one at least of {', '.join(FILTER_PARAMETERS)}"))
    pairs: list[tuple[str, str]] = []
    for name, value in given.items():
        texts = value if name == "state" and isinstance(value, list) and value else [value]
        if any(not isinstance(text, str) for text in texts):
            faults.append(FieldError(f"/filter/{name}", "must be a string"))
        pairs += [(name, text) for text in texts]
    if cursor is not None and not isinstance(cursor, str):
        faults.append(FieldError("/cursor", "must be a string"))
    if faults:
        return _malformed(faults)
    if cursor is not None:
        pairs.append(("cursor", cursor))
    found = list_filter(QueryParams(pairs), call.deps.now_ms(), call.caller.tenants)
    if isinstance(found, Refused) and found.errors:
        # What is a parameter of the list is a member here.
        members = [
            FieldError(
                fault.pointer.replace("?", "/" if fault.pointer == "?cursor" else "/filter/"), fault.message
            )
            for fault in found.errors
        ]
        return _malformed(members)
    return found


async def _matched(call: Call, wanted: BulkRequest) -> MatchedJobs:
    """Raises `FilterNotServed`."""
    if wanted.query is None:
        return MatchedJobs(job_ids=(wanted.job_ids or ())[: wanted.jobs_max])
    deps, query, found = call.deps, wanted.query, dict[str, None]()
    search, cursor = search_of(deps, query), query.cursor
    for _ in range(PAGES_MAX):
        page_of = deps.lists.page if search is None else search.page
        limit = min(PAGE_JOBS, wanted.jobs_max - len(found))
        page = await page_of(query.filter, cursor, limit, deps.now_ms())
        found.update(dict.fromkeys(page.job_ids))
        if page.next_cursor is None or len(found) >= wanted.jobs_max:
            return MatchedJobs(job_ids=list(found), next_cursor=page.next_cursor)
        cursor = decode_cursor(page.next_cursor)
    return MatchedJobs(job_ids=list(found), next_cursor=page.next_cursor, partial=True)


async def _act(
    call: Call, wanted: BulkRequest, job_ids: Sequence[str]
) -> tuple[int, list[tuple[str, Refused]]]:
    """How many it changed, or would; and who refused it."""
    own = asyncio.Semaphore(AT_ONCE)

    async def act(job_id: str) -> bool | Refused:
        async with own:
            return await _act_on(call, wanted, job_id)

    done = await asyncio.gather(*(act(job_id) for job_id in job_ids))
    refused = [
        (job_id, each) for job_id, each in zip(job_ids, done, strict=True) if isinstance(each, Refused)
    ]
    return sum(each is True for each in done), refused


async def _act_on(call: Call, wanted: BulkRequest, job_id: str) -> bool | Refused:
    """Whether it changed something, or would."""
    deps, action = call.deps, wanted.action
    try:
        loaded = await deps.ledger.load(job_id, fresh=True)
    except Unreadable:
        return Refused(Code.JOB_UNREADABLE, "a row of this job cannot be read; `lucius doctor` tells which")
    if loaded is None or not call.caller.sees(loaded.record.job.tenant_norm):
        return not_found(job_id)
    record, control = loaded.record, _CONTROLS.get(action)
    if control is not None:
        if wanted.dry_run:
            decided = decide(record, control(), now_ms=deps.now_ms(), lease_id="")
            return decided if isinstance(decided, Refused) else decided.outcome is not Outcome.UNCHANGED
        applied = await deps.inputs.apply(job_id, control())
        return applied if isinstance(applied, Refused) else applied.outcome is not Outcome.UNCHANGED
    refused = await _not_runnable(deps.reruns, record, action)
    if refused is not None or wanted.dry_run:
        return refused or True
    made = await deps.reruns.rerun(job_id, from_step=None, key=None)
    return made if isinstance(made, Refused) else not made.duplicate


async def _not_runnable(reruns: Reruns, record: JobRecord, action: BulkAction) -> Refused | None:
    if action is BulkAction.REDRIVE and (refused := await reruns.redrive_refusal(record, None)) is not None:
        return refused
    first = first_step_to_run(record, None)
    return first if isinstance(first, Refused) else None

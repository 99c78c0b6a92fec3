"""Schedules: write, list, pause, run now, make up for a range of time.

A schedule belongs to the tenant of its command: a caller who is limited to some tenants has theirs alone.
"""

from collections.abc import Callable

import msgspec

from lucius.api.bodies import read_object
from lucius.api.jobs import unknown_members
from lucius.api.parameters import stray, whole_number
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.contracts.envelope import parse_envelope
from lucius.contracts.schedules import ScheduleSpec, is_schedule_id, parse_schedule, spec_view
from lucius.contracts.times import parse_rfc3339, rfc3339, rfc3339_or_none
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.jobs.scheduler import at_next, tick_after
from lucius.ledger.schedules import SCHEDULES_MAX, Schedule, StoredSchedule
from lucius.ledger.store import StoreUnavailable

PAGE_ITEMS_MAX = 200
UPCOMING = 5
TRIES_MAX = 10

_replace = msgspec.structs.replace


async def list_schedules(call: Call) -> Result:
    limit = stray(call.request, "cursor", "limit") or whole_number(
        call.request, "limit", 50, 1, PAGE_ITEMS_MAX
    )
    if isinstance(limit, Refused):
        return limit
    after, items = call.request.query_params.get("cursor", ""), list[Json]()
    while True:
        page = await call.deps.scheduler.schedules.page(after, PAGE_ITEMS_MAX)
        for schedule in page:
            if len(items) == limit:
                return answer({"items": items, "next_cursor": after})
            after = schedule.spec.schedule_id
            if call.caller.sees(schedule.spec.tenant_norm):
                items.append(schedule_view(schedule))
        if len(page) < PAGE_ITEMS_MAX:
            return answer({"items": items, "next_cursor": None})


async def get_schedule(call: Call) -> Result:
    stored = await _find(call)
    return stored if isinstance(stored, Refused) else answer(schedule_view(stored.schedule))


async def write_schedule(call: Call) -> Result:
    """Makes a schedule, or gives the one of this id another definition."""
    document = await read_object(call.request)
    if isinstance(document, Refused):
        return document
    spec = parse_schedule(document)
    if isinstance(spec, Refused):
        return spec
    if not call.caller.sees(spec.tenant_norm):
        return Refused(Code.FORBIDDEN, "the credential is not for this tenant")
    refused = _would_be_refused(call, spec)
    if refused is not None:
        return refused
    for _ in range(TRIES_MAX):
        stored = await call.deps.scheduler.schedules.get(spec.schedule_id)
        written = await (_make(call, spec) if stored is None else _rewrite(call, spec, stored))
        if written is not None:
            return written
    raise StoreUnavailable("the schedule changed too often")


async def _make(call: Call, spec: ScheduleSpec) -> Result | None:
    """None: another process made it meanwhile."""
    if await call.deps.scheduler.schedules.is_full():
        return Refused(Code.INVALID_REQUEST, f"there are {SCHEDULES_MAX} schedules, the most there may be")
    made = _new(spec, call.deps.now_ms())
    if made.next_ms is None:
        return _is_over()
    return (
        answer(schedule_view(made), status=201) if await call.deps.scheduler.schedules.create(made) else None
    )


async def _rewrite(call: Call, spec: ScheduleSpec, stored: StoredSchedule) -> Result | None:
    """None: it was changed meanwhile."""
    if stored.schedule.spec.tenant_norm != spec.tenant_norm:
        return Refused(Code.FORBIDDEN, "another tenant has a schedule of this id")
    after = _redefined(stored.schedule, spec, call.deps.now_ms())
    if after is not stored.schedule and after.next_ms is None:
        return _is_over()
    return answer(schedule_view(after)) if await call.deps.scheduler.schedules.change(stored, after) else None


def _would_be_refused(call: Call, spec: ScheduleSpec) -> Refused | None:
    """Whether its command could not become a job, as things stand."""
    envelope = parse_envelope(spec.command)
    resolved = envelope if isinstance(envelope, Refused) else call.deps.submitter.resolve(envelope)
    if not isinstance(resolved, Refused):
        return None
    faults = tuple(FieldError(f"/command{error.pointer}", error.message) for error in resolved.errors)
    return Refused(resolved.code, resolved.message, faults)


def _is_over() -> Refused:
    fault = FieldError("/at", "must be a time to come")
    return Refused(Code.INVALID_REQUEST, "this schedule would never run", (fault,))


def _new(spec: ScheduleSpec, now_ms: int) -> Schedule:
    return at_next(Schedule(spec=spec, created_at_ms=now_ms, updated_at_ms=now_ms), now_ms, now_ms)


def _redefined(schedule: Schedule, spec: ScheduleSpec, now_ms: int) -> Schedule:
    if schedule.spec == spec:
        return schedule
    pending_ms = schedule.pending_ms
    after = at_next(_replace(schedule, spec=spec), now_ms, now_ms)
    if pending_ms is None:
        return after
    return _replace(after, pending_ms=pending_ms, look_ms=schedule.look_ms)  # it is under way


async def pause_schedule(call: Call) -> Result:
    return await _changed(
        call, lambda schedule, now_ms: _replace(schedule, paused=True, updated_at_ms=now_ms)
    )


async def resume_schedule(call: Call) -> Result:
    """From now on: ticks that passed while it was paused stay undone, unless a backfill asks for them."""

    def resume(schedule: Schedule, now_ms: int) -> Schedule:
        if not schedule.paused:
            return schedule
        return at_next(_replace(schedule, paused=False), now_ms, now_ms)

    return await _changed(call, resume)


async def _changed(call: Call, change: Callable[[Schedule, int], Schedule]) -> Result:
    for _ in range(TRIES_MAX):
        stored = await _find(call)
        if isinstance(stored, Refused):
            return stored
        after = change(stored.schedule, call.deps.now_ms())
        if after is stored.schedule or await call.deps.scheduler.schedules.change(stored, after):
            return answer(schedule_view(after))
    raise StoreUnavailable("the schedule changed too often")


async def delete_schedule(call: Call) -> Result:
    for _ in range(TRIES_MAX):
        stored = await _find(call)
        if isinstance(stored, Refused):
            return stored
        if await call.deps.scheduler.schedules.remove(stored):
            return answer(schedule_view(stored.schedule))
    raise StoreUnavailable("the schedule changed too often")


async def run_schedule(call: Call) -> Result:
    """The command, now, beside the ticks. Repeated with the same key, it is the same job."""
    stored = await _find(call)
    if isinstance(stored, Refused):
        return stored
    spec = stored.schedule.spec
    given = call.request.headers.get("idempotency-key", "").strip() or rfc3339(call.deps.now_ms())
    submitted = await call.deps.scheduler.submit(spec, f"schedule:{spec.schedule_id}:run:{given}"[:255])
    if isinstance(submitted, Refused):
        return submitted
    shown: dict[str, Json] = {"jobId": submitted.job_id, "duplicate": submitted.duplicate}
    return answer(shown, status=202, headers={"Location": f"/v1/jobs/{submitted.job_id}"})


async def backfill_schedule(call: Call) -> Result:
    stored = await _find(call)
    if isinstance(stored, Refused):
        return stored
    document = await read_object(call.request)
    if isinstance(document, Refused):
        return document
    faults = unknown_members(document, "from", "to")
    ends = {}
    for name in ("from", "to"):
        value = document.get(name)
        at_ms = parse_rfc3339(value) if isinstance(value, str) else None
        if at_ms is None:
            faults.append(FieldError(f"/{name}", "must be a time such as 2026-12-01T03:00:00Z"))
        ends[name] = at_ms or 0
    now_ms = call.deps.now_ms()
    if not faults and not ends["from"] <= ends["to"] <= now_ms:
        faults.append(FieldError("/to", "must lie between from and now"))
    if faults:
        return Refused(Code.INVALID_REQUEST, "the range cannot be made up for", tuple(faults))
    done = await call.deps.scheduler.backfill(stored.schedule, ends["from"], ends["to"])
    if done.refused is not None and not done.job_ids and not done.duplicates:
        return done.refused
    return answer(
        {
            "job_ids": list(done.job_ids),
            "duplicates": done.duplicates,
            "more_from": rfc3339_or_none(done.more_from_ms),
            "problem": None if done.refused is None else done.refused.message,
        },
        status=202,
    )


async def _find(call: Call) -> StoredSchedule | Refused:
    stored = await call.deps.scheduler.schedules.get(call.path_id) if is_schedule_id(call.path_id) else None
    if stored is None or not call.caller.sees(stored.schedule.spec.tenant_norm):
        return Refused(Code.NOT_FOUND, "there is no schedule of this id")
    return stored


def schedule_view(schedule: Schedule) -> dict[str, Json]:
    upcoming, tick_ms = list[Json](), None if schedule.paused else schedule.next_ms
    while tick_ms is not None and len(upcoming) < UPCOMING:
        upcoming.append(rfc3339(tick_ms))
        tick_ms = tick_after(schedule, tick_ms)
    return {
        **spec_view(schedule.spec),
        "paused": schedule.paused,
        "next": upcoming,
        "last_tick": rfc3339_or_none(schedule.last_tick_ms),
        "last_job_id": schedule.last_job_id,
        "problem": schedule.problem,
        "runs": schedule.runs,
        "skipped": schedule.skipped,
        "missed": schedule.missed,
        "created_at": rfc3339(schedule.created_at_ms),
        "updated_at": rfc3339(schedule.updated_at_ms),
    }

"""What workers use: directives to lease, and the callbacks."""

import asyncio
from collections.abc import Awaitable, Callable

from starlette.requests import Request

from lucius.api.bodies import ENVELOPE_BYTES_MAX, read_body, read_object
from lucius.api.gate import ASK_AGAIN_SECONDS
from lucius.api.memory import memory_refusal
from lucius.api.problems import answer, problem
from lucius.api.routing import Call, CallbackCall, Result
from lucius.contracts.messages import OTHER_TENANT, read_reply
from lucius.contracts.schemas import is_service_name
from lucius.core.attempt import AttemptRef
from lucius.core.draft import Outcome
from lucius.core.model import JobRecord, Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.replies import why_to_stop
from lucius.core.routing import LANES

DIRECTIVES_MAX = 100
LEASE_BYTES = 64 * 1024  # room that there is before directives are taken: else they could not be sent
WAIT_SECONDS_MAX = 30

ASK_AGAIN_MS = round(ASK_AGAIN_SECONDS * 1000)

_NOT_SERVED = Refused(
    Code.FORBIDDEN, "the caller may not lease directives of this service, which are those of every tenant"
)


async def lease(call: Call) -> Result:
    wanted = await read_object(call.request)
    if isinstance(wanted, Refused):
        return wanted
    faults = _lease_faults(wanted)
    if faults:
        return Refused(Code.INVALID_ENVELOPE, "the lease is not well formed", tuple(faults))
    if not call.caller.serves(wanted["service"]):
        return _NOT_SERVED
    refused = memory_refusal(call.request, LEASE_BYTES)
    if refused is not None:
        return refused
    taken = await _unless_gone(call.request, _lease_in_slot(call, wanted))
    return taken if isinstance(taken, Refused) else answer({"directives": taken})


async def _lease_in_slot(call: Call, wanted: dict[str, Json]) -> list[dict[str, Json]] | Refused:
    """A lease that may wait takes one of the slots for calls that do."""
    if not wanted.get("wait_seconds"):
        return await _lease(call, wanted)
    slots, caller = call.deps.waiting.places, call.caller.holder
    refused = slots.refusal(None, caller)
    if refused is not None:
        return refused
    slots.enter(None, caller)
    try:
        return await _lease(call, wanted)
    finally:
        slots.leave(None, caller)


async def _lease(call: Call, wanted: dict[str, Json]) -> list[dict[str, Json]] | Refused:
    workers, service = call.deps.workers, wanted["service"]
    client = call.request.headers.get("user-agent", "")
    poll = workers.asks(service, client, wanted.get("max") or 1)
    try:
        return await _lease_in_pieces(call, wanted)
    finally:
        workers.left(service, poll)


async def _lease_in_pieces(call: Call, wanted: dict[str, Json]) -> list[dict[str, Json]] | Refused:
    """Waits in pieces: a caller who may no longer lease gets nothing from the next one on."""
    left_ms = round((wanted.get("wait_seconds") or 0) * 1000)
    while True:
        piece_ms = min(left_ms, ASK_AGAIN_MS)
        taken = await call.deps.dispatcher.lease(
            wanted["service"],
            directives_max=wanted.get("max") or 1,
            wait_ms=piece_ms,
            lanes=wanted.get("lanes"),
        )
        left_ms -= piece_ms
        if taken or isinstance(taken, Refused) or left_ms <= 0:
            return taken
        caller = await call.admit_again()
        if isinstance(caller, Refused):
            return caller
        if not caller.serves(wanted["service"]):
            return _NOT_SERVED


def callback(kind: str) -> Callable[[CallbackCall], Awaitable[Result]]:
    """The handler of a message of this kind: `ACK`, `PROGRESS` or `RESULT`."""

    async def apply(call: CallbackCall) -> Result:
        raw = await read_body(call.request, ENVELOPE_BYTES_MAX)
        parsed = raw if isinstance(raw, Refused) else read_reply(raw, expected=kind)
        if isinstance(parsed, Refused):
            return parsed
        job_id, reply = parsed
        named = AttemptRef(
            job_id=job_id, step_id=reply.step_id, attempt_no=reply.attempt_no, lease_id=reply.lease_id
        )
        if named != call.opened:
            return Refused(Code.FORBIDDEN, "the token opens another attempt than the message names")
        applied = await call.deps.inputs.apply(job_id, reply)
        if isinstance(applied, Refused):
            return problem(applied, stop=applied.code is Code.JOB_NOT_FOUND)
        if applied.outcome is Outcome.STALE:
            refused = Refused(Code.STALE_ATTEMPT, "this attempt is no longer the step's current one")
            return problem(refused, outcome=applied.outcome.value, stop=True)
        if applied.outcome is Outcome.OTHER_TENANT:
            return Refused(Code.FORBIDDEN, OTHER_TENANT)
        return answer({"outcome": applied.outcome.value, "stop": applied.stop})

    return apply


async def get_attempt(call: CallbackCall) -> Result:
    opened = call.opened
    loaded = await call.deps.ledger.load(opened.job_id, fresh=True)
    if loaded is None:
        return answer({"current": False, "stop": True, "reason": "there is no such job any more"})
    record = loaded.record
    current = opened.is_current(record)
    reason = why_to_stop(record) if current else _why_not_current(record, opened)
    return answer({"current": current, "stop": reason is not None, "reason": reason})


def _why_not_current(record: JobRecord, opened: AttemptRef) -> str:
    if record.job.terminal:
        return f"the job has ended: {record.job.state}"
    step = record.step(opened.step_id)
    if step is not None and step.attempt_no > opened.attempt_no:
        return f"attempt {step.attempt_no} of {step.step_id} has taken its place"
    return f"the job is {record.job.state} and no longer waits for this attempt"


def _lease_faults(wanted: dict[str, Json]) -> list[FieldError]:
    faults = [
        FieldError(f"/{name}", "is not known here")
        for name in wanted
        if name not in ("service", "max", "wait_seconds", "lanes")
    ]
    service = wanted.get("service")
    if not isinstance(service, str) or not is_service_name(service):
        faults.append(FieldError("/service", "must be the name of a service"))
    count = wanted.get("max")
    if count is not None and (type(count) is not int or not 1 <= count <= DIRECTIVES_MAX):
        faults.append(FieldError("/max", f"must be a whole number from 1 to {DIRECTIVES_MAX}"))
    wait = wanted.get("wait_seconds")
    if wait is not None and (type(wait) not in (int, float) or not 0 <= wait <= WAIT_SECONDS_MAX):
        faults.append(FieldError("/wait_seconds", f"must be a number from 0 to {WAIT_SECONDS_MAX}"))
    lanes = wanted.get("lanes")
    if lanes is not None and not _are_lanes(lanes):
        faults.append(FieldError("/lanes", f"must be an array of lanes, 0 to {LANES - 1}"))
    return faults


def _are_lanes(lanes: Json) -> bool:
    return (
        isinstance(lanes, list)
        and 0 < len(lanes) <= LANES
        and all(type(lane) is int and 0 <= lane < LANES for lane in lanes)
    )


async def _unless_gone(
    request: Request, taking: Awaitable[list[dict[str, Json]] | Refused]
) -> list[dict[str, Json]] | Refused:
    """A worker that hangs up while nothing is there yet takes nothing with it."""
    take = asyncio.ensure_future(taking)
    gone = asyncio.ensure_future(request.receive())
    try:
        await asyncio.wait({take, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not take.done():
            take.cancel()
            await asyncio.wait({take})
        return [] if take.cancelled() else take.result()
    finally:
        gone.cancel()
        take.cancel()  # what it takes from here on would reach no worker

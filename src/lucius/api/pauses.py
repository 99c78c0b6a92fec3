"""Pauses: a service, a tenant or a request type of which nothing leaves for a while.

In: what to pause or to resume. Out: what is paused. What is under way goes on; what waits runs no clock but
its SLA's and loses no attempt. A caller who is limited to some tenants pauses these alone.
"""

import msgspec

from lucius.api.bodies import read_object
from lucius.api.jobs import unknown_members
from lucius.api.parameters import stray
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.contracts.envelope import REQUEST_TYPE_LENGTH_MAX, TENANT_ID_LENGTH_MAX, text_problem
from lucius.contracts.schemas import SERVICE_PATTERN, is_service_name
from lucius.contracts.times import rfc3339
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.routing import normalise
from lucius.ledger.flow import PAUSES_MAX, FlowPause, PauseKind

REASON_LENGTH_MAX = 500
NAME_LENGTH_MAX = max(TENANT_ID_LENGTH_MAX, REQUEST_TYPE_LENGTH_MAX)


class _Wish(msgspec.Struct, frozen=True, kw_only=True):
    kind: PauseKind
    name: str
    reason: str | None


async def list_pauses(call: Call) -> Result:
    refused = stray(call.request)
    if refused is not None:
        return refused
    found = await call.deps.flow.rows.pauses()
    return answer({"items": [pause_view(pause) for pause in found if _may_see(call, pause)]})


async def pause(call: Call) -> Result:
    """Pauses again what is paused already: the first pause stays, with its reason."""
    wish = await _wished(call, "reason")
    if isinstance(wish, Refused):
        return wish
    if wish.kind is PauseKind.SERVICE and not is_service_name(wish.name):
        fault = FieldError("/name", f"must be of the form {SERVICE_PATTERN}")
        return Refused(Code.INVALID_ENVELOPE, "no service can have this name", (fault,))
    rows = call.deps.flow.rows
    if len(await rows.pauses()) >= PAUSES_MAX:
        return Refused(Code.INVALID_REQUEST, f"there are {PAUSES_MAX} pauses, the most there may be")
    wanted = FlowPause(
        kind=wish.kind,
        name=wish.name,
        since_ms=call.deps.now_ms(),
        reason=wish.reason,
        by=None if call.caller.anonymous else call.caller.name,
    )
    await rows.pause(wanted)
    await call.deps.flow.look()
    return answer(pause_view(call.deps.flow.pause_of(wish.kind, wish.name) or wanted))


async def resume(call: Call) -> Result:
    wish = await _wished(call)
    if isinstance(wish, Refused):
        return wish
    was_paused = await call.deps.flow.rows.resume(wish.kind, wish.name)
    await call.deps.flow.look()
    return answer({"kind": wish.kind.value, "name": wish.name, "was_paused": was_paused})


def pause_view(pause: FlowPause) -> dict[str, Json]:
    return {
        "kind": pause.kind.value,
        "name": pause.name,
        "since": rfc3339(pause.since_ms),
        "reason": pause.reason,
        "by": pause.by,
    }


def _may_see(call: Call, pause: FlowPause) -> bool:
    return pause.kind is not PauseKind.TENANT or call.caller.sees(pause.name)


async def _wished(call: Call, *more: str) -> _Wish | Refused:
    document = await read_object(call.request)
    if isinstance(document, Refused):
        return document
    faults = unknown_members(document, "kind", "name", *more)
    kind, name, reason = document.get("kind"), document.get("name"), document.get("reason")
    if kind not in list(PauseKind):
        faults.append(FieldError("/kind", f"must be one of {', '.join(PauseKind)}"))
    problem = "is required" if name is None else text_problem(name, NAME_LENGTH_MAX)
    if problem is None and not str(name).strip():
        problem = "must not be blank"
    if problem is not None:
        faults.append(FieldError("/name", problem))
    if reason is not None and (fault := text_problem(reason, REASON_LENGTH_MAX)) is not None:
        faults.append(FieldError("/reason", fault))
    if faults:
        text = f"the pause is not well formed: {faults[0].message}"
        return Refused(Code.INVALID_ENVELOPE, text, tuple(faults))
    wanted = PauseKind(str(kind))
    named = normalise(str(name)) if wanted is PauseKind.TENANT else str(name).strip()
    of_tenant = wanted is PauseKind.TENANT
    if not (call.caller.sees(named) if of_tenant else call.caller.tenants is None):
        return Refused(Code.FORBIDDEN, f"the caller may not pause this {wanted.value}")
    return _Wish(kind=wanted, name=named, reason=reason)

"""Callers know why: what would become of a command, why a job is where it is, and what to do with evidence.

In: an envelope to plan, a job to explain, a late success to adopt. Out: answers. Plans and explanations write
nothing. Must be routed before the jobs: `GET /v1/jobs/{job_id}` would take `:explain` for part of an id.
"""

import msgspec
from fastapi import APIRouter, Request, Response

from lucius.api.bodies import read_json, read_object
from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import Principal
from lucius.api.jobs import find_job, not_found
from lucius.api.parameters import idempotency_key
from lucius.api.problems import answer, problem
from lucius.contracts.envelope import IDEMPOTENCY_KEY_LENGTH_MAX, text_problem
from lucius.contracts.keys import Role
from lucius.contracts.messages import ID_LENGTH_MAX
from lucius.contracts.times import rfc3339, rfc3339_or_none
from lucius.contracts.views import event_view, job_view
from lucius.core.explain import Explanation, explain, step_in_focus
from lucius.core.model import Event, Job, Json, StepPolicy
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.routing import normalise, topic
from lucius.jobs.planning import CommandPlan, LimitsUsage, PlannedStep, problems_of

EVENTS_PAGE_MAX = 1_000
# The latest part of a trail is enough to explain a job; its evidence is at most a hundred events.
EVENTS_READ_MAX = 10_000
EVENT_SEQ_MAX = 10**8 - 2


def routes(deps: ApiDependencies) -> APIRouter:
    router = APIRouter()
    _plan_route(router, deps)
    _job_routes(router, deps)
    return router


def _plan_route(router: APIRouter, deps: ApiDependencies) -> None:
    @router.post("/v1/orchestrate:plan", operation_id="planCommand")
    async def plan_command(request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.SUBMIT)
        if isinstance(caller, Refused):
            return problem(caller)
        document = await read_json(request)
        if isinstance(document, Refused):
            if document.code is not Code.INVALID_ENVELOPE:
                return problem(document)
            return answer(plan_view(CommandPlan(problems=tuple(problems_of(document)))))
        foreign = _foreign(document, caller)
        if foreign is not None:
            return problem(foreign)
        key = idempotency_key(request)
        if not isinstance(key, Refused):
            return answer(plan_view(await deps.planning.plan(document, key_header=key)))
        plan = await deps.planning.plan(document, key_header=None)
        return answer(plan_view(msgspec.structs.replace(plan, problems=(*problems_of(key), *plan.problems))))


def _job_routes(router: APIRouter, deps: ApiDependencies) -> None:
    @router.get("/v1/jobs/{job_id}:explain", operation_id="explainJob")
    async def explain_job(job_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.READ)
        if isinstance(caller, Refused):
            return problem(caller)
        loaded = await find_job(deps, job_id, caller)
        if isinstance(loaded, Refused):
            return problem(loaded)
        record = loaded.record
        told = explain(
            record,
            await _events(deps, record.job),
            now_ms=deps.now_ms(),
            service_asked_at_ms=deps.dispatcher.last_asked_ms(step_in_focus(record).service),
            over_bus=deps.dispatcher.over_bus,
            tenant_in_flight=deps.admission.in_flight(record.job.tenant_norm).tenant,
            tenant_max=deps.admission.limits.tenant_max,
            alone=deps.alone,
        )
        return answer(explanation_view(told))

    @router.post("/v1/jobs/{job_id}:adopt", operation_id="adoptResult")
    async def adopt_result(job_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.ADMIN)
        if isinstance(caller, Refused):
            return problem(caller)
        return await _adopted(deps, job_id, request, caller)


async def _adopted(deps: ApiDependencies, job_id: str, request: Request, caller: Principal) -> Response:
    wanted = await read_object(request)
    if isinstance(wanted, Refused):
        return problem(wanted)
    key = idempotency_key(request)
    if isinstance(key, Refused):
        return problem(key)
    faults = _adopt_faults(wanted, key)
    if faults:
        return problem(Refused(Code.INVALID_ENVELOPE, "the wish is not well formed", tuple(faults)))
    old = await find_job(deps, job_id, caller)
    if isinstance(old, Refused):
        return problem(old)
    accepted = await deps.reruns.adopt(job_id, step_id=wanted["stepId"], seq=wanted["seq"], key=key)
    if isinstance(accepted, Refused):
        return problem(accepted)
    loaded = await deps.ledger.load(accepted.job_id, fresh=True)
    if loaded is None:
        return problem(not_found(accepted.job_id))
    headers = {"Location": f"/v1/jobs/{accepted.job_id}"}
    if accepted.duplicate:
        headers["Idempotent-Replayed"] = "true"
    return answer(job_view(loaded.record), status=202, headers=headers)


def _adopt_faults(wanted: dict[str, Json], key: str | None) -> list[FieldError]:
    faults = [FieldError(f"/{name}", "is not known here") for name in wanted if name not in ("stepId", "seq")]
    step_id, seq = wanted.get("stepId"), wanted.get("seq")
    if not isinstance(step_id, str) or text_problem(step_id, ID_LENGTH_MAX) is not None:
        faults.append(FieldError("/stepId", "must be a step id"))
    if type(seq) is not int or not 1 <= seq <= EVENT_SEQ_MAX:
        faults.append(FieldError("/seq", "must be the number of an event"))
    if key is not None:
        fault = text_problem(key, IDEMPOTENCY_KEY_LENGTH_MAX) or (
            None if key.strip() else "must not be blank"
        )
        if fault is not None:
            faults.append(FieldError("/idempotency_key", f"the Idempotency-Key header {fault}"))
    return faults


def _foreign(document: Json, caller: Principal) -> Refused | None:
    """A plan tells how full a tenant is and what it sent before: nothing of that to others."""
    tenant = document.get("tenant_id") if isinstance(document, dict) else None
    if not isinstance(tenant, str) or caller.sees(normalise(tenant)):
        return None
    fault = FieldError("/tenant_id", "is not one of the caller's tenants")
    return Refused(Code.FORBIDDEN, "the caller may not submit for this tenant", (fault,))


async def _events(deps: ApiDependencies, job: Job) -> list[Event]:
    """The latest part of the trail, and what arrived after the job's end."""
    after_seq = max(0, job.seq - EVENTS_READ_MAX)
    events: list[Event] = []
    while True:
        page = await deps.ledger.events(job.job_id, after_seq=after_seq, limit=EVENTS_PAGE_MAX)
        events += page
        if len(page) < EVENTS_PAGE_MAX or len(events) > EVENTS_READ_MAX + EVENTS_PAGE_MAX:
            return events
        after_seq = page[-1].seq


def plan_view(plan: CommandPlan) -> dict[str, Json]:
    return {
        "accepted": plan.accepted,
        "problems": [
            {"code": each.code.value, "message": each.message}
            | ({} if each.pointer is None else {"pointer": each.pointer})
            for each in plan.problems
        ],
        "duplicate_of": plan.duplicate_of,
        "protocol_id": plan.protocol_id,
        "steps": [_step_view(step) for step in plan.steps],
        "lane": plan.lane,
        "topic": None if plan.lane is None else topic(plan.lane),
        "mode": None if plan.mode is None else plan.mode.value,
        "decision_source": plan.decision_source,
        "decision_reason": plan.decision_reason,
        "limits": None if plan.limits is None else _limits_view(plan.limits),
    }


def _step_view(step: PlannedStep) -> dict[str, Json]:
    return {
        "stepId": step.step_id,
        "step_type": step.step_type,
        "service": step.service,
        "payload": step.payload,
        "policy": policy_view(step.policy),
    }


def policy_view(policy: StepPolicy) -> dict[str, Json]:
    """How patient the orchestrator is with a step, in seconds."""
    return {
        "max_attempts": policy.max_attempts,
        "ack_timeout_seconds": policy.ack_timeout_ms / 1000,
        "lease_seconds": policy.lease_ms / 1000,
        "max_duration_seconds": policy.max_duration_ms / 1000,
        "backoff_seconds": {
            "publish": [ms / 1000 for ms in policy.backoff_publish_ms],
            "ack": [ms / 1000 for ms in policy.backoff_ack_ms],
            "result": [ms / 1000 for ms in policy.backoff_result_ms],
        },
    }


def _limits_view(now: LimitsUsage) -> dict[str, Json]:
    return {
        "tenant": {"in_flight": now.in_flight.tenant, "max": now.limits.tenant_max},
        "total": {"in_flight": now.in_flight.total, "max": now.limits.total_max},
        "burst": {"in_flight": now.in_flight.burst, "max": now.limits.burst_max},
        "taken_now": now.refused is None,
        "retry_after_seconds": None if now.refused is None else now.refused.retry_after_seconds,
    }


def explanation_view(told: Explanation) -> dict[str, Json]:
    return {
        "jobId": told.job_id,
        "state": told.state.value,
        "summary": told.summary,
        "waiting_for": None if told.waiting_for is None else told.waiting_for.value,
        "since": rfc3339(told.since_ms),
        "next": (
            None if told.next is None else {"what": told.next.what, "at": rfc3339_or_none(told.next.at_ms)}
        ),
        "stepId": told.step_id,
        "attempt": {"number": told.attempt_no, "of": told.attempts_max},
        "service": {"name": told.service, "last_asked_at": rfc3339_or_none(told.service_asked_at_ms)},
        "late_answers": [event_view(event) for event in told.late_answers],
        "limits": {"tenant": {"in_flight": told.tenant_in_flight, "max": told.tenant_max}},
        "hints": list(told.hints),
    }

"""Why things are as they are: what would become of a command, why a job is where it is, what came too late.

In: an envelope to plan, a job to explain, a late success to adopt. Out: answers. Plans and explanations write
nothing.
"""

import msgspec

from lucius.api.bodies import read_json, read_object
from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import Principal
from lucius.api.jobs import EVENT_SEQ_MAX, find_job, key_faults, new_job, unknown_members
from lucius.api.parameters import idempotency_key, refuse, stray
from lucius.api.problems import answer
from lucius.api.routing import Call, Result
from lucius.contracts.envelope import text_problem
from lucius.contracts.messages import ID_LENGTH_MAX
from lucius.contracts.times import rfc3339, rfc3339_or_none
from lucius.contracts.views import event_view
from lucius.core.budgets import BudgetState
from lucius.core.explain import NOT_RUN_AGAIN, Action, Explanation, RunAgain, explain, step_in_focus
from lucius.core.flow import FlowHold
from lucius.core.model import Event, Job, JobRecord, Json, StepPolicy
from lucius.core.priority import rank_ms
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.routing import normalise, topic
from lucius.core.states import Engine, JobState
from lucius.jobs.adoptions import Adoptions, came_to_nothing
from lucius.jobs.planning import CommandPlan, LimitsUsage, PlannedStep, problems_of
from lucius.ledger.names import dispatch_partition, split_dispatch_key

EVENTS_PAGE_MAX = 1_000
# The latest part of a trail is enough to explain a job; its evidence is at most a hundred events.
EVENTS_READ_MAX = 10_000
ADOPTIONS_SHOWN_MAX = 20
ROWS_BEFORE_MAX = 1_000
# How times are written in the words of an explanation.
CLOCK, INSTANTS = "clock", "rfc3339"


async def plan_command(call: Call) -> Result:
    document = await read_json(call.request)
    if isinstance(document, Refused):
        if document.code is not Code.INVALID_ENVELOPE:
            return document
        return answer(plan_view(CommandPlan(problems=tuple(problems_of(document)))))
    foreign = _foreign(document, call.caller)
    if foreign is not None:
        return foreign
    planning, key = call.deps.planning, idempotency_key(call.request)
    if not isinstance(key, Refused):
        return answer(plan_view(await planning.plan(document, key_header=key)))
    plan = await planning.plan(document, key_header=None)
    return answer(plan_view(msgspec.structs.replace(plan, problems=(*problems_of(key), *plan.problems))))


async def explain_job(call: Call) -> Result:
    deps = call.deps
    times = call.request.query_params.get("times", CLOCK)
    strays = stray(call.request, "times")
    if strays is not None:
        return strays
    if times not in (CLOCK, INSTANTS):
        return refuse("times", f"must be {CLOCK} or {INSTANTS}")
    loaded = await find_job(call)
    if isinstance(loaded, Refused):
        return loaded
    record = loaded.record
    explanation = explain(
        record,
        await _events(deps, record.job),
        now_ms=deps.now_ms(),
        service_asked_at_ms=deps.dispatcher.last_asked_ms(step_in_focus(record).service),
        over_bus=deps.dispatcher.over_bus,
        tenant_in_flight=deps.admission.in_flight(record.job.tenant_norm).tenant,
        tenant_max=deps.admission.tenant_max(record.job.tenant_norm),
        alone=deps.alone,
        instants=times == INSTANTS,
        again=await _run_again(deps, record.job),
        hold=await _hold(deps, record),
    )
    return answer(explanation_view(explanation))


async def _hold(deps: ApiDependencies, record: JobRecord) -> FlowHold | None:
    """What keeps its directive from leaving, and how many of its lane came before."""
    held, outbox = deps.flow.hold_of(record), record.outbox
    if held is None or outbox is None or record.job.engine is not Engine.OUTBOX:
        return held
    tables, place = deps.ledger.tables, dispatch_partition(outbox.service, outbox.lane)
    rows = await deps.ledger.store.query(tables.dispatch, place, limit=ROWS_BEFORE_MAX)
    before = sum(_is_before(row.key, rank_ms(record.job, outbox), record.job.job_id) for row in rows)
    return msgspec.structs.replace(held, before=before, more=len(rows) == ROWS_BEFORE_MAX)


def _is_before(key: str, at_ms: int, job_id: str) -> bool:
    try:
        return split_dispatch_key(key)[1:] < (at_ms, job_id)
    except ValueError:
        return False  # a damaged key


async def _run_again(deps: ApiDependencies, job: Job) -> RunAgain:
    """What the reruns of an ended job that were asked for without a key came to."""
    if not job.terminal:
        return NOT_RUN_AGAIN
    listed = job.state is JobState.FAILED_FINAL and not await deps.ledger.left_dlq(job)
    holder = await deps.ledger.key_holder(job.tenant_norm, f"rerun#{job.job_id}")
    if holder is None:
        return RunAgain(listed=listed)
    adoptions: dict[tuple[str, int], str] = {}
    for name, job_id in (await Adoptions(deps.ledger).known(holder.row)).items():
        step_id, _, seq = name.rpartition("#")
        if len(adoptions) < ADOPTIONS_SHOWN_MAX and await _goes_on(deps, job_id):
            adoptions[step_id, int(seq)] = job_id
    latest = holder.row.job_id
    goes_on = await _goes_on(deps, latest)
    return RunAgain(listed=listed, job_id=latest if goes_on else None, adoptions=adoptions)


async def _goes_on(deps: ApiDependencies, job_id: str) -> bool:
    """Whether a job is open or has succeeded."""
    job = await deps.ledger.layout.job(deps.ledger.store, job_id)
    return job is not None and not came_to_nothing(job.state)


async def adopt_result(call: Call) -> Result:
    wanted = await read_object(call.request)
    if isinstance(wanted, Refused):
        return wanted
    key = idempotency_key(call.request)
    if isinstance(key, Refused):
        return key
    faults = [*_adopt_faults(wanted), *key_faults(key)]
    if faults:
        return Refused(Code.INVALID_ENVELOPE, "the wish is not well formed", tuple(faults))
    old = await find_job(call)
    if isinstance(old, Refused):
        return old
    reruns = call.deps.reruns
    made = await reruns.adopt(call.path_id, step_id=wanted["stepId"], seq=wanted["seq"], key=key)
    return await new_job(call, made)


def _adopt_faults(wanted: dict[str, Json]) -> list[FieldError]:
    faults = unknown_members(wanted, "stepId", "seq")
    step_id, seq = wanted.get("stepId"), wanted.get("seq")
    if not isinstance(step_id, str) or text_problem(step_id, ID_LENGTH_MAX) is not None:
        faults.append(FieldError("/stepId", "must be a step id"))
    if type(seq) is not int or not 1 <= seq <= EVENT_SEQ_MAX:
        faults.append(FieldError("/seq", "must be the number of an event"))
    return faults


def _foreign(document: Json, caller: Principal) -> Refused | None:
    """A plan shows how full a tenant is and what it sent before: nothing of that is for others."""
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
        "stop_on_pause": step.stop_on_pause,
    }


def policy_view(policy: StepPolicy) -> dict[str, Json]:
    """How patient the orchestrator is with a step, in seconds."""
    return {
        "max_attempts": policy.max_attempts,
        "ack_timeout_seconds": policy.ack_timeout_ms / 1000,
        "lease_seconds": policy.lease_ms / 1000,
        "max_duration_seconds": policy.max_duration_ms / 1000,
        "on_exhausted": "park" if policy.parks_exhausted else "fail",
        "backoff_seconds": {
            "publish": [ms / 1000 for ms in policy.backoff_publish_ms],
            "ack": [ms / 1000 for ms in policy.backoff_ack_ms],
            "result": [ms / 1000 for ms in policy.backoff_result_ms],
        },
    }


def _limits_view(now: LimitsUsage) -> dict[str, Json]:
    return {
        "tenant": {"in_flight": now.in_flight.tenant, "max": now.tenant_max},
        "total": {"in_flight": now.in_flight.total, "max": now.limits.total_max},
        "default": {"in_flight": now.in_flight.default, "max": now.limits.default_max},
        "burst": {"in_flight": now.in_flight.burst, "max": now.limits.burst_max},
        "taken_now": now.refused is None,
        "retry_after_seconds": None if now.refused is None else now.refused.retry_after_seconds,
        "budgets": [budget_view(state) for state in now.budgets],
    }


def budget_view(state: BudgetState) -> dict[str, Json]:
    return {
        "name": state.budget.name,
        "period": state.budget.period.value,
        "used": state.used,
        "max": state.budget.most,
        "ends_at": rfc3339(state.ends_ms),
    }


def explanation_view(explanation: Explanation) -> dict[str, Json]:
    return {
        "jobId": explanation.job_id,
        "state": explanation.state.value,
        "summary": explanation.summary,
        "waiting_for": None if explanation.waiting_for is None else explanation.waiting_for.value,
        "since": rfc3339(explanation.since_ms),
        "next": (
            None
            if explanation.next is None
            else {"what": explanation.next.what, "at": rfc3339_or_none(explanation.next.at_ms)}
        ),
        "stepId": explanation.step_id,
        "attempt": {"number": explanation.attempt_no, "of": explanation.attempts_max},
        "service": {
            "name": explanation.service,
            "last_asked_at": rfc3339_or_none(explanation.service_asked_at_ms),
        },
        "late_answers": [event_view(event) for event in explanation.late_answers],
        "limits": {"tenant": {"in_flight": explanation.tenant_in_flight, "max": explanation.tenant_max}},
        "hints": list(explanation.hints),
        "actions": [_action_view(action) for action in explanation.actions],
        "again_as": explanation.again.job_id,
        "adoptions": [
            {"stepId": step_id, "seq": seq, "jobId": job_id}
            for (step_id, seq), job_id in explanation.again.adoptions.items()
        ],
    }


def _action_view(action: Action) -> dict[str, Json]:
    view: dict[str, Json] = {"action": action.name.value}
    if action.step_id is not None:
        view |= {"stepId": action.step_id, "seq": action.seq}
    if action.from_step:
        view["from_step_needed"] = True
    return view

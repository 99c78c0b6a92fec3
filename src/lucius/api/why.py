"""`GET /v1/why`: what the open jobs of the whole installation wait for.

In: what the processes report, and the figures that they keep. Out: groups in words. No job is read for it. A
caller who is limited to some tenants sees their jobs alone.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from lucius.api.dependencies import ApiDependencies
from lucius.api.fleet import COUNT_WINDOWS, FigureScope, figure_scope
from lucius.api.parameters import refuse, stray
from lucius.api.problems import answer
from lucius.api.reasons import CLOCK, INSTANTS
from lucius.api.routing import Call, Result
from lucius.contracts.times import rfc3339, rfc3339_or_none
from lucius.core.explain import WaitsFor
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.core.why import (
    GROUPS_MAX,
    FleetFacts,
    TenantFill,
    Wait,
    WaitGroup,
    WaitingJobs,
    WorkersSeen,
    why,
)
from lucius.engines.outbox.backlog import ROWS_MAX
from lucius.engines.process_reports import ProcessReport, ServiceReport, services_of
from lucius.telemetry.activity import ServiceTally

_WINDOW: Final = COUNT_WINDOWS["24h"]


async def explain_fleet(call: Call) -> Result:
    times = call.request.query_params.get("times", CLOCK)
    refused, scope = stray(call.request, "tenant_id", "times"), figure_scope(call)
    if refused is not None:
        return refused
    if isinstance(scope, Refused):
        return scope
    if times not in (CLOCK, INSTANTS):
        return refuse("times", f"must be {CLOCK} or {INSTANTS}")
    deps = call.deps
    reports = await deps.fleet.reports.all()
    facts = await fleet_facts(deps, scope, reports, instants=times == INSTANTS)
    groups = why(facts)
    counted = [report.counted_at_ms for report in reports if report.lanes is not None]
    known = [at_ms for at_ms in counted if at_ms is not None]
    return answer(
        {
            "items": [_group_view(group) for group in groups[:GROUPS_MAX]],
            "more": len(groups) > GROUPS_MAX,
            "open": sum(each.jobs for each in facts.waiting),
            "counted_at": rfc3339(min(known)) if known and len(known) == len(counted) else None,
            "as_of": rfc3339(facts.now_ms),
        }
    )


async def fleet_facts(
    deps: ApiDependencies, scope: FigureScope, reports: Sequence[ProcessReport], *, instants: bool
) -> FleetFacts:
    now_ms = deps.now_ms()
    tally = await deps.fleet.activity.sums(_WINDOW.length, scope.sums, _WINDOW.begins_ms(now_ms), now_ms)
    seen = services_of(list(reports))
    oldest_ms: dict[str, int] = {}
    for report in reports:
        for place in report.lanes or ():
            if place.oldest_at_ms is not None:
                before = oldest_ms.get(place.service, place.oldest_at_ms)
                oldest_ms[place.service] = min(before, place.oldest_at_ms)
    waiting = [
        WaitingJobs(wait=wait, tenant=tenant, jobs=jobs)
        for report in reports
        for tenant, wait, jobs in report.waits
        if scope.has(tenant)
    ]
    if scope.names is None and len(reports) > 1 and not deps.dispatcher.over_bus:
        waiting = _as_deep_as_lanes(waiting, reports)
    return FleetFacts(
        now_ms=now_ms,
        waiting=tuple(waiting),
        workers={
            name: _workers(seen.get(name, ServiceReport()), tally.services.get(name, ServiceTally()))
            for name in {*seen, *tally.services}
        },
        oldest_ms=oldest_ms,
        tenants=tuple(
            TenantFill(tenant=name, in_flight=jobs, limit=deps.admission.tenant_max(name))
            for name, jobs in sorted(deps.admission.by_tenant.items())
            if scope.has(name)
        ),
        over_bus=deps.dispatcher.over_bus,
        holds=deps.flow.service_holds(),
        instants=instants,
    )


def _workers(seen: ServiceReport, tally: ServiceTally) -> WorkersSeen:
    at_ms = max(seen.asked_at_ms or 0, tally.seen_at_ms)
    return WorkersSeen(asked_at_ms=at_ms or None, asking=seen.polls, inside=seen.concurrency is not None)


def _as_deep_as_lanes(waiting: Sequence[WaitingJobs], reports: Sequence[ProcessReport]) -> list[WaitingJobs]:
    """The dispatch index is looked at more often than jobs are counted where several processes move them:
    it says how many wait for a worker, as far as it was read."""
    depths: Counter[tuple[str, int]] = Counter()
    for report in reports:
        for each_lane in report.lanes or ():
            depths[each_lane.service, each_lane.lane] += each_lane.depth
    by_place: dict[tuple[str, int], list[WaitingJobs]] = {place: [] for place in depths}
    others: list[WaitingJobs] = []
    for each in waiting:
        place = (each.wait.service, each.wait.lane)
        if each.wait.waiting_for is WaitsFor.WORKER:
            by_place.setdefault(place, []).append(each)
        else:
            others.append(each)
            if each.wait.waiting_for is WaitsFor.PUBLISH:
                depths[place] -= each.jobs
    for (service, lane), counted in by_place.items():
        depth = depths[service, lane]
        left = depth if depth < ROWS_MAX else max(depth, sum(each.jobs for each in counted))
        for each in counted:
            jobs = min(each.jobs, max(0, left))
            left -= jobs
            if jobs:
                others.append(WaitingJobs(wait=each.wait, tenant=each.tenant, jobs=jobs))
        if left > 0:
            wait = Wait(WaitsFor.WORKER, service, lane, failed=False, late=False)
            others.append(WaitingJobs(wait=wait, tenant=None, jobs=left))
    return others


def _group_view(group: WaitGroup) -> dict[str, Json]:
    return {
        "code": group.code,
        "severity": group.severity,
        "jobs": group.jobs,
        "text": group.text,
        "service": group.service,
        "since": rfc3339_or_none(group.since_ms),
        "lanes": {str(lane): jobs for lane, jobs in group.lanes.items()},
        "tenants": [{"tenant_id": tenant, "jobs": jobs} for tenant, jobs in group.tenants],
    }

"""The state of the whole installation, for people who operate it: services, lanes, tenants, figures.

In: what the processes report, and the figures that they keep. Out: answers that read small rows and memory,
never the jobs. A caller who is limited to some tenants sees the figures and the names of these alone; the
depth of lanes and services is of all tenants, as in `/metrics`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lucius.api.dependencies import ApiDependencies
from lucius.api.gate import Principal
from lucius.api.parameters import refuse, stray
from lucius.api.pauses import pause_view
from lucius.api.problems import answer
from lucius.api.reasons import budget_view
from lucius.api.routing import Call, Result
from lucius.contracts.envelope import TENANT_ID_LENGTH_MAX, text_problem
from lucius.contracts.times import rfc3339, rfc3339_or_none
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused
from lucius.core.routing import LANES, lane_of, normalise, topic
from lucius.core.states import JOB_OPEN, JobState
from lucius.engines.activity_rows import ALL_TENANTS, COARSE, DAILY, FINE, HOUR_MS, StepLength, TallyRow
from lucius.engines.flow_control import ServiceFlowView
from lucius.engines.process_reports import LaneDepth, ProcessReport, ServiceReport, services_of
from lucius.telemetry.activity import ServiceTally, Spread, Tally, TypeTally, percentile_ms

TENANTS_SHOWN_MAX: Final = 200
LANE_TENANTS_MAX: Final = 20
TENANTS_SUMMED_MAX: Final = 50
IN_FLIGHT_SHOWN_MAX: Final = 20
ATTENTION_MAX: Final = 20
ERROR: Final = "error"
STUCK_AFTER_MS: Final = 30_000
ASKED_LATELY_MS: Final = 60_000
FAILING_JOBS_MIN: Final = 5
FAILING_SHARE: Final = 0.2
NEARLY_FULL_SHARE: Final = 0.9

MINUTE_MS: Final = 60_000
DAY_MS: Final = 24 * HOUR_MS


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """How far back to look, from which rows, and how many of their steps make one point of a chart."""

    span_ms: int
    length: StepLength
    steps: int = 1

    @property
    def step_ms(self) -> int:
        return self.length.step_ms * self.steps

    def begins_ms(self, now_ms: int) -> int:
        """The window ends with the step that lasts now."""
        return now_ms - now_ms % self.step_ms - self.span_ms + self.step_ms


CHART_WINDOWS: Final = {
    "15m": Window(span_ms=15 * MINUTE_MS, length=FINE),
    "1h": Window(span_ms=HOUR_MS, length=FINE, steps=4),
    "6h": Window(span_ms=6 * HOUR_MS, length=COARSE),
    "24h": Window(span_ms=DAY_MS, length=COARSE, steps=3),
}
COUNT_WINDOWS: Final = {
    "15m": Window(span_ms=15 * MINUTE_MS, length=FINE),
    "1h": Window(span_ms=HOUR_MS, length=FINE),
    "24h": Window(span_ms=DAY_MS, length=COARSE),
    "7d": Window(span_ms=7 * DAY_MS, length=DAILY),
    "30d": Window(span_ms=30 * DAY_MS, length=DAILY),
}


class FigureScope(msgspec.Struct, frozen=True):
    """Whose figures are asked for: `names` None means of all tenants."""

    names: frozenset[str] | None

    @property
    def sums(self) -> tuple[str, ...]:
        """Under which names the figures are kept."""
        return (ALL_TENANTS,) if self.names is None else tuple(sorted(self.names)[:TENANTS_SUMMED_MAX])

    def has(self, tenant: str | None) -> bool:
        return self.names is None or tenant in self.names


def figure_scope(call: Call) -> FigureScope | Refused:
    given, seen = call.request.query_params.get("tenant_id"), call.caller.tenants
    if given is None:
        return FigureScope(seen)
    if not given.strip() or text_problem(given.strip(), TENANT_ID_LENGTH_MAX) is not None:
        return refuse("tenant_id", "is not the name of a tenant")
    tenant = normalise(given)
    if not call.caller.sees(tenant):
        return Refused(Code.FORBIDDEN, "the caller may not see the figures of this tenant")
    return FigureScope(frozenset({tenant}))


def _window(call: Call, windows: dict[str, Window], usual: str) -> Window | Refused:
    named = call.request.query_params.get("window", usual)
    return windows.get(named) or refuse("window", f"must be one of {', '.join(windows)}")


# -- tenants ------------------------------------------------------------------------------------------------


async def list_tenants(call: Call) -> Result:
    refused = stray(call.request)
    if refused is not None:
        return refused
    deps, caller, now_ms = call.deps, call.caller, call.deps.now_ms()
    in_flight = deps.admission.by_tenant
    known = {*in_flight, *await deps.fleet.tenants.all(), *(caller.tenants or ())}
    seen = sorted(
        (name for name in known if caller.sees(name)), key=lambda name: (-in_flight.get(name, 0), name)
    )
    items = [
        _tenant_view(
            deps,
            name,
            in_flight.get(name, 0),
            await _today(deps, name, now_ms),
            [budget_view(state) for state in await deps.submitter.budget_states(name)],
        )
        for name in seen[:TENANTS_SHOWN_MAX]
    ]
    limits, counts = deps.admission.limits, deps.admission.in_flight("")
    return answer(
        {
            "items": items,
            "more": len(seen) > TENANTS_SHOWN_MAX,
            "limits": {
                "tenant_max": limits.tenant_max,
                "total_max": limits.total_max,
                "default_max": limits.default_max,
                "burst_max": limits.burst_max,
                "total_in_flight": counts.total,
                "default_in_flight": counts.default,
                "burst_in_flight": counts.burst,
            },
            "counted_since": rfc3339(DAILY.begins_ms(now_ms)),
            "as_of": rfc3339(now_ms),
        }
    )


async def _today(deps: ApiDependencies, tenant: str, now_ms: int) -> TypeTally:
    return _jobs(await deps.fleet.activity.sums(DAILY, [tenant], DAILY.begins_ms(now_ms), now_ms))


def _tenant_view(
    deps: ApiDependencies, tenant: str, in_flight: int, today: TypeTally, budgets: list[dict[str, Json]]
) -> dict[str, Json]:
    modes, limit = deps.fleet.modes, deps.admission.tenant_max(tenant)
    mode = modes.tenant_modes.get(tenant, modes.global_mode)
    return {
        "tenant_id": tenant,
        "in_flight": in_flight,
        "limit": limit,
        "share": round(in_flight / limit, 4) if limit else 1.0,
        "lane": lane_of(tenant),
        "mode": mode.value,
        "burst_denied": tenant in modes.burst_denied,
        "budgets": budgets,
        **_totals(today),
    }


def _totals(jobs: TypeTally) -> dict[str, Json]:
    return {
        "accepted": jobs.accepted,
        "succeeded": jobs.succeeded,
        "failed": jobs.failed,
        "cancelled": jobs.cancelled,
    }


def _jobs(tally: Tally) -> TypeTally:
    """Of all request types together."""
    together = TypeTally()
    for each in tally.types.values():
        together.add(each)
    return together


# -- lanes and services -------------------------------------------------------------------------------------


async def list_lanes(call: Call) -> Result:
    refused = stray(call.request)
    if refused is not None:
        return refused
    deps, now_ms = call.deps, call.deps.now_ms()
    reports = await deps.fleet.reports.all()
    return answer({"items": _lanes(deps, call.caller, reports, now_ms), "as_of": rfc3339(now_ms)})


def _depths(reports: Iterable[ProcessReport]) -> list[LaneDepth]:
    return [place for report in reports for place in report.lanes or ()]


def _oldest_ms(places: Iterable[LaneDepth]) -> int | None:
    return min((place.oldest_at_ms for place in places if place.oldest_at_ms is not None), default=None)


def _age_seconds(at_ms: int | None, now_ms: int) -> float | None:
    return None if at_ms is None else max(0, now_ms - at_ms) / 1000


def _lanes(
    deps: ApiDependencies, caller: Principal, reports: Sequence[ProcessReport], now_ms: int
) -> list[dict[str, Json]]:
    places = _depths(reports)
    tenants: dict[int, list[str]] = {}
    for tenant in sorted(deps.admission.by_tenant):
        if caller.sees(tenant):
            tenants.setdefault(lane_of(tenant), []).append(tenant)
    views: list[dict[str, Json]] = []
    for lane in range(LANES):
        here = [place for place in places if place.lane == lane]
        services: Counter[str] = Counter()
        for place in here:
            services[place.service] += place.depth
        views.append(
            {
                "lane": lane,
                "topic": topic(lane),
                "depth": sum(services.values()),
                "oldest_seconds": _age_seconds(_oldest_ms(here), now_ms),
                "tenants": tenants.get(lane, [])[:LANE_TENANTS_MAX],
                "services": dict(services),
            }
        )
    return views


async def list_services(call: Call) -> Result:
    refused = stray(call.request)
    if refused is not None:
        return refused
    deps, now_ms = call.deps, call.deps.now_ms()
    reports = await deps.fleet.reports.all()
    window = COUNT_WINDOWS["1h"]
    scope = FigureScope(call.caller.tenants)
    tally = await deps.fleet.activity.sums(window.length, scope.sums, window.begins_ms(now_ms), now_ms)
    seen, places = services_of(reports), _depths(reports)
    protocols: dict[str, list[str]] = {}
    for protocol in deps.registry.all():
        asked = (name for step in protocol.steps for name in (step.service, *step.fallback))
        for service in dict.fromkeys(asked):
            protocols.setdefault(service, []).append(protocol.protocol_id)
    names = sorted({*protocols, *seen, *tally.services, *(place.service for place in places)})
    items = [
        _service_view(
            name,
            protocols.get(name, []),
            seen.get(name, ServiceReport()),
            tally.services.get(name, ServiceTally()),
            [place for place in places if place.service == name],
            deps.flow.view_of(name),
            now_ms,
        )
        for name in names
    ]
    return answer({"items": items, "window_seconds": window.span_ms // 1000, "as_of": rfc3339(now_ms)})


def _service_view(
    name: str,
    protocols: list[str],
    seen: ServiceReport,
    tally: ServiceTally,
    places: list[LaneDepth],
    flow: ServiceFlowView,
    now_ms: int,
) -> dict[str, Json]:
    last_ms = max(seen.asked_at_ms or 0, tally.seen_at_ms) or None
    return {
        "service": name,
        "protocols": protocols,
        "step_type": tally.step_type or None,
        "waiting": seen.polls,
        "concurrency": seen.asked_max + (seen.concurrency or 0) if seen.polls or seen.concurrency else None,
        "in_process": seen.concurrency is not None,
        "clients": sorted(seen.clients),
        "last_seen_at": rfc3339_or_none(last_ms),
        "depth": sum(place.depth for place in places),
        "oldest_seconds": _age_seconds(_oldest_ms(places), now_ms),
        "ack": _latency_view(tally.ack),
        "work": _latency_view(tally.work),
        "succeeded": tally.succeeded,
        "failed": tally.failed,
        "retried": tally.retried,
        "flow": _flow_view(flow),
    }


def _flow_view(flow: ServiceFlowView) -> dict[str, Json]:
    """What a service may have, what it has, and what keeps its directives from leaving."""
    limits, breaker = flow.limits, flow.breaker
    return {
        "concurrency": limits.concurrency,
        "in_use": flow.in_use if limits.counts_slots else None,
        "rate": None if limits.rate is None else limits.rate.text,
        "share": round(flow.share, 4),
        "tenant_concurrency": limits.tenant_concurrency,
        "tenant_rate": None if limits.tenant_rate is None else limits.tenant_rate.text,
        "breaker": None
        if breaker is None
        else {
            "opened_at": rfc3339(breaker.opened_at_ms),
            "failures": breaker.failures,
            "error": breaker.error,
            "probe_at": rfc3339(breaker.probe_at_ms),
            "probing": breaker.probe_lease_id is not None,
        },
        "pause": None if flow.pause is None else pause_view(flow.pause),
    }


def _latency_view(spread: Spread) -> dict[str, Json]:
    return {
        "p50_ms": percentile_ms(spread, 0.5),
        "p99_ms": percentile_ms(spread, 0.99),
        "count": sum(spread.values()),
    }


# -- counts -------------------------------------------------------------------------------------------------


async def count_jobs(call: Call) -> Result:
    refused = stray(call.request, "tenant_id", "window")
    scope, window = figure_scope(call), _window(call, COUNT_WINDOWS, "24h")
    for each in (refused, scope, window):
        if isinstance(each, Refused):
            return each
    assert isinstance(scope, FigureScope) and isinstance(window, Window)
    deps, now_ms = call.deps, call.deps.now_ms()
    tally = await deps.fleet.activity.sums(window.length, scope.sums, window.begins_ms(now_ms), now_ms)
    ended = _jobs(tally)
    states = Counter({state.value: 0 for state in JobState if state in JOB_OPEN})
    for report in await deps.fleet.reports.all():
        for tenant, state, _, jobs in report.open_jobs:
            if scope.has(tenant):
                states[state] += jobs
    states[JobState.SUCCEEDED.value] = ended.succeeded
    states[JobState.FAILED_FINAL.value] = ended.failed
    states[JobState.CANCELLED.value] = ended.cancelled
    return answer(
        {
            "states": dict(states),
            "request_types": {name: each.accepted for name, each in sorted(tally.types.items())},
            "window_seconds": window.span_ms // 1000,
            "as_of": rfc3339(now_ms),
        }
    )


# -- the overview -------------------------------------------------------------------------------------------


async def get_overview(call: Call) -> Result:
    refused = stray(call.request, "tenant_id", "window")
    scope, window = figure_scope(call), _window(call, CHART_WINDOWS, "1h")
    for each in (refused, scope, window):
        if isinstance(each, Refused):
            return each
    assert isinstance(scope, FigureScope) and isinstance(window, Window)
    return answer(await overview(call.deps, call.caller, scope.names, window))


async def overview(
    deps: ApiDependencies, caller: Principal, tenants: frozenset[str] | None, window: Window
) -> dict[str, Json]:
    """`tenants`: whose figures; None: those of all."""
    scope, now_ms = FigureScope(tenants), deps.now_ms()
    begins_ms = window.begins_ms(now_ms)
    rows: list[TallyRow] = []
    for name in scope.sums:
        rows += await deps.fleet.activity.read(window.length, name, begins_ms, now_ms)
    points = _points(rows, window, begins_ms)
    together = Tally()
    for point in points:
        together.add(point)
    return {
        "window_seconds": window.span_ms // 1000,
        "step_seconds": window.step_ms // 1000,
        "starts_at": rfc3339(begins_ms),
        "series": _series(points),
        "latency": _latency(points, together),
        **await figures(deps, caller, scope.names, together, now_ms),
    }


def _points(rows: Iterable[TallyRow], window: Window, begins_ms: int) -> list[Tally]:
    points = [Tally() for _ in range(window.span_ms // window.step_ms)]
    for row in rows:
        place = (row.begins_at_ms - begins_ms) // window.step_ms
        if 0 <= place < len(points):
            points[place].add(row.tally)
    return points


def _series(points: Sequence[Tally]) -> dict[str, Json]:
    jobs = [_jobs(point) for point in points]
    return {
        "accepted": [each.accepted for each in jobs],
        "succeeded": [each.succeeded for each in jobs],
        "failed": [each.failed for each in jobs],
        "cancelled": [each.cancelled for each in jobs],
    }


def _latency(points: Sequence[Tally], together: Tally) -> list[dict[str, Json]]:
    found: list[dict[str, Json]] = []
    for name, tally in sorted(together.services.items()):
        each = [point.services.get(name, ServiceTally()).work for point in points]
        found.append(
            {
                "service": name,
                "step_type": tally.step_type or None,
                **_latency_view(tally.work),
                "p50_series": [percentile_ms(spread, 0.5) for spread in each],
                "p99_series": [percentile_ms(spread, 0.99) for spread in each],
            }
        )
    return found


async def figures(
    deps: ApiDependencies, caller: Principal, tenants: frozenset[str] | None, tally: Tally, now_ms: int
) -> dict[str, Json]:
    """What an overview shows of this moment. `tally`: of the window."""
    scope = FigureScope(tenants)
    reports = await deps.fleet.reports.all()
    places = _depths(reports)
    in_flight = [(name, jobs) for name, jobs in deps.admission.by_tenant.items() if scope.has(name)]
    in_flight.sort(key=lambda pair: (-pair[1], pair[0]))
    failed = [report.dlq_jobs for report in reports if report.dlq_jobs is not None]
    dependencies: list[dict[str, Json]] = []
    for name, check in deps.checks.items():
        note = await check()
        dependencies.append({"name": name, "ok": note is None, "note": note})
    seen = services_of(reports)
    attention = [
        *_ill(dependencies),
        *_stuck(places, seen, tally, deps.flow.view_of, now_ms),
        *_failing(tally),
        *_full(in_flight, deps.admission.tenant_max),
    ]
    attention.sort(key=lambda each: each["severity"] != ERROR)
    return {
        "as_of": rfc3339(now_ms),
        "totals": _totals(_jobs(tally)),
        "in_flight": [
            {"tenant_id": name, "jobs": jobs, "limit": deps.admission.tenant_max(name)}
            for name, jobs in in_flight[:IN_FLIGHT_SHOWN_MAX]
        ],
        "lanes": _lanes(deps, caller, reports, now_ms),
        "outbox": {
            "pending": sum(place.depth for place in places),
            "oldest_seconds": _age_seconds(_oldest_ms(places), now_ms),
        },
        "dlq": sum(failed) if failed and caller.tenants is None else None,
        "dependencies": dependencies,
        "attention": attention[:ATTENTION_MAX],
    }


def _attention(severity: str, code: str, text: str, **link: Json) -> dict[str, Json]:
    return {"severity": severity, "code": code, "text": text, "link": link}


def _ill(dependencies: Iterable[dict[str, Json]]) -> list[dict[str, Json]]:
    return [
        _attention(ERROR, "DEPENDENCY", f"{each['name']} is not well: {each['note']}", page="overview")
        for each in dependencies
        if not each["ok"]
    ]


def _stuck(
    places: Sequence[LaneDepth],
    seen: Mapping[str, ServiceReport],
    tally: Tally,
    flow_of: Callable[[str], ServiceFlowView],
    now_ms: int,
) -> list[dict[str, Json]]:
    """Services whose directives wait for long, and for what: no worker helps one that is paused."""
    found: list[dict[str, Json]] = []
    for name in sorted({place.service for place in places}):
        here = [place for place in places if place.service == name]
        depth, oldest_ms = sum(place.depth for place in here), _oldest_ms(here)
        worker = seen.get(name, ServiceReport())
        attempts = tally.services.get(name, ServiceTally())
        last_ms = max(worker.asked_at_ms or 0, attempts.seen_at_ms)
        if not depth or oldest_ms is None or now_ms - oldest_ms < STUCK_AFTER_MS:
            continue
        what = f"{_counted(depth, 'directive')} {'waits' if depth == 1 else 'wait'} for {name}"
        long = f"the oldest for {_span(now_ms - oldest_ms)}"
        flow = flow_of(name)
        if flow.pause is not None:
            reason = f" ({flow.pause.reason})" if flow.pause.reason else ""
            text = f"{what}, {long}: it is paused{reason}"
            found.append(_attention("warning", "PAUSED_SERVICE", text, page="services", service=name))
        elif flow.breaker is not None:
            failures = _counted(flow.breaker.failures, "attempt")
            text = (
                f"{what}, {long}: its last {failures} failed ({flow.breaker.error}); one at a time is tried"
            )
            found.append(_attention(ERROR, "FAILING_SERVICE", text, page="services", service=name))
        elif worker.concurrency is None and now_ms - last_ms > ASKED_LATELY_MS:
            text = f"{what}, {long}, and no worker asks for them: start one"
            found.append(_attention(ERROR, "NO_WORKER", text, page="services", service=name))
        else:
            text = f"{what}, {long}: its workers do not keep up"
            found.append(_attention("warning", "SLOW_SERVICE", text, page="services", service=name))
    return found


def _failing(tally: Tally) -> list[dict[str, Json]]:
    found: list[dict[str, Json]] = []
    for name, jobs in sorted(tally.types.items(), key=lambda pair: -pair[1].failed):
        ended = jobs.succeeded + jobs.failed
        if jobs.failed < FAILING_JOBS_MIN or jobs.failed < FAILING_SHARE * ended:
            continue
        code = max(jobs.errors, key=lambda each: jobs.errors[each], default=None)
        most = "" if code is None else f", most of them with {code}"
        text = f"{jobs.failed:,} of {ended:,} {name} jobs failed{most}"
        link = {"page": "jobs", "request_type": name, "state": JobState.FAILED_FINAL.value}
        found.append(_attention("warning", "FAILING", text, **link, **({"error_code": code} if code else {})))
    return found


def _full(in_flight: Iterable[tuple[str, int]], tenant_max: Callable[[str], int]) -> list[dict[str, Json]]:
    found: list[dict[str, Json]] = []
    for name, jobs in in_flight:
        limit = tenant_max(name)
        if jobs < NEARLY_FULL_SHARE * limit:
            continue
        full = jobs >= limit
        rest = "its limit: new commands are refused" if full else f"near its limit of {limit:,}"
        text = f"{name} has {jobs:,} jobs in flight, {rest}"
        link = {"page": "tenants", "tenant_id": name}
        found.append(_attention(ERROR if full else "warning", "TENANT_LIMIT", text, **link))
    return found


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def _span(span_ms: int) -> str:
    seconds = span_ms // 1000
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"

"""Why work waits, over a whole installation: groups of jobs that wait for the same, in words.

In: how many open jobs wait for what, which workers were seen, who is at a limit. Out: groups, what needs an
operator first. `wait_of` says what one job waits for; it looks at the record alone, so that jobs can be
counted as they move. A new reason to wait is a function in `SOURCES`.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NamedTuple

import msgspec

from lucius.core.explain import ASKED_LATELY_MS, Clock, WaitsFor, clock_at
from lucius.core.flow import FlowHold, FlowReason
from lucius.core.model import JobRecord
from lucius.core.states import JOB_TERMINAL, STEP_UNDER_WAY, Engine, JobState, StepState

GROUPS_MAX: Final = 100
TENANTS_NAMED_MAX: Final = 5
STUCK_AFTER_MS: Final = 30_000
NO_SERVICE: Final = ""

# Looked up once: the members of an enum are slow to reach, and each commit asks twice.
_PAUSED, _TEMPORAL, _FAILED_RETRY = JobState.PAUSED, Engine.TEMPORAL, StepState.FAILED_RETRY
_ENGINE, _WORKER, _PUBLISH, _ACK = WaitsFor.ENGINE, WaitsFor.WORKER, WaitsFor.PUBLISH, WaitsFor.ACK
_RESULT, _RETRY, _RESUME = WaitsFor.RESULT, WaitsFor.RETRY, WaitsFor.RESUME


class Wait(NamedTuple):
    """What an open job waits for. `failed`: something went wrong before; `late`: it is open for longer than
    its SLA."""

    waiting_for: WaitsFor
    service: str
    lane: int
    failed: bool
    late: bool


def wait_of(record: JobRecord) -> Wait | None:
    """None once the job has ended."""
    job = record.job
    if job.state in JOB_TERMINAL:
        return None
    late, step = job.escalated_at_ms is not None, record.current
    if step is None:
        return Wait(_ENGINE, NO_SERVICE, job.lane, False, late)
    waiting_for, failed = _ENGINE, False
    if job.state is _PAUSED:
        waiting_for = _RESUME
    elif record.awaits_dispatch(step):
        failed = record.outbox is not None and record.outbox.failures > 0
        published = failed or job.engine is _TEMPORAL
        waiting_for = _PUBLISH if published else _WORKER
    elif step.state in STEP_UNDER_WAY:
        waiting_for = _RESULT if step.acked else _ACK
    elif step.state is _FAILED_RETRY:
        waiting_for, failed = _RETRY, True
    return Wait(waiting_for, step.service, step.routing.lane, failed, late)


class WaitingJobs(msgspec.Struct, frozen=True, kw_only=True):
    """How many jobs of a tenant wait for the same; `tenant` None: of several."""

    wait: Wait
    tenant: str | None
    jobs: int


class WorkersSeen(msgspec.Struct, frozen=True, kw_only=True):
    """`asked_at_ms`: when one asked for work last, or gave an answer; None: none was seen. `asking`: calls
    for work that wait now. `inside`: the service runs in a process of Lucius."""

    asked_at_ms: int | None = None
    asking: int = 0
    inside: bool = False

    def are_there(self, now_ms: int) -> bool:
        return self.inside or (self.asked_at_ms is not None and now_ms - self.asked_at_ms < ASKED_LATELY_MS)


class TenantFill(msgspec.Struct, frozen=True, kw_only=True):
    tenant: str
    in_flight: int
    limit: int


class FleetFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What every group is made from. `oldest_ms`: since when the first directive of a service waits to
    leave; `over_bus`: directives go to a broker; `holds`: what keeps those of a service from leaving."""

    now_ms: int
    waiting: tuple[WaitingJobs, ...]
    workers: Mapping[str, WorkersSeen] = {}
    oldest_ms: Mapping[str, int] = {}
    tenants: tuple[TenantFill, ...] = ()
    over_bus: bool = False
    holds: Mapping[str, FlowHold] = {}
    instants: bool = False

    @property
    def clock(self) -> Clock:
        return clock_at(self.now_ms, instants=self.instants)

    def by_service(self, *kinds: WaitsFor, failed: bool | None = None) -> dict[str, "_Sum"]:
        sums: dict[str, _Sum] = {}
        for each in self.waiting:
            wait = each.wait
            if wait.waiting_for in kinds and failed in (None, wait.failed):
                sums.setdefault(wait.service, _Sum()).add(each)
        return sums


class WaitGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs that wait for the same. `since_ms`: since when the first one does, where that is known; `tenants`:
    those with most of the jobs."""

    code: str
    severity: str
    jobs: int
    text: str
    service: str | None = None
    since_ms: int | None = None
    lanes: Mapping[int, int] = {}
    tenants: tuple[tuple[str, int], ...] = ()


class _Sum:
    __slots__ = ("jobs", "lanes", "tenants")

    def __init__(self) -> None:
        self.jobs = 0
        self.lanes: Counter[int] = Counter()
        self.tenants: Counter[str] = Counter()

    def add(self, each: WaitingJobs) -> None:
        self.jobs += each.jobs
        self.lanes[each.wait.lane] += each.jobs
        if each.tenant is not None:
            self.tenants[each.tenant] += each.jobs

    def group(
        self,
        code: str,
        severity: str,
        text: str,
        *,
        service: str | None = None,
        since_ms: int | None = None,
    ) -> WaitGroup:
        return WaitGroup(
            code=code,
            severity=severity,
            jobs=self.jobs,
            text=text,
            service=service or None,
            since_ms=since_ms,
            lanes=dict(sorted(self.lanes.items())),
            tenants=tuple(self.tenants.most_common(TENANTS_NAMED_MAX)),
        )


Source = Callable[[FleetFacts], Iterable[WaitGroup]]
_SEVERITIES: Final = ("error", "warning", "info")


def why(facts: FleetFacts) -> list[WaitGroup]:
    """All groups, the worst first."""
    groups = [group for source in SOURCES for group in source(facts)]
    return sorted(groups, key=lambda each: (_SEVERITIES.index(each.severity), -each.jobs, each.text))


def counted(jobs: int, one: str, many: str) -> str:
    """`one` and `many`: what the jobs do, as in `waits` and `wait`."""
    return f"{jobs:,} job {one}" if jobs == 1 else f"{jobs:,} jobs {many}"


def _for_workers(facts: FleetFacts) -> Iterable[WaitGroup]:
    kinds = () if facts.over_bus else (WaitsFor.WORKER,)
    for service, found in facts.by_service(*kinds).items():
        if service in facts.holds:
            continue
        seen = facts.workers.get(service, WorkersSeen())
        since_ms = facts.oldest_ms.get(service)
        what = f"{counted(found.jobs, 'waits', 'wait')} for a worker of `{service}`"
        stuck = since_ms is not None and facts.now_ms - since_ms > STUCK_AFTER_MS
        if seen.are_there(facts.now_ms):
            severity, rest = ("warning" if stuck else "info"), "its workers are there and busy"
        elif seen.asked_at_ms is None:
            severity, rest = "error", "none was seen yet: start one"
        else:
            severity, rest = "error", f"its last worker was seen at {facts.clock(seen.asked_at_ms)}"
        yield found.group("WORKER", severity, f"{what}; {rest}", service=service, since_ms=since_ms)


def _for_the_publisher(facts: FleetFacts) -> Iterable[WaitGroup]:
    """Directives that go over a broker: those that its window has no room for, and those that it refused."""
    kinds = (WaitsFor.WORKER, WaitsFor.PUBLISH) if facts.over_bus else (WaitsFor.PUBLISH,)
    for service, found in facts.by_service(*kinds, failed=False).items():
        if service in facts.holds:
            continue
        since_ms = facts.oldest_ms.get(service)
        stuck = since_ms is not None and facts.now_ms - since_ms > STUCK_AFTER_MS
        text = (
            f"{counted(found.jobs, 'waits', 'wait')} for the publisher: it is behind, or `{service}` has as "
            "many directives as it may have without an ACK"
        )
        yield found.group(
            "PUBLISHER", "warning" if stuck else "info", text, service=service, since_ms=since_ms
        )
    for service, found in facts.by_service(WaitsFor.PUBLISH, failed=True).items():
        text = f"{counted(found.jobs, 'waits', 'wait')} to be published to `{service}` again: the bus refused"
        yield found.group("PUBLISH", "error", text, service=service, since_ms=facts.oldest_ms.get(service))


def _held(facts: FleetFacts) -> Iterable[WaitGroup]:
    """A limit, an open breaker or a pause of the service keeps directives from leaving."""
    for service, found in facts.by_service(WaitsFor.WORKER, WaitsFor.PUBLISH, failed=False).items():
        hold = facts.holds.get(service)
        if hold is None:
            continue
        code, severity, text = _hold_text(facts, hold, counted(found.jobs, "waits", "wait"))
        yield found.group(code, severity, text, service=service, since_ms=facts.oldest_ms.get(service))


def _hold_text(facts: FleetFacts, hold: FlowHold, who: str) -> tuple[str, str, str]:
    service, clock = hold.service, facts.clock
    if hold.pause is not None:
        why = "" if hold.pause.reason is None else f" ({hold.pause.reason})"
        return (
            "PAUSE",
            "warning",
            f"{who} for `{service}`, which is paused since {clock(hold.pause.since_ms)}{why}",
        )
    if hold.reason is FlowReason.BREAKER and hold.breaker is not None:
        breaker = hold.breaker
        text = f"{who} for `{service}` to answer again: {breaker.failures} attempts in a row failed"
        return "BREAKER", "error", f"{text} ({breaker.error}); one looks at {clock(breaker.probe_at_ms)}"
    if hold.reason is FlowReason.SLOTS:
        return "LIMIT", "info", f"{who} for a slot at `{service}`: {hold.in_use} of {hold.limit} in use"
    rate = "" if hold.rate is None else f": {hold.rate.text}"
    less = "" if hold.share >= 1 else f", {hold.share:.0%} of it for now, as it asked for less"
    return "LIMIT", "info", f"{who} for the rate of `{service}`{rate}{less}"


def _under_way(facts: FleetFacts) -> Iterable[WaitGroup]:
    for service, found in facts.by_service(WaitsFor.ACK).items():
        text = f"{counted(found.jobs, 'waits', 'wait')} for the ACK of `{service}`, which has the directives"
        yield found.group("ACK", "info", text, service=service)
    for service, found in facts.by_service(WaitsFor.RESULT).items():
        text = f"{counted(found.jobs, 'is', 'are')} being worked on by `{service}`: their leases run"
        yield found.group("RESULT", "info", text, service=service)


def _backing_off(facts: FleetFacts) -> Iterable[WaitGroup]:
    for service, found in facts.by_service(WaitsFor.RETRY).items():
        text = f"{counted(found.jobs, 'waits', 'wait')} for another attempt at `{service}` after a failure"
        yield found.group("RETRY", "warning", text, service=service)


def _paused(facts: FleetFacts) -> Iterable[WaitGroup]:
    for service, found in facts.by_service(WaitsFor.RESUME).items():
        text = f"{counted(found.jobs, 'is', 'are')} paused before `{service}`, until a client resumes them"
        yield found.group("RESUME", "info", text, service=service)


def _for_the_engine(facts: FleetFacts) -> Iterable[WaitGroup]:
    for service, found in facts.by_service(WaitsFor.ENGINE).items():
        text = f"{counted(found.jobs, 'waits', 'wait')} for the engine to begin a step at `{service}`"
        yield found.group("ENGINE", "info", text, service=service)


def _late(facts: FleetFacts) -> Iterable[WaitGroup]:
    together = _Sum()
    for each in facts.waiting:
        if each.wait.late:
            together.add(each)
    if together.jobs:
        text = (
            f"{counted(together.jobs, 'is', 'are')} open longer than the SLA: at twice its length a job "
            "fails with SLA_EXCEEDED"
        )
        yield together.group("SLA", "warning", text)


def _at_their_limit(facts: FleetFacts) -> Iterable[WaitGroup]:
    for each in facts.tenants:
        if each.in_flight >= each.limit:
            text = (
                f"`{each.tenant}` has {each.in_flight:,} jobs in flight, its limit: new commands are refused"
            )
            yield WaitGroup(
                code="TENANT_LIMIT",
                severity="error",
                jobs=each.in_flight,
                text=text,
                tenants=((each.tenant, each.in_flight),),
            )


SOURCES: Final[tuple[Source, ...]] = (
    _for_workers,
    _for_the_publisher,
    _held,
    _under_way,
    _backing_off,
    _paused,
    _for_the_engine,
    _late,
    _at_their_limit,
)

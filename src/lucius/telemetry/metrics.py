"""The metrics of a process, as Prometheus reads them.

In: commits (through `watch`), requests and commands as they end, depths that a background duty measured, and
figures that other packages keep anyway (`follow`). Out: the text. A scrape reads nothing but memory.

Labels come from closed sets (states, reasons, codes, routes) or are bounded: request types, step types and
services to the first hundred that a protocol names, tenants to the hundred with the most jobs in flight.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import nlargest
from typing import Final

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from lucius.core.model import Event, JobRecord
from lucius.core.replies import is_stopped
from lucius.core.states import Fact
from lucius.core.why import wait_of
from lucius.telemetry.open_jobs import OpenJobs, OpenPlace
from lucius.telemetry.series import (
    OTHER,
    BoundedLabels,
    LabelledCounter,
    LabelledHistogram,
    Labels,
    counter,
    gauge,
)
from lucius.telemetry.traces import sampled_trace

NAMES_MAX = 100
TENANTS_MAX = 100
ROUTES_MAX = 200
SETS_MAX = 1_000
PLACED_MAX = 4_096  # jobs whose last place is remembered, so that their next commit need not look for it

LATENCY_SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
STEP_SECONDS: Final = (0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 900, 3_600, 14_400, 86_400)
LAG_SECONDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 10, 60, 300, 1_800, 3_600)
GROUP_CALLERS: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256)

PAUSE: Final = "PAUSE"
_TIMEOUTS: Final = {"ACK_TIMEOUT": ("ack",), "LEASE_EXPIRED": ("lease",)}
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

Pull = Callable[[], Iterable[tuple[Labels, float]]]


class BacklogDepths:
    """What a background duty measured last; see the duty for how it looks, and how far."""

    def __init__(self) -> None:
        self.waiting: Mapping[str, float] = {}
        self.oldest_seconds: Mapping[str, float] = {}
        self.lanes: Mapping[int, float] = {}
        self.places: Mapping[tuple[str, int], tuple[float, int | None]] = {}
        """By service and lane, where anything waits: how many directives, and since when the first."""
        self.dlq_jobs: float = 0
        self.tenants: Mapping[str, int] = {}


class Metrics:
    def __init__(self, known_request_type: Callable[[str], bool]) -> None:
        self.depths = BacklogDepths()
        self.open = OpenJobs()
        self.counting: OpenJobs | None = None  # what takes its place once a census has ended
        self.measures = True
        """Whether a duty of this process measures depths; if another process does, that process shows
        them."""
        self.names_traces = False
        """Whether spans leave this process, so that latencies name a trace each."""
        self._placed: dict[str, tuple[JobRecord, OpenPlace]] = {}
        self._types = BoundedLabels(NAMES_MAX, known_request_type)
        self._step_types = BoundedLabels(NAMES_MAX)
        self._services = BoundedLabels(NAMES_MAX)
        self._pulled: list[tuple[str, str, Labels, Pull]] = []
        self._pulled_now: list[tuple[str, str, Labels, Pull]] = []
        self._pulled_by_tenant: list[tuple[str, str, Labels, Pull]] = []
        self._groups: Callable[[], Mapping[int, int]] = dict
        self._make_series()
        self._handlers: Mapping[Fact, Callable[[JobRecord | None, JobRecord, Event], None]] = {
            Fact.JOB_CREATED: self._created,
            Fact.JOB_SUCCEEDED: self._ended,
            Fact.JOB_FAILED: self._ended,
            Fact.JOB_CANCELLED: self._ended,
            Fact.DIRECTIVE_PUBLISHED: self._published,
            Fact.PUBLISH_FAILED: self._publish_failed,
            Fact.STEP_SUCCEEDED: self._step_ended,
            Fact.STEP_FAILED: self._step_ended,
            Fact.STEP_RETRYING: self._retrying,
            Fact.STEP_CANCELLED: self._attempt_lost,
            Fact.SLA_ESCALATED: self._escalated,
        }
        self._registry = CollectorRegistry(auto_describe=False)
        self._without_tenants = CollectorRegistry(auto_describe=False)
        for registry in (self._registry, self._without_tenants):
            ProcessCollector(registry=registry)
            registry.register(_MetricsCollector(self, tenants=registry is self._registry))

    def _make_series(self) -> None:
        def tally(name: str, help_text: str, *labels: str, sets_max: int = SETS_MAX) -> LabelledCounter:
            return LabelledCounter(f"lucius_{name}", help_text, labels, sets_max=sets_max)

        def spread(name: str, help_text: str, bounds: Sequence[float], *labels: str) -> LabelledHistogram:
            return LabelledHistogram(f"lucius_{name}", help_text, labels, bounds, sets_max=ROUTES_MAX)

        self._jobs_created = tally("jobs_created", "Jobs created", "request_type")
        self._jobs_ended = tally("jobs_ended", "Jobs that reached a terminal state", "state", "request_type")
        self._escalations = tally("sla_escalations", "Jobs open for longer than their SLA", "request_type")
        self._retries = tally("step_retries", "Attempts to be repeated, by reason", "step_type", "reason")
        self._failures = tally("step_failures", "Steps that failed finally, by reason", "step_type", "reason")
        self._timeouts = tally("timeouts", "Attempts whose ACK or lease ran out", "kind")
        self._publish_failures = tally("publish_failures", "Directives that could not be sent", "service")
        self.commands = tally("commands", "Commands by what their sender was answered", "outcome")
        self._usage = tally("usage", "What services reported with their results", "service", "name")
        self._requests = tally("http_requests", "HTTP requests", "route", "method", "status")
        self._job_seconds = spread("job_seconds", "From a job's creation to its end", STEP_SECONDS, "state")
        self._step_seconds = spread(
            "step_seconds", "From an attempt's dispatch to its step's end", STEP_SECONDS, "step_type"
        )
        self._lag_seconds = spread(
            "dispatch_lag_seconds", "From an attempt's beginning to its dispatch", LAG_SECONDS, "service"
        )
        self._request_seconds = spread(
            "http_request_seconds", "Time to the end of the answer", LATENCY_SECONDS, "route", "method"
        )
        self._counted = [self._jobs_created, self._jobs_ended, self._escalations, self._retries]
        self._counted += [self._failures, self._timeouts, self._publish_failures]
        self._counted += [self.commands, self._requests, self._usage]
        self._spread = [self._job_seconds, self._step_seconds, self._lag_seconds, self._request_seconds]

    # What happens

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        job_id = after.job.job_id
        left, entered = None if before is None else self._place_left(job_id, before), self._place(after)
        if entered is not None:
            if len(self._placed) >= PLACED_MAX:
                self._placed.clear()
            self._placed[job_id] = after, entered
        self.open.moved(job_id, left, entered)
        if self.counting is not None:
            self.counting.moved(job_id, left, entered)
        handlers = self._handlers
        for event in events:
            handler = handlers.get(event.type)
            if handler is not None:
                handler(before, after, event)
        if before is not None and after.job.usage is not before.job.usage:
            self._reported(before, events)

    def found_open(self, record: JobRecord, counted: OpenJobs | None = None) -> None:
        """An open job that a census met: see `OpenJobs`."""
        place = self._place(record)
        if place is not None:
            (self.open if counted is None else counted).found(record.job.job_id, place)

    def _place_left(self, job_id: str, before: JobRecord) -> OpenPlace | None:
        """Mostly known: `before` is what the commit before this one wrote."""
        placed = self._placed.pop(job_id, None)
        return placed[1] if placed is not None and placed[0] is before else self._place(before)

    def _place(self, record: JobRecord) -> OpenPlace | None:
        wait, job = wait_of(record), record.job
        if wait is None:
            return None
        return OpenPlace(job.state, self._types.label(job.request_type), job.tenant_norm, wait)

    def request(self, route: str, method: str, status: str, seconds: float) -> None:
        if method not in METHODS:
            method = OTHER
        self._requests.add((route, method, status))
        self._request_seconds.observe((route, method), seconds)

    # What others count

    def follow(self, name: str, help_text: str, labels: Labels, pull: Pull) -> None:
        """A counter that is kept elsewhere, read at each scrape. Its owner bounds it."""
        self._pulled.append((f"lucius_{name}", help_text, labels, pull))

    def follow_now(self, name: str, help_text: str, labels: Labels, pull: Pull) -> None:
        """The same for a figure that goes up and down."""
        self._pulled_now.append((f"lucius_{name}", help_text, labels, pull))

    def follow_by_tenant(self, name: str, help_text: str, labels: Labels, pull: Pull) -> None:
        """The same for a figure that names tenants: for callers that may see all of them."""
        self._pulled_by_tenant.append((f"lucius_{name}", help_text, labels, pull))

    def follow_groups(self, sizes: Callable[[], Mapping[int, int]]) -> None:
        """How many commits shared one transaction, by their number."""
        self._groups = sizes

    # What is measured

    def text(self, accept: str, *, tenants: bool) -> tuple[bytes, str]:
        """The exposition and its media type. Tenants by name are for callers that may see all of them."""
        encode, media_type = choose_encoder(accept)
        return encode(self._registry if tenants else self._without_tenants), media_type

    def families(self, *, tenants: bool) -> Iterable[Metric]:
        for series in self._counted:
            yield series.family()
        for spread in self._spread:
            yield spread.family()
        for name, help_text, labels, pull in self._pulled:
            yield counter(name, help_text, labels, dict(pull()))
        for name, help_text, labels, pull in self._pulled_now:
            yield gauge(name, help_text, labels, pull())
        for name, help_text, labels, pull in self._pulled_by_tenant if tenants else ():
            yield gauge(name, help_text, labels, pull())
        yield self._group_family()
        if self.measures:
            yield from self._gauges()
            yield self._tenant_family(named=tenants)

    def _group_family(self) -> Metric:
        name, help_text = "lucius_group_commit_callers", "Commits that shared one transaction"
        groups = LabelledHistogram(name, help_text, (), GROUP_CALLERS, sets_max=1)
        for size, count in self._groups().items():
            groups.observe((), size, count)
        return groups.family()

    def _gauges(self) -> Iterable[Metric]:
        depths, services = self.depths, self._services
        yield gauge("lucius_jobs_open", "Open jobs", ("state", "request_type"), self.open.counts())
        waiting = _summed(((services.label(name),), value) for name, value in depths.waiting.items())
        yield gauge("lucius_outbox_waiting", "Directives that wait for a taker", ("service",), waiting)
        oldest = [((services.label(name),), age) for name, age in depths.oldest_seconds.items()]
        yield gauge(
            "lucius_outbox_oldest_seconds",
            "Age of the directive that waits longest",
            ("service",),
            dict(sorted(oldest, key=lambda pair: pair[1])).items(),
        )
        lanes = _summed(
            ((services.label(name), f"{lane:02d}"), depths.places.get((name, lane), (0.0, None))[0])
            for name in depths.waiting
            for lane in sorted(depths.lanes)
        )
        yield gauge("lucius_lane_waiting", "Directives that wait, by lane", ("service", "lane"), lanes)
        yield gauge("lucius_dlq_jobs", "Finally failed jobs, not taken up again", (), [((), depths.dlq_jobs)])

    def _tenant_family(self, *, named: bool) -> Metric:
        tenants = self.depths.tenants
        top = nlargest(TENANTS_MAX, tenants.items(), key=lambda pair: pair[1]) if named else []
        shown = {(name,): float(count) for name, count in top if name != OTHER}
        rest = sum(tenants.values()) - sum(shown.values())
        if rest:
            shown[(OTHER,)] = rest
        return gauge("lucius_inflight_jobs", "Jobs in flight, by tenant", ("tenant",), shown.items())

    # Facts

    def _reported(self, before: JobRecord, events: Sequence[Event]) -> None:
        for event in events:
            step = before.step(event.step_id or "")
            if step is None:
                continue
            for name, number in event.data.get("usage", {}).items():
                self._usage.add((self._services.label(step.service), name), number)

    def _created(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        self._jobs_created.add((self._types.label(after.job.request_type),))

    def _ended(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        job = after.job
        state = job.state.value
        self._jobs_ended.add((state, self._types.label(job.request_type)))
        seconds = max(0, event.at_ms - job.created_at_ms) / 1000
        trace_id = sampled_trace(job.traceparent) if self.names_traces else None
        self._job_seconds.observe((state,), seconds, 1, trace_id, event.at_ms)

    def _published(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        # In one commit a reply may prove that a directive left, and the next step may begin: two rows.
        for record in (after, before):
            outbox = None if record is None else record.outbox
            if outbox is None:
                continue
            if (outbox.step_id, outbox.attempt_no) == (event.step_id, event.attempt_no):
                lag_ms = max(0, event.at_ms - outbox.created_at_ms)
                label = (self._services.label(outbox.service),)
                trace_id = sampled_trace(after.job.traceparent) if self.names_traces else None
                self._lag_seconds.observe(label, lag_ms / 1000, 1, trace_id, event.at_ms)
                return

    def _publish_failed(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        step = after.step(event.step_id or "")
        if step is not None:
            self._publish_failures.add((self._services.label(step.service),))

    def _step_ended(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        step = after.step(event.step_id or "")
        if step is None:
            return
        label = self._step_types.label(step.step_type)
        if step.attempt_began_at_ms is not None:
            taken_ms = max(0, event.at_ms - step.attempt_began_at_ms)
            trace_id = sampled_trace(after.job.traceparent) if self.names_traces else None
            self._step_seconds.observe((label,), taken_ms / 1000, 1, trace_id, event.at_ms)
        if event.type is Fact.STEP_FAILED:
            self._failures.add((label, str(event.data.get("reason", OTHER))))
            self._attempt_lost(before, after, event)

    def _retrying(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        step = after.step(event.step_id or "")
        label = OTHER if step is None else self._step_types.label(step.step_type)
        reason = PAUSE if is_stopped(event) else str(event.data.get("reason", OTHER))
        self._retries.add((label, reason))
        self._attempt_lost(before, after, event)

    def _attempt_lost(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        timeout = _TIMEOUTS.get(event.data.get("reason", ""))
        if timeout is not None:
            self._timeouts.add(timeout)

    def _escalated(self, before: JobRecord | None, after: JobRecord, event: Event) -> None:
        self._escalations.add((self._types.label(after.job.request_type),))


class _MetricsCollector(Collector):
    """What a registry asks for the families."""

    def __init__(self, metrics: Metrics, *, tenants: bool) -> None:
        self._metrics = metrics
        self._tenants = tenants

    def collect(self) -> Iterable[Metric]:
        return self._metrics.families(tenants=self._tenants)


def _summed(pairs: Iterable[tuple[Labels, float]]) -> Iterable[tuple[Labels, float]]:
    """Names beyond the bound share a label: their values are one."""
    sums: dict[Labels, float] = {}
    for labels, value in pairs:
        sums[labels] = sums.get(labels, 0) + value
    return sums.items()

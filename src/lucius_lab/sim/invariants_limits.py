"""How much is under way at once, held against the bounds of the deployment.

In: each job before and after a commit and whose commit it was, and each life of a process that begins. Out:
nothing, or a `Violation`. Where several processes accept jobs, each keeps the limits by what it knows, so
that they may add up, unless the store counts. A relay knows in each of its lives what it sent itself, and
keeps the window for that.
"""

from bisect import insort
from collections import Counter
from collections.abc import Mapping

from lucius.core.flow import NO_LIMITS, SECOND_MS, ServiceLimits
from lucius.core.model import JobRecord
from lucius.core.states import JOB_TERMINAL, JobState, Mode, OutboxState, StepState
from lucius.jobs.admission import InFlightLimits
from lucius_lab.sim.invariants_turns import TurnInvariants
from lucius_lab.sim.watch import Violation

_Sent = tuple[str, int, str, int]
"""Who, in which life, for which service, on which lane."""


class LimitInvariants:
    def __init__(
        self,
        limits: InFlightLimits,
        window: int,
        *,
        services: Mapping[str, ServiceLimits] | None = None,
        broker: bool = False,
        counted: bool = False,
        turns: TurnInvariants | None = None,
    ) -> None:
        """`services`: what each may have. `broker`: an attempt whose publish failed, or that was paused as it
        waited, may be out without a place. `counted`: the store itself keeps the limits on jobs in flight.
        `turns`: where tenants share a lane."""
        self._turns = turns
        self._services = services or {}
        self._broker = broker
        self._at_work: dict[str, tuple[str, str, str]] = {}  # by job: the lease, the service, the tenant
        self._excused: set[str] = set()  # leases
        self._left: dict[
            str, list[int]
        ] = {}  # by service: when directives left, by the clocks that decided it
        self._left_leases: set[str] = set()
        self._limits = limits
        self._counted = counted
        self._window = window
        self._api_calls: set[str] = set()
        self._relays: Counter[str] = Counter()  # lives of each
        self._open: Counter[str] = Counter()
        self._burst = 0
        # Of each job that waits for an ACK: the lease, who sent its directive in which life, and whereto.
        self._out: dict[str, tuple[str, _Sent]] = {}

    def started(self, name: str, *, opens: bool, relays: bool) -> None:
        if self._turns is not None:
            self._turns.started()
        if opens:
            self._api_calls.add(name)
        if relays:
            self._relays[name] += 1

    def changed(self, before: JobRecord | None, after: JobRecord, by: str) -> None:
        was_open = before is not None and before.job.state not in JOB_TERMINAL
        is_open = after.job.state not in JOB_TERMINAL
        if is_open is not was_open:
            self._count(after, 1 if is_open else -1)
        self._note_window(after, by)
        if self._turns is not None:
            self._turns.changed(after)
        if self._services:
            self._note_places(after)

    def _note_places(self, record: JobRecord) -> None:
        """Attempts that are out, as the ledger has it, against the limits of their service."""
        job, step = record.job, record.current
        known = self._at_work.pop(job.job_id, None)
        if job.terminal or step is None or step.lease_id is None:
            return
        if record.awaits_dispatch(step):
            failed = record.outbox is not None and record.outbox.failures > 0
            if self._broker and (failed or job.state is JobState.PAUSED):
                self._excused.add(step.lease_id)
            return
        if not record.is_under_way(step) or step.lease_id in self._excused:
            return
        place = self._at_work[job.job_id] = (step.lease_id, step.service, job.tenant_norm)
        if place == known:
            return
        limits = self._services.get(step.service) or self._services.get("*") or NO_LIMITS
        if not self._broker:
            self._note_rate(record, step.service, step.lease_id, limits)
        there = [tenant for _, service, tenant in self._at_work.values() if service == step.service]
        if limits.concurrency is not None and len(there) > limits.concurrency:
            text = f"{len(there)} attempts are out at {step.service}, of {limits.concurrency}"
            raise Violation("I18", job.job_id, text)
        of_tenant = there.count(job.tenant_norm)
        if limits.tenant_concurrency is not None and of_tenant > limits.tenant_concurrency:
            text = (
                f"{of_tenant} attempts of a tenant are out at {step.service}, of {limits.tenant_concurrency}"
            )
            raise Violation("I18", job.job_id, text)

    def _note_rate(self, record: JobRecord, service: str, lease_id: str, limits: ServiceLimits) -> None:
        """A broker takes directives as it likes: there the time of the commit says nothing of a rate."""
        rate = limits.rate
        if rate is None or lease_id in self._left_leases:
            return
        self._left_leases.add(lease_id)
        times, at_ms = self._left.setdefault(service, []), record.job.updated_at_ms
        insort(times, at_ms)
        most = rate.tokens * SECOND_MS // rate.per_ms + rate.burst
        for first_ms in [each for each in times if at_ms - SECOND_MS < each <= at_ms]:
            found = sum(first_ms <= each < first_ms + SECOND_MS for each in times)
            if found > most:
                text = f"{found} directives left for {service} within a second, of {most}"
                raise Violation("I19", record.job.job_id, text)

    def _count(self, record: JobRecord, by: int) -> None:
        job, limits = record.job, self._limits
        counters = 1 if self._counted else len(self._api_calls)
        self._open[job.tenant_norm] += by
        self._burst += by if job.mode is Mode.BURST else 0
        over = (
            ("the tenant's", self._open[job.tenant_norm], limits.tenant_max),
            ("all", self._open.total(), limits.total_max),
            ("all BURST", self._burst, limits.burst_max),
        )
        for whose, found, most in over:
            if by > 0 and found > most * counters:
                raise Violation("I14", job.job_id, f"{found} of {whose} jobs are in flight, of {most}")

    def _note_window(self, record: JobRecord, by: str) -> None:
        outbox, job_id = record.outbox, record.job.job_id
        known = self._out.pop(job_id, None)
        if outbox is None or outbox.state is not OutboxState.SENT or record.job.state in JOB_TERMINAL:
            return
        if record.steps[outbox.step_index].state is not StepState.INITIATED:
            return
        if known is None or known[0] != outbox.lease_id:
            known = (outbox.lease_id, (by, self._relays[by], outbox.service, outbox.lane))
        self._out[job_id] = known
        out = sum(sent == known[1] for _, sent in self._out.values())
        if by in self._relays and out > self._window:
            raise Violation("I14", job_id, f"{out} directives are out without an ACK: {known[1]}")

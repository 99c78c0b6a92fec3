"""The kernel of every Lucius: ledger, indexes, listeners, job writer, submit and due handling, wired once.

In: a store, a clock, ids, and what commands are measured against. Out: the parts that read and write jobs. It
runs nothing: a process adds engines and an API, and runs their duties. The embedded process, the simulation,
the fuzzer, the equivalence runner and the fixtures of the tests all build on it.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from lucius.core.states import Engine, Mode
from lucius.engines.flow_control import FlowControl
from lucius.engines.outbox.fair_share import FairShare, Weights
from lucius.jobs.admission import Admission, InFlightLimits
from lucius.jobs.budgets import Budgets
from lucius.jobs.due import DueHandler
from lucius.jobs.new_job import CommandDefaults, NewIds
from lucius.jobs.references import ReferencePolicy
from lucius.jobs.reply_backlog import DeadlineGrace
from lucius.jobs.reruns import Reruns
from lucius.jobs.scheduler import Scheduler
from lucius.jobs.sizes import SizeLimits
from lucius.jobs.submit import JobSubmitter, ModeConfig, ModePolicy
from lucius.jobs.workflows import WorkflowSignaller
from lucius.jobs.writer import InputHandler, JobWriter
from lucius.ledger.commit_listeners import CommitListeners
from lucius.ledger.indexes import Indexes
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.name_index import NameIndex
from lucius.ledger.names import Tables
from lucius.ledger.schedules import Schedules
from lucius.ledger.slots import Slots
from lucius.ledger.store import Bound, TableStore
from lucius.ledger.usage import UsageSums
from lucius.registry.port import Registry

WEEK_MS = 7 * 86_400_000


class IdSource(Protocol):
    def new_ids(self) -> NewIds: ...

    def new_lease_id(self) -> str: ...


class KernelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How jobs are stored, which commands are accepted, and what every new job gets."""

    registry: Registry
    layout: LayoutName = LayoutName.LEDGER
    tables: Tables = Tables()
    engine: Engine = Engine.OUTBOX
    sla_ms: int = WEEK_MS
    workspace_root: str = "s3://workspace"
    references: ReferencePolicy = ReferencePolicy()
    callbacks: ReferencePolicy = ReferencePolicy()
    modes: ModePolicy = ModeConfig()
    limits: InFlightLimits = InFlightLimits()
    tenant_weights: Weights = {}
    """How much of a lane a tenant gets beside others that have work there."""
    directive_bytes_max: Callable[[], int] | None = None
    """The largest message of the bus; None: directives need no bus, or one that takes any size."""

    def slot_bounds(self, tenant_norm: str, mode: Mode) -> tuple[Bound, ...]:
        return self.limits.bounds(mode, self.modes.tenant_limits.get(tenant_norm))


class Kernel:
    def __init__(
        self,
        store: TableStore,
        options: KernelOptions,
        *,
        now_ms: Callable[[], int],
        ids: IdSource,
        signaller: WorkflowSignaller | None = None,
        over_bus: bool = False,
        grace: DeadlineGrace | None = None,
        submitter: type[JobSubmitter] = JobSubmitter,
    ) -> None:
        """`signaller`: tells workflows about due rows; None: rows of jobs with workflows are left to other
        processes. `over_bus`: directives leave over a broker. `grace`: time that replies still get where
        they are behind; None: none."""
        self.options = options
        self.now_ms, self.ids = now_ms, ids
        self.ledger = JobLedger(store, options.layout, options.tables, slot_bounds=options.slot_bounds)
        self.listeners = CommitListeners()
        self.indexes = Indexes(self.ledger)
        self.fair_share = FairShare(self.indexes, options.tenant_weights)
        self.flow = FlowControl(self.ledger, options.registry.services, now_ms=now_ms, over_bus=over_bus)
        self.listeners.add(self.flow.watch)
        self.services = NameIndex(self.ledger, "services")
        self.tenants = NameIndex(self.ledger, "tenants", now_ms=now_ms)
        self.writer = JobWriter(
            self.ledger,
            self.listeners,
            now_ms=now_ms,
            new_lease_id=ids.new_lease_id,
            beat=None if grace is None else grace.beat,
        )
        self.due_handler = DueHandler(
            self.ledger, self.indexes, self.writer, now_ms=now_ms, signaller=signaller, grace=grace
        )
        self.admission = Admission(
            Slots(self.ledger), self.tenants, options.limits, lambda: options.modes.tenant_limits
        )
        self.listeners.add(self.admission.watch)
        self.usage = UsageSums(store, options.tables.meta, self.ledger.quarantine)
        self.budgets = Budgets(self.usage, lambda: options.modes.tenant_budgets, now_ms=now_ms)
        self.listeners.add(self.budgets.watch)
        self.submitter = self._submitter(submitter)
        self.reruns = Reruns(self.ledger, self.submitter, workspace_root=options.workspace_root)

    def make_scheduler(self, controls: InputHandler, *, look_every_ms: int) -> Scheduler:
        """`controls`: the writer, or the engine in front of it."""
        ledger = self.ledger
        return Scheduler(
            Schedules(ledger.store, ledger.tables.meta, ledger.quarantine),
            self.submitter,
            controls,
            ledger,
            now_ms=self.now_ms,
            look_every_ms=look_every_ms,
        )

    def _submitter(self, submitter: type[JobSubmitter]) -> JobSubmitter:
        options = self.options
        return submitter(
            self.ledger,
            options.registry,
            self.admission,
            self.services,
            options.references,
            options.callbacks,
            self.writer,
            CommandDefaults(
                engine=options.engine, sla_ms=options.sla_ms, workspace_root=options.workspace_root
            ),
            options.modes,
            now_ms=self.now_ms,
            new_ids=self.ids.new_ids,
            sizes=SizeLimits(
                directive_bytes_max=options.directive_bytes_max, job_bytes_max=self.ledger.job_bytes_max
            ),
            budgets=self.budgets,
        )

"""The processes of a simulated Lucius, built on the real kernel as the composition root does it.

In: what outlives a process (`SimWorld`), and the process that is to be. Out: its parts, and the duties that
run in it. Nothing here decides anything about jobs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import msgspec

from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.assembly.services import InProcess
from lucius.bus.memory import MemoryBus
from lucius.bus.port import directive_id
from lucius.contracts.envelope import Envelope
from lucius.core.attempt import AttemptRef
from lucius.core.refusal import Refused
from lucius.engines.index_audit import IndexAuditor
from lucius.engines.integrity import IntegrityDuty
from lucius.engines.lane_leases import LaneLeases
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.engines.outbox.far_rows import FarRows
from lucius.engines.outbox.publisher import BusPublisher, PublisherLimits
from lucius.engines.outbox.retention import Retention
from lucius.engines.outbox.retry_now import RetryNow
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.jobs.admission import InFlightLimits
from lucius.jobs.new_job import NewIds
from lucius.jobs.reply_backlog import ReplyBacklog, StartupGrace
from lucius.jobs.submit import JobSubmitter, ResolvedCommand
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.ledger.index_audit import IndexAudit
from lucius.ledger.job_deletion import JobDeletion
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.names import Tables
from lucius.ledger.store import StoreError
from lucius.registry.port import Registry
from lucius.sdk.ports import Transport
from lucius_lab.sim.bus import SimBus
from lucius_lab.sim.context import SimContext
from lucius_lab.sim.loop import Process
from lucius_lab.sim.store import SharedStoreLike, SimStore

CALLBACK_BASE = "http://lucius.test"
WORKSPACE_ROOT = "s3://workspace"
START_RETRY_SECONDS = 0.5
REVIEW_EVERY_SECONDS = 20.0
RETENTION_EVERY_SECONDS = 5.0
AUDIT_ROWS_PER_SECOND = 2_000
FAR_WALK_EVERY_MS = 60_000
RESOLVED_MAX = 4_096
SIGNING_KEY = SigningKey(kid="sim", secret="a secret that is long enough for HS256")  # noqa: S106

Duty = Callable[[], Coroutine[Any, Any, None]]
"""Begins what a process does for ever: not before it is up, and never if it dies before that."""


class PlainTokens(CallbackTokens):
    """Tokens that are looked up instead of signed: as unforgeable as the real ones, and far cheaper."""

    def __init__(self) -> None:
        super().__init__([SIGNING_KEY])
        self._minted: dict[str, AttemptRef] = {}

    def mint(self, attempt: AttemptRef) -> str:
        token = directive_id(attempt)  # as good as any: it names the attempt
        self._minted[token] = attempt
        return token

    def read(self, token: str) -> AttemptRef | None:
        return self._minted.get(token)


class _CachingSubmitter(JobSubmitter):
    """Resolves a command once and remembers it: the same comes again in every schedule, and nothing that is
    resolved depends on what happens in one."""

    def resolve(self, envelope: Envelope) -> ResolvedCommand | Refused:
        kept = _resolved.get(id(envelope))
        if kept is not None and kept[0] is envelope and kept[1] is self._registry:
            return kept[2]
        if len(_resolved) >= RESOLVED_MAX:
            _resolved.clear()
        resolved = super().resolve(envelope)
        _resolved[id(envelope)] = (envelope, self._registry, resolved)
        return resolved


_resolved: dict[int, tuple[Envelope, Registry, ResolvedCommand | Refused]] = {}


class DeploymentSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a deployment. Idle looks are rare here: each costs steps, and time costs nothing."""

    layout: LayoutName
    sla_ms: int
    look_every_ms: int
    take_look_every_ms: int
    recount_every_seconds: float
    retention_ms: int | None
    audit_every_seconds: float | None  # None: no index row is ever lost, and none is looked for
    limits: InFlightLimits
    window: int
    limited: bool  # whether services have limits
    lanes: frozenset[int]
    shared_lanes: bool  # whether reconcilers deal the lanes out among them, or all look after all


class SimWorld(msgspec.Struct, kw_only=True):
    """What outlives every process."""

    context: SimContext
    store: SharedStoreLike
    bus: MemoryBus
    broker: Process
    registry: Registry
    deployment_settings: DeploymentSettings
    tables: Tables
    numbers: Iterator[int]
    tokens: CallbackTokens


class SimParts:
    """What each process of Lucius has: the kernel, and what dispatches from its ledger."""

    def __init__(
        self,
        world: SimWorld,
        process: Process,
        *,
        reply_backlog: ReplyBacklog | None = None,
        over_bus: bool = False,
    ) -> None:
        self.world = world
        self.process = process
        settings, now_ms = world.deployment_settings, process.now_ms
        self.reply_backlog = reply_backlog
        self.grace = reply_backlog or StartupGrace(now_ms=now_ms)
        self.tokens = world.tokens
        self.kernel = kernel = Kernel(
            SimStore(world.context, world.store, process),
            KernelOptions(
                registry=world.registry,
                layout=settings.layout,
                tables=world.tables,
                sla_ms=settings.sla_ms,
                workspace_root=WORKSPACE_ROOT,
                limits=settings.limits,
            ),
            now_ms=now_ms,
            ids=self,
            over_bus=over_bus,
            grace=self.grace,
            submitter=_CachingSubmitter,
        )
        self.ledger, self.listeners, self.indexes = kernel.ledger, kernel.listeners, kernel.indexes
        self.writer, self.admission = kernel.writer, kernel.admission
        self.submitter, self.reruns = kernel.submitter, kernel.reruns
        self.retry_now = RetryNow(kernel.indexes, kernel.services, kernel.writer)
        self.dispatcher = LedgerDispatcher(
            kernel.fair_share,
            kernel.writer,
            kernel.due_handler,
            world.tokens,
            callback_base=CALLBACK_BASE,
            now_ms=now_ms,
            look_every_ms=settings.take_look_every_ms,
            lanes=settings.lanes,
            flow=kernel.flow,
        )
        kernel.flow.on_open.append(self.dispatcher.flow_opened)

    def new_ids(self) -> NewIds:
        number = next(self.world.numbers)
        return NewIds(
            job_id=f"job_{self.process.now_ms():014d}{number:012d}",
            correlation_id=f"correlation{number}",
            traceparent=f"00-{number:032x}-{number:016x}-01",
        )

    def new_lease_id(self) -> str:
        return f"lease{next(self.world.numbers)}"

    async def start(self) -> None:
        """What a process does first; one that cannot reach the ledger tries again."""
        while True:
            try:
                await self.admission.recount()
            except StoreError:
                await asyncio.sleep(START_RETRY_SECONDS)
            else:
                return

    def recounts(self) -> Duty:
        return partial(_every, self.world.deployment_settings.recount_every_seconds, self.admission.recount)

    def flows(self) -> list[Duty]:
        """What other processes wrote about limited services is looked at where there are any."""
        return [self.kernel.flow.run] if self.world.deployment_settings.limited else []

    def reviews(self) -> Duty:
        """Rows in quarantine that can be read again are let go."""
        return partial(_every, REVIEW_EVERY_SECONDS, IntegrityDuty(self.ledger, None).review)

    def sweeps(self, lanes: Callable[[], frozenset[int]]) -> Duty:
        sweeper = Sweeper(
            self.indexes,
            self.kernel.due_handler,
            now_ms=self.process.now_ms,
            look_every_ms=self.world.deployment_settings.look_every_ms,
            lanes=lanes,
            reply_backlog=self.reply_backlog,
            far=FarRows(self.indexes, now_ms=self.process.now_ms, walk_every_ms=FAR_WALK_EVERY_MS),
            beat=self.grace.beat,
        )
        self.listeners.add(sweeper.watch)
        return sweeper.run

    def audits(self, lanes: Callable[[], frozenset[int]]) -> list[Duty]:
        every_seconds = self.world.deployment_settings.audit_every_seconds
        if every_seconds is None:
            return []
        audit = IndexAudit(self.ledger, now_ms=self.process.now_ms)
        duty = IndexAuditor(
            audit, rows_per_second=AUDIT_ROWS_PER_SECOND, pass_every_seconds=every_seconds, lanes=lanes
        )
        return [duty.run]

    def forgets(self) -> list[Duty]:
        keep_ms = self.world.deployment_settings.retention_ms
        if keep_ms is None:
            return []
        retention = Retention(JobDeletion(self.ledger), now_ms=self.process.now_ms, keep_ms=keep_ms)
        return [partial(_every, RETENTION_EVERY_SECONDS, retention.look)]


def embedded(world: SimWorld, process: Process) -> tuple[SimParts, list[Duty]]:
    """One process that does everything; its services take directives by calling."""
    parts = SimParts(world, process)
    parts.listeners.add(parts.dispatcher.watch)
    parts.kernel.writer.reserve_waiter = parts.dispatcher.waiter_for
    lanes: Callable[[], frozenset[int]] = lambda: world.deployment_settings.lanes  # noqa: E731
    duties = [parts.sweeps(lanes), *parts.forgets(), *parts.audits(lanes)]
    return parts, [*duties, *parts.flows(), parts.recounts(), parts.reviews()]


def in_process(parts: SimParts, service: str) -> Transport:
    return InProcess(service, parts.dispatcher, parts.writer)


def api(world: SimWorld, process: Process) -> tuple[SimParts, list[Duty]]:
    """The API of a deployment over a broker: it creates and controls, and publishes nothing."""
    parts = SimParts(world, process, over_bus=True)
    return parts, [*parts.flows(), parts.recounts(), parts.reviews()]


def reconciler(world: SimWorld, process: Process) -> tuple[SimParts, list[Duty]]:
    """What moves jobs over a broker: publisher, reply consumer, sweeper."""
    reply_backlog = ReplyBacklog(now_ms=process.now_ms)
    parts = SimParts(world, process, reply_backlog=reply_backlog, over_bus=True)
    deployment_settings, lanes = world.deployment_settings, world.deployment_settings.lanes
    bus = SimBus(world.context, world.bus, process, world.broker)
    duties: list[Duty] = []
    own: Callable[[], frozenset[int]] = lambda: lanes  # noqa: E731
    if deployment_settings.shared_lanes:
        lane_leases = LaneLeases(parts.ledger, f"{process.name}.{process.life}", now_ms=process.now_ms)
        own = lambda: lane_leases.lanes() & lanes  # noqa: E731
        duties.append(lane_leases.run)
    publisher = BusPublisher(
        bus,
        parts.ledger,
        parts.kernel.fair_share,
        parts.kernel.services,
        parts.writer,
        parts.kernel.due_handler,
        world.tokens,
        PublisherLimits(
            window=deployment_settings.window,
            look_every_ms=deployment_settings.look_every_ms,
            publish_timeout_ms=2_000,
        ),
        callback_base=CALLBACK_BASE,
        now_ms=process.now_ms,
        lanes=own,
        flow=parts.kernel.flow,
    )
    parts.kernel.flow.on_open.append(publisher.flow_opened)
    parts.listeners.add(publisher.watch)
    consumer = ReplyConsumer(
        bus,
        parts.writer,
        ConsumerLimits(wait_ms=20_000),
        ping_ledger=parts.ledger.store.ping,
        lanes=sorted(lanes),
        reply_backlog=reply_backlog,
    )
    duties += [parts.sweeps(own), publisher.run, consumer.run, *parts.forgets(), *parts.audits(own)]
    duties += [*parts.flows(), parts.reviews()]
    return parts, duties


async def _every(seconds: float, duty: Callable[[], Awaitable[object]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await duty()
        except StoreError:
            continue  # the next time may go better

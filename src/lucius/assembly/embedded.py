"""The house: every room in its place, and what of it runs in this process.

All rooms are made whatever the process is for, since an idle one costs nothing; `Part` picks what runs.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lucius.api.access import AccessObserver
from lucius.api.dependencies import ApiDependencies
from lucius.api.job_waits import JobWaits
from lucius.api.shares import follow_calls
from lucius.api.streams import Streams
from lucius.assembly.app_configuration import AppConfiguration
from lucius.assembly.bus_wiring import BusWiring
from lucius.assembly.checks import ledger_check, protocols_check, rows_check
from lucius.assembly.clock_and_ids import new_lease_id, now_ms
from lucius.assembly.in_process import InProcess
from lucius.assembly.parts import Part, check_shareable
from lucius.assembly.running import Duties, Stoppable, every, settle_memory
from lucius.assembly.secrets import SIGNING_FOLDER, gate_of, key_ledger, signing_keys
from lucius.assembly.spans import open_spans, watch_of
from lucius.assembly.wiring import (
    make_registry,
    make_retry_now,
    make_submitter,
    make_webhooks,
    make_workspace,
    workspace_root,
)
from lucius.assembly.workflow_engine import Check, EngineDependencies, WorkflowEngine
from lucius.bus.port import Bus
from lucius.core.states import Engine
from lucius.engines.api_heartbeats import ApiHeartbeat, ApiHeartbeats
from lucius.engines.index_audit import IndexAuditor, audit_rows_per_second, follow_audit
from lucius.engines.integrity import IntegrityDuty
from lucius.engines.lane_leases import LaneLeases, all_lanes
from lucius.engines.notifications import NotificationListener
from lucius.engines.outbox.backlog import BacklogMeter, follow_engine, follow_quarantine
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.engines.outbox.far_rows import FarRows
from lucius.engines.outbox.retention import Retention
from lucius.engines.outbox.sweeper import Sweeper
from lucius.jobs.admission import Admission
from lucius.jobs.due import DueHandler
from lucius.jobs.planning import CommandPlanner
from lucius.jobs.reply_backlog import ReplyBacklog, StartupGrace
from lucius.jobs.reruns import Reruns
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.writer import InputHandler, JobWriter
from lucius.ledger.commit_listeners import CommitListeners
from lucius.ledger.direct_dispatch import DirectDispatch
from lucius.ledger.index_audit import IndexAudit
from lucius.ledger.indexes import Indexes
from lucius.ledger.job_deletion import JobDeletion
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.lists import Lists
from lucius.ledger.name_index import NameIndex
from lucius.ledger.slots import Slots
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import StoreError, TableStore
from lucius.registry.folder import FolderRegistry
from lucius.sdk import Handler, Runner, Service, Transport
from lucius.settings import Settings
from lucius.telemetry import JobSpans, Metrics, StateLog

RECOUNT_EVERY_SECONDS = 60.0
REFRESH_EVERY_SECONDS = 1.0
MONTHS_EVERY_SECONDS = 600.0
SERVICE_CONCURRENCY = 32

log = structlog.get_logger("lucius.assembly")


class Embedded:
    """Lucius in one process, or a part of it: ledger, outbox engine, API, the services it is told to run."""

    def __init__(
        self,
        store: TableStore,
        settings: Settings,
        *,
        layout: LayoutName,
        data: Path,
        base_url: str,
        protocols: Path | None,
        shared: bool = False,
        part: Part = Part.ALL,
        bus: Bus | None = None,
        engine: WorkflowEngine | None = None,
        configuration: AppConfiguration | None = None,
    ) -> None:
        """`shared`: other processes work on the same store, so what they did is looked for each second.
        `bus`: what carries directives and replies; None: directives are handed out from the ledger.
        `engine`: for jobs with workflows, which need a bus; None: there are none here.
        `configuration`: protocols and modes from App Configuration, below those of a folder."""
        if shared:
            check_shareable(store, bus)
        self._part, self._shared, self._engine = part, shared, engine
        self._engine_hears: NotificationListener | None = None
        self._store, self._data, self._settings = store, data, settings
        self._heard = None if bus is None else ReplyBacklog(now_ms=now_ms)
        self._configuration = configuration
        below = None if configuration is None else configuration.registry
        self.registry = make_registry(settings, protocols, below)
        ledger = JobLedger(store, layout, settings.tables)
        listeners, direct_dispatch, indexes = CommitListeners(), DirectDispatch(), Indexes(ledger)
        self.lists, self._quarantine = Lists(ledger), ledger.quarantine
        services = NameIndex(ledger, "services")
        tokens = CallbackTokens(signing_keys(data / SIGNING_FOLDER))
        self.progress = JobWriter(
            ledger, listeners, direct_dispatch, now_ms=now_ms, new_lease_id=new_lease_id
        )
        self.due_handler = DueHandler(
            ledger,
            indexes,
            listeners,
            now_ms=now_ms,
            new_lease_id=new_lease_id,
            signaller=None if engine is None else engine.signaller,
            grace=(grace := self._heard or StartupGrace(now_ms=now_ms)),
        )
        self.dispatcher = LedgerDispatcher(
            indexes,
            self.progress,
            self.due_handler,
            tokens,
            callback_base=base_url,
            now_ms=now_ms,
            look_every_ms=settings.look_every_ms,
        )
        self.lane_leases: LaneLeases | None = None
        if shared and part.reconciles:
            self.lane_leases = LaneLeases(ledger, new_lease_id(), now_ms=now_ms, partition=part.siblings)
        self._make_duties(ledger, indexes, services, grace)
        self.waiting = JobWaits(ledger, shared=shared, waits_max=settings.waits_max)
        self.streams = Streams(ledger, clock=time.monotonic, streams_max=settings.streams_max)
        self._bus = bus
        self.answers: InputHandler = self.progress
        if engine is not None:
            self.answers = engine.enter(self._dependencies(ledger, indexes, tokens, base_url))
        self._bus_wiring: BusWiring | None = None
        if bus is None:
            direct_dispatch.find = self.dispatcher.hand_for
        else:
            self._bus_wiring = self._make_carriage(bus, ledger, indexes, services, tokens, base_url)
        self._listen(listeners)
        self.deployment = self._make_deployment(ledger, indexes, services, listeners, direct_dispatch, tokens)
        self._duties = Duties()

    def _make_doors(
        self, ledger: JobLedger, grace: ReplyBacklog | StartupGrace
    ) -> ApiHeartbeat | ApiHeartbeats | None:
        """Without a broker, processes that take no answers have to know whether others do."""
        if not self._shared or not isinstance(grace, StartupGrace):
            return None
        if self._part is Part.RECONCILER:
            return ApiHeartbeats(ledger, grace, now_ms=now_ms)
        return ApiHeartbeat(ledger, new_lease_id())

    def _dependencies(
        self, ledger: JobLedger, indexes: Indexes, tokens: CallbackTokens, base_url: str
    ) -> EngineDependencies:
        assert self._bus is not None, "workflows send directives over a bus"
        return EngineDependencies(
            ledger=ledger,
            indexes=indexes,
            progress=self.progress,
            tokens=tokens,
            bus=self._bus,
            callback_base=base_url,
            look_every_ms=self._settings.look_every_ms,
            heard=self._heard,
        )

    def _make_carriage(
        self,
        bus: Bus,
        ledger: JobLedger,
        indexes: Indexes,
        services: NameIndex,
        tokens: CallbackTokens,
        base_url: str,
    ) -> BusWiring:
        return BusWiring(
            bus,
            ledger,
            indexes,
            services,
            self.progress,
            self.due_handler,
            tokens,
            self.dispatcher,
            self._settings,
            callback_base=base_url,
            lanes=self._lanes,
            part=self._part,
            shared=self._shared,
            replies=None if self._engine is None else self._engine.replies(),
            heard=self._heard,
        )

    @property
    def _lanes(self) -> Callable[[], frozenset[int]]:
        return all_lanes if self.lane_leases is None else self.lane_leases.lanes

    def _make_duties(
        self, ledger: JobLedger, indexes: Indexes, services: NameIndex, grace: ReplyBacklog | StartupGrace
    ) -> None:
        settings, lanes, part = self._settings, self._lanes, self._part
        self._spans = open_spans(settings, "lucius" if part is Part.ALL else f"lucius-{part.value}")
        look_every_ms, heard = settings.look_every_ms, self._heard
        self.sweeper = Sweeper(
            indexes,
            self.due_handler,
            now_ms=now_ms,
            look_every_ms=look_every_ms,
            lanes=lanes,
            heard=heard,
            far=FarRows(indexes, now_ms=now_ms),
            beat=grace.beat,
        )
        self._doors = self._make_doors(ledger, grace)
        keep_ms = settings.retention_ms
        self.retention = Retention(JobDeletion(ledger), now_ms=now_ms, keep_ms=keep_ms, lanes=lanes)
        self.webhooks = make_webhooks(settings, ledger, self._data, lanes)
        self.audit = IndexAuditor(
            IndexAudit(ledger, now_ms=now_ms),
            rows_per_second=audit_rows_per_second(settings.audit_rows_per_second, spans=ledger.store.spans),
            lanes=lanes,
        )
        store = self._store
        whole = store.integrity if isinstance(store, SqliteStore) and part.reconciles else None
        self.integrity = IntegrityDuty(ledger, whole)
        tenants = NameIndex(ledger, "tenants", now_ms=now_ms)
        self.admission = Admission(Slots(ledger), tenants, settings.limits)
        self.metrics = Metrics(lambda name: self.registry.resolve(name) is not None)
        self.depths = BacklogMeter(
            ledger,
            indexes,
            services,
            self.admission,
            self.metrics,
            now_ms=now_ms,
            lanes=lanes,
            shared=self._shared,
        )
        if not self._part.reconciles:
            self.metrics.measures = False
            self.metrics.open.census_over()  # there will be none, and nobody is to be remembered for it

    def _listen(self, listeners: CommitListeners) -> None:
        """Everybody who wants to hear of commits, in the order in which they are told."""
        hearers = (self.dispatcher, self.sweeper, self.admission, self.waiting, self.streams, self.webhooks)
        for hearer in (*hearers, self.metrics, StateLog()):
            listeners.add(hearer.watch)
        if self._spans is not None:
            listeners.add(JobSpans(self._spans.take, now_ms=now_ms).watch)
        if self._bus_wiring is not None:
            listeners.add(self._bus_wiring.watch)
        if self._engine is not None:
            listeners.add(self._engine.watch)
            self._engine.follow(self.metrics)
        follow_calls(self.metrics, self.streams.places, self.waiting.places)
        follow_engine(self.metrics, self.sweeper, self.retention, self.progress, self.webhooks, self._store)
        follow_audit(self.metrics, self.audit)
        follow_quarantine(self.metrics, self._quarantine)

    def _make_deployment(
        self,
        ledger: JobLedger,
        indexes: Indexes,
        services: NameIndex,
        listeners: CommitListeners,
        direct_dispatch: DirectDispatch,
        tokens: CallbackTokens,
    ) -> ApiDependencies:
        settings = self._settings
        keys = key_ledger(self._store, settings, now_ms, ledger.quarantine)
        submitter = make_submitter(
            settings,
            ledger,
            self.registry,
            self.admission,
            services,
            listeners,
            direct_dispatch,
            self._data,
            self._bus,
            Engine.OUTBOX if self._engine is None else self._engine.new_jobs,
            None if self._configuration is None else self._configuration.modes,
        )
        return ApiDependencies(
            gate=gate_of(settings, keys, now_ms),
            keys=keys,
            submitter=submitter,
            admission=self.admission,
            planning=CommandPlanner(submitter, self.admission, ledger, now_ms=now_ms),
            reruns=Reruns(ledger, submitter, workspace_root=workspace_root(settings, self._data)),
            progress=self.answers,
            dispatcher=self.dispatcher if self._bus_wiring is None else self._bus_wiring.leases,
            retry_now=make_retry_now(
                ledger, indexes, services, self.progress, None if self._engine is None else self.answers
            ),
            tokens=tokens,
            registry=self.registry,
            ledger=ledger,
            lists=self.lists,
            waiting=self.waiting,
            streams=self.streams,
            webhooks=self.webhooks,
            watching=AccessObserver(
                self.metrics, settings.door, clock=time.perf_counter, new_id=new_lease_id
            ),
            checks=self._checks(),
            now_ms=now_ms,
            alone=self._engine is None and not self._shared,
        )

    async def start(self, services: Mapping[str, Handler]) -> None:
        """Begins to work, with these services in the same process."""
        await self.lists.record_time(now_ms())
        await self.admission.recount()
        if self.lane_leases is not None:
            await self.lane_leases.renew()
        finishing: dict[str, Stoppable] = {}
        if self._bus_wiring is not None:
            others = await self._bus_wiring.begin(self)
            self.waiting.told = others is not None
            if self._engine is not None and others is not None:
                self._engine_hears = self._engine.connect(others)
            finishing |= self._bus_wiring.duties()
        finishing |= {f"service {name}": self._runner(name, handler) for name, handler in services.items()}
        self._duties.begin(self._loops(), finishing)
        settle_memory()

    def moved(self, job_id: str) -> None:
        """Another process has moved this job."""
        self.waiting.look_again(job_id)
        if self._engine_hears is not None:
            self._engine_hears.moved(job_id)

    def asked(self, job_id: str) -> None:
        """Another process was asked about this job."""
        if self._engine_hears is not None:
            self._engine_hears.asked(job_id)

    def _loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        recount_seconds = REFRESH_EVERY_SECONDS if self._shared else RECOUNT_EVERY_SECONDS
        loops = {
            "recount": every(recount_seconds, self.admission.recount),
            "protocols": every(REFRESH_EVERY_SECONDS, self._refresh_protocols),
            "months": every(MONTHS_EVERY_SECONDS, lambda: self.lists.record_time(now_ms())),
            "integrity": self.integrity.run(),
        }
        if self._part.reconciles:
            loops |= {
                "sweeper": self.sweeper.run(),
                "retention": self.retention.run(),
                "webhooks": self.webhooks.run(),
                "depths": self.depths.run(),
                "audit": self.audit.run(),
            }
        if self._configuration is not None:
            loops["app configuration"] = every(REFRESH_EVERY_SECONDS, self._configuration.look)
        if self._shared:
            loops["keys"] = every(REFRESH_EVERY_SECONDS, self._learn_keys)
        if self.lane_leases is not None:
            loops["lanes"] = self.lane_leases.run()
        if self._doors is not None:
            loops["doors"] = self._doors.run()
        if self._bus_wiring is not None:
            loops |= self._bus_wiring.loops()
        if self._engine is not None:
            loops |= self._engine.loops()
        return loops

    def _runner(self, name: str, handler: Handler) -> Runner:
        transport: Transport = InProcess(name, self.dispatcher, self.progress)
        if self._bus_wiring is not None:
            transport = self._bus_wiring.transport(name)
        return Runner(
            Service(name, handler),
            transport,
            make_workspace(self._settings, self._data),
            now_ms=now_ms,
            concurrency=SERVICE_CONCURRENCY,
            log=structlog.get_logger(f"lucius.service.{name}"),
            watch=None if self._spans is None else watch_of(name, self._spans.take),
        )

    def let_go(self) -> None:
        """Answers everybody who waits for a job or for work, so that the server can drain."""
        self.dispatcher.close()
        if self._bus_wiring is not None:
            self._bus_wiring.let_go()
        self.waiting.close()
        self.streams.close()

    async def stop(self) -> None:
        """Finishes what is under way, closes the ledger."""
        self.let_go()
        await self._duties.end()
        if self.lane_leases is not None:
            with suppress(StoreError):  # its row runs out by itself
                await self.lane_leases.leave()
        if self._engine is not None:
            await self._engine.close()
        if self._bus_wiring is not None:
            await self._bus_wiring.close()
        if self._configuration is not None:
            await self._configuration.close()
        if self._spans is not None:
            await self._spans.close()
        await self._store.close()

    async def _learn_keys(self) -> None:
        """After a rotation, those that were started again sign with a key that the others must know."""
        try:
            self.deployment.tokens.learn(signing_keys(self._data / SIGNING_FOLDER))
        except (OSError, msgspec.MsgspecError) as fault:
            log.warning("signing_keys_not_read", error=str(fault))

    async def _refresh_protocols(self) -> None:
        # In a thread: what people put into the folder may take long to parse, and is bounded in size alone.
        if isinstance(self.registry, FolderRegistry) and await asyncio.to_thread(self.registry.refresh):
            for problem in self.registry.problems():
                log.warning("protocol_refused", problem=problem)

    def _checks(self) -> dict[str, Check]:
        file = self._store.path if isinstance(self._store, SqliteStore) else None
        checks: dict[str, Check] = {
            "ledger": ledger_check(self._store, self._settings.tables, file),
            "ledger_rows": rows_check(self._quarantine),
            "protocols": protocols_check(self.registry),
            "duties": lambda: self._duties.check(),
        }
        if self._bus_wiring is not None:
            checks["bus"] = self._bus_wiring.check
        if self._engine is not None:
            checks |= self._engine.checks()
        if self._configuration is not None:
            checks["app_configuration"] = self._configuration.check
        return checks

"""One process of Lucius: the kernel, the engines and the API around it, and what of them runs here.

Every part is made whatever the process is for, since an idle one costs nothing; `Part` picks what runs.
`open_embedded` and `open_part` open the store of a data folder and build a process upon it.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lucius import __version__
from lucius.api.access import AccessObserver
from lucius.api.dependencies import ApiDependencies, Fleet, InstallationFacts
from lucius.api.job_feed import JobFeed
from lucius.api.job_waits import JobWaits
from lucius.api.shares import follow_calls
from lucius.api.streams import Streams
from lucius.assembly import clock_and_ids
from lucius.assembly.artifacts import BYTES_MAX as SHOWN_BYTES_MAX
from lucius.assembly.artifacts import WorkspaceArtifacts
from lucius.assembly.azure.app_configuration import LiveConfiguration, open_app_configuration
from lucius.assembly.bus import BusWiring
from lucius.assembly.clock_and_ids import new_lease_id, now_ms
from lucius.assembly.fleet_keys import agree_on_keys, callback_keys
from lucius.assembly.kernel import Kernel
from lucius.assembly.process import (
    Duties,
    Part,
    Stoppable,
    check_shareable,
    every,
    ledger_check,
    protocols_check,
    rows_check,
    settle_memory,
)
from lucius.assembly.secrets import gate_of, key_ledger
from lucius.assembly.services import InProcess
from lucius.assembly.stores import (
    claim_layout,
    is_elsewhere,
    is_shared,
    layout_of,
    ledger_folder,
    mark_layout,
    open_store,
)
from lucius.assembly.wiring import (
    SampleDocuments,
    follow_limits,
    kernel_options,
    make_registry,
    make_retry_now,
    make_webhooks,
    make_workspace,
    open_spans,
    samples_folder,
    watch_of,
)
from lucius.assembly.workflow_engine import Check, EngineDependencies, WorkflowEngine
from lucius.bus.port import Bus, BusError
from lucius.core.states import Engine
from lucius.engines.activity_rows import ActivityRows
from lucius.engines.api_heartbeats import ApiHeartbeat, ApiHeartbeats
from lucius.engines.index_audit import IndexAuditor, audit_rows_per_second, follow_audit
from lucius.engines.integrity import IntegrityDuty
from lucius.engines.lane_leases import LaneLeases, all_lanes
from lucius.engines.notifications import NotificationChannel, NotificationListener, Notifications
from lucius.engines.outbox.backlog import BacklogMeter, follow_engine, follow_quarantine
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.engines.outbox.far_rows import FarRows
from lucius.engines.outbox.retention import Retention
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.process_reports import ProcessReports, WorkerSightings
from lucius.engines.usage_duty import UsageDuty
from lucius.jobs.planning import CommandPlanner
from lucius.jobs.reply_backlog import ReplyBacklog, StartupGrace
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.writer import InputHandler
from lucius.ledger.index_audit import IndexAudit
from lucius.ledger.job_deletion import JobDeletion
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.lists import Lists
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import BoundsStore, StoreError, TableStore
from lucius.registry.folder import FolderRegistry
from lucius.sdk import Handler, Runner, Service, Transport
from lucius.settings import Settings
from lucius.telemetry import JobSpans, Metrics, StateLog
from lucius.telemetry.activity import Activity

RECOUNT_EVERY_SECONDS = 60.0
REFRESH_EVERY_SECONDS = 1.0
# Times as long as a recount took: it is a thirtieth of the process's time at most.
RECOUNT_RESTS = 30.0
MONTHS_EVERY_SECONDS = 600.0
SERVICE_CONCURRENCY = 32

log = structlog.get_logger("lucius.assembly")


class Embedded:
    """Lucius in one process, or a part of it: ledger, outbox engine, API, the services that it runs."""

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
        configuration: LiveConfiguration | None = None,
    ) -> None:
        """`shared`: other processes work on the same store, so what they did is looked for each second.
        `bus`: what carries directives and replies; None: directives are handed out from the ledger.
        `engine`: for jobs with workflows, which need a bus; None: there are none here.
        `configuration`: protocols and modes from App Configuration, below those of a folder."""
        if shared:
            check_shareable(store, bus)
        self._part, self._shared, self._engine = part, shared, engine
        self._engine_listener: NotificationListener | None = None
        self._store, self._data, self._settings, self._bus = store, data, settings, bus
        self._reply_backlog = None if bus is None else ReplyBacklog(now_ms=now_ms)
        self._configuration = configuration
        below = None if configuration is None else configuration.registry
        self.registry = make_registry(settings, protocols, below)
        self._grace = self._reply_backlog or StartupGrace(now_ms=now_ms)
        self.kernel = kernel = self._make_kernel(layout)
        self.writer, self.admission = kernel.writer, kernel.admission
        self.lists, self._quarantine = Lists(kernel.ledger, kernel.tenants), kernel.ledger.quarantine
        tokens = CallbackTokens(callback_keys(settings, data))
        self.dispatcher = LedgerDispatcher(
            kernel.fair_share,
            kernel.writer,
            kernel.due_handler,
            tokens,
            callback_base=base_url,
            now_ms=now_ms,
            look_every_ms=settings.look_every_ms,
            flow=kernel.flow,
        )
        kernel.flow.on_open.append(self.dispatcher.flow_opened)
        self.lane_leases: LaneLeases | None = None
        if shared and part.reconciles:
            self.lane_leases = LaneLeases(
                kernel.ledger, new_lease_id(), now_ms=now_ms, partition=part.siblings
            )
        self._make_duties()
        self.waiting = JobWaits(kernel.ledger, shared=shared, waits_max=settings.waits_max)
        self.streams = Streams(kernel.ledger, clock=time.monotonic, streams_max=settings.streams_max)
        self.feed = JobFeed(kernel.ledger, self.streams)
        self.inputs: InputHandler = kernel.writer
        if engine is not None:
            self.inputs = engine.enter(self._dependencies(tokens, base_url))
        self._bus_wiring: BusWiring | None = None
        if bus is None:
            kernel.writer.reserve_waiter = self.dispatcher.waiter_for
        else:
            self._bus_wiring = self._make_bus_wiring(bus, tokens, base_url)
        self.notifications = self._make_notifications()
        self.scheduler = kernel.make_scheduler(self.inputs, look_every_ms=settings.look_every_ms)
        self._listen()
        self.deployment = self._make_deployment(tokens)
        self._duties = Duties()

    def _make_kernel(self, layout: LayoutName) -> Kernel:
        engine, configuration = self._engine, self._configuration
        options = kernel_options(
            self._settings,
            self.registry,
            self._data,
            layout=layout,
            engine=Engine.OUTBOX if engine is None else engine.new_jobs,
            bus=self._bus,
            modes=None if configuration is None else configuration.modes,
        )
        return Kernel(
            self._store,
            options,
            now_ms=now_ms,
            ids=clock_and_ids,
            signaller=None if engine is None else engine.signaller,
            over_bus=self._bus is not None,
            grace=self._grace,
        )

    def _make_api_heartbeat(self) -> ApiHeartbeat | ApiHeartbeats | None:
        """Without a broker, processes that take no replies have to know whether an API does."""
        if not self._shared or not isinstance(self._grace, StartupGrace):
            return None
        if self._part is Part.RECONCILER:
            return ApiHeartbeats(self.kernel.ledger, self._grace, now_ms=now_ms)
        return ApiHeartbeat(self.kernel.ledger, new_lease_id())

    def _dependencies(self, tokens: CallbackTokens, base_url: str) -> EngineDependencies:
        assert self._bus is not None, "workflows send directives over a bus"
        return EngineDependencies(
            kernel=self.kernel,
            tokens=tokens,
            bus=self._bus,
            callback_base=base_url,
            look_every_ms=self._settings.look_every_ms,
            reply_backlog=self._reply_backlog,
            reply_tokens_required=self._settings.reply_tokens_required,
        )

    def _make_bus_wiring(self, bus: Bus, tokens: CallbackTokens, base_url: str) -> BusWiring:
        return BusWiring(
            bus,
            self.kernel,
            tokens,
            self.dispatcher,
            self._settings,
            callback_base=base_url,
            lanes=self._lanes,
            part=self._part,
            replies=None if self._engine is None else self._engine.replies(),
            reply_backlog=self._reply_backlog,
        )

    def _make_notifications(self) -> Notifications | None:
        """Between processes: over the bus if it can, else over the store."""
        bus, store = self._bus, self._store
        channel: NotificationChannel | None = None
        if isinstance(bus, NotificationChannel):
            channel = bus
        elif isinstance(store, NotificationChannel):
            channel = store
        if channel is None or not self._shared:
            return None
        # Over a bus a reconciler publishes what waits on its lanes. From the ledger every process hands out.
        publishes = bus is not None and self._part.reconciles
        return Notifications(
            channel,
            own_lanes=self._lanes if publishes else frozenset,
            now_ms=now_ms,
            look_every_ms=self._settings.look_every_ms,
        )

    @property
    def _lanes(self) -> Callable[[], frozenset[int]]:
        return all_lanes if self.lane_leases is None else self.lane_leases.lanes

    def _make_duties(self) -> None:
        kernel, ledger, indexes = self.kernel, self.kernel.ledger, self.kernel.indexes
        settings, lanes, part = self._settings, self._lanes, self._part
        self._spans = open_spans(settings, "lucius" if part is Part.ALL else f"lucius-{part.value}")
        look_every_ms, reply_backlog = settings.look_every_ms, self._reply_backlog
        self.sweeper = Sweeper(
            indexes,
            kernel.due_handler,
            now_ms=now_ms,
            look_every_ms=look_every_ms,
            lanes=lanes,
            reply_backlog=reply_backlog,
            far=FarRows(indexes, now_ms=now_ms),
            beat=self._grace.beat,
        )
        self._api_heartbeat = self._make_api_heartbeat()
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
        self.metrics = Metrics(lambda name: self.registry.resolve(name) is not None)
        self.depths = BacklogMeter(
            ledger,
            indexes,
            kernel.services,
            kernel.admission,
            self.metrics,
            now_ms=now_ms,
            lanes=lanes,
            shared=self._shared,
        )
        if not self._part.reconciles:
            self.metrics.measures = False
            self.metrics.open.census_over()  # there will be none: keep no tenants for it

        self._make_figures()

    def _make_figures(self) -> None:
        """What the pages for operators show, of which this process knows a part."""
        ledger, process = self.kernel.ledger, new_lease_id()
        self.usage_duty = UsageDuty(
            self.kernel.usage,
            self.kernel.tenants,
            now_ms=now_ms,
            spans=ledger.store.spans,
            walks=self._part.reconciles,
        )
        self.activity = Activity()
        self.activity_rows = ActivityRows(ledger, self.activity, process, now_ms=now_ms)
        self.workers = WorkerSightings(now_ms=now_ms)
        self.reports = ProcessReports(
            ledger,
            self.workers,
            self.metrics,
            process=process,
            part=self._part.value,
            version=__version__,
            shared=self._shared,
            now_ms=now_ms,
        )

    def _listen(self) -> None:
        """Adds the listeners of commits, in the order in which they are called, and what metrics follow."""
        listeners = self.kernel.listeners
        watchers = (self.dispatcher, self.sweeper, self.waiting, self.streams, self.webhooks, self.metrics)
        for watcher in (*watchers, self.activity, self.usage_duty, self.feed, StateLog()):
            listeners.add(watcher.watch)
        if self._spans is not None:
            listeners.add(JobSpans(self._spans.take, now_ms=now_ms).watch)
            self.metrics.names_traces = True
        if self._bus_wiring is not None:
            listeners.add(self._bus_wiring.watch)
            self._bus_wiring.follow(self.metrics)
        if self.notifications is not None:
            listeners.add(self.notifications.watch)
        if self._engine is not None:
            listeners.add(self._engine.watch)
            self._engine.follow(self.metrics)
        if self._part.admits:
            follow_limits(self.metrics, self.kernel)
        follow_calls(self.metrics, self.streams.places, self.waiting.places)
        follow_engine(self.metrics, self.sweeper, self.retention, self.writer, self.webhooks, self._store)
        follow_audit(self.metrics, self.audit)
        follow_quarantine(self.metrics, self._quarantine)

    def _make_deployment(self, tokens: CallbackTokens) -> ApiDependencies:
        settings, kernel, submitter = self._settings, self.kernel, self.kernel.submitter
        ledger = kernel.ledger
        keys = key_ledger(self._store, settings, now_ms, ledger.quarantine)
        return ApiDependencies(
            gate=gate_of(settings, keys, now_ms),
            keys=keys,
            submitter=submitter,
            admission=kernel.admission,
            planning=CommandPlanner(submitter, kernel.admission, ledger, now_ms=now_ms),
            reruns=kernel.reruns,
            inputs=self.inputs,
            dispatcher=self.dispatcher if self._bus_wiring is None else self._bus_wiring.leases,
            retry_now=make_retry_now(kernel, None if self._engine is None else self.inputs),
            tokens=tokens,
            registry=self.registry,
            ledger=ledger,
            lists=self.lists,
            waiting=self.waiting,
            streams=self.streams,
            feed=self.feed,
            webhooks=self.webhooks,
            scheduler=self.scheduler,
            flow=kernel.flow,
            fleet=Fleet(
                reports=self.reports,
                activity=self.activity_rows,
                tenants=kernel.tenants,
                modes=kernel.options.modes,
            ),
            usage=kernel.usage,
            workers=self.workers,
            installation=InstallationFacts(
                engine=kernel.options.engine,
                auth_required=settings.auth_required,
                oidc=settings.oidc,
                trace_link=settings.trace_link,
                artifacts=settings.artifacts_given,
            ),
            watching=AccessObserver(
                self.metrics, settings.access, clock=time.perf_counter, new_id=new_lease_id
            ),
            checks=self._checks(),
            now_ms=now_ms,
            samples=SampleDocuments(
                make_workspace(settings, self._data), samples_folder(settings, self._data)
            ),
            artifacts=WorkspaceArtifacts(make_workspace(settings, self._data, bytes_max=SHOWN_BYTES_MAX)),
            alone=self._engine is None and not self._shared,
        )

    async def start(self, services: Mapping[str, Handler]) -> None:
        """Begins to work, with these services in the same process. Fails where the store takes no writes."""
        await self._store.ping()
        await self.lists.record_time(now_ms())
        await self.admission.recount()
        await self.kernel.flow.look()  # nothing that is paused may leave
        if self.lane_leases is not None:
            await self.lane_leases.renew()
        await self._listen_to_others()
        finishing: dict[str, Stoppable] = {}
        if self._bus_wiring is not None:
            finishing |= self._bus_wiring.duties()
        for name in services:
            self.workers.runs(name, SERVICE_CONCURRENCY)
        finishing |= {f"service {name}": self._runner(name, handler) for name, handler in services.items()}
        self._duties.begin(self._loops(), finishing)
        settle_memory()

    async def _listen_to_others(self) -> None:
        if self.notifications is None:
            return
        try:
            await self.notifications.listen(self)
        except BusError as fault:
            log.warning("nudges_not_heard", error=str(fault))  # the regular look finds the same
            return
        self.waiting.notified = True
        if self._engine is not None:
            self._engine_listener = self._engine.connect(self.notifications)

    # As a `ProcessListener`: what other processes tell of.

    def work_waits(self, service: str, lane: int) -> None:
        if self._bus_wiring is None:
            self.dispatcher.nudge(service, lane)
        else:
            self._bus_wiring.work_waits(service, lane)

    def due_soon(self, lane: int, at_ms: int) -> None:
        if self._part.reconciles:
            self.sweeper.nudge(lane, at_ms)

    def has_events(self, job_id: str) -> None:
        self.streams.look_again(job_id)
        self.feed.look_again(job_id)

    def moved(self, job_id: str) -> None:
        self.waiting.look_again(job_id)
        self.streams.look_again(job_id)
        self.feed.look_again(job_id)
        if self._engine_listener is not None:
            self._engine_listener.moved(job_id)

    def asked(self, job_id: str) -> None:
        if self._engine_listener is not None:
            self._engine_listener.asked(job_id)

    def _recount_rests(self) -> float:
        """Where the store keeps the limits, a count that is out of date breaks none: then what it costs to
        read all that is in flight is bounded instead."""
        return RECOUNT_RESTS if isinstance(self._store, BoundsStore) else 0.0

    def _loops(self) -> dict[str, Coroutine[Any, Any, None]]:
        recount_seconds = REFRESH_EVERY_SECONDS if self._shared else RECOUNT_EVERY_SECONDS
        loops = {
            "recount": every(recount_seconds, self.admission.recount, rest_factor=self._recount_rests()),
            "protocols": every(REFRESH_EVERY_SECONDS, self._refresh_protocols),
            "months": every(MONTHS_EVERY_SECONDS, lambda: self.lists.record_time(now_ms())),
            "integrity": self.integrity.run(),
            "activity": self.activity_rows.run(),
            "flow": self.kernel.flow.run(),
            "usage": self.usage_duty.run(),
        }
        if self._part.admits:
            loops["schedules"] = self.scheduler.run()
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
            loops["reports"] = self.reports.run()
            loops["keys"] = every(REFRESH_EVERY_SECONDS, self._learn_keys)
        if self.lane_leases is not None:
            loops["lanes"] = self.lane_leases.run()
        if self._api_heartbeat is not None:
            loops["doors"] = self._api_heartbeat.run()
        if self.notifications is not None:
            loops["nudges"] = self.notifications.run()
        if self._engine is not None:
            loops |= self._engine.loops()
        return loops

    def _runner(self, name: str, handler: Handler) -> Runner:
        transport: Transport = InProcess(name, self.dispatcher, self.writer)
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
            acknowledges=self._bus_wiring is not None,
        )

    def let_go(self) -> None:
        """Answers the calls that wait for a job or for work, so that the server can drain."""
        self.dispatcher.close()
        if self._bus_wiring is not None:
            self._bus_wiring.let_go()
        self.waiting.close()
        self.streams.close()
        self.feed.close()

    async def stop(self) -> None:
        """Finishes what is under way, closes the ledger."""
        self.let_go()
        await self._duties.end()
        with suppress(StoreError):
            await self.activity_rows.write()  # what happened since the last write
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
            self.deployment.tokens.learn(callback_keys(self._settings, self._data))
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


async def open_embedded(
    settings: Settings,
    *,
    storage: str,
    data: Path,
    base_url: str,
    protocols: Path | None,
    bus: Bus | None = None,
) -> Embedded:
    """Everything in this process, which has the folder to itself."""
    store, configuration = await _open(Part.ALL, settings, storage, data)
    return Embedded(
        store,
        settings,
        layout=layout_of(storage),
        data=data,
        base_url=base_url,
        protocols=protocols,
        shared=is_shared(settings),
        bus=bus,
        configuration=configuration,
    )


async def open_part(
    part: Part,
    settings: Settings,
    *,
    storage: str,
    data: Path,
    base_url: str,
    protocols: Path | None,
    bus: Bus | None = None,
    engine: WorkflowEngine | None = None,
) -> Embedded:
    """One part, beside others that use the same folder."""
    store, configuration = await _open(part, settings, storage, data)
    return Embedded(
        store,
        settings,
        layout=layout_of(storage),
        data=data,
        base_url=base_url,
        protocols=protocols,
        shared=True,
        part=part,
        bus=bus,
        engine=engine,
        configuration=configuration,
    )


async def _open(
    part: Part, settings: Settings, storage: str, data: Path
) -> tuple[TableStore, LiveConfiguration | None]:
    store = await open_store(settings, storage, data)
    try:
        if is_elsewhere(settings):
            await claim_layout(store, settings.tables, layout_of(storage))
        await asyncio.to_thread(mark_layout, ledger_folder(settings, data), storage)
        await agree_on_keys(store, settings, data, part)
        return store, await open_app_configuration(settings, data)
    except BaseException:
        await store.close()
        raise

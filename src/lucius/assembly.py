"""The composition root: the one place that knows every adapter, the clock, and chance."""

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import structlog

from lucius import __version__
from lucius.api.access import Watching
from lucius.api.house import House
from lucius.api.streams import Streams
from lucius.api.waiting import Waiting
from lucius.chance import new_ids, new_lease_id, now_ms
from lucius.contracts.messages import parse_reply
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.core.states import Engine
from lucius.engines.outbox.depths import DepthDuty, follow_engine
from lucius.engines.outbox.handout import HandOuts
from lucius.engines.outbox.hurry import Hurry
from lucius.engines.outbox.retention import Retention
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.webhook_address import CallbackPolicy, system_resolver
from lucius.engines.webhook_courier import Courier
from lucius.engines.webhooks import Webhooks
from lucius.intake.admission import Admission
from lucius.intake.build import JobDefaults
from lucius.intake.planning import Planning
from lucius.intake.references import ReferencePolicy
from lucius.intake.rerun import Reruns
from lucius.intake.submit import Intake
from lucius.keyring import SIGNING_FOLDER, gate_of, key_ledger, signing_keys, webhook_secrets
from lucius.ledger.forgetting import Forgetting
from lucius.ledger.hands import Hands
from lucius.ledger.indexes import Indexes
from lucius.ledger.jobs import JobLedger, LayoutName
from lucius.ledger.known import KnownNames
from lucius.ledger.lists import Lists
from lucius.ledger.slots import Slots
from lucius.ledger.sqlite import SqliteStore
from lucius.ledger.store import StoreError, StoreUnavailable, TableStore, put
from lucius.ledger.watchers import Watchers
from lucius.progress.apply import Progress
from lucius.progress.due import DueKeeper
from lucius.progress.tokens import CallbackTokens
from lucius.registry.builtin import BuiltinRegistry
from lucius.registry.folder import FolderRegistry
from lucius.registry.port import Registry
from lucius.sdk import Answer, Handler, Runner, Service
from lucius.sdk.directive import Directive as SdkDirective
from lucius.settings import Settings
from lucius.telemetry import Metrics, Trail
from lucius.workspace import ObjectWorkspace

RECOUNT_EVERY_SECONDS = 60.0
REFRESH_EVERY_SECONDS = 1.0
REPLY_RETRY_SECONDS = 0.5
SERVICE_CONCURRENCY = 32

log = structlog.get_logger("lucius.assembly")

_APPLIED = Answer("applied")


class InProcess:
    """How services of this process get their directives and give their answers: by calling."""

    def __init__(self, service: str, handouts: HandOuts, progress: Progress) -> None:
        self._service = service
        self._handouts = handouts
        self._progress = progress

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        taken = await self._handouts.take(
            self._service,
            directives_max=max_directives,
            wait_ms=round(wait_seconds * 1000),
            picked_up=True,
        )
        return [self._handouts.message(handed, signed=False) for handed in taken]

    async def reply(self, directive: SdkDirective, message: dict[str, Json]) -> Answer:
        if message["type"] == "ACK":
            return _APPLIED  # the hand-out was its ACK
        parsed = parse_reply(message, expected=None)
        if isinstance(parsed, Refused):
            return Answer("refused", stop=True)
        job_id, reply = parsed
        while True:
            try:
                applied = await self._progress.apply(job_id, reply)
            except StoreUnavailable as fault:
                log.warning("reply_waits_for_ledger", jobId=job_id, error=str(fault))
                await asyncio.sleep(REPLY_RETRY_SECONDS)
                continue
            if isinstance(applied, Refused):
                return Answer("refused", stop=True)
            return Answer(applied.outcome.value, stop=applied.stop)


class Embedded:
    """Lucius in one process: ledger, outbox engine, API, and the services it is told to run."""

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
    ) -> None:
        """`shared`: other processes admit jobs into the same store, so counts are refreshed each second."""
        self._recount_every_seconds = REFRESH_EVERY_SECONDS if shared else RECOUNT_EVERY_SECONDS
        self._store = store
        self._data = data
        self._settings = settings
        self.registry = _registry(settings, protocols)
        ledger = JobLedger(store, layout, settings.tables)
        watchers = Watchers()
        hands = Hands()
        indexes = Indexes(ledger)
        self.lists = Lists(ledger)
        keys = key_ledger(store, settings, now_ms)
        tokens = CallbackTokens(signing_keys(data / SIGNING_FOLDER))
        self.progress = Progress(ledger, watchers, hands, now_ms=now_ms, new_lease_id=new_lease_id)
        keeper = DueKeeper(ledger, indexes, watchers, now_ms=now_ms, new_lease_id=new_lease_id)
        self.handouts = _handouts(settings, indexes, self.progress, keeper, tokens, base_url)
        self.sweeper = Sweeper(indexes, keeper, now_ms=now_ms, look_every_ms=settings.look_every_ms)
        self.retention = Retention(Forgetting(ledger), now_ms=now_ms, keep_ms=settings.retention_ms)
        self.admission = Admission(Slots(ledger), KnownNames(ledger, "tenants"), settings.limits)
        self.waiting = Waiting(ledger, now_ms=now_ms)
        services = KnownNames(ledger, "services")
        workspace_root = settings.workspace_root or (data / "workspace").resolve().as_uri()
        intake = _intake(
            settings, ledger, self.registry, self.admission, services, watchers, hands, data, workspace_root
        )
        hands.find = self.handouts.hand_for
        self.streams = Streams(ledger, clock=time.monotonic, streams_max=settings.streams_max)
        self.webhooks = _webhooks(settings, ledger, data)
        self.metrics = Metrics(lambda name: self.registry.resolve(name) is not None)
        self.depths = DepthDuty(ledger, indexes, services, self.admission, self.metrics, now_ms=now_ms)
        self._listen(watchers)
        self.house = House(
            gate=gate_of(settings, keys, now_ms),
            keys=keys,
            intake=intake,
            admission=self.admission,
            planning=Planning(intake, self.admission, ledger, now_ms=now_ms),
            reruns=Reruns(ledger, intake, workspace_root=workspace_root),
            progress=self.progress,
            handouts=self.handouts,
            hurry=Hurry(indexes, services, self.progress),
            tokens=tokens,
            registry=self.registry,
            ledger=ledger,
            lists=self.lists,
            waiting=self.waiting,
            streams=self.streams,
            webhooks=self.webhooks,
            watching=Watching(self.metrics, settings.door, clock=time.perf_counter, new_id=new_lease_id),
            checks=self._checks(),
            now_ms=now_ms,
        )
        self._runners: list[Runner] = []
        self._tasks: list[asyncio.Task[None]] = []

    def _listen(self, watchers: Watchers) -> None:
        """Everybody who wants to hear of commits, in the order in which they are told."""
        hearers = (self.handouts, self.sweeper, self.admission, self.waiting, self.streams, self.webhooks)
        for hearer in (*hearers, self.metrics, Trail()):
            watchers.add(hearer.watch)
        follow_engine(self.metrics, self.sweeper, self.retention, self.progress, self.webhooks, self._store)

    async def start(self, services: Mapping[str, Handler]) -> None:
        """Begins to work, with these services in the same process."""
        await self.lists.record_birth(now_ms())
        await self.admission.recount()
        loops: dict[str, Coroutine[Any, Any, None]] = {
            "sweeper": self.sweeper.run(),
            "retention": self.retention.run(),
            "webhooks": self.webhooks.run(),
            "depths": self.depths.run(),
            "recount": _every(self._recount_every_seconds, self.admission.recount),
            "protocols": _every(REFRESH_EVERY_SECONDS, self._refresh_protocols),
        }
        workspace = ObjectWorkspace([_resolved(self._data), *map(Path, self._settings.file_roots)])
        for name, handler in services.items():
            transport = InProcess(name, self.handouts, self.progress)
            runner = Runner(
                Service(name, handler),
                transport,
                workspace,
                now_ms=now_ms,
                concurrency=SERVICE_CONCURRENCY,
                log=structlog.get_logger(f"lucius.service.{name}"),
            )
            self._runners.append(runner)
            loops[f"service {name}"] = runner.run()
        self._tasks = [asyncio.create_task(loop, name=f"lucius {duty}") for duty, loop in loops.items()]
        settle_memory()
        for task in self._tasks:
            task.add_done_callback(_tell_of_end)

    def let_go(self) -> None:
        """Answers everybody who waits for a job or for work, so that the server can drain."""
        self.handouts.close()
        self.waiting.close()
        self.streams.close()

    async def stop(self) -> None:
        """Finishes what is under way, closes the ledger."""
        self.let_go()
        for runner in self._runners:
            runner.stop()
        background = len(self._tasks) - len(self._runners)
        if self._runners:
            await asyncio.gather(*self._tasks[background:], return_exceptions=True)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._store.close()

    async def _refresh_protocols(self) -> None:
        if isinstance(self.registry, FolderRegistry) and self.registry.refresh():
            for problem in self.registry.problems():
                log.warning("protocol_refused", problem=problem)

    def _checks(self) -> dict[str, Callable[[], Awaitable[str | None]]]:
        return {
            "ledger": self._check_ledger,
            "protocols": self._check_protocols,
            "duties": self._check_duties,
        }

    async def _check_ledger(self) -> str | None:
        # A full disk lets everybody read and takes an empty commit: only a write tells.
        written = put(self._settings.tables.meta, "checks", "ready", b"{}")
        try:
            await self._store.commit([written])
        except StoreError as fault:
            return str(fault)
        return None

    async def _check_protocols(self) -> str | None:
        return None if self.registry.all() else "no protocol is known"

    async def _check_duties(self) -> str | None:
        """A duty that ended is a fault of ours, and only a new start mends it."""
        ended = ", ".join(task.get_name() for task in self._tasks if task.done())
        return f"no longer running: {ended}" if ended else None


def settle_memory() -> None:
    """Called once everything is loaded: what lives as long as the process is not looked at by the garbage
    collector again, and short-lived rows die by reference count, so it need not look often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


async def open_embedded(
    settings: Settings, *, layout: LayoutName, data: Path, base_url: str, protocols: Path | None
) -> Embedded:
    await asyncio.to_thread(data.mkdir, parents=True, exist_ok=True, mode=0o700)
    store = await SqliteStore.open(data / "lucius.db")
    return Embedded(store, settings, layout=layout, data=data, base_url=base_url, protocols=protocols)


def _registry(settings: Settings, protocols: Path | None) -> Registry:
    builtin = BuiltinRegistry(defaults=settings.policy)
    if protocols is None:
        return builtin
    folder = FolderRegistry(protocols, builtin, settings.policy)
    folder.refresh()
    return folder


def _handouts(
    settings: Settings,
    indexes: Indexes,
    progress: Progress,
    keeper: DueKeeper,
    tokens: CallbackTokens,
    base_url: str,
) -> HandOuts:
    return HandOuts(
        indexes,
        progress,
        keeper,
        tokens,
        callback_base=base_url,
        now_ms=now_ms,
        look_every_ms=settings.look_every_ms,
    )


def _intake(
    settings: Settings,
    ledger: JobLedger,
    registry: Registry,
    admission: Admission,
    services: KnownNames,
    watchers: Watchers,
    hands: Hands,
    data: Path,
    workspace_root: str,
) -> Intake:
    references = ReferencePolicy(
        **({} if settings.reference_schemes is None else {"schemes": settings.reference_schemes}),
        hosts=settings.reference_hosts,
        containers=settings.reference_containers,
        file_roots=(str(_resolved(data)), *settings.file_roots),
    )
    defaults = JobDefaults(engine=Engine.OUTBOX, sla_ms=settings.sla_ms, workspace_root=workspace_root)
    return Intake(
        ledger,
        registry,
        admission,
        services,
        references,
        _callback_policy(settings),
        watchers,
        defaults,
        settings.modes,
        now_ms=now_ms,
        new_ids=new_ids,
        new_lease_id=new_lease_id,
        hands=hands,
    )


def _callback_policy(settings: Settings) -> CallbackPolicy:
    return CallbackPolicy(
        schemes=frozenset({"https", "http"} if settings.callback_http_allowed else {"https"}),
        hosts=settings.callback_hosts,
        private_allowed=settings.callback_private_allowed,
    )


def _webhooks(settings: Settings, ledger: JobLedger, data: Path) -> Webhooks:
    courier = Courier(
        _callback_policy(settings),
        system_resolver,
        webhook_secrets(data / SIGNING_FOLDER, now_ms).current,
        user_agent=f"Lucius-Webhooks/{__version__}",
    )
    return Webhooks(ledger, courier, now_ms=now_ms, look_every_ms=settings.look_every_ms)


def _resolved(path: Path) -> Path:
    return path.resolve()


def _tell_of_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (fault := task.exception()) is not None:
        log.error("duty_ended", duty=task.get_name(), exc_info=fault)


async def _every(seconds: float, duty: Callable[[], Awaitable[None]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await duty()
        except StoreError as fault:
            log.warning("duty_failed", error=str(fault))

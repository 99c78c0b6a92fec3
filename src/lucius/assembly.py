"""The composition root: the one place that knows every adapter, the clock, and chance."""

import asyncio
import gc
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import structlog

from lucius.api.gate import OpenGate
from lucius.api.house import House
from lucius.api.waiting import Waiting
from lucius.contracts.messages import parse_reply
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.core.states import Engine
from lucius.engines.outbox.handout import HandOuts
from lucius.engines.outbox.hurry import Hurry
from lucius.engines.outbox.retention import Retention
from lucius.engines.outbox.sweeper import Sweeper
from lucius.intake.admission import Admission
from lucius.intake.build import JobDefaults, NewIds
from lucius.intake.references import ReferencePolicy
from lucius.intake.rerun import Reruns
from lucius.intake.submit import Intake
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
from lucius.progress.tokens import CallbackTokens, SigningKey
from lucius.registry.builtin import BuiltinRegistry
from lucius.registry.folder import FolderRegistry
from lucius.registry.port import Registry
from lucius.sdk import Answer, Handler, Runner, Service
from lucius.sdk.directive import Directive as SdkDirective
from lucius.settings import Settings
from lucius.workspace import ObjectWorkspace

RECOUNT_EVERY_SECONDS = 60.0
REFRESH_EVERY_SECONDS = 1.0
REPLY_RETRY_SECONDS = 0.5
SERVICE_CONCURRENCY = 32

log = structlog.get_logger("lucius.assembly")

_ULID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def time_ordered_id(at_ms: int) -> str:
    """26 characters: 48 bits of time, 80 of chance; later ids sort after earlier ones."""
    number = (at_ms << 80) | int(_chance.hex(10), 16)
    return "".join(_ULID_ALPHABET[(number >> shift) & 31] for shift in range(125, -5, -5))


class _Chance:
    """Random hex from the system, fetched in blocks: a call into the kernel for each id adds up."""

    BLOCK_BYTES = 4_096

    def __init__(self) -> None:
        self._block = ""
        self._at = 0

    def hex(self, count_bytes: int) -> str:
        end = self._at + 2 * count_bytes
        if end > len(self._block):
            self._block = secrets.token_hex(self.BLOCK_BYTES)
            self._at, end = 0, 2 * count_bytes
        drawn = self._block[self._at : end]
        self._at = end
        return drawn


_chance = _Chance()


def new_ids() -> NewIds:
    return NewIds(
        job_id=f"job_{time_ordered_id(now_ms())}",
        correlation_id=_chance.hex(12),
        traceparent=f"00-{_chance.hex(16)}-{_chance.hex(8)}-01",
    )


def new_lease_id() -> str:
    return _chance.hex(12)


def signing_keys(folder: Path) -> list[SigningKey]:
    """The callback signing keys, the newest first; made on first use, readable by the owner only."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / "callback-keys.json"
    if not path.exists():
        key = SigningKey(kid=secrets.token_hex(4), secret=secrets.token_hex(32))
        draft = folder / f".callback-keys.{secrets.token_hex(4)}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(msgspec.json.encode([key]))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)  # whoever comes second uses the first one's key
        draft.unlink()
    return msgspec.json.decode(path.read_bytes(), type=list[SigningKey])


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
    ) -> None:
        self._store = store
        self._data = data
        self._settings = settings
        self.registry = _registry(settings, protocols)
        ledger = JobLedger(store, layout, settings.tables)
        watchers = Watchers()
        hands = Hands()
        indexes = Indexes(ledger)
        self.lists = Lists(ledger)
        tokens = CallbackTokens(signing_keys(data / "keys"))
        self.progress = Progress(ledger, watchers, hands, now_ms=now_ms, new_lease_id=new_lease_id)
        keeper = DueKeeper(ledger, indexes, watchers, now_ms=now_ms, new_lease_id=new_lease_id)
        self.handouts = HandOuts(
            indexes,
            self.progress,
            keeper,
            tokens,
            callback_base=base_url,
            now_ms=now_ms,
            look_every_ms=settings.look_every_ms,
        )
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
        for watcher in (self.handouts.watch, self.sweeper.watch, self.admission.watch, self.waiting.watch):
            watchers.add(watcher)
        self.house = House(
            gate=OpenGate(),
            intake=intake,
            reruns=Reruns(ledger, intake, workspace_root=workspace_root),
            progress=self.progress,
            handouts=self.handouts,
            hurry=Hurry(indexes, services, self.progress),
            tokens=tokens,
            registry=self.registry,
            ledger=ledger,
            lists=self.lists,
            waiting=self.waiting,
            checks={
                "ledger": self._check_ledger,
                "protocols": self._check_protocols,
                "duties": self._check_duties,
            },
            now_ms=now_ms,
        )
        self._runners: list[Runner] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, services: Mapping[str, Handler]) -> None:
        """Begins to work, with these services in the same process."""
        await self.lists.record_birth(now_ms())
        await self.admission.recount()
        loops: dict[str, Coroutine[Any, Any, None]] = {
            "sweeper": self.sweeper.run(),
            "retention": self.retention.run(),
            "recount": _every(RECOUNT_EVERY_SECONDS, self.admission.recount),
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
    callbacks = ReferencePolicy(schemes=frozenset({"https"}), hosts=settings.callback_hosts)
    defaults = JobDefaults(engine=Engine.OUTBOX, sla_ms=settings.sla_ms, workspace_root=workspace_root)
    return Intake(
        ledger,
        registry,
        admission,
        services,
        references,
        callbacks,
        watchers,
        defaults,
        settings.modes,
        now_ms=now_ms,
        new_ids=new_ids,
        new_lease_id=new_lease_id,
        hands=hands,
    )


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

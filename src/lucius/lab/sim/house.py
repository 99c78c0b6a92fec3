"""The processes of a simulated Lucius, composed from the real rooms as the composition root does it.

In: what outlives a process (`World`), and the process that is to be. Out: its rooms, and the duties that run
in it. Nothing here decides anything about jobs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from functools import partial
from typing import Any

import msgspec

from lucius.assembly.in_process import InProcess
from lucius.bus.memory import MemoryBus
from lucius.contracts.envelope import Envelope
from lucius.core.refusal import Refused
from lucius.core.states import Engine
from lucius.engines.integrity import IntegrityDuty
from lucius.engines.outbox.audit import AuditDuty
from lucius.engines.outbox.far_rows import FarRows
from lucius.engines.outbox.handout import HandOuts
from lucius.engines.outbox.hurry import Hurry
from lucius.engines.outbox.lanes import LaneShare
from lucius.engines.outbox.relay import Relay, RelayLimits
from lucius.engines.outbox.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.engines.outbox.retention import Retention
from lucius.engines.outbox.sweeper import Sweeper
from lucius.intake.admission import Admission, Limits
from lucius.intake.build import JobDefaults, NewIds
from lucius.intake.references import ReferencePolicy
from lucius.intake.rerun import Reruns
from lucius.intake.submit import Intake, ModeConfig, Resolved
from lucius.lab.sim.bus import SimBus
from lucius.lab.sim.loop import Process
from lucius.lab.sim.scene import Scene
from lucius.lab.sim.store import Shared, SimStore
from lucius.ledger.audit import IndexAudit
from lucius.ledger.forgetting import Forgetting
from lucius.ledger.hands import Hands
from lucius.ledger.indexes import Indexes
from lucius.ledger.jobs import JobLedger, LayoutName
from lucius.ledger.known import KnownNames
from lucius.ledger.names import Tables
from lucius.ledger.slots import Slots
from lucius.ledger.store import StoreError
from lucius.ledger.watchers import Watchers
from lucius.progress.apply import Progress
from lucius.progress.due import DueKeeper
from lucius.progress.heard import Heard, JustOpened
from lucius.progress.tokens import Attempt, CallbackTokens, SigningKey
from lucius.registry.port import Registry
from lucius.sdk.ports import Transport

CALLBACK_BASE = "http://lucius.test"
WORKSPACE_ROOT = "s3://workspace"
START_RETRY_SECONDS = 0.5
REVIEW_EVERY_SECONDS = 20.0
FORGET_EVERY_SECONDS = 5.0
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
        self._minted: dict[str, Attempt] = {}

    def mint(self, attempt: Attempt) -> str:
        token = f"{attempt.job_id}.{attempt.step_id}.{attempt.attempt_no}.{attempt.lease_id}"
        self._minted[token] = attempt
        return token

    def read(self, token: str) -> Attempt | None:
        return self._minted.get(token)


class _Intake(Intake):
    """Resolves a command once and remembers it: the same comes again in every schedule, and nothing that is
    resolved depends on what happens in one."""

    def resolve(self, envelope: Envelope) -> Resolved | Refused:
        kept = _resolved.get(id(envelope))
        if kept is not None and kept[0] is envelope and kept[1] is self._registry:
            return kept[2]
        if len(_resolved) >= RESOLVED_MAX:
            _resolved.clear()
        resolved = super().resolve(envelope)
        _resolved[id(envelope)] = (envelope, self._registry, resolved)
        return resolved


_resolved: dict[int, tuple[Envelope, Registry, Resolved | Refused]] = {}


class Habits(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a deployment. Idle looks are rare here: each costs steps, and time costs nothing."""

    layout: LayoutName
    sla_ms: int
    look_every_ms: int
    take_look_every_ms: int
    recount_every_seconds: float
    retention_ms: int | None
    audit_every_seconds: float | None  # None: no index row is ever lost, and none is looked for
    limits: Limits
    window: int
    lanes: frozenset[int]
    shared_lanes: bool  # whether reconcilers deal the lanes out among them, or all look after all


class World(msgspec.Struct, kw_only=True):
    """What outlives every process."""

    scene: Scene
    store: Shared
    bus: MemoryBus
    broker: Process
    registry: Registry
    habits: Habits
    tables: Tables
    numbers: Iterator[int]
    tokens: CallbackTokens


class Rooms:
    """What each orchestrator process has: the ledger, and whoever reads or writes it."""

    def __init__(
        self, world: World, process: Process, *, hands: Hands | None = None, heard: Heard | None = None
    ) -> None:
        self.world = world
        self.process = process
        habits, now_ms = world.habits, process.now_ms
        self.hands = hands or Hands()
        self.heard = heard
        self.patience = heard or JustOpened(now_ms=now_ms)
        self.tokens = world.tokens
        self.ledger = JobLedger(SimStore(world.scene, world.store, process), habits.layout, world.tables)
        self.watchers = Watchers()
        self.indexes = Indexes(self.ledger)
        self.services = KnownNames(self.ledger, "services")
        self.progress = Progress(
            self.ledger, self.watchers, self.hands, now_ms=now_ms, new_lease_id=self.new_lease_id
        )
        self.keeper = DueKeeper(
            self.ledger,
            self.indexes,
            self.watchers,
            now_ms=now_ms,
            new_lease_id=self.new_lease_id,
            patience=self.patience,
        )
        tenants = KnownNames(self.ledger, "tenants", now_ms=now_ms)
        self.admission = Admission(Slots(self.ledger), tenants, habits.limits)
        self.intake = self._intake()
        self.reruns = Reruns(self.ledger, self.intake, workspace_root=WORKSPACE_ROOT)
        self.hurry = Hurry(self.indexes, self.services, self.progress)
        self.handouts = HandOuts(
            self.indexes,
            self.progress,
            self.keeper,
            world.tokens,
            callback_base=CALLBACK_BASE,
            now_ms=now_ms,
            look_every_ms=habits.take_look_every_ms,
            lanes=habits.lanes,
        )
        self.watchers.add(self.admission.watch)

    def _intake(self) -> Intake:
        return _Intake(
            self.ledger,
            self.world.registry,
            self.admission,
            self.services,
            ReferencePolicy(),
            ReferencePolicy(),
            self.watchers,
            JobDefaults(engine=Engine.OUTBOX, sla_ms=self.world.habits.sla_ms, workspace_root=WORKSPACE_ROOT),
            ModeConfig(),
            now_ms=self.process.now_ms,
            new_ids=self.new_ids,
            new_lease_id=self.new_lease_id,
            hands=self.hands,
        )

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
        return partial(_every, self.world.habits.recount_every_seconds, self.admission.recount)

    def reviews(self) -> Duty:
        """Rows in quarantine that can be read again are let go."""
        return partial(_every, REVIEW_EVERY_SECONDS, IntegrityDuty(self.ledger, None).review)

    def sweeps(self, lanes: Callable[[], frozenset[int]]) -> Duty:
        sweeper = Sweeper(
            self.indexes,
            self.keeper,
            now_ms=self.process.now_ms,
            look_every_ms=self.world.habits.look_every_ms,
            lanes=lanes,
            heard=self.heard,
            far=FarRows(self.indexes, now_ms=self.process.now_ms, walk_every_ms=FAR_WALK_EVERY_MS),
            beat=self.patience.beat,
        )
        self.watchers.add(sweeper.watch)
        return sweeper.run

    def audits(self, lanes: Callable[[], frozenset[int]]) -> list[Duty]:
        every_seconds = self.world.habits.audit_every_seconds
        if every_seconds is None:
            return []
        audit = IndexAudit(self.ledger, now_ms=self.process.now_ms)
        duty = AuditDuty(
            audit, rows_per_second=AUDIT_ROWS_PER_SECOND, pass_every_seconds=every_seconds, lanes=lanes
        )
        return [duty.run]

    def forgets(self) -> list[Duty]:
        keep_ms = self.world.habits.retention_ms
        if keep_ms is None:
            return []
        retention = Retention(Forgetting(self.ledger), now_ms=self.process.now_ms, keep_ms=keep_ms)
        return [partial(_every, FORGET_EVERY_SECONDS, retention.look)]


def embedded(world: World, process: Process) -> tuple[Rooms, list[Duty]]:
    """One process that does everything; its services take directives by calling."""
    rooms = Rooms(world, process)
    rooms.watchers.add(rooms.handouts.watch)
    rooms.hands.find = rooms.handouts.hand_for
    lanes: Callable[[], frozenset[int]] = lambda: world.habits.lanes  # noqa: E731
    duties = [rooms.sweeps(lanes), *rooms.forgets(), *rooms.audits(lanes)]
    return rooms, [*duties, rooms.recounts(), rooms.reviews()]


def in_process(rooms: Rooms, service: str) -> Transport:
    return InProcess(service, rooms.handouts, rooms.progress)


def api(world: World, process: Process) -> tuple[Rooms, list[Duty]]:
    """The door of a deployment over a broker: it creates and controls, and publishes nothing."""
    rooms = Rooms(world, process)
    return rooms, [rooms.recounts(), rooms.reviews()]


def reconciler(world: World, process: Process) -> tuple[Rooms, list[Duty]]:
    """What moves jobs over a broker: relay, reply consumer, sweeper."""
    heard = Heard(now_ms=process.now_ms)
    rooms = Rooms(world, process, heard=heard)
    habits, lanes = world.habits, world.habits.lanes
    bus = SimBus(world.scene, world.bus, process, world.broker)
    duties: list[Duty] = []
    own: Callable[[], frozenset[int]] = lambda: lanes  # noqa: E731
    if habits.shared_lanes:
        share = LaneShare(rooms.ledger, f"{process.name}.{process.life}", now_ms=process.now_ms)
        own = lambda: share.lanes() & lanes  # noqa: E731
        duties.append(share.run)
    relay = Relay(
        bus,
        rooms.ledger,
        rooms.indexes,
        rooms.services,
        rooms.progress,
        rooms.keeper,
        world.tokens,
        RelayLimits(window=habits.window, look_every_ms=habits.look_every_ms, publish_timeout_ms=2_000),
        callback_base=CALLBACK_BASE,
        now_ms=process.now_ms,
        lanes=own,
    )
    rooms.watchers.add(relay.watch)
    consumer = ReplyConsumer(
        bus,
        rooms.progress,
        ConsumerLimits(wait_ms=20_000),
        ping_ledger=rooms.ledger.store.ping,
        lanes=sorted(lanes),
        heard=heard,
    )
    duties += [rooms.sweeps(own), relay.run, consumer.run, *rooms.forgets(), *rooms.audits(own)]
    duties.append(rooms.reviews())
    return rooms, duties


async def _every(seconds: float, duty: Callable[[], Awaitable[object]]) -> None:
    while True:
        await asyncio.sleep(seconds)
        try:
            await duty()
        except StoreError:
            continue  # the next time may go better

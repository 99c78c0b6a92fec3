"""The processes of a simulation as a whole: who is there, who dies and comes back, whose clock is wrong."""

from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextvars import Context
from enum import StrEnum
from typing import Any

from lucius.core.model import Json
from lucius.sdk.bus_transport import BusTransport
from lucius.sdk.ports import Transport
from lucius_lab.sim.api_calls import ApiCalls, ApiTransport
from lucius_lab.sim.bus import SimBus
from lucius_lab.sim.deployment import Duty, SimParts, SimWorld, api, embedded, in_process, reconciler
from lucius_lab.sim.faults import FaultKind, Site
from lucius_lab.sim.loop import Process
from lucius_lab.sim.watch import Violation
from lucius_lab.sim.workers import SEEN_MAX, Behaviour, SimTransport, run_service

NEMESIS_EVERY_SECONDS = 2.0
RESTART_SECONDS_MIN = 0.2
RESTART_SECONDS_SPAN = 6.0
SKEW_MS_MAX = 2_000
AHEAD_MS_MIN = 120_000
JUMP_MS_MAX = 3_456_000_000  # 40 days
FREEZE_SECONDS_MAX = 15.0
# On a store that cannot span, a creator that sleeps through its grace period and then dies may leak a slot
# (decision 003). Standstills stay below that period there, and no other process counts it by a wrong clock.
GRACE_FREEZE_SECONDS_MAX = 7.0

_NONE: frozenset[str] = frozenset()
_ALL = frozenset({"ACK", "PROGRESS", "RESULT"})
_NO_ACKS = _ALL - {"ACK"}

Boot = Callable[[Process], Coroutine[Any, Any, None]]


class ClusterTopology(StrEnum):
    EMBEDDED = "embedded"  # one process with everything
    WORKERS = "workers"  # one orchestrator process, workers that lease over HTTP
    BROKER = "broker"  # API processes, reconcilers, services on a bus


class Cluster:
    def __init__(
        self, world: SimWorld, behaviours: Mapping[str, Behaviour], services: tuple[str, ...]
    ) -> None:
        self.world = world
        self.context = world.context
        self.api_calls = ApiCalls(world.context)
        self.seen: deque[dict[str, Json]] = deque(maxlen=SEEN_MAX)
        self.living: dict[str, Process] = {}
        self._boots: dict[str, Boot] = {}
        self._roles: dict[str, tuple[bool, bool]] = {}
        self._behaviours = behaviours
        self._services = services
        self._indexes = 0
        self._everybody: list[Process] = [world.broker]
        self._closing = False
        self.context.on_death = self._died

    # Who there is

    def settle(self, topology: ClusterTopology, chance: int) -> None:
        if topology is ClusterTopology.EMBEDDED:
            self.begin("lucius", lambda process: self._embedded(process, with_services=True), opens=True)
        elif topology is ClusterTopology.WORKERS:
            self.begin("lucius", lambda process: self._embedded(process, with_services=False), opens=True)
            self._workers(chance)
        else:
            for number in range(1 + (chance & 1)):
                self.begin(f"api-{number + 1}", self._api, opens=True)
            for number in range(1 + (chance >> 1 & 1)):
                self.begin(f"reconciler-{number + 1}", self._reconciler, relays=True)
            self._workers(chance >> 2)

    def _workers(self, chance: int) -> None:
        for at, service in enumerate(self._services):
            for number in range(1 + (chance >> at & 1)):
                self.begin(f"{service}-{number + 1}", self._worker(service))

    def begin(self, name: str, boot: Boot, *, opens: bool = False, relays: bool = False) -> Process:
        """`opens`: clients may call it; `relays`: it sends directives to a broker."""
        self._boots[name] = boot
        self._roles[name] = (opens, relays)
        self._indexes += 1
        return self._live(Process(self.context.loop, name, self._indexes))

    def outsider(self, name: str) -> Process:
        """A process that never dies: clients, forgers."""
        self._indexes += 1
        process = Process(self.context.loop, name, self._indexes, mortal=False)
        self._everybody.append(process)
        return process

    def close(self) -> None:
        """Ends all processes."""
        self._closing = True
        for process in self._everybody:
            self.context.loop.put_away(process)

    # Lives

    def _live(self, process: Process) -> Process:
        self.living[process.name] = process
        self._everybody.append(process)
        self._look_at_wall(process)
        self.context.trace.act(process, "starts", f"life {process.life}")
        if self.context.watch is not None:
            opens, relays = self._roles[process.name]
            self.context.watch.started(process.name, opens=opens, relays=relays, offset_ms=process.offset_ms)
        process.spawn(self._boots[process.name](process), name="boot")
        return process

    def _look_at_wall(self, process: Process) -> None:
        """A process believes the clock that it begins with."""
        faults = self.context.faults
        kind, part = faults.at(Site.BIRTH, process), (faults.entropy & 1023) / 1023
        if abs(process.offset_ms) > SKEW_MS_MAX:
            process.offset_ms = 0
        if kind is FaultKind.CLOCK_SKEW:
            process.offset_ms = round(SKEW_MS_MAX * (2 * part - 1))
        elif kind is FaultKind.CLOCK_AHEAD and (self.world.store.spans or not self.broker):
            process.offset_ms = AHEAD_MS_MIN + round(part * part * (JUMP_MS_MAX - AHEAD_MS_MIN))
        else:
            return
        self.context.fault(kind, process, f"by {process.offset_ms:+d} ms")

    def _died(self, process: Process) -> None:
        self.api_calls.closed(process)
        self.living.pop(process.name, None)
        if self._closing or process.name not in self._boots:
            return
        chance = hash((process.life, process.index, self.context.faults.seed, 11)) >> 9 & 1023
        seconds = RESTART_SECONDS_MIN + RESTART_SECONDS_SPAN * chance / 1023
        successor = Process(
            process.loop, process.name, process.index, life=process.life + 1, offset_ms=process.offset_ms
        )
        process.loop.call_later(seconds, self._live, successor, context=Context())

    def _duties(self, process: Process, duties: list[Duty]) -> None:
        for duty in duties:
            task = process.spawn(duty(), name="duty")
            task.add_done_callback(lambda ended, process=process: self._ended(process, ended))  # type: ignore[misc]

    def _ended(self, process: Process, task: Any) -> None:
        if process.dead or self._closing:
            return
        fault = None if task.cancelled() else task.exception()
        self.context.broken(Violation("UNEXPECTED", "", f"a duty of {process.name} ended: {fault!r}"))

    async def _embedded(self, process: Process, *, with_services: bool) -> None:
        parts, duties = embedded(self.world, process)
        await parts.start()
        if with_services:
            for service in self._services:
                duties.append(self._run(process, service, in_process(parts, service), _NO_ACKS))
        self._open(parts, duties)

    async def _api(self, process: Process) -> None:
        parts, duties = api(self.world, process)
        await parts.start()
        self._open(parts, duties)

    async def _reconciler(self, process: Process) -> None:
        parts, duties = reconciler(self.world, process)
        await parts.start()
        self._duties(process, duties)

    def _worker(self, service: str) -> Boot:
        async def boot(process: Process) -> None:
            transport: Transport
            if self.broker:
                bus = SimBus(self.context, self.world.bus, process, self.world.broker)
                transport = BusTransport(
                    bus,
                    service,
                    now_ms=self.context.loop.now_ms,
                    lanes=sorted(self.world.deployment_settings.lanes),
                )
            else:
                transport = ApiTransport(self.api_calls, service, process)
            self._duties(process, [self._run(process, service, transport, _NONE if self.broker else _ALL)])

        return boot

    def _run(self, process: Process, service: str, transport: Transport, answered: frozenset[str]) -> Duty:
        wrapped = SimTransport(self.context, transport, process, self.seen, answered=answered)
        return run_service(self.context, process, service, wrapped, self._behaviours[service]).run

    def _open(self, parts: SimParts, duties: list[Duty]) -> None:
        self._duties(parts.process, duties)
        self.api_calls.opened(parts)

    @property
    def broker(self) -> bool:
        return any(relays for _, relays in self._roles.values())

    # What befalls them

    async def nemesis(self) -> None:
        """Clocks that are set and drift, processes that stand still; at the end all clocks are right again
        but for what a deployment must live with, and a process that began with a wrong one begins again."""
        loop, faults = self.context.loop, self.context.faults
        while loop.time() < faults.quiet_at:
            await loop.pause(NEMESIS_EVERY_SECONDS)
            for process in list(self.living.values()):
                kind = faults.at(Site.NEMESIS, process)
                if kind is not None:
                    self._befall(process, kind, faults.entropy)
                elif abs(process.offset_ms) > SKEW_MS_MAX:
                    process.set_wall(0)
                    if self._is_ahead(process) and faults.entropy & 1:
                        self.context.kill(process)
        for process in list(self.living.values()):
            process.set_wall(max(-SKEW_MS_MAX, min(SKEW_MS_MAX, process.offset_ms)))
            if self._is_ahead(process):
                self.context.kill(process)

    def _is_ahead(self, process: Process) -> bool:
        """It began with a clock that ran ahead, and goes by it still."""
        return process.now_ms() - self.context.loop.now_ms() > AHEAD_MS_MIN // 2

    def _befall(self, process: Process, kind: FaultKind, chance: int) -> None:
        part, spans = (chance & 1023) / 1023, self.world.store.spans
        if kind is FaultKind.PROCESS_FREEZE:
            seconds = (FREEZE_SECONDS_MAX if spans else GRACE_FREEZE_SECONDS_MAX) * part * part
            process.freeze(seconds)
            now, now_ms = process.loop.time(), process.loop.now_ms()
            self.context.fault(kind, process, f"for {process.frozen_until - now:.3f} s")
            if self.context.watch is not None:
                self.context.watch.stood_still(
                    process.name,
                    from_ms=now_ms - round((now - process.frozen_from) * 1000),
                    until_ms=now_ms + round((process.frozen_until - now) * 1000),
                )
            return
        if kind is FaultKind.CLOCK_SKEW:
            process.set_wall(round(SKEW_MS_MAX * (2 * part - 1)))
        else:
            jump_ms = round(part**4 * JUMP_MS_MAX)
            process.set_wall(jump_ms if chance >> 10 & 1 else -jump_ms)
        self.context.fault(kind, process, f"to {process.offset_ms:+d} ms")

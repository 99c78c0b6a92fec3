"""The dispatcher: attempts of jobs leave for workers that wait, straight from the ledger.

In: polls of workers over HTTP or in this process, and commits that left an attempt to hand out. Out: attempts
whose hand-out is committed. A hand-out that has begun is carried to its end, also where the worker that waits
for it goes away: it is kept for the next poll.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from lucius.bus.wake import WakeEvent
from lucius.contracts.messages import directive
from lucius.core.attempt import AttemptRef
from lucius.core.decide import is_dispatchable
from lucius.core.flow import FlowRequest
from lucius.core.inputs import HandOut
from lucius.core.model import Event, JobRecord, Json, Outbox, Step
from lucius.core.refusal import Refused
from lucius.core.routing import LANES
from lucius.engines.flow_control import ALL_SERVICES, FREE, FlowGate, Grant, UnlimitedFlow, await_time
from lucius.engines.outbox.fair_share import FairShare, TenantTurns
from lucius.jobs.due import DueHandler
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.writer import JobWriter
from lucius.ledger.indexes import DispatchEntry
from lucius.ledger.store import StoreError, Unreadable

T = TypeVar("T")

# A timer may fire a moment before its time.
LOOK_EARLY_SECONDS = 0.001


async def run_to_its_end(
    work: Coroutine[Any, Any, T], *, on_cancel: Callable[[], object] | None = None
) -> tuple[T, bool]:
    """What came of it, and whether the caller was cancelled meanwhile: then the caller has to see to it that
    the cancellation is not forgotten. `on_cancel` is called as soon as that happens."""
    task = asyncio.create_task(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            cancelled = True
            if on_cancel is not None:
                on_cancel()
    return task.result(), cancelled


class HandedOut(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An attempt that may leave: its hand-out is committed."""

    record: JobRecord
    step: Step


class UndeliveredHandOuts:
    """Attempts that were handed out to workers who were gone by then. No worker has seen them, so the next
    one that asks may have them, for as long as their ACK is waited for."""

    __slots__ = ("_now_ms", "_waiting")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._waiting: list[HandedOut] = []

    def add(self, handed: Iterable[HandedOut]) -> None:
        self._waiting += handed
        self._forget_late()

    def take(self, lanes: frozenset[int], directives_max: int) -> list[HandedOut]:
        if not self._waiting:
            return []
        self._forget_late()
        taken: list[HandedOut] = []
        left: list[HandedOut] = []
        for handed in self._waiting:
            wanted = handed.step.routing.lane in lanes and len(taken) < directives_max
            (taken if wanted else left).append(handed)
        self._waiting = left
        return taken

    def _forget_late(self) -> None:
        """Those whose time is over begin again as another attempt; those that have no clock yet are published
        again."""
        now_ms = self._now_ms()
        self._waiting = [
            handed for handed in self._waiting if (handed.step.lease_expires_at_ms or 0) > now_ms
        ]


def _noting(
    ready: Callable[[DispatchEntry], bool] | None, held: set[int]
) -> Callable[[DispatchEntry], bool] | None:
    """The same, and notes the lanes of rows that are held up: they are not empty."""
    if ready is None:
        return None

    def noted(entry: DispatchEntry) -> bool:
        if not ready(entry):
            held.add(entry.lane)
            return False
        return True

    return noted


ALL_LANES = tuple(range(LANES))
# The lanes in turn, by whose turn is next.
_TURNS = tuple((*ALL_LANES[first:], *ALL_LANES[:first]) for first in ALL_LANES)


class _Waiter:
    """A poll that waits for directives, with room for some of those that begin meanwhile."""

    __slots__ = ("arrived", "directives_max", "lanes", "on_the_way", "picked_up", "room", "wake")

    def __init__(self, lanes: frozenset[int], directives_max: int, *, picked_up: bool) -> None:
        self.lanes = lanes
        self.directives_max = directives_max
        self.picked_up = picked_up
        self.room = 0
        self.on_the_way = 0
        self.arrived: list[HandedOut] = []
        self.wake = WakeEvent()

    # As a `ReservedWaiter`: what the job writer calls once a commit is done, or has failed.

    def deliver(self, record: JobRecord) -> None:
        self.on_the_way -= 1
        assert record.outbox is not None
        self.arrived.append(HandedOut(record=record, step=record.steps[record.outbox.step_index]))
        self.wake.set()

    def release(self) -> None:
        self.on_the_way -= 1
        self.wake.set()

    def leave(self) -> None:
        """Nothing more is to be sent on its way to this one."""
        self.room = 0

    def places_left(self) -> int:
        return self.directives_max - self.on_the_way - len(self.arrived)

    async def all_arrived(self) -> None:
        """Returns once nothing is on its way any more."""
        while self.on_the_way:
            self.wake.clear()
            await self.wake.wait()


class ServiceQueue:
    """What is known about one service's lanes, and who waits at it."""

    __slots__ = (
        "asked_at_ms",
        "claimed",
        "lock",
        "looked_at",
        "next_lane",
        "stale_lanes",
        "turns",
        "undelivered",
        "waiters",
    )

    def __init__(self, lanes: Iterable[int], undelivered: UndeliveredHandOuts) -> None:
        self.stale_lanes = set(lanes)
        self.turns = {lane: TenantTurns() for lane in ALL_LANES}
        self.undelivered = undelivered
        self.claimed: set[str] = set()
        self.lock = asyncio.Lock()
        self.waiters: list[_Waiter] = []
        self.next_lane = 0
        self.asked_at_ms = 0
        self.looked_at: float | None = None

    def wake(self) -> None:
        for waiter in self.waiters:
            waiter.wake.set()

    def look_at(self, lanes: Iterable[int]) -> None:
        """Another process may have written something there."""
        for lane in lanes:
            self.stale_lanes.add(lane)
            self.turns[lane].look_round()


class LedgerDispatcher:
    over_bus = False

    def __init__(
        self,
        fair_share: FairShare,
        writer: JobWriter,
        due_handler: DueHandler,
        tokens: CallbackTokens,
        *,
        callback_base: str,
        now_ms: Callable[[], int],
        look_every_ms: int,
        lanes: Iterable[int] = ALL_LANES,
        flow: FlowGate | None = None,
    ) -> None:
        """`lanes`: those that may hold something. `flow`: says what may leave; None: everything."""
        self._flow = flow or UnlimitedFlow()
        self._lanes = frozenset(lanes)
        self._fair_share = fair_share
        self._writer = writer
        self._due_handler = due_handler
        self._tokens = tokens
        self._callback_base = callback_base
        self._now_ms = now_ms
        self._look_every_seconds = look_every_ms / 1000
        self._queues: dict[str, ServiceQueue] = {}
        self._closed = False

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        """A commit happened: if it left something to hand out, say so to the polls that wait for it."""
        outbox = after.outbox
        if outbox is None or not is_dispatchable(after):
            return
        if before is not None and before.outbox is outbox and is_dispatchable(before):
            return
        queue = self._queues.get(outbox.service)
        if queue is not None:
            queue.stale_lanes.add(outbox.lane)
            queue.turns[outbox.lane].note_waiting(after.job.tenant_norm)
            queue.wake()

    def nudge(self, service: str, lane: int) -> None:
        """Another process says that something of this lane waits for a worker."""
        queue = self._queues.get(service)
        if queue is not None:
            queue.look_at([lane])
            queue.wake()

    def flow_opened(self, service: str) -> None:
        """More of this service may leave than before; `*`: of every service."""
        for name, queue in self._queues.items():
            if service in (name, ALL_SERVICES):
                queue.wake()

    def waiter_for(self, outbox: Outbox) -> _Waiter | None:
        """A waiter with room for this attempt, if no row that waits longer has a better claim to it."""
        queue = self._queues.get(outbox.service)
        if queue is None or self._closed or not self._flow.is_direct(outbox.service):
            return None
        for waiter in queue.waiters:
            if waiter.room > 0 and outbox.lane in waiter.lanes and outbox.lane not in queue.stale_lanes:
                waiter.room -= 1
                waiter.on_the_way += 1
                return waiter
        return None

    async def take(
        self,
        service: str,
        *,
        directives_max: int,
        wait_ms: int,
        lanes: Iterable[int] | None = None,
        picked_up: bool = False,
    ) -> list[HandedOut]:
        """Up to `directives_max` directives of a service; waits up to `wait_ms` for the first.

        `picked_up`: the worker runs in this process, and taking is its ACK. A worker that is cancelled gets
        what was committed for it, if there was anything.
        """
        taken, _ = await self._take(service, directives_max, wait_ms, lanes, picked_up=picked_up)
        return taken

    async def lease(
        self, service: str, *, directives_max: int, wait_ms: int, lanes: Iterable[int] | None = None
    ) -> list[dict[str, Json]]:
        """What `take` gives, as messages for a worker that is not in this process. Cancelled means that the
        worker is gone: what was committed for it is offered to the next."""
        taken, cancelled = await self._take(service, directives_max, wait_ms, lanes, picked_up=False)
        if cancelled:
            queue = self._queues[service]
            queue.undelivered.add(taken)
            queue.wake()
            raise asyncio.CancelledError
        return [self.message(handed) for handed in taken]

    async def _take(
        self,
        service: str,
        directives_max: int,
        wait_ms: int,
        lanes: Iterable[int] | None,
        *,
        picked_up: bool,
    ) -> tuple[list[HandedOut], bool]:
        """What the worker gets, and whether its poll was cancelled."""
        queue = self._queues.get(service)
        if queue is None:
            queue = self._queues[service] = ServiceQueue(self._lanes, UndeliveredHandOuts(self._now_ms))
        wanted = self._lanes if lanes is None else frozenset(lanes)
        waiter = _Waiter(wanted, directives_max, picked_up=picked_up)
        queue.waiters.append(waiter)
        fault: asyncio.CancelledError | StoreError | None = None
        cancelled = False
        try:
            await self._wait_for_some(service, queue, waiter, wait_ms / 1000)
        except (asyncio.CancelledError, StoreError) as caught:
            # It is told of unless something was, or is being, committed for this waiter.
            fault, cancelled = caught, isinstance(caught, asyncio.CancelledError)
        finally:
            queue.waiters.remove(waiter)
            queue.asked_at_ms = self._now_ms()
        if waiter.on_the_way:
            _, left = await run_to_its_end(waiter.all_arrived())
            cancelled = cancelled or left
        if not waiter.arrived:
            if cancelled:
                raise asyncio.CancelledError
            if fault is not None:
                raise fault
        return waiter.arrived, cancelled

    async def _wait_for_some(
        self, service: str, queue: ServiceQueue, waiter: _Waiter, wait_seconds: float
    ) -> None:
        """Returns once something has arrived or is on its way, or the time is up."""
        now = asyncio.get_running_loop().time
        until = now() + wait_seconds
        while True:
            waiter.wake.clear()
            await self._collect(service, queue, waiter)
            left = until - now()
            if waiter.arrived or waiter.on_the_way or left <= 0 or self._closed:
                return
            seconds = max(LOOK_EARLY_SECONDS, self._seconds_to_look(queue))
            if (again_in_ms := self._flow.again_in_ms(service)) > 0:
                seconds = min(seconds, again_in_ms / 1000)
            await waiter.wake.wait(min(left, seconds))
            if waiter.arrived:
                return

    def last_asked_ms(self, service: str) -> int | None:
        """When a worker last asked for directives of this service: now, if one waits for some; None if
        none did since this process started."""
        queue = self._queues.get(service)
        if queue is None:
            return None
        return self._now_ms() if queue.waiters else queue.asked_at_ms

    def close(self) -> None:
        """Ends all polls, with nothing."""
        self._closed = True
        for queue in self._queues.values():
            queue.wake()

    async def _collect(self, service: str, queue: ServiceQueue, waiter: _Waiter) -> None:
        """Hands out rows that wait. Room that is left over is open to attempts that begin meanwhile."""
        waiter.room = 0
        if not waiter.picked_up:  # a worker in this process would send no ACK
            waiter.arrived += queue.undelivered.take(waiter.lanes, waiter.places_left())
        room = waiter.places_left()
        entries: list[DispatchEntry] = []
        grants: Mapping[str, Grant] = {}
        if queue.stale_lanes or queue.lock.locked() or self._is_time_to_look(queue):
            async with queue.lock:
                room = waiter.places_left()
                entries = await self._claim(service, queue, waiter.lanes, room)
                if entries and self._flow.governs(service):
                    entries, grants = await self._admitted(service, queue, entries)
        waiter.room = room - len(entries)
        if not entries:
            return
        try:
            handing_out = self._hand_out_all(entries, waiter.picked_up, grants)
            results, cancelled = await run_to_its_end(handing_out, on_cancel=waiter.leave)
        except asyncio.CancelledError:
            queue.stale_lanes.update(entry.lane for entry in entries)
            raise
        finally:
            queue.claimed.difference_update(entry.job_id for entry in entries)
        taken = [result for result in results if isinstance(result, HandedOut)]
        waiter.arrived += taken
        faults = [result for result in results if isinstance(result, BaseException)]
        if faults:
            # What was not handed out is still PENDING: look again later.
            queue.stale_lanes.update(entry.lane for entry in entries)
        if cancelled:
            raise asyncio.CancelledError
        if faults and not taken:
            raise faults[0]

    async def _admitted(
        self, service: str, queue: ServiceQueue, entries: list[DispatchEntry]
    ) -> tuple[list[DispatchEntry], Mapping[str, Grant]]:
        """Those that may leave now. The others are free again, and their lanes are not empty."""
        asks = [FlowRequest(entry.job_id, entry.row.lease_id, entry.group) for entry in entries]
        grants: Mapping[str, Grant] = {}
        try:
            grants = await self._flow.admit(service, asks)
        finally:
            held = [entry for entry in entries if entry.row.lease_id not in grants]
            queue.claimed.difference_update(entry.job_id for entry in held)
            queue.stale_lanes.update(entry.lane for entry in held)
        return [entry for entry in entries if entry.row.lease_id in grants], grants

    async def _hand_out_all(
        self, entries: Sequence[DispatchEntry], picked_up: bool, grants: Mapping[str, Grant]
    ) -> list[HandedOut | BaseException | None]:
        given = [grants.get(entry.row.lease_id, FREE) for entry in entries]
        await await_time(given, self._now_ms)
        if len(entries) > 1:
            waits = (
                self._hand_out(entry, picked_up, grant) for entry, grant in zip(entries, given, strict=True)
            )
            return await asyncio.gather(*waits, return_exceptions=True)
        try:
            return [await self._hand_out(entries[0], picked_up, given[0])]
        except Exception as fault:
            return [fault]

    async def _claim(
        self, service: str, queue: ServiceQueue, wanted: frozenset[int], directives_max: int
    ) -> list[DispatchEntry]:
        """Rows that this process is not about to hand out, fairly over the lanes and the tenants of each.
        Whatever time a row names: a worker is here, and who waits for one waits for no clock."""
        if self._is_time_to_look(queue):
            queue.looked_at = asyncio.get_running_loop().time()
            queue.look_at(self._lanes)
        found: list[DispatchEntry] = []
        if self._flow.again_in_ms(service) > 0:
            return found
        held: set[int] = set()
        ready, over = self._flow.ready(service), self._flow.over()
        for lane in _TURNS[queue.next_lane]:
            room = directives_max - len(found)
            if room <= 0:
                break
            if lane not in queue.stale_lanes or lane not in wanted:
                continue
            queue.stale_lanes.discard(lane)
            try:
                free, more = await self._fair_share.read(
                    service,
                    lane,
                    queue.turns[lane],
                    room,
                    skip=queue.claimed,
                    ready=_noting(ready, held),
                    over=over,
                )
            except BaseException:
                # What was found before is not handed out: it is free again, and its lanes are not empty.
                queue.claimed.difference_update(entry.job_id for entry in found)
                queue.stale_lanes.update((lane, *(entry.lane for entry in found)))
                raise
            if more:
                queue.stale_lanes.add(lane)
            found += free
            queue.claimed.update(entry.job_id for entry in free)
            queue.next_lane = (lane + 1) % LANES
        queue.stale_lanes |= held
        return found

    def _is_time_to_look(self, queue: ServiceQueue) -> bool:
        """The regular look comes also where a poll is always served before its time is up, and once an
        interval however many polls wait."""
        return self._seconds_to_look(queue) <= LOOK_EARLY_SECONDS

    def _seconds_to_look(self, queue: ServiceQueue) -> float:
        if queue.looked_at is None:
            return 0.0
        return queue.looked_at + self._look_every_seconds - asyncio.get_running_loop().time()

    async def _hand_out(self, entry: DispatchEntry, picked_up: bool, grant: Grant) -> HandedOut | None:
        row = entry.row
        given = HandOut(
            step_id=row.step_id,
            attempt_no=row.attempt_no,
            lease_id=row.lease_id,
            picked_up=picked_up,
            not_after_ms=grant.not_after_ms,
            probe=grant.probe,
        )
        try:
            applied = await self._writer.apply(entry.job_id, given)
        except Unreadable:
            return None  # its job is in quarantine by now, and its rows are passed over from here on
        if isinstance(applied, Refused):
            if self._flow.is_late(entry.service, grant):  # it asks again at once
                queue = self._queues[entry.service]
                queue.stale_lanes.add(entry.lane)
                queue.wake()
                return None
            await self._due_handler.meet_undeliverable(entry)
            return None
        step = applied.record.step(row.step_id)
        if step is None:
            raise StoreError(f"{entry.job_id} has no {row.step_id}")
        return HandedOut(record=applied.record, step=step)

    def message(self, handed: HandedOut, *, signed: bool = True) -> dict[str, Json]:
        """The DIRECTIVE. `signed`: with the token that answers need unless they come from this process."""
        step = handed.step
        token = ""
        if signed:
            token = self._tokens.mint(AttemptRef.of(handed.record.job.job_id, step))
        return directive(handed.record, step, callback_base=self._callback_base, callback_token=token)

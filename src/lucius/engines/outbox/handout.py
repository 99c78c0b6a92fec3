"""The hand-out: giving a directive to a service that asks for one is the publish.

Until a service takes it, the outbox row stays PENDING without a clock. The hand-out is committed (row SENT,
step INITIATED, ACK deadline set) and only then does the directive leave. After a crash, what was PENDING is
simply still there, and what was handed out waits for its ACK timeout.

Rows that wait are found through the dispatch index. A lane is looked at again only after something was said
about it: a commit in this process, or the regular look that catches what other processes wrote. Where a taker
waits and no row does, the commit that begins an attempt hands it out at the same time (see `hands`).

A commit that has begun is waited for, also by a taker that is cancelled meanwhile: a hand-out that nobody
hears of would lie until its ACK timeout.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from lucius.bus.bell import Bell
from lucius.contracts.messages import directive
from lucius.core.decide import is_dispatchable
from lucius.core.inputs import HandOut
from lucius.core.model import Event, JobRecord, Json, Outbox
from lucius.core.refusal import Refused
from lucius.core.routing import LANES
from lucius.engines.outbox.finishing import to_its_end
from lucius.engines.outbox.undelivered import HandedOut, Undelivered
from lucius.ledger.indexes import DispatchEntry, Indexes
from lucius.ledger.names import MS_MAX
from lucius.ledger.store import StoreError, Unreadable
from lucius.progress.apply import Progress
from lucius.progress.due import DueKeeper
from lucius.progress.tokens import Attempt, CallbackTokens

ALL_LANES = tuple(range(LANES))
# The lanes in turn, by whose turn is next.
_TURNS = tuple((*ALL_LANES[first:], *ALL_LANES[:first]) for first in ALL_LANES)


class _Taker:
    """Somebody who waits for directives, with room for some of those that begin meanwhile."""

    __slots__ = ("arrived", "directives_max", "lanes", "on_the_way", "picked_up", "room", "wake")

    def __init__(self, lanes: frozenset[int], directives_max: int, *, picked_up: bool) -> None:
        self.lanes = lanes
        self.directives_max = directives_max
        self.picked_up = picked_up
        self.room = 0
        self.on_the_way = 0
        self.arrived: list[HandedOut] = []
        self.wake = Bell()

    # As a `Hand`: what the commit of a new attempt does with the place it was given.

    def deliver(self, record: JobRecord) -> None:
        self.on_the_way -= 1
        assert record.outbox is not None
        self.arrived.append(HandedOut(record=record, step=record.steps[record.outbox.step_index]))
        self.wake.ring()

    def release(self) -> None:
        self.on_the_way -= 1
        self.wake.ring()

    def leave(self) -> None:
        """Nothing more is to be sent on its way to this one."""
        self.room = 0

    def places_left(self) -> int:
        return self.directives_max - self.on_the_way - len(self.arrived)

    async def all_arrived(self) -> None:
        """Returns once nothing is on its way any more."""
        while self.on_the_way:
            self.wake.mute()
            await self.wake.wait()


class _Desk:
    """What is known about one service's lanes, and who waits at it."""

    __slots__ = (
        "asked_at_ms",
        "claimed",
        "lock",
        "looked_at",
        "next_lane",
        "stale_lanes",
        "takers",
        "undelivered",
    )

    def __init__(self, lanes: Iterable[int], undelivered: Undelivered) -> None:
        self.stale_lanes = set(lanes)
        self.undelivered = undelivered
        self.claimed: set[str] = set()
        self.lock = asyncio.Lock()
        self.takers: list[_Taker] = []
        self.next_lane = 0
        self.asked_at_ms = 0
        self.looked_at: float | None = None

    def wake(self) -> None:
        for taker in self.takers:
            taker.wake.ring()


class HandOuts:
    over_bus = False

    def __init__(
        self,
        indexes: Indexes,
        progress: Progress,
        keeper: DueKeeper,
        tokens: CallbackTokens,
        *,
        callback_base: str,
        now_ms: Callable[[], int],
        look_every_ms: int,
        lanes: Iterable[int] = ALL_LANES,
    ) -> None:
        """`lanes`: those that may hold something."""
        self._lanes = frozenset(lanes)
        self._indexes = indexes
        self._progress = progress
        self._keeper = keeper
        self._tokens = tokens
        self._callback_base = callback_base
        self._now_ms = now_ms
        self._look_every_seconds = look_every_ms / 1000
        self._desks: dict[str, _Desk] = {}
        self._closed = False

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        """A commit happened: if it left something to hand out, say so to whoever waits for it."""
        outbox = after.outbox
        if outbox is None or not is_dispatchable(after):
            return
        if before is not None and before.outbox is outbox and is_dispatchable(before):
            return
        desk = self._desks.get(outbox.service)
        if desk is not None:
            desk.stale_lanes.add(outbox.lane)
            desk.wake()

    def hand_for(self, outbox: Outbox) -> _Taker | None:
        """A taker with room for this attempt, if no row that waits longer has a better claim to it."""
        desk = self._desks.get(outbox.service)
        if desk is None or self._closed:
            return None
        for taker in desk.takers:
            if taker.room > 0 and outbox.lane in taker.lanes and outbox.lane not in desk.stale_lanes:
                taker.room -= 1
                taker.on_the_way += 1
                return taker
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

        `picked_up`: the taker runs in this process, and taking is its ACK. A taker that is cancelled gets
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
            desk = self._desks[service]
            desk.undelivered.add(taken)
            desk.wake()
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
        """What the taker gets, and whether it was cancelled."""
        desk = self._desks.get(service)
        if desk is None:
            desk = self._desks[service] = _Desk(self._lanes, Undelivered(self._now_ms))
        wanted = self._lanes if lanes is None else frozenset(lanes)
        taker = _Taker(wanted, directives_max, picked_up=picked_up)
        desk.takers.append(taker)
        fault: asyncio.CancelledError | StoreError | None = None
        cancelled = False
        try:
            await self._wait_for_some(service, desk, taker, wait_ms / 1000)
        except (asyncio.CancelledError, StoreError) as caught:
            # It is told of unless something was, or is being, committed for this taker.
            fault, cancelled = caught, isinstance(caught, asyncio.CancelledError)
        finally:
            desk.takers.remove(taker)
            desk.asked_at_ms = self._now_ms()
        if taker.on_the_way:
            _, left = await to_its_end(taker.all_arrived())
            cancelled = cancelled or left
        if not taker.arrived:
            if cancelled:
                raise asyncio.CancelledError
            if fault is not None:
                raise fault
        return taker.arrived, cancelled

    async def _wait_for_some(self, service: str, desk: _Desk, taker: _Taker, wait_seconds: float) -> None:
        """Returns once something has arrived or is on its way, or the time is up."""
        now = asyncio.get_running_loop().time
        until = now() + wait_seconds
        while True:
            taker.wake.mute()
            await self._collect(service, desk, taker)
            left = until - now()
            if taker.arrived or taker.on_the_way or left <= 0 or self._closed:
                return
            if not await taker.wake.wait(min(left, self._look_every_seconds)):
                desk.stale_lanes.update(self._lanes)
            if taker.arrived:
                return

    def last_asked_ms(self, service: str) -> int | None:
        """When somebody last asked for directives of this service: now, if somebody waits for some; None if
        nobody did since this process started."""
        desk = self._desks.get(service)
        if desk is None:
            return None
        return self._now_ms() if desk.takers else desk.asked_at_ms

    def close(self) -> None:
        """Sends everybody who waits home."""
        self._closed = True
        for desk in self._desks.values():
            desk.wake()

    async def _collect(self, service: str, desk: _Desk, taker: _Taker) -> None:
        """Hands out rows that wait. Room that is left over is open to attempts that begin meanwhile."""
        taker.room = 0
        if not taker.picked_up:  # a taker in this process would send no ACK
            taker.arrived += desk.undelivered.take(taker.lanes, taker.places_left())
        room = taker.places_left()
        entries: list[DispatchEntry] = []
        if desk.stale_lanes or desk.lock.locked() or self._is_time_to_look(desk):
            async with desk.lock:
                room = taker.places_left()
                entries = await self._claim(service, desk, taker.lanes, room)
        taker.room = room - len(entries)
        if not entries:
            return
        try:
            handing_out = self._hand_out_all(entries, taker.picked_up)
            results, cancelled = await to_its_end(handing_out, on_cancel=taker.leave)
        except asyncio.CancelledError:
            desk.stale_lanes.update(entry.lane for entry in entries)
            raise
        finally:
            desk.claimed.difference_update(entry.job_id for entry in entries)
        taken = [result for result in results if isinstance(result, HandedOut)]
        taker.arrived += taken
        faults = [result for result in results if isinstance(result, BaseException)]
        if faults:
            # What was not handed out is still PENDING: look again later.
            desk.stale_lanes.update(entry.lane for entry in entries)
        if cancelled:
            raise asyncio.CancelledError
        if faults and not taken:
            raise faults[0]

    async def _hand_out_all(
        self, entries: Sequence[DispatchEntry], picked_up: bool
    ) -> list[HandedOut | BaseException | None]:
        if len(entries) > 1:
            waits = (self._hand_out(entry, picked_up) for entry in entries)
            return await asyncio.gather(*waits, return_exceptions=True)
        try:
            return [await self._hand_out(entries[0], picked_up)]
        except Exception as fault:
            return [fault]

    async def _claim(
        self, service: str, desk: _Desk, wanted: frozenset[int], directives_max: int
    ) -> list[DispatchEntry]:
        """Rows that nobody in this process is about to hand out, fairly over the lanes."""
        if self._is_time_to_look(desk):
            desk.looked_at = asyncio.get_running_loop().time()
            desk.stale_lanes.update(self._lanes)
        found: list[DispatchEntry] = []
        for lane in _TURNS[desk.next_lane]:
            room = directives_max - len(found)
            if room <= 0:
                break
            if lane not in desk.stale_lanes or lane not in wanted:
                continue
            desk.stale_lanes.discard(lane)
            limit = room + len(desk.claimed)
            try:
                # Whatever time its row names: a worker is here, and who waits for one waits for no clock.
                entries = await self._indexes.dispatch(service, lane, MS_MAX - 1, limit)
            except BaseException:
                # Nobody hands out what was found before: it is free again, and its lanes are not empty.
                desk.claimed.difference_update(entry.job_id for entry in found)
                desk.stale_lanes.update((lane, *(entry.lane for entry in found)))
                raise
            waiting = [entry for entry in entries if entry.job_id not in desk.claimed]
            free = waiting[:room]
            # Those that were seen and left count as well: rows claimed on other lanes only widened the look.
            if len(entries) == limit or len(waiting) > room:
                desk.stale_lanes.add(lane)
            found += free
            desk.claimed.update(entry.job_id for entry in free)
            desk.next_lane = (lane + 1) % LANES
        return found

    def _is_time_to_look(self, desk: _Desk) -> bool:
        """The regular look comes also where there is always somebody served before their time is up."""
        if desk.looked_at is None:
            return True
        return asyncio.get_running_loop().time() - desk.looked_at >= self._look_every_seconds

    async def _hand_out(self, entry: DispatchEntry, picked_up: bool) -> HandedOut | None:
        row = entry.row
        given = HandOut(
            step_id=row.step_id, attempt_no=row.attempt_no, lease_id=row.lease_id, picked_up=picked_up
        )
        try:
            applied = await self._progress.apply(entry.job_id, given)
        except Unreadable:
            return None  # its job is in quarantine by now, and its rows are passed over from here on
        if isinstance(applied, Refused):
            await self._keeper.meet_undeliverable(entry)
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
            attempt = Attempt(
                job_id=handed.record.job.job_id,
                step_id=step.step_id,
                attempt_no=step.attempt_no,
                lease_id=step.lease_id or "",
            )
            token = self._tokens.mint(attempt)
        return directive(handed.record, step, callback_base=self._callback_base, callback_token=token)

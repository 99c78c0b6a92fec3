"""Receiving from many lanes of a bus that does not know at once whether a queue is empty.

In: a way to open the receiver of a lane. Out: locked messages, each with the receiver that settles it. All
lanes are opened side by side and listened to side by side, however few messages are asked for: to ask one
lane after the other would take longer than a caller waits. Opening goes on when its caller has gone, so the
next one finds the lanes open. A caller does not wait longer than it asked for: lanes that are still being
opened count as empty, unless that takes suspiciously long.

So more may come than was asked for, one message a lane at most. What is too many stays for the next `take`
for a moment, and then goes back to the bus. A message may only come so often: so lanes that something went
back to are asked first the next time, and only as many as are needed. A message that must not come much more
often is kept, and its lock renewed, until the lanes are closed.
"""

import asyncio
from collections.abc import Sequence

from lucius.bus.port import BusError, BusUnavailable, Delivery, Receiver
from lucius.sdk.bus_lanes import (
    DELIVERIES_KEPT,
    FAULTS_MAX,
    REST_SECONDS_MAX,
    REST_SECONDS_MIN,
    WAIT_MS,
    Open,
    Taken,
    end_task,
    give_back,
)

LOOK_SECONDS = 0.15  # the shortest listening: what is there needs time to come
LISTEN_ON_SECONDS = 0.1  # after a `take`, as the next one often follows at once
GATHER_SECONDS = 0.02  # for more, once something has come and more is asked for
GATHER_SECONDS_MAX = 0.2
HOLD_SECONDS = 2.0  # far less than any lock
AGAIN_SECONDS_MAX = 1.0  # how long the next try is waited for once every lane has failed
OPENING_SECONDS_MAX = 5.0  # beyond that a bus that opened nothing counts as away


class _WatchedLane:
    __slots__ = ("fault", "faults", "gave", "number", "receiver", "rests_until", "task")

    def __init__(self, number: int) -> None:
        self.number = number
        self.receiver: Receiver | None = None
        self.task: asyncio.Task[None] | None = None  # opens, or listens
        self.fault: BusError | None = None  # the last thing that happened, if it was one
        self.faults = 0  # in a row
        self.rests_until = 0.0
        self.gave = False  # something, the last time

    def is_free(self, now: float) -> bool:
        return self.receiver is not None and self.task is None and self.rests_until <= now


class _Held:
    """A message that is too many so far, and until when it is kept."""

    __slots__ = ("lane", "taken", "until")

    def __init__(self, lane: _WatchedLane, taken: Taken, until: float) -> None:
        self.lane = lane
        self.taken = taken
        self.until = until

    @property
    def delivery(self) -> Delivery:
        return self.taken[1]


class LaneWatch:
    """One `take` at a time. It fails only when no lane can be used."""

    def __init__(self, open_lane: Open, lanes: Sequence[int], *, hold_seconds: float = HOLD_SECONDS) -> None:
        self._open = open_lane
        self._lanes = [_WatchedLane(number) for number in lanes]
        self._hold_seconds = hold_seconds
        self._held: list[_Held] = []
        # To which something went back, or that gave what they were asked for.
        self._likely: dict[_WatchedLane, None] = {}
        self._messages_free = 0  # how many more messages are wanted
        self._changed = asyncio.Event()
        self._opening_since: float | None = None
        self._listening_ends: asyncio.TimerHandle | None = None
        self._holding: asyncio.Task[None] | None = None
        self._quiet: asyncio.Task[None] | None = None

    async def take(self, *, messages_max: int, wait_seconds: float) -> list[Taken]:
        """Up to `messages_max`; waits for the first. Cancelled, it keeps what it has for the next `take`."""
        await self._resume()
        try:
            return await self._take(messages_max, wait_seconds)
        finally:
            self._messages_free = 0
            loop = asyncio.get_running_loop()
            self._listening_ends = loop.call_later(LISTEN_ON_SECONDS, self._end_listening)
            self._keep_held()

    async def close(self) -> None:
        """Gives everything back and closes the lanes. A later `take` opens them again."""
        await self._resume()
        if self._holding is not None:
            await end_task(self._holding)
            self._holding = None
        await asyncio.gather(*(end_task(lane.task) for lane in self._lanes if lane.task is not None))
        held, self._held = self._held, []
        await asyncio.gather(*(give_back(one.taken) for one in held))
        self._likely.clear()
        self._opening_since = None
        await asyncio.gather(*(self._close(lane) for lane in self._lanes))

    # -- taking --------------------------------------------------------------------------------------------

    async def _take(self, messages_max: int, wait_seconds: float) -> list[Taken]:
        now = asyncio.get_running_loop().time
        until = now() + max(wait_seconds, LOOK_SECONDS)
        if not self._held and messages_max < len(self._lanes):
            await self._ask_likely(messages_max, until)
        failed_at: float | None = None
        while not self._held:
            self._messages_free = messages_max
            self._open_all()
            self._listen(self._lanes, max(1, messages_max // len(self._lanes)), WAIT_MS)
            if not self._all_failed():
                failed_at = None
            elif failed_at is None:
                failed_at = now()
            until_failed = until if failed_at is None else min(until, failed_at + AGAIN_SECONDS_MAX)
            if self._rest() or now() >= until_failed:
                break
            await self._wait_for_change(until_failed)
        if not self._held:
            if (fault := self._away()) is not None:
                raise fault
            return []
        if len(self._held) < messages_max:
            await self._gather(messages_max)
        taken, self._held = self._held[:messages_max], self._held[messages_max:]
        return [one.taken for one in taken]

    async def _ask_likely(self, messages_max: int, until: float) -> None:
        """As many lanes as are needed, and twice as many each time, if they are not listened to already."""
        now, count = asyncio.get_running_loop().time, messages_max
        while not self._held and now() < until:
            likely = [lane for lane in self._likely if lane.is_free(now())][:count]
            if not likely:
                return
            self._messages_free, count = messages_max, 2 * count
            self._listen(likely, 1, 0)
            while not self._held and any(lane.task is not None for lane in likely) and now() < until:
                await self._wait_for_change(until)

    async def _gather(self, messages_max: int) -> None:
        """What else is there: as long as more comes, but for a moment."""
        now = asyncio.get_running_loop().time
        gathered_by = now() + GATHER_SECONDS_MAX
        while (messages_free := messages_max - len(self._held)) > 0:
            self._messages_free = messages_free
            free = [lane for lane in self._lanes if lane.gave and lane.is_free(now())][:messages_free]
            self._listen(free, messages_free // max(1, len(free)), 0)
            before = len(self._held)
            await self._wait_for_change(min(now() + GATHER_SECONDS, gathered_by))
            if len(self._held) == before or now() >= gathered_by:
                return

    def _open_all(self) -> None:
        now = asyncio.get_running_loop().time()
        for lane in self._lanes:
            if lane.task is None and lane.receiver is None and lane.rests_until <= now:
                if self._opening_since is None:
                    self._opening_since = now
                lane.task = asyncio.create_task(self._opens(lane))

    def _listen(self, lanes: Sequence[_WatchedLane], lane_leases: int, wait_ms: int) -> None:
        now = asyncio.get_running_loop().time()
        for lane in lanes:
            if lane.receiver is not None and lane.is_free(now):
                lane.task = asyncio.create_task(self._listens_to(lane, lane.receiver, lane_leases, wait_ms))

    async def _wait_for_change(self, until: float) -> None:
        now = asyncio.get_running_loop().time()
        rests = [lane.rests_until for lane in self._lanes if lane.task is None and lane.rests_until > now]
        self._changed.clear()
        try:
            async with asyncio.timeout_at(min([until, *rests])):
                await self._changed.wait()
        except TimeoutError:
            return

    def _all_failed(self) -> bool:
        return all(lane.fault is not None for lane in self._lanes)

    def _rest(self) -> bool:
        """Whether every lane has failed, and none is tried again yet."""
        return all(lane.fault is not None and lane.task is None for lane in self._lanes)

    def _away(self) -> BusError | None:
        """Why nothing came, if the bus is out of reach; None if there was nothing."""
        if self._all_failed():
            return self._lanes[-1].fault
        if any(lane.receiver is not None for lane in self._lanes) or self._opening_since is None:
            return None
        seconds = asyncio.get_running_loop().time() - self._opening_since
        return BusUnavailable("no lane could be opened so far") if seconds > OPENING_SECONDS_MAX else None

    # -- what lanes do -------------------------------------------------------------------------------------

    async def _opens(self, lane: _WatchedLane) -> None:
        try:
            lane.receiver = await self._open(lane.number)
        except BusError as fault:
            await self._failed(lane, fault)
        else:
            lane.fault, lane.faults, self._opening_since = None, 0, None
        finally:
            lane.task = None
            self._changed.set()

    async def _listens_to(
        self, lane: _WatchedLane, receiver: Receiver, messages_max: int, wait_ms: int
    ) -> None:
        """Keeps what comes at once, so that a cancelled caller loses none."""
        self._likely.pop(lane, None)
        try:
            got = await receiver.receive(messages_max=messages_max, wait_ms=wait_ms)
        except BusError as fault:
            await self._failed(lane, fault)
        else:
            lane.fault, lane.faults, lane.gave = None, 0, bool(got)
            until = asyncio.get_running_loop().time() + self._hold_seconds
            self._held += [_Held(lane, (receiver, delivery), until) for delivery in got]
            if wait_ms == 0 and len(got) >= messages_max:
                self._likely[lane] = None
        finally:
            lane.task = None
            self._changed.set()
            if self._held and not self._messages_free:
                self._keep_held()

    async def _failed(self, lane: _WatchedLane, fault: BusError) -> None:
        """A receiver outlives a fault, as what came from it is settled through it; many in a row take longer
        than any lock."""
        lane.fault = fault
        rest_seconds = min(REST_SECONDS_MAX, REST_SECONDS_MIN * 2 ** min(lane.faults, 10))
        lane.rests_until = asyncio.get_running_loop().time() + rest_seconds
        lane.faults += 1
        if lane.faults % FAULTS_MAX == 0:
            await self._close(lane)

    async def _close(self, lane: _WatchedLane) -> None:
        receiver, lane.receiver = lane.receiver, None
        if receiver is not None:
            try:
                await receiver.close()
            except BusError:
                return

    # -- between two takes ---------------------------------------------------------------------------------

    async def _resume(self) -> None:
        if self._listening_ends is not None:
            self._listening_ends.cancel()
            self._listening_ends = None
        if self._quiet is not None:
            await asyncio.wait({self._quiet})
            self._quiet = None

    def _end_listening(self) -> None:
        self._listening_ends = None
        self._quiet = asyncio.create_task(self._stop_listening())

    async def _stop_listening(self) -> None:
        """Those that are being opened go on: the next caller needs them."""
        tasks = [lane.task for lane in self._lanes if lane.task is not None and lane.receiver is not None]
        await asyncio.gather(*(end_task(task) for task in tasks))

    def _keep_held(self) -> None:
        if self._held and (self._holding is None or self._holding.done()):
            self._holding = asyncio.create_task(self._hold())

    async def _hold(self) -> None:
        """Until a `take` wants what is held, or its time is over."""
        while self._held:
            now = asyncio.get_running_loop().time()
            await asyncio.sleep(max(0.0, min(one.until for one in self._held) - now))
            now = asyncio.get_running_loop().time()
            over = [one for one in self._held if one.until <= now]
            await asyncio.gather(*(self._release(one) for one in over))

    async def _release(self, one: _Held) -> None:
        receiver, delivery = one.taken
        if delivery.deliveries_left > DELIVERIES_KEPT:
            self._held.remove(one)
            self._likely[one.lane] = None
            await give_back(one.taken)
            return
        one.until = asyncio.get_running_loop().time() + self._hold_seconds
        try:
            one.taken = (receiver, await receiver.extend(delivery))
        except BusError:
            if one in self._held:
                self._held.remove(one)  # another may have it by now

"""Receiving from many lanes at once, fairly, and never more than was asked for.

In: a way to open the receiver of a lane. Out: locked messages, each with the receiver that settles it. A lane
that gave all it was asked for is asked again at the next `take`; one that was empty gets a long wait of its
own, which stays open from one `take` to the next. So an idle service costs one call a lane and wait, and a
busy lane one call a `take`. Lanes take turns, and the free places are divided before the lanes are asked, so
that nothing is locked which the caller has not asked for. Only messages that end several long waits at the
same moment can be too many: they stay for the next `take`, and go back to the bus if none comes soon. The
waits end then too: a service that is busy leaves what is to come to others.

A few may be taken ahead on purpose, so that they are here when a place is free. Their locks are renewed
while they wait, and if no call takes any for a while they go back, unless that could be once too often.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from lucius.bus.port import BusError, BusUnavailable, Delivery, Receiver

WAIT_MS = 20_000
HOLD_SECONDS = 0.1
REST_SECONDS_MIN = 0.25
REST_SECONDS_MAX = 2.0
# A receiver outlives a fault, as messages that are held are settled through it. This many faults in a row
# take longer than any lock: then a new one is opened.
FAULTS_MAX = 30
CANCEL_AGAIN_SECONDS = 0.05
RENEW_SECONDS = 5.0  # far less than any lock
RENEWALS_MAX = 2
DELIVERIES_KEPT = 2  # a message that may come only so often again is not given back

Taken = tuple[Receiver, Delivery]
Open = Callable[[int], Awaitable[Receiver]]


class _Lane:
    __slots__ = ("faults", "number", "receiver", "rests_until", "waiting")

    def __init__(self, number: int) -> None:
        self.number = number
        self.receiver: Receiver | None = None
        self.waiting: asyncio.Task[None] | None = None
        self.faults = 0  # in a row
        self.rests_until = 0.0

    def failed(self, now: float) -> Receiver | None:
        """Rests for a while, longer each time. Answers with the receiver that is to be given up, if it is."""
        self.rests_until = now + min(REST_SECONDS_MAX, REST_SECONDS_MIN * 2 ** min(self.faults, 10))
        self.faults += 1
        if self.faults % FAULTS_MAX:
            return None
        given_up, self.receiver = self.receiver, None
        return given_up


class LaneReader:
    """One `take` at a time. A fault of one lane makes that lane rest; `take` fails when all of them rest."""

    def __init__(
        self,
        open_lane: Open,
        lanes: Sequence[int],
        *,
        hold_seconds: float = HOLD_SECONDS,
        ahead: int = 0,
        renew_seconds: float = RENEW_SECONDS,
    ) -> None:
        """`ahead`: how many messages are taken beyond those that were asked for."""
        self._open = open_lane
        self._ahead = ahead
        self._renew_seconds = renew_seconds
        self._keeping: asyncio.Task[None] | None = None
        self._order = [_Lane(number) for number in lanes]  # whose turn it is, first
        self._hold_seconds = hold_seconds
        self._ready: list[Taken] = []
        self._timer: asyncio.TimerHandle | None = None
        self._letting_go: asyncio.Task[None] | None = None
        self._fault: BusError = BusUnavailable("the bus was not asked yet")

    async def take(self, *, messages_max: int, wait_seconds: float) -> list[Taken]:
        """Up to `messages_max`; waits for the first. Cancelled, it keeps what it has for the next `take`."""
        await self._resume()
        try:
            return await self._take(messages_max, wait_seconds)
        finally:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._hold_seconds, self._start_letting_go)

    async def close(self) -> None:
        await self._resume()
        self._ahead = 0
        await self._let_go()
        for lane in self._order:
            await _close(lane.receiver)
            lane.receiver = None

    async def _take(self, messages_max: int, wait_seconds: float) -> list[Taken]:
        now = asyncio.get_running_loop().time
        until = now() + wait_seconds
        while True:
            self._collect()
            if len(self._ready) < messages_max:
                await self._ask_all(messages_max + self._ahead - len(self._ready), now())
            if self._ready:
                taken, self._ready = self._ready[:messages_max], self._ready[messages_max:]
                return taken
            waits = [lane.waiting for lane in self._order if lane.waiting is not None]
            if not waits:
                raise self._fault
            if (left := until - now()) <= 0:
                return []
            rests = [lane.rests_until - now() for lane in self._order if lane.waiting is None]
            wait = max(0.0, min([left, *rests]))
            await asyncio.wait(waits, timeout=wait, return_when=asyncio.FIRST_COMPLETED)

    def _collect(self) -> None:
        for lane in self._order:
            if lane.waiting is not None and lane.waiting.done():
                ended, lane.waiting = lane.waiting, None
                if not ended.cancelled():
                    ended.result()  # what it took is in `_ready`; a fault that is not the bus's is ours

    async def _ask_all(self, messages_free: int, now: float) -> None:
        """Divides the free places among the lanes that may have something, round after round, until it is
        full or every lane waits or rests."""
        while messages_free > 0:
            lanes = [lane for lane in self._order if lane.waiting is None and lane.rests_until <= now][
                :messages_free
            ]
            if not lanes:
                return
            self._order = [lane for lane in self._order if lane not in lanes] + lanes
            lane_leases = messages_free // len(lanes)
            before = len(self._ready)
            if len(lanes) > 1:
                await asyncio.gather(*(self._ask(lane, lane_leases) for lane in lanes))
            else:
                await self._ask(lanes[0], lane_leases)
            messages_free -= len(self._ready) - before

    async def _ask(self, lane: _Lane, messages_max: int) -> None:
        before = lane.faults
        if await self._receive(lane, messages_max, 0) < messages_max and lane.faults <= before:
            lane.waiting = asyncio.create_task(self._wait(lane))

    async def _wait(self, lane: _Lane) -> None:
        await self._receive(lane, 1, WAIT_MS)

    async def _receive(self, lane: _Lane, messages_max: int, wait_ms: int) -> int:
        """How many came. They are kept at once, so that a cancelled caller loses none."""
        try:
            if lane.receiver is None:
                lane.receiver = await self._open(lane.number)
            receiver = lane.receiver
            got = await receiver.receive(messages_max=messages_max, wait_ms=wait_ms)
        except BusError as fault:
            self._fault = fault
            await _close(lane.failed(asyncio.get_running_loop().time()))
            return 0
        lane.faults = 0
        self._ready.extend((receiver, delivery) for delivery in got)
        return len(got)

    async def _resume(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._letting_go is not None:
            await asyncio.wait({self._letting_go})
            self._letting_go = None
        if self._keeping is not None:
            await end_task(self._keeping)
            self._keeping = None

    def _start_letting_go(self) -> None:
        self._timer = None
        self._letting_go = asyncio.create_task(self._let_go())

    async def _let_go(self) -> None:
        waits = [lane.waiting for lane in self._order if lane.waiting is not None]
        await asyncio.gather(*(end_task(wait) for wait in waits))
        self._collect()
        self._ready, given_back = self._ready[: self._ahead], self._ready[self._ahead :]
        for one in given_back:
            await give_back(one)
        if self._ready:
            self._keeping = asyncio.create_task(self._keep())

    async def _keep(self) -> None:
        """Holds what was taken ahead until a `take` wants it, or for as long as there is hope."""
        renewals = 0
        while self._ready:
            await asyncio.sleep(self._renew_seconds)
            renewals += 1
            for one in tuple(self._ready):
                if renewals > RENEWALS_MAX and one[1].deliveries_left > DELIVERIES_KEPT:
                    self._ready.remove(one)
                    await give_back(one)
                else:
                    await self._renew(one)

    async def _renew(self, one: Taken) -> None:
        receiver, delivery = one
        try:
            renewed = [(receiver, await receiver.extend(delivery))]
        except BusError:
            renewed = []  # another may have it by now
        place = self._ready.index(one)
        self._ready[place : place + 1] = renewed


async def give_back(one: Taken) -> None:
    receiver, delivery = one
    with suppress(BusError):  # its lock runs out then
        await receiver.give_back(delivery, delay_ms=0)


async def end_task(task: "asyncio.Task[None]") -> None:
    """A wait may swallow a cancellation that meets a message, and then find that another took it."""
    while not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_AGAIN_SECONDS)


async def _close(receiver: Receiver | None) -> None:
    if receiver is not None:
        with suppress(BusError):
            await receiver.close()

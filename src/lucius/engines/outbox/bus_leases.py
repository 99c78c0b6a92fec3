"""Leases over HTTP where a broker carries the directives: one more consumer of each service.

In: the bus, polls of workers that speak nothing but HTTP. Out: directives, each settled on the bus as it is
handed out. Their ACK clock began when they were published, so a poller that dies with one costs an attempt,
as a service does that dies with one from the bus. What was received and not settled goes back; what was
settled for a poller that had gone by then is for the next one.

Polls for the same service and lanes share one reader and take turns at it: the first poll gets what
comes first, and nothing is fetched that no poll asked for. What the ledger no longer waits for, or what
another consumer has acknowledged, is settled and not handed out. A name that no job ever used is only waited
for: it gets no queue on the broker.

Where the bus has to listen for a while to know that a queue is empty, all lanes of a reader are opened and
listened to side by side. A reader that was not used for a while closes its lanes.

A bus that says nothing keeps no poll longer than it wanted to wait, but for a moment. A poll that is sent
home then counts as one that left: what was asked of the bus in its name ends as it may, and nothing gets
lost.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

import msgspec
import structlog

from lucius.bus.port import BusError, Delivery, DirectiveSource, Receiver
from lucius.core.attempt import AttemptRef
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused
from lucius.core.states import StepState
from lucius.engines.outbox.dispatcher import ALL_LANES, HandedOut, UndeliveredHandOuts, run_to_its_end
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.name_index import NameIndex
from lucius.ledger.store import StoreError, Unreadable
from lucius.sdk.bus_lanes import LaneReader, Taken
from lucius.sdk.lane_watch import LaneWatch
from lucius.telemetry.context import Subject

READERS_MAX = 256  # one for each service and set of lanes that is asked for
RETRY_AFTER_SECONDS = 1
IDLE_SECONDS = 120.0  # after which a reader's lanes are closed
LATE_SECONDS_MAX = 2.0  # beyond what a poller wants to wait
NOTE_LOOK_SECONDS = 0.01
NOTE_LOOKS_MAX = 20

log = structlog.get_logger("lucius.leases")


class Messages(Protocol):
    def message(self, handed: HandedOut) -> dict[str, Json]: ...


class _DirectiveHead(msgspec.Struct, frozen=True, kw_only=True):
    """What a directive on the bus must say to be known; the rest of it is read from the ledger."""

    job_id: str = msgspec.field(name="jobId")
    step_id: str = msgspec.field(name="stepId")
    attempt_no: int
    lease_id: str
    tenant_id: str | None = None

    @property
    def attempt(self) -> AttemptRef:
        return AttemptRef(
            job_id=self.job_id, step_id=self.step_id, attempt_no=self.attempt_no, lease_id=self.lease_id
        )


_decode = msgspec.json.Decoder(_DirectiveHead).decode


class _ServiceReader:
    __slots__ = ("idle", "lanes", "polls", "turn")

    def __init__(self, lanes: LaneReader | LaneWatch) -> None:
        self.lanes = lanes
        self.turn = asyncio.Lock()
        self.polls = 0
        self.idle: asyncio.TimerHandle | None = None  # runs out when no poll came for long


class BusLeases:
    over_bus = True

    def __init__(
        self,
        bus: DirectiveSource,
        ledger: JobLedger,
        services: NameIndex,
        messages: Messages,
        *,
        now_ms: Callable[[], int],
        look_every_ms: int,
        readers_max: int = READERS_MAX,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        """`messages`: makes the directive of an attempt, with this process's address and a token."""
        self._bus = bus
        self._ledger = ledger
        self._services = services
        self._messages = messages
        self._now_ms = now_ms
        self._look_every_seconds = look_every_ms / 1000
        self._readers_max = readers_max
        self._idle_seconds = idle_seconds
        self._readers: dict[tuple[str, frozenset[int]], _ServiceReader] = {}
        self._asked_at_ms: dict[str, int] = {}
        self._undelivered: dict[str, UndeliveredHandOuts] = {}
        self._takings: set[asyncio.Task[list[Taken]]] = set()
        self._leavings: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()

    async def lease(
        self, service: str, *, directives_max: int, wait_ms: int, lanes: Iterable[int] | None = None
    ) -> list[dict[str, Json]] | Refused:
        until = asyncio.get_running_loop().time() + wait_ms / 1000
        wanted = frozenset(ALL_LANES if lanes is None else lanes)
        leasing = asyncio.create_task(self._lease(service, wanted, directives_max, until))
        try:
            patience = max(0.0, until - asyncio.get_running_loop().time()) + LATE_SECONDS_MAX
            await asyncio.wait({leasing}, timeout=patience)
        except asyncio.CancelledError:
            await run_to_its_end(self._leave(service, leasing))
            raise
        if not leasing.done():
            leaving = asyncio.create_task(self._leave(service, leasing))
            self._leavings.add(leaving)
            leaving.add_done_callback(self._leavings.discard)
            return _unavailable("no directives in time: the bus, or the ledger, does not answer")
        try:
            handed = leasing.result()
        except BusError as fault:
            return _unavailable(f"no directives from the bus: {fault}")
        return handed if isinstance(handed, Refused) else [self._messages.message(one) for one in handed]

    def last_asked_ms(self, service: str) -> int | None:
        polled = any(reader.polls for (name, _), reader in self._readers.items() if name == service)
        return self._now_ms() if polled else self._asked_at_ms.get(service)

    def close(self) -> None:
        """Ends all polls, with nothing."""
        self._closing.set()
        for taking in self._takings:
            taking.cancel()

    async def end(self) -> None:
        """After `close`: gives back what no poll took."""
        if self._leavings:
            await asyncio.wait(set(self._leavings))
        for reader in self._readers.values():
            if reader.idle is not None:
                reader.idle.cancel()
        await asyncio.gather(*(reader.lanes.close() for reader in self._readers.values()))
        self._readers.clear()

    async def _comes_to_be_known(self, service: str, until: float) -> bool:
        now = asyncio.get_running_loop().time
        while not self._closing.is_set():
            if any(name == service for name, _ in self._readers) or service in await self._services.all():
                return True
            left = until - now()
            if left <= 0:
                break
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._look_every_seconds)):
                    await self._closing.wait()
        return False

    async def _reader(self, service: str, lanes: frozenset[int]) -> _ServiceReader | None:
        """None if there are too many, and all of them in use."""
        found = self._readers.pop((service, lanes), None)
        if found is None and len(self._readers) >= self._readers_max:
            idle = next((key for key, reader in self._readers.items() if not reader.polls), None)
            if idle is None:
                return None
            given_up = self._readers.pop(idle)
            if given_up.idle is not None:
                given_up.idle.cancel()
            _, cancelled = await run_to_its_end(_close_in_turn(given_up))
            if cancelled:
                raise asyncio.CancelledError
            found = self._readers.pop((service, lanes), None)  # another poll may have opened it meanwhile
        if found is None:
            found = _ServiceReader(self._reader_of_lanes(service, lanes))
        self._readers[(service, lanes)] = found  # the latest used last
        return found

    def _reader_of_lanes(self, service: str, lanes: frozenset[int]) -> LaneReader | LaneWatch:
        make = LaneReader if self._bus.knows_empty_at_once else LaneWatch
        return make(lambda lane: self._bus.directives(service, lane), sorted(lanes))

    def _idles(self, reader: _ServiceReader) -> None:
        """From here on no poll asks it: its lanes are closed if that lasts."""
        if reader.idle is not None:
            reader.idle.cancel()
        reader.idle = asyncio.get_running_loop().call_later(self._idle_seconds, self._close_idle, reader)

    def _close_idle(self, reader: _ServiceReader) -> None:
        reader.idle = None
        if not reader.polls and not reader.turn.locked() and not self._closing.is_set():
            closing = asyncio.create_task(_close_in_turn(reader))
            self._leavings.add(closing)
            closing.add_done_callback(self._leavings.discard)

    async def _lease(
        self, service: str, lanes: frozenset[int], directives_max: int, until: float
    ) -> list[HandedOut] | Refused:
        if not await self._comes_to_be_known(service, until):
            return []
        reader = await self._reader(service, lanes)
        if reader is None:
            return _unavailable("too many different leases are open")
        reader.polls += 1
        try:
            return await self._read(service, lanes, reader, directives_max, until)
        finally:
            reader.polls -= 1
            if not reader.polls:
                self._idles(reader)
            self._asked_at_ms[service] = self._now_ms()

    async def _leave(self, service: str, leasing: "asyncio.Task[list[HandedOut] | Refused]") -> None:
        """Ends it for a poller who is gone. What it has to hand out by then is for the next one."""
        leasing.cancel()
        await asyncio.wait({leasing})
        if leasing.cancelled():
            return
        if (fault := leasing.exception()) is not None:
            log.warning("lease_failed", service=service, error=str(fault) or type(fault).__name__)
        elif not isinstance(handed := leasing.result(), Refused):
            self._keep(service, handed)

    def _keep(self, service: str, handed: list[HandedOut]) -> None:
        self._undelivered.setdefault(service, UndeliveredHandOuts(self._now_ms)).add(handed)

    async def _read(
        self, service: str, lanes: frozenset[int], reader: _ServiceReader, directives_max: int, until: float
    ) -> list[HandedOut]:
        undelivered = self._undelivered.get(service)
        if undelivered is not None and (found := undelivered.take(lanes, directives_max)):
            return found
        while True:
            taken = await self._take(reader, directives_max, until)
            gone = asyncio.Event()
            handing_out = self._hand_out_all(taken, gone)
            found, cancelled = await run_to_its_end(handing_out, on_cancel=gone.set)
            if cancelled:
                self._keep(service, found)
                raise asyncio.CancelledError
            past = asyncio.get_running_loop().time() >= until
            # What was taken and is not wanted any more does not end the wait of a poller.
            if found or past or not taken or self._closing.is_set():
                return found

    async def _take(self, reader: _ServiceReader, directives_max: int, until: float) -> list[Taken]:
        """As a task of its own, so that `close` can end it without ending the poll."""
        taking = asyncio.create_task(_in_turn(reader, directives_max, until))
        self._takings.add(taking)
        try:
            await asyncio.wait({taking})
        except asyncio.CancelledError:
            taking.cancel()
            await run_to_its_end(_give_all_back(taking))
            raise
        finally:
            self._takings.discard(taking)
        return [] if taking.cancelled() else taking.result()

    async def _hand_out_all(self, taken: list[Taken], gone: asyncio.Event) -> list[HandedOut]:
        handed = await asyncio.gather(*(self._hand_out(*one, gone) for one in taken))
        return [one for one in handed if one is not None]

    async def _hand_out(
        self, receiver: Receiver, delivery: Delivery, gone: asyncio.Event
    ) -> HandedOut | None:
        """The attempt, if it is wanted and was settled: then it is this poller's alone. `gone`:
        is the poller? What is not settled yet goes back then."""
        try:
            named = _decode(delivery.body)
        except (msgspec.DecodeError, RecursionError):
            with suppress(BusError):
                await receiver.dead_letter(delivery, reason="POISON: not a directive")
            return None
        try:
            handed = await self._wanted(named)
        except StoreError as fault:
            log.warning("lease_waits_for_ledger", **Subject(named.job_id, named).ids(), error=str(fault))
            await _give_back(receiver, delivery)
            return None
        if gone.is_set():
            await _give_back(receiver, delivery)
            return None
        try:
            await receiver.complete(delivery)
        except BusError as fault:
            # Perhaps it was settled, and then its ACK timeout finds it; perhaps it comes again.
            log.warning("directive_not_settled", **Subject(named.job_id, named).ids(), error=str(fault))
            return None
        # A bus that does not fence may have given it to another once the lock had run out.
        return handed if self._now_ms() < delivery.locked_until_ms else None

    async def _wanted(self, named: _DirectiveHead) -> HandedOut | None:
        """A directive may be here before it is noted that it left. A moment's patience then lets a cancel or
        a pause that comes at once find the step under way, as it is; the note may also have been lost."""
        looks_left = NOTE_LOOKS_MAX
        while True:
            try:
                loaded = await self._ledger.load(named.job_id, fresh=True)
            except Unreadable:
                return None
            if loaded is None:
                return None
            record = loaded.record
            step = record.step(named.step_id)
            current = named.attempt.is_current(record)
            if step is None or not current or step.state is StepState.PROCESSING:
                return None
            if not looks_left or not record.awaits_dispatch(step):
                return HandedOut(record=record, step=step)
            looks_left -= 1
            await asyncio.sleep(NOTE_LOOK_SECONDS)


async def _in_turn(reader: _ServiceReader, directives_max: int, until: float) -> list[Taken]:
    try:
        async with asyncio.timeout_at(until) as patience, reader.turn:
            patience.reschedule(None)  # it is our turn: from here on the reader keeps the time
            left_seconds = max(0.0, until - asyncio.get_running_loop().time())
            return await reader.lanes.take(messages_max=directives_max, wait_seconds=left_seconds)
    except TimeoutError:
        return []


async def _close_in_turn(reader: _ServiceReader) -> None:
    async with reader.turn:
        await reader.lanes.close()


async def _give_all_back(taking: "asyncio.Task[list[Taken]]") -> None:
    await asyncio.wait({taking})
    if not taking.cancelled() and taking.exception() is None:
        await asyncio.gather(*(_give_back(*one) for one in taking.result()))


async def _give_back(receiver: Receiver, delivery: Delivery) -> None:
    with suppress(BusError):  # its lock runs out then
        await receiver.give_back(delivery, delay_ms=0)


def _unavailable(message: str) -> Refused:
    return Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=RETRY_AFTER_SECONDS)

"""The publisher: outbox rows become directives on a broker.

In: rows of the dispatch index, found after a commit in this process said so or by a regular look for what
others wrote. Out: directives on the bus, and notes to the job writer: `Published` after the bus took one,
`PublishFailed` when it did not, which moves the row to its backoff. A crash between publish and note
publishes the same attempt and lease again, and services know them by that.

Each (service, lane) is worked by a task of its own, so a slow or dead one holds no other up. Each keeps at
most `window` directives that were published and not acknowledged; the rest wait without a clock. The window
is counted from commits. After a restart it starts empty, so a lane may hold up to one window too many until
the old ones are acknowledged or time out; what another process committed is looked up once a lane is full.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import msgspec
import structlog

from lucius.bus.port import BusError, DirectiveOut, DirectiveSender, directive_id
from lucius.contracts.credentials import blank_credentials
from lucius.contracts.messages import directive
from lucius.core.decide import is_dispatchable
from lucius.core.due import ran_ahead
from lucius.core.flow import FlowRequest
from lucius.core.inputs import Published, PublishFailed
from lucius.core.model import Event, Job, JobRecord, Outbox
from lucius.core.routing import LANES
from lucius.core.states import OutboxState, StepState
from lucius.engines.flow_control import ALL_SERVICES, FREE, FlowGate, Grant, UnlimitedFlow, await_time
from lucius.engines.outbox.fair_share import FairShare, TenantTurns
from lucius.engines.unacknowledged import Unacknowledged
from lucius.jobs.due import DueHandler, DueOutcome
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.writer import Applied, JobWriter
from lucius.ledger.indexes import DispatchEntry
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.name_index import NameIndex
from lucius.ledger.rows import Loaded
from lucius.ledger.store import StoreError, Unreadable

PAGE_ROWS_MAX = 64
HELD_AGAIN_MS = 20  # at the earliest, where a limit holds something up
RECHECKS_MAX = 32  # reads of the ledger at a time
ERROR_LENGTH_MAX = 500
ALL_LANES = frozenset(range(LANES))

_NONE: Mapping[str, Grant] = {}

log = structlog.get_logger("lucius.relay")


class PublisherLimits(msgspec.Struct, frozen=True, kw_only=True):
    window: int = 128  # unacknowledged directives of one service and lane
    look_every_ms: int = 1_000
    publish_timeout_ms: int = 10_000


class _PublisherLane:
    """What is known about one service's lane, by job ids: a job has one attempt at a time."""

    __slots__ = (
        "early",
        "full",
        "held",
        "lane",
        "resting",
        "sending",
        "service",
        "stale",
        "task",
        "timer",
        "turns",
        "unacked",
        "unnoted",
    )

    def __init__(self, service: str, lane: int) -> None:
        self.service = service
        self.lane = lane
        self.stale = False  # something may wait in the index
        self.early: set[str] = set()  # their rows stay until the commit comes that they announce
        self.full = False  # something may wait, and the window has no room
        self.held = False  # something waits for a limit of its service, or for the end of a pause
        self.timer: asyncio.Task[None] | None = None  # runs until the time to look again
        self.resting = False  # nothing got through: leave it until the regular look
        self.sending: set[str] = set()
        self.turns = TenantTurns()
        self.unacked = Unacknowledged()
        # The bus has them, the ledger does not know it yet; and whether each is a probe.
        self.unnoted: dict[str, tuple[DispatchEntry, bool]] = {}
        self.task: asyncio.Task[None] | None = None

    def room(self, window: int) -> int:
        return window - len(self.sending | self.unacked.keys() | self.unnoted.keys())

    def rest(self) -> None:
        self.resting = self.stale = True


class BusPublisher:
    def __init__(
        self,
        bus: DirectiveSender,
        ledger: JobLedger,
        fair_share: FairShare,
        services: NameIndex,
        writer: JobWriter,
        due_handler: DueHandler,
        tokens: CallbackTokens,
        limits: PublisherLimits,
        *,
        callback_base: str,
        now_ms: Callable[[], int],
        lanes: Callable[[], frozenset[int]] = lambda: ALL_LANES,
        flow: FlowGate | None = None,
    ) -> None:
        """`lanes`: those that this publisher serves. Two publishers on one lane are safe, but publish much
        twice. `flow`: says what may leave; None: everything."""
        self._flow = flow or UnlimitedFlow()
        self._bus = bus
        self._ledger = ledger
        self._fair_share = fair_share
        self._services = services
        self._writer = writer
        self._due_handler = due_handler
        self._tokens = tokens
        self._limits = limits
        self._callback_base = callback_base
        self._now_ms = now_ms
        self._own_lanes = lanes
        self._lanes: dict[tuple[str, int], _PublisherLane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self.actions: Counter[str] = Counter()

    # What sets it going

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        """A commit happened: counts the window, and sees to what may leave now."""
        outbox = after.outbox
        if before is not None and before.outbox is not None and not _same_place(before.outbox, outbox):
            self._left_window(self._lane(before.outbox.service, before.outbox.lane), after.job)
        if outbox is None:
            return
        lane = self._lane(outbox.service, outbox.lane)
        if _awaits_ack(after):
            lane.unacked.entered(after.job)
        else:
            self._left_window(lane, after.job)
        known = before is not None and before.outbox is outbox and is_dispatchable(before)
        if is_dispatchable(after) and not known and outbox.due_at_ms <= self._now_ms() and not lane.full:
            lane.stale = True
            lane.turns.note_waiting(after.job.tenant_norm)
            self._go(lane)

    def nudge(self, service: str, lane: int) -> None:
        """Another process says that something may leave now. Of a service that is not known here yet, the
        next look finds it."""
        found = self._lanes.get((service, lane))
        if found is not None and not found.full:
            found.stale = True
            found.turns.look_round()
            self._go(found)

    def flow_opened(self, service: str) -> None:
        """More of this service may leave than before; `*`: of every service."""
        for lane in self._lanes.values():
            if lane.held and service in (lane.service, ALL_SERVICES):
                lane.held, lane.stale = False, True
                self._go(lane)

    async def run(self) -> None:
        """Looks regularly until `stop`; then finishes what is on its way."""
        try:
            while not self._stopping.is_set():
                try:
                    await self.look()
                except StoreError as fault:
                    log.warning("relay_look_failed", error=str(fault))
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.look_every_ms / 1000):
                        await self._stopping.wait()
            await self.idle()
        finally:
            for lane in self._lanes.values():
                if lane.timer is not None:
                    lane.timer.cancel()
            for task in self._tasks:
                task.cancel()

    def stop(self) -> None:
        self._stopping.set()

    async def look(self) -> None:
        """Looks at every lane of every service, also those that rest. Does not wait for the outcome."""
        services, own = await self._services.all(), self._own_lanes()
        for service in services:
            for number in sorted(own):
                self._lane(service, number)
        for lane in self._lanes.values():
            lane.resting, lane.stale = False, True
            lane.turns.look_round()
            if lane.lane in own:
                self._go(lane)

    async def idle(self) -> None:
        """Returns once no lane is being worked."""
        while self._tasks:
            await asyncio.wait(tuple(self._tasks))

    def unacked(self, service: str, lane: int) -> int:
        """How many directives of this lane are out without an ACK, as far as this process knows."""
        found = self._lanes.get((service, lane))
        return 0 if found is None else len(found.unacked.keys() | found.unnoted.keys())

    def _lane(self, service: str, number: int) -> _PublisherLane:
        lane = self._lanes.get((service, number))
        if lane is None:
            lane = self._lanes[(service, number)] = _PublisherLane(service, number)
        return lane

    def _left_window(self, lane: _PublisherLane, job: Job) -> None:
        lane.unacked.left(job)
        if lane.full and lane.room(self._limits.window) > 0:
            lane.full, lane.stale = False, True
            self._go(lane)

    def _go(self, lane: _PublisherLane) -> None:
        if lane.task is None and not lane.resting and not self._stopping.is_set():
            if lane.lane not in self._own_lanes():
                return
            lane.task = asyncio.create_task(self._work(lane))
            self._tasks.add(lane.task)
            lane.task.add_done_callback(self._tasks.discard)

    # Working one lane

    async def _work(self, lane: _PublisherLane) -> None:
        try:
            while lane.stale and not lane.resting and not self._stopping.is_set():
                lane.stale = False
                await self._pass(lane)
        except StoreError as fault:
            log.warning("relay_waits_for_ledger", service=lane.service, lane=lane.lane, error=str(fault))
            lane.rest()
        except Exception:
            # One lane's fault must not end the others' work, nor its own for good.
            log.exception("relay_lane_failed", service=lane.service, lane=lane.lane)
            lane.rest()
        finally:
            lane.task = None

    async def _pass(self, lane: _PublisherLane) -> None:
        """Sends what is due by now, fairly over the tenants, as far as the window has room. What waits for no
        backoff and yet is not due was put there by a clock that runs ahead: it leaves, too."""
        for entry, probe in tuple(lane.unnoted.values()):
            await self._note(lane, entry, probe=probe)
        if lane.full:
            await self._recheck(lane)
            lane.full = False
        now_ms = self._now_ms()
        lane.early.clear()
        lane.held = False
        while not self._stopping.is_set():
            if (again_in_ms := self._flow.again_in_ms(lane.service)) > 0:
                self._look_later(lane, again_in_ms)
                return
            ready = partial(self._is_ready, lane, now_ms, self._flow.ready(lane.service))
            limit = min(lane.room(self._limits.window), PAGE_ROWS_MAX)
            if limit <= 0:
                lane.full = True
                return
            entries, more = await self._fair_share.read(
                lane.service,
                lane.lane,
                lane.turns,
                limit,
                skip=lane.early,
                ready=ready,
                over=self._flow.over(),
            )
            wanted, grants = len(entries), _NONE
            if entries and self._flow.governs(lane.service):
                asks = [FlowRequest(entry.job_id, entry.row.lease_id, entry.group) for entry in entries]
                grants = await self._flow.admit(lane.service, asks)
                entries = [entry for entry in entries if entry.row.lease_id in grants]
            if entries and not await self._send_page(lane, entries, grants):
                lane.rest()
                return
            if len(entries) < wanted or (lane.held and not entries):
                self._look_later(lane, max(HELD_AGAIN_MS, self._flow.again_in_ms(lane.service)))
                return
            if not (entries and more):
                return

    @staticmethod
    def _is_ready(
        lane: _PublisherLane,
        now_ms: int,
        ready: Callable[[DispatchEntry], bool] | None,
        entry: DispatchEntry,
    ) -> bool:
        if not _is_due(entry, now_ms):
            return False
        if ready is None or ready(entry):
            return True
        lane.held = True
        return False

    def _look_later(self, lane: _PublisherLane, after_ms: int) -> None:
        """Something waits for a limit: it may leave after a while, or once others are told to be over."""
        lane.held = True
        if lane.timer is None or lane.timer.done():
            lane.timer = asyncio.create_task(self._look_after(lane, after_ms / 1000))

    async def _look_after(self, lane: _PublisherLane, seconds: float) -> None:
        await asyncio.sleep(seconds)
        lane.stale = True
        self._go(lane)

    async def _send_page(
        self, lane: _PublisherLane, entries: Sequence[DispatchEntry], grants: Mapping[str, Grant]
    ) -> bool:
        """False if it is no use to go on: the bus took nothing, or the ledger failed."""
        lane.sending.update(entry.job_id for entry in entries)
        try:
            results = await self._send_all(lane, entries, grants)
        finally:
            lane.sending.difference_update(entry.job_id for entry in entries)
        faults = [result for result in results if isinstance(result, BaseException)]
        for fault in faults:
            log.warning("relay_send_failed", service=lane.service, lane=lane.lane, error=repr(fault))
        return not faults and any(results)

    async def _send_all(
        self, lane: _PublisherLane, entries: Sequence[DispatchEntry], grants: Mapping[str, Grant]
    ) -> Sequence[bool | BaseException]:
        given = [grants.get(entry.row.lease_id, FREE) for entry in entries]
        await await_time(given, self._now_ms)
        if len(entries) > 1:
            sends = (self._send(lane, entry, grant) for entry, grant in zip(entries, given, strict=True))
            return await asyncio.gather(*sends, return_exceptions=True)
        try:
            return [await self._send(lane, entries[0], given[0])]
        except Exception as fault:
            return [fault]

    async def _send(self, lane: _PublisherLane, entry: DispatchEntry, grant: Grant) -> bool:
        """False if the bus cannot be used."""
        try:
            record = await self._load_waiting(entry)
        except Unreadable:
            self.actions["unreadable"] += 1
            return True  # its job is in quarantine by now, and its rows are passed over from here on
        if record is None:
            if await self._due_handler.meet_undeliverable(entry) is not DueOutcome.CLEARED:
                lane.early.add(entry.job_id)
            self.actions["not_wanted"] += 1
            return True
        if self._flow.is_late(lane.service, grant):
            lane.stale = True  # it asks again at once
            return True
        out = self._directive(record, entry)
        try:
            async with asyncio.timeout(self._limits.publish_timeout_ms / 1000):
                await self._bus.publish_directive(out)
        except TimeoutError:
            await self._failed(entry, f"the bus gave no answer within {self._limits.publish_timeout_ms} ms")
            return False
        except BusError as fault:
            await self._failed(entry, str(fault))
            return False
        except ValueError as fault:
            # This message will never be taken, too large for instance; the lane is none the worse for it.
            await self._failed(entry, str(fault))
            return True
        lane.unnoted[entry.job_id] = (entry, grant.probe)
        await self._note(lane, entry, probe=grant.probe)
        return True

    async def _note(self, lane: _PublisherLane, entry: DispatchEntry, *, probe: bool) -> None:
        row = entry.row
        given = Published(step_id=row.step_id, attempt_no=row.attempt_no, lease_id=row.lease_id, probe=probe)
        applied = await self._writer.apply(entry.job_id, given)
        # Where a note took effect and gave no answer, the one that repeats it changes nothing, and no commit
        # tells of a directive that is out.
        if isinstance(applied, Applied) and _awaits_ack(applied.record):
            outbox = applied.record.outbox
            if outbox is not None and _is_of(outbox, lane):
                lane.unacked.entered(applied.record.job)
        lane.unnoted.pop(entry.job_id, None)
        self.actions["published"] += 1

    async def _failed(self, entry: DispatchEntry, error_message: str) -> None:
        row = entry.row
        given = PublishFailed(
            step_id=row.step_id,
            attempt_no=row.attempt_no,
            lease_id=row.lease_id,
            error_message=blank_credentials(error_message)[:ERROR_LENGTH_MAX],
        )
        await self._writer.apply(entry.job_id, given)
        self.actions["publish_failed"] += 1

    async def _load_waiting(self, entry: DispatchEntry) -> JobRecord | None:
        """The job, if it still wants this row sent. A remembered one may say yes if it is not older than the
        row, which was read a moment ago; only a fresh one may say no."""
        loaded = await self._ledger.load(entry.job_id)
        if loaded is not None and loaded.cached:
            if loaded.record.job.version >= entry.row.version and _waits(loaded.record, entry):
                return loaded.record
            loaded = await self._ledger.load(entry.job_id, fresh=True)
        if loaded is None or not _waits(loaded.record, entry):
            return None
        return loaded.record

    def _directive(self, record: JobRecord, entry: DispatchEntry) -> DirectiveOut:
        attempt = entry.attempt
        step = record.step(attempt.step_id)
        assert step is not None
        # The ACK deadline is set by the note that follows; the service is told where it will be.
        step = msgspec.structs.replace(step, lease_expires_at_ms=self._now_ms() + step.policy.ack_timeout_ms)
        message = directive(
            record, step, callback_base=self._callback_base, callback_token=self._tokens.mint(attempt)
        )
        return DirectiveOut(
            service=entry.service,
            lane=entry.lane,
            message_key=step.routing.routing_key_used,
            message_id=directive_id(attempt),
            body=msgspec.json.encode(message),
        )

    async def _fresh(self, job_id: str) -> Loaded | None:
        try:
            return await self._ledger.load(job_id, fresh=True)
        except Unreadable:
            return None  # it takes no room from jobs that can go on

    async def _recheck(self, lane: _PublisherLane) -> None:
        """ACKs that another process committed were not heard here: asks the ledger."""
        jobs = sorted(lane.unacked)
        for first in range(0, len(jobs), RECHECKS_MAX):
            page = jobs[first : first + RECHECKS_MAX]
            found = await asyncio.gather(*(self._fresh(job_id) for job_id in page))
            for job_id, loaded in zip(page, found, strict=True):
                record = None if loaded is None else loaded.record
                here = record is not None and record.outbox is not None and _is_of(record.outbox, lane)
                if record is None:
                    lane.unacked.pop(job_id, None)
                elif not here or not _awaits_ack(record):
                    lane.unacked.left(record.job)


def _is_due(entry: DispatchEntry, now_ms: int) -> bool:
    return entry.at_ms <= now_ms or _waits_for_nothing(entry, now_ms)


def _waits_for_nothing(entry: DispatchEntry, now_ms: int) -> bool:
    """Not even for a backoff, unless one that was counted by a clock that ran far ahead."""
    written_at_ms = entry.row.written_at_ms
    return entry.at_ms <= written_at_ms or ran_ahead(written_at_ms, now_ms)


def _awaits_ack(record: JobRecord) -> bool:
    outbox = record.outbox
    return (
        outbox is not None
        and outbox.state is OutboxState.SENT
        and not record.job.terminal
        and record.steps[outbox.step_index].state is StepState.INITIATED
    )


def _waits(record: JobRecord, entry: DispatchEntry) -> bool:
    outbox = record.outbox
    return (
        outbox is not None
        and is_dispatchable(record)
        and entry.attempt.is_of(outbox)
        and (outbox.service, outbox.lane, outbox.due_at_ms) == (entry.service, entry.lane, entry.at_ms)
    )


def _same_place(first: Outbox, second: Outbox | None) -> bool:
    return second is not None and (first.service, first.lane) == (second.service, second.lane)


def _is_of(outbox: Outbox, lane: _PublisherLane) -> bool:
    return (outbox.service, outbox.lane) == (lane.service, lane.lane)

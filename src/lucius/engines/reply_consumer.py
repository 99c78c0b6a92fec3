"""The reply consumer: replies from the 16 reply lanes become inputs of the job writer.

In: ACK, PROGRESS and RESULT messages from the bus. Out: commits, and the message settled after its commit and
not before: a crash in between brings it again, as a duplicate that changes nothing. Where a workflow is to be
told as well, that comes before the settling too, and the lane goes on meanwhile with the replies that come
after it. Poison (a message that is no reply) and replies for an unknown job are dead-lettered with the
reason.

While the ledger cannot be used, a message is given back and no lane fetches until the ledger answers a ping.
A message that may not come again is kept, its lock renewed, and tried until the ledger takes it: redelivery
never buries a good message. At its start, after each outage and when it was kept from fetching, a lane is
behind until a short look finds it empty: so long no attempt is given up whose answer may lie there. After an
outage of the bus those who could not send come first: it is behind for a moment more.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

import msgspec
import structlog

from lucius.bus.port import BusError, Delivery, Receiver, ReplySource
from lucius.contracts.messages import OTHER_TENANT, read_reply
from lucius.core.attempt import AttemptRef
from lucius.core.draft import Outcome
from lucius.core.inputs import Reply
from lucius.core.refusal import Code, Refused
from lucius.core.routing import LANES
from lucius.jobs.reply_backlog import ReplyBacklog
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.writer import Applied, InputHandler
from lucius.ledger.store import StoreError, Unreadable
from lucius.telemetry.context import Subject, forget_subject, name_subject

TENANT_MISMATCH = "TENANT_MISMATCH"
REPLY_TOKENS = "LUCIUS_BUS_REPLY_TOKENS"

log = structlog.get_logger("lucius.replies")

T = TypeVar("T")
NotifyWorkflow = Callable[[str, Reply, Applied], Awaitable[None]]


class ConsumerLimits(msgspec.Struct, frozen=True, kw_only=True):
    messages_max: int = 64  # of one lane, taken at a time
    wait_ms: int = 10_000  # each wait that ends empty costs a round trip a lane
    look_ms: int = 250  # a wait while the lane is behind
    slow_ms: int = 1_000  # what was taken at a time and is not applied by then keeps the lane behind
    give_back_delay_ms: int = 1_000
    ping_every_ms: int = 500
    bus_retry_ms: int = 1_000
    bus_back_ms: int = 2_000  # after an outage of the bus a lane is behind for so long at least
    unnotified_max: int = 2_000  # applied and not told yet; while there are more, no lane fetches


class _Gate:
    """Open while the ledger can be used. A lane that finds that it cannot shuts it; the pinger opens it."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.shut = asyncio.Event()
        self.opened.set()

    def close(self) -> None:
        self.opened.clear()
        self.shut.set()

    def open(self) -> None:
        self.shut.clear()
        self.opened.set()


class ReplyConsumer:
    def __init__(
        self,
        bus: ReplySource,
        writer: InputHandler,
        limits: ConsumerLimits,
        *,
        ping_ledger: Callable[[], Awaitable[None]],
        group: str = "lucius",
        lanes: Sequence[int] = tuple(range(LANES)),
        outages: tuple[type[Exception], ...] = (StoreError,),
        notify: NotifyWorkflow | None = None,
        reply_backlog: ReplyBacklog | None = None,
        tokens: CallbackTokens | None = None,
    ) -> None:
        """`notify`: called for every reply before it is settled. `ping_ledger` raises one of `outages` while
        the ledger, or what `notify` calls, cannot take it. `reply_backlog` is given how far this got.
        `tokens`: they read what each reply must carry; None: replies need none."""
        self._bus = bus
        self._writer = writer
        self._limits = limits
        self._ping_ledger = ping_ledger
        self._group = group
        self._lanes = tuple(lanes)
        self._outages = outages
        self._notify = notify
        self._reply_backlog = reply_backlog
        self._tokens = tokens
        self._unnotified: set[asyncio.Task[None]] = set()
        self._receiving: set[asyncio.Task[None]] = set()
        self._gate = _Gate()
        self._stopping = asyncio.Event()
        self.outcomes: Counter[str] = Counter()

    @property
    def fetching(self) -> bool:
        """Whether it takes messages: not while the ledger is away, nor once it was stopped."""
        return self._gate.opened.is_set() and not self._stopping.is_set()

    async def run(self) -> None:
        """Consumes until `stop`; what was taken by then is dealt with first."""
        pinger = asyncio.create_task(self._open_again())
        try:
            async with asyncio.TaskGroup() as group:
                for lane in self._lanes:
                    group.create_task(self._consume(lane))
        finally:
            if self._reply_backlog is not None:
                self._reply_backlog.ledger_back()  # no later call would say so
            for task in (pinger, *self._unnotified):
                task.cancel()
            await asyncio.gather(pinger, *self._unnotified, return_exceptions=True)

    def stop(self) -> None:
        self._stopping.set()
        self._gate.opened.set()  # ends the waits for the ledger
        for lane in self._receiving:
            lane.cancel()

    async def _open_again(self) -> None:
        while True:
            await self._gate.shut.wait()
            await asyncio.sleep(self._limits.ping_every_ms / 1000)
            try:
                await self._ping_ledger()
            except self._outages as fault:
                self._note_outage(away=isinstance(fault, StoreError))
                continue
            except Exception:
                log.exception("ledger_ping_failed")  # without a pinger nothing would ever be fetched again
                self._note_outage(away=False)
                continue
            log.info("ledger_answers_again")
            self._note_outage(away=False)
            self._gate.open()

    def _note_outage(self, *, away: bool) -> None:
        """Of the ledger itself: one of those who are told does not stop the clock."""
        if self._reply_backlog is not None:
            (self._reply_backlog.ledger_away if away else self._reply_backlog.ledger_back)()

    async def _consume(self, lane: int) -> None:
        receiver: Receiver | None = None
        bus_failed = False
        while not self._stopping.is_set():
            if not self._gate.opened.is_set():
                self._fall_behind(lane)  # what comes meanwhile lies on the bus
                await self._gate.opened.wait()
            if self._stopping.is_set():
                break
            try:
                if receiver is None:
                    receiver = await self._bus.replies(lane, group=self._group)
                taken = await self._receive(receiver, self._wait_ms(lane))
            except BusError as fault:
                bus_failed = True
                self._fall_behind(lane)
                log.warning("replies_unavailable", lane=lane, error=str(fault))
                await _close(receiver)
                receiver = None
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.bus_retry_ms / 1000):
                        await self._stopping.wait()
                continue
            if bus_failed:
                bus_failed = False
                self._fall_behind(lane, for_ms=self._limits.bus_back_ms)
            if self._reply_backlog is not None:
                (self._reply_backlog.still_read if taken else self._reply_backlog.caught_up)(lane)
            await self._handle_in_time(lane, receiver, taken)
            while len(self._unnotified) > self._limits.unnotified_max:
                self._fall_behind(lane)
                await asyncio.wait(self._unnotified, return_when=asyncio.FIRST_COMPLETED)
        if self._unnotified:
            await asyncio.wait(self._unnotified)  # they settle through the receiver
        await _close(receiver)

    def _wait_ms(self, lane: int) -> int:
        limits = self._limits
        is_behind = self._reply_backlog is not None and self._reply_backlog.is_behind(lane)
        return min(limits.look_ms, limits.wait_ms) if is_behind else limits.wait_ms

    def _fall_behind(self, lane: int, *, for_ms: int = 0) -> None:
        if self._reply_backlog is not None:
            self._reply_backlog.behind(lane, for_ms=for_ms)

    async def _receive(self, receiver: Receiver, wait_ms: int) -> list[Delivery]:
        """Nothing once `stop` was called: it cuts a wait short, which loses no message."""
        lane = asyncio.current_task()
        assert lane is not None
        self._receiving.add(lane)
        try:
            return await receiver.receive(messages_max=self._limits.messages_max, wait_ms=wait_ms)
        except asyncio.CancelledError:
            if not self._stopping.is_set() or lane.uncancel() > 0:
                raise
            return []
        finally:
            self._receiving.discard(lane)

    async def _handle_in_time(self, lane: int, receiver: Receiver, taken: Sequence[Delivery]) -> None:
        """While a slow ledger takes what is there, nothing reads what comes."""
        if not taken:
            return
        slow = asyncio.get_running_loop().call_later(self._limits.slow_ms / 1000, self._fall_behind, lane)
        try:
            await self._handle_all(receiver, taken)
        finally:
            slow.cancel()

    async def _handle_all(self, receiver: Receiver, taken: Sequence[Delivery]) -> None:
        """Jobs side by side; the replies of one job in the order in which they came."""
        jobs: dict[str, list[tuple[Delivery, Reply]]] = {}
        for delivery in taken:
            parsed = read_reply(delivery.body, expected=None)
            if isinstance(parsed, Refused):
                await self._bury(receiver, delivery, "poison", f"POISON: {parsed.message}")
                continue
            job_id, reply = parsed
            if not await self._refused_for_token(receiver, delivery, job_id, reply):
                jobs.setdefault(job_id, []).append((delivery, reply))
        handled = [self._handle_job(receiver, job_id, replies) for job_id, replies in jobs.items()]
        if len(handled) > 1:
            await asyncio.gather(*handled)
        elif handled:
            await handled[0]

    async def _refused_for_token(
        self, receiver: Receiver, delivery: Delivery, job_id: str, reply: Reply
    ) -> bool:
        """Whether tokens are asked for, and the reply has none of its attempt. A key may be newer than those
        that this process knows: such a reply comes again first."""
        if self._tokens is None:
            return False
        if not delivery.token:
            reason = f"TOKEN_MISSING: {REPLY_TOKENS} asks for a callback token, and the reply has none"
            await self._bury(receiver, delivery, "unsigned", reason)
            return True
        opened = self._tokens.read(delivery.token)
        if opened == AttemptRef(
            job_id=job_id, step_id=reply.step_id, attempt_no=reply.attempt_no, lease_id=reply.lease_id
        ):
            return False
        if opened is not None:
            reason = "TOKEN_INVALID: the callback token opens another attempt than the reply names"
            await self._bury(receiver, delivery, "forged", reason)
        elif delivery.deliveries_left > 0:
            await self._guarded(delivery, self._give_back(receiver, delivery))
        else:
            reason = "TOKEN_INVALID: no key that is known here has signed the callback token"
            await self._bury(receiver, delivery, "forged", reason)
        return True

    async def _give_back(self, receiver: Receiver, delivery: Delivery) -> None:
        await receiver.give_back(delivery, delay_ms=self._limits.give_back_delay_ms)
        self.outcomes["given_back"] += 1

    async def _handle_job(
        self, receiver: Receiver, job_id: str, replies: Sequence[tuple[Delivery, Reply]]
    ) -> None:
        for delivery, reply in replies:
            named = name_subject(Subject(job_id, reply))
            try:
                await self._guarded(delivery, self._handle(receiver, delivery, job_id, reply))
            finally:
                forget_subject(named)

    async def _guarded(self, delivery: Delivery, handling: Awaitable[None]) -> None:
        try:
            await handling
        except BusError as fault:
            # It was not settled, so it comes again: as a duplicate if it was applied.
            log.warning("reply_not_settled", lane=delivery.lane, error=str(fault))
            self.outcomes["not_settled"] += 1
        except Exception:
            # Its lock runs out and it is tried again; after the last time the bus puts it aside.
            log.exception("reply_failed", lane=delivery.lane)
            self.outcomes["failed"] += 1

    async def _handle(self, receiver: Receiver, delivery: Delivery, job_id: str, reply: Reply) -> None:
        apply = partial(self._writer.apply, job_id, reply)
        try:
            kept = await self._insist(receiver, delivery, apply)
        except Unreadable as fault:
            await self._put_aside(receiver, delivery, fault)
            return
        if kept is None:
            return
        delivery, applied = kept
        ending = self._end(receiver, delivery, job_id, reply, applied)
        if self._notify is None:
            await ending
        else:
            notifier = asyncio.create_task(self._guarded(delivery, ending))
            self._unnotified.add(notifier)
            notifier.add_done_callback(self._unnotified.discard)

    async def _put_aside(self, receiver: Receiver, delivery: Delivery, fault: Unreadable) -> None:
        """A job that cannot be read takes no reply, and must not hold up those of others. Its rows may be
        repaired soon, and those of a later version are read by its processes: the reply comes again first."""
        if delivery.deliveries_left > 0:
            await self._give_back(receiver, delivery)
            return
        await self._bury(receiver, delivery, "unreadable", f"{Code.JOB_UNREADABLE.value}: {fault}")

    async def _end(
        self, receiver: Receiver, delivery: Delivery, job_id: str, reply: Reply, applied: Applied | Refused
    ) -> None:
        """Calls `notify`, and settles the message."""
        if not isinstance(applied, Refused) and applied.outcome is Outcome.OTHER_TENANT:
            await self._bury(receiver, delivery, applied.outcome.value, f"{TENANT_MISMATCH}: {OTHER_TENANT}")
        elif not isinstance(applied, Refused):
            if self._notify is not None:
                notify = partial(self._notify, job_id, reply, applied)
                if (kept := await self._insist(receiver, delivery, notify)) is None:
                    return
                delivery, _ = kept
            await receiver.complete(delivery)
            self.outcomes[applied.outcome.value] += 1
        elif applied.code is Code.JOB_NOT_FOUND:
            await self._bury(receiver, delivery, "unknown_job", f"JOB_NOT_FOUND: {applied.message}")
        else:
            await self._bury(receiver, delivery, "refused", f"{applied.code.value}: {applied.message}")

    async def _insist(
        self, receiver: Receiver, delivery: Delivery, act: Callable[[], Awaitable[T]]
    ) -> tuple[Delivery, T] | None:
        """What came of it; None once the message was given back, to be tried when it comes again."""
        while True:
            try:
                return delivery, await act()
            except Unreadable:
                raise
            except self._outages as fault:
                if not self._stopping.is_set():
                    self._gate.close()
                log.warning("reply_waits_for_ledger", lane=delivery.lane, error=str(fault))
            self._fall_behind(delivery.lane, for_ms=self._limits.give_back_delay_ms)
            if delivery.deliveries_left > 0 or self._stopping.is_set():
                await self._give_back(receiver, delivery)
                return None
            delivery = await self._keep_until_open(receiver, delivery)

    async def _keep_until_open(self, receiver: Receiver, delivery: Delivery) -> Delivery:
        """Renews the lock at each ping: pings are far more frequent than locks are long."""
        while not self._gate.opened.is_set():
            delivery = await receiver.extend(delivery)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._limits.ping_every_ms / 1000):
                    await self._gate.opened.wait()
        return delivery

    async def _bury(self, receiver: Receiver, delivery: Delivery, outcome: str, reason: str) -> None:
        log.warning("reply_dead_lettered", lane=delivery.lane, message_id=delivery.message_id, reason=reason)
        try:
            await receiver.dead_letter(delivery, reason=reason)
        except BusError as fault:
            log.warning("reply_not_settled", lane=delivery.lane, error=str(fault))
            self.outcomes["not_settled"] += 1
            return
        self.outcomes[outcome] += 1


async def _close(receiver: Receiver | None) -> None:
    if receiver is not None:
        with suppress(BusError):
            await receiver.close()

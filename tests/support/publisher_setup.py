"""Lucius over a broker, put together for tests: the kernel, publisher and reply consumer on a ledger in
memory, with a clock that stands still until it is told to move.

A `World` is what outlives a process: the store, the broker, the clock, the ids that were given out. A
`Deployment` is one process over it. A second one over the same world is a restart, or a second replica.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.support.flow_setup import LimitedRegistry
from tests.support.payloads import payload_of

from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.bus.memory import MemoryBus, MemoryLimits, PublishFault
from lucius.bus.port import DeadLetter, Delivery, DirectiveOut, ReplyOut
from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.core.inputs import Ack, Input
from lucius.core.model import Event, JobRecord, StepPolicy
from lucius.core.routing import lane_of
from lucius.core.states import Fact
from lucius.engines.outbox.publisher import ALL_LANES, BusPublisher, PublisherLimits
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.jobs.new_job import NewIds
from lucius.jobs.reply_backlog import ReplyBacklog
from lucius.jobs.submit import Submitted
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.jobs.writer import Applied
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import Op, StoreUnavailable

TENANT = "tenant_a"
LANE = lane_of(TENANT)
SHORT_MS = 20
TOKENS = CallbackTokens([SigningKey(kid="k", secret="a secret that is long enough for HS256")])

Message = dict[str, Any]
Out = DirectiveOut | ReplyOut


class World:
    def __init__(self, *, lock_ms: int = 30_000, deliveries_max: int = 10, spans: bool = True) -> None:
        self.clock_ms = 1_800_000_000_000
        self.ledger_down = False
        self.writes_lost = 0  # how many of the next writes fail
        self.store = MemoryStore(spans=spans, before_commit=self._before_commit)
        limits = MemoryLimits(lock_ms=lock_ms, deliveries_max=deliveries_max)
        self.bus = MemoryBus(now_ms=self.now_ms, limits=limits)
        self._ids = 0

    def now_ms(self) -> int:
        return self.clock_ms

    def next_id(self) -> int:
        self._ids += 1
        return self._ids

    def new_ids(self) -> NewIds:
        number = self.next_id()
        return NewIds(job_id=f"job_{number:04d}", correlation_id=f"c{number}", traceparent=f"t{number}")

    def new_lease_id(self) -> str:
        return f"lease{self.next_id()}"

    async def ping_ledger(self) -> None:
        if self.ledger_down:
            raise StoreUnavailable("the ledger is down")

    async def replies_buried(self) -> list[DeadLetter]:
        receiver = await self.bus.replies(LANE, group="lucius")
        return await receiver.dead_letters(messages_max=100)

    def _before_commit(self, ops: Sequence[Op]) -> None:
        if self.ledger_down:
            raise StoreUnavailable("the ledger is down")
        if self.writes_lost > 0:
            self.writes_lost -= 1
            raise StoreUnavailable("the write was lost")


class MovingWorld(World):
    """Its clock is the loop's: for tests in virtual time."""

    def now_ms(self) -> int:
        return self.clock_ms + round(asyncio.get_running_loop().time() * 1000)


class Deployment:
    def __init__(
        self,
        world: World,
        *,
        policy: StepPolicy | None = None,
        window: int = 128,
        hints: bool = True,
        lanes: frozenset[int] = ALL_LANES,
        publish_timeout_ms: int = 5_000,
        wait_ms: int = SHORT_MS,
        reply_tokens: bool = False,
    ) -> None:
        """`hints`: whether the publisher hears of commits at once; else only a look finds what waits.
        `reply_tokens`: whether a reply needs the callback token of its directive."""
        self.world = world
        now_ms = world.now_ms
        self.reply_backlog = ReplyBacklog(now_ms=now_ms)
        self.registry = LimitedRegistry(policy)
        self.kernel = kernel = Kernel(
            world.store,
            KernelOptions(registry=self.registry),
            now_ms=now_ms,
            ids=world,
            over_bus=True,
            grace=self.reply_backlog,
        )
        self.ledger, self.writer, self.submitter = kernel.ledger, kernel.writer, kernel.submitter
        self.sweeper = Sweeper(
            kernel.indexes,
            kernel.due_handler,
            now_ms=now_ms,
            look_every_ms=SHORT_MS,
            reply_backlog=self.reply_backlog,
        )
        self.publisher = BusPublisher(
            world.bus,
            kernel.ledger,
            kernel.fair_share,
            kernel.services,
            kernel.writer,
            kernel.due_handler,
            TOKENS,
            PublisherLimits(window=window, look_every_ms=SHORT_MS, publish_timeout_ms=publish_timeout_ms),
            callback_base="http://lucius.test",
            now_ms=now_ms,
            lanes=lambda: lanes,
            flow=kernel.flow,
        )
        kernel.flow.on_open.append(self.publisher.flow_opened)
        if hints:
            kernel.listeners.add(self.publisher.watch)
        self.consumer = ReplyConsumer(
            world.bus,
            self.writer,
            ConsumerLimits(wait_ms=wait_ms, give_back_delay_ms=0, ping_every_ms=SHORT_MS, bus_retry_ms=5),
            ping_ledger=world.ping_ledger,
            reply_backlog=self.reply_backlog,
            tokens=TOKENS if reply_tokens else None,
        )

    # Asking and looking

    async def submit(self, request_type: str = "OCR", *, tenant_id: str = TENANT) -> str:
        accepted = await self.submitter.submit(envelope(request_type, tenant_id, str(self.world.next_id())))
        assert isinstance(accepted, Submitted), accepted
        return accepted.job_id

    async def apply(self, job_id: str, given: Input) -> Applied:
        applied = await self.writer.apply(job_id, given)
        assert isinstance(applied, Applied), applied
        return applied

    async def record(self, job_id: str) -> JobRecord:
        loaded = await self.ledger.load(job_id, fresh=True)
        assert loaded is not None
        return loaded.record

    async def facts(self, job_id: str) -> list[Fact]:
        return [event.type for event in await self.events(job_id)]

    async def events(self, job_id: str) -> list[Event]:
        return await self.ledger.events(job_id, limit=1_000)

    async def states(self, job_id: str) -> tuple[str, ...]:
        """The state of the job, then of each step."""
        record = await self.record(job_id)
        return record.job.state.value, *(step.state.value for step in record.steps)

    # Moving on

    async def look(self) -> None:
        await self.publisher.look()
        await self.publisher.idle()

    async def later(self, span_ms: int) -> None:
        """Time passes, and the sweeper and the publisher do what it asks for."""
        self.world.clock_ms += span_ms
        await self.sweeper.sweep()
        await self.look()

    @asynccontextmanager
    async def consuming(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.consumer.run())
        try:
            yield
        finally:
            self.consumer.stop()
            async with asyncio.timeout(5):
                await running

    @asynccontextmanager
    async def relaying(self) -> AsyncIterator[None]:
        running = asyncio.create_task(self.publisher.run())
        try:
            yield
        finally:
            self.publisher.stop()
            async with asyncio.timeout(5):
                await running

    async def until(self, job_id: str, state: str) -> JobRecord:
        async with asyncio.timeout(5):
            while (record := await self.record(job_id)).job.state != state:
                await asyncio.sleep(0.002)
        return record


class Worker:
    """A platform service in a few lines: one lane, peek-lock, its own memory of what it has done."""

    def __init__(self, world: World, service: str = "ocr", lane: int = LANE) -> None:
        self.world = world
        self.service = service
        self.lane = lane
        self.done: dict[str, int] = {}  # directive id -> how often it came

    async def take(self, directives_max: int = 100, *, wait_ms: int = 0) -> list[Delivery]:
        receiver = await self.world.bus.directives(self.service, self.lane)
        return await receiver.receive(messages_max=directives_max, wait_ms=wait_ms)

    async def take_one(self, *, wait_ms: int = 0) -> Message:
        (delivery,) = await self.take(wait_ms=wait_ms)
        await self.complete(delivery)
        return message_of(delivery)

    async def complete(self, delivery: Delivery) -> None:
        await (await self.world.bus.directives(self.service, self.lane)).complete(delivery)

    async def reply(self, kind: str, directive: Message, **more: Any) -> None:
        body = msgspec.json.encode(reply_to(kind, directive, **more))
        await self.send(body)

    async def send(self, body: bytes, token: str | None = None) -> None:
        number = self.world.next_id()
        out = ReplyOut(lane=self.lane, message_key=TENANT, message_id=f"r{number}", body=body, token=token)
        await self.world.bus.publish_reply(out)

    async def run(self) -> None:
        """Works until it is cancelled."""
        receiver = await self.world.bus.directives(self.service, self.lane)
        while True:
            for delivery in await receiver.receive(messages_max=10, wait_ms=SHORT_MS):
                directive = message_of(delivery)
                self.done[delivery.message_id] = self.done.get(delivery.message_id, 0) + 1
                if self.done[delivery.message_id] == 1:
                    await self.reply("ACK", directive)
                    await self.reply("PROGRESS", directive, progress=50)
                    ref = {"uri": f"s3://results/{directive['stepId']}"}
                    await self.reply("RESULT", directive, status="SUCCEEDED", output_ref=ref)
                await receiver.complete(delivery)


@asynccontextmanager
async def working(*workers: Worker) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(worker.run()) for worker in workers]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended


def message_of(delivery: Delivery) -> Message:
    message: Message = msgspec.json.decode(delivery.body)
    return message


def reply_to(kind: str, directive: Message, **more: Any) -> Message:
    same = {name: directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
    return {"type": kind, **same, "timestamp": "2027-01-15T08:00:00.000Z", **more}


def envelope(request_type: str, tenant_id: str, key: str) -> Envelope:
    parsed = parse_envelope(
        {
            "tenant_id": tenant_id,
            "request_type": request_type,
            "input_ref": {"uri": "s3://documents/in.pdf"},
            "output_ref": {"uri": "s3://documents/out.json"},
            "payload": payload_of(request_type),
            "schema_version": "1",
            "idempotency_key": key,
        }
    )
    assert isinstance(parsed, Envelope), parsed
    return parsed


def fates(*wanted: PublishFault) -> Callable[[Out], Awaitable[PublishFault]]:
    """These in turn, then all is well."""
    left = list(wanted)

    async def hook(out: Out) -> PublishFault:
        return left.pop(0) if left else PublishFault.KEPT

    return hook


def ack(directive: Message) -> Ack:
    return Ack(
        step_id=directive["stepId"],
        attempt_no=directive["attempt_no"],
        lease_id=directive["lease_id"],
        content=dict,
    )

"""One engine with one script's jobs: the real kernel over a store and a bus in memory.

In: what is done to jobs from outside. Out: commits, as the engine makes them. Each script has a side of its
own on each engine, so that its clock stands still while the script acts and runs while it waits for the
engine: then no deadline passes unless the script wants it to, however busy the machine is.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import structlog

from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.bus.memory import MemoryBus, PublishFault
from lucius.bus.port import DirectiveOut, ReplyOut
from lucius.contracts.messages import parse_reply
from lucius.core.inputs import Control, Input
from lucius.core.model import Event, JobRecord, Json, ProtocolSpec, StepSpec
from lucius.core.refusal import Refused
from lucius.core.routing import lane_of
from lucius.core.states import Engine
from lucius.engines.outbox.publisher import BusPublisher, PublisherLimits
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.reply_consumer import ConsumerLimits, ReplyConsumer
from lucius.jobs.new_job import NewIds
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.jobs.workflows import WorkflowSignaller
from lucius.jobs.writer import Applied, InputHandler
from lucius.ledger.store import TableStore
from lucius.registry.catalogue import Catalogue
from lucius_lab.equivalence.script import Publish, Script

TENANT = "tenant_a"
LANE = lane_of(TENANT)
REQUEST_TYPE = "SCRIPT"
WORKSPACE_ROOT = "s3://workspace"
CALLBACK_BASE = "http://lucius.test"
LOOK_EVERY_MS = 50
REPLY_WAIT_MS = 60_000
SERVICES = ("ocr", "embedding", "sis")

TOKENS = CallbackTokens([SigningKey(kid="lab", secret="a secret that is long enough for HS256")])  # noqa: S106
LANES = frozenset({LANE})

log = structlog.get_logger("lucius.lab.equivalence")


class PausableClock:
    """Real time while it runs; while it stands, the moment at which it was stopped."""

    def __init__(self, real_ms: Callable[[], int]) -> None:
        self._real_ms = real_ms
        self._stood_ms = real_ms()
        self._ahead_ms = 0
        self._running = False

    def now_ms(self) -> int:
        if self._running:
            self._stood_ms = max(self._stood_ms, self._real_ms() + self._ahead_ms)
        return self._stood_ms

    def run(self) -> None:
        self._running = True

    def stand(self) -> None:
        self.now_ms()
        self._running = False

    def skip(self, span_ms: int) -> None:
        self._ahead_ms += span_ms
        self._stood_ms += span_ms


class BusReplies:
    """What becomes of replies that come over the bus, for the script that waits for it."""

    def __init__(self, applies: InputHandler) -> None:
        self._applies = applies
        self.answers: asyncio.Queue[Applied | Refused] = asyncio.Queue()

    async def apply(self, job_id: str, given: Input) -> Applied | Refused:
        answer = await self._applies.apply(job_id, given)
        self.answers.put_nowait(answer)
        return answer


class SharedRun(Protocol):
    """What the engines share in one run: the clock on the wall, and names."""

    @property
    def real_ms(self) -> Callable[[], int]: ...

    @property
    def numbers(self) -> Iterator[int]: ...


class EngineSide:
    """What both engines have. `changed` is set by every commit."""

    engine: Engine
    applies: InputHandler

    def __init__(
        self,
        base: SharedRun,
        script: Script,
        store: TableStore,
        signaller: WorkflowSignaller | None = None,
    ) -> None:
        self._base = base
        self.script = script
        self.clock = PausableClock(base.real_ms)
        self.changed = asyncio.Event()
        self.fates: deque[Publish] = deque()
        self.directives: list[dict[str, Json]] = []
        self.on_directive: Callable[[dict[str, Json]], Coroutine[Any, Any, None]] | None = None
        now_ms = self.clock.now_ms
        # Locks and delays of the bus are not the script's: they follow the clock on the wall.
        self.bus = MemoryBus(now_ms=base.real_ms, on_publish=self._publishing)
        self.kernel = kernel = Kernel(
            store,
            KernelOptions(
                registry=Catalogue([("script", _protocol_of(script))]),
                engine=self.engine,
                sla_ms=script.sla_ms,
                workspace_root=WORKSPACE_ROOT,
            ),
            now_ms=now_ms,
            ids=self,
            signaller=signaller,
        )
        self.ledger, self.listeners, self.indexes = kernel.ledger, kernel.listeners, kernel.indexes
        self.writer, self.submitter, self.reruns = kernel.writer, kernel.submitter, kernel.reruns
        self.sweeper = Sweeper(
            kernel.indexes,
            kernel.due_handler,
            now_ms=now_ms,
            look_every_ms=LOOK_EVERY_MS,
            lanes=lambda: LANES,
        )
        self.listeners.add(self.sweeper.watch)
        self.listeners.add(self._noticed)
        self._tasks: list[asyncio.Task[None]] = []

    # What a script does

    async def control(self, job_id: str, wish: Control) -> Applied | Refused:
        return await self.applies.apply(job_id, wish)

    async def reply(self, message: dict[str, Json]) -> Applied | Refused:
        """As a callback brings it."""
        job_id, reply = _parsed(message)
        return await self.applies.apply(job_id, reply)

    async def reply_by_bus(self, message: dict[str, Json]) -> Applied | Refused:
        await self.send(message)
        return await self.replies.answers.get()

    async def send(self, message: dict[str, Json]) -> None:
        number = next(self._base.numbers)
        body = msgspec.json.encode(message)
        out = ReplyOut(lane=LANE, message_key=TENANT, message_id=f"reply{number}", body=body)
        await self.bus.publish_reply(out)

    async def untold(self, message: dict[str, Json]) -> Applied | Refused:
        """A reply that is applied, not settled, and comes again."""
        raise AssertionError("an engine says how this happens to it")

    async def orphan(self, job_id: str) -> None:
        """Takes its workflow from a job, if it has one."""

    async def ended(self, record: JobRecord) -> str | None:
        """How a job's workflow ended, if that is not how its job did."""
        return None

    async def record(self, job_id: str) -> JobRecord:
        loaded = await self.ledger.load(job_id, fresh=True)
        assert loaded is not None
        return loaded.record

    # What runs

    def start(self) -> None:
        self.replies = BusReplies(self.applies)
        self._tasks = [asyncio.create_task(duty) for duty in self.duties()]

    def duties(self) -> list[Coroutine[Any, Any, None]]:
        return [self.sweeper.run(), self._consumer().run()]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        for ended in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended

    def _consumer(self) -> ReplyConsumer:
        raise AssertionError("an engine has its own")

    # Ids, and what is seen of commits and directives

    def new_ids(self) -> NewIds:
        number = next(self._base.numbers)
        return NewIds(
            job_id=f"job_{self._base.real_ms():014d}{number:012d}",
            correlation_id=f"correlation{number}",
            traceparent=f"00-{number:032x}-{number:016x}-01",
        )

    def new_lease_id(self) -> str:
        return f"lease{next(self._base.numbers):012d}"

    def _noticed(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        self.changed.set()

    async def _publishing(self, out: DirectiveOut | ReplyOut) -> PublishFault:
        if isinstance(out, ReplyOut):
            return PublishFault.KEPT
        fate = self.fates.popleft() if self.fates else Publish.KEPT
        message: dict[str, Json] = msgspec.json.decode(out.body)
        if fate is not Publish.REFUSED and message["lease_id"] not in [
            each["lease_id"] for each in self.directives
        ]:
            self.directives.append(message)
        if self.on_directive is not None and fate is not Publish.REFUSED:
            answer, self.on_directive = self.on_directive, None
            await answer(message)
        return PublishFault[fate.name]


class OutboxSide(EngineSide):
    engine = Engine.OUTBOX

    def __init__(self, base: SharedRun, script: Script, store: TableStore) -> None:
        super().__init__(base, script, store)
        self.applies = self.writer
        self._publisher = BusPublisher(
            self.bus,
            self.ledger,
            self.kernel.fair_share,
            self.kernel.services,
            self.writer,
            self.kernel.due_handler,
            TOKENS,
            PublisherLimits(look_every_ms=LOOK_EVERY_MS),
            callback_base=CALLBACK_BASE,
            now_ms=self.clock.now_ms,
            lanes=lambda: LANES,
        )
        self.listeners.add(self._publisher.watch)

    def duties(self) -> list[Coroutine[Any, Any, None]]:
        return [*super().duties(), self._publisher.run()]

    async def untold(self, message: dict[str, Json]) -> Applied | Refused:
        """As after a crash between commit and settlement."""
        await self.reply_by_bus(message)
        return await self.reply_by_bus(message)

    def _consumer(self) -> ReplyConsumer:
        return ReplyConsumer(
            self.bus,
            self.replies,
            ConsumerLimits(wait_ms=REPLY_WAIT_MS),
            ping_ledger=self.ledger.store.ping,
            lanes=(LANE,),
        )


def _protocol_of(script: Script) -> ProtocolSpec:
    steps = tuple(
        StepSpec(step_type=service.upper(), service=service, payload_key=service, policy=script.policy)
        for service in SERVICES[: script.steps]
    )
    return ProtocolSpec(protocol_id="script_v1", request_types=(REQUEST_TYPE,), steps=steps)


def _parsed(message: dict[str, Json]) -> tuple[str, Input]:
    parsed = parse_reply(message, expected=None)
    assert not isinstance(parsed, Refused), parsed
    return parsed

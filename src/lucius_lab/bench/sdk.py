"""The part of `lucius bench` about the sdk: what an attempt costs beside its work, and how many a service
process carries out a second.

The handler does nothing, so everything that is measured is the sdk's: lease, memory, ACK, RESULT, figures. On
a bus the directives lie there already when the service begins; the NATS server is a process of its own and
shares the machine.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import islice
from pathlib import Path

import msgspec
import structlog

from lucius.assembly import NoBus, open_bus, own_nats
from lucius.assembly.clock_and_ids import new_hex, now_ms
from lucius.bus.memory import MemoryBus
from lucius.bus.port import Bus, DirectiveOut
from lucius.core.routing import LANES, reply_topic
from lucius.sdk import (
    Dedupe,
    DurableDedupe,
    MemoryDedupe,
    ReplyAnswer,
    Runner,
    Service,
    SqliteResultStore,
    Task,
    Transport,
)
from lucius.sdk.bus_transport import BusTransport
from lucius.sdk.directive import Directive, Json
from lucius.settings import read_settings
from lucius.telemetry import AttemptMetrics
from lucius.workspace import ObjectWorkspace
from lucius_lab.bench.main import NotMeasured

SERVICE = "bench"
CONCURRENCY = 64
PUBLISHERS = 64
WARM_DIRECTIVES = 500
SECONDS_MAX = 120.0


class Calls:
    """Hands out directives and takes replies by calling: the least that a transport can cost."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self._numbers = numbers

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        leased = [directive(number) for number in islice(self._numbers, max_directives)]
        if not leased:
            await asyncio.sleep(wait_seconds)
        return leased

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        return ReplyAnswer("applied")


class Counting:
    """Any transport, and when the last of so many RESULTs was delivered."""

    def __init__(self, inner: Transport, results: int) -> None:
        self._inner = inner
        self._left = results
        self.done = asyncio.Event()

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        return await self._inner.lease(max_directives=max_directives, wait_seconds=wait_seconds)

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        answer = await self._inner.reply(directive, message)
        if message["type"] == "RESULT":
            self._left -= 1
            if self._left == 0:
                self.done.set()
        return answer


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    directives: int
    seconds: float
    cpu_seconds: float

    @property
    def per_second(self) -> float:
        return self.directives / self.seconds

    @property
    def cpu_us(self) -> float:
        """Of this process, for one attempt."""
        return self.cpu_seconds / self.directives * 1_000_000


async def measure_sdk(directives: int, folder: Path, add: Callable[[str, float, str], None]) -> None:
    """Raises `NotMeasured` after what could be measured."""
    add("sdk: overhead an attempt", (await by_calls(directives)).cpu_us, "µs CPU")
    kept = await by_calls(directives, results_file=folder / "results.db")
    add("  with RESULTs kept in a file", kept.cpu_us, "µs CPU")
    add("sdk: in-process bus", (await over_memory_bus(directives)).per_second, "/s")
    carried = await over_nats(directives, folder / "sdk-nats")
    add("sdk: NATS", carried.per_second, "/s")
    add("  of the service process", carried.cpu_us, "µs CPU")


async def by_calls(directives: int, *, results_file: Path | None = None) -> Taken:
    """`results_file`: RESULTs are kept there; None: in memory."""
    async with AsyncExitStack() as stack:
        dedupe: Dedupe = MemoryDedupe()
        if results_file is not None:
            result_store = await SqliteResultStore.open(results_file)
            stack.push_async_callback(result_store.close)
            dedupe = DurableDedupe(result_store, now_ms=now_ms)
        warm = min(WARM_DIRECTIVES, directives)
        await _carried_out(Calls(iter(range(warm))), warm, dedupe)
        return await _carried_out(Calls(iter(range(warm, warm + directives))), directives, dedupe)


async def over_memory_bus(directives: int) -> Taken:
    return await _over_bus(MemoryBus(now_ms=now_ms), directives)


async def over_nats(directives: int, folder: Path) -> Taken:
    async with _nats(folder) as bus:
        return await _over_bus(bus, directives)


@asynccontextmanager
async def _nats(folder: Path) -> AsyncIterator[Bus]:
    try:
        async with own_nats(read_settings({}), folder) as settings:
            bus = await open_bus("nats", settings)
            assert bus is not None
            try:
                yield bus
            finally:
                await bus.close()
    except NoBus as fault:
        raise NotMeasured(str(fault)) from None


async def _over_bus(bus: Bus, directives: int) -> Taken:
    warm = min(WARM_DIRECTIVES, directives)
    for first, count in ((0, warm), (warm, directives)):
        numbers = iter(range(first, first + count))
        await asyncio.gather(*(_publish(bus, numbers) for _ in range(PUBLISHERS)))
        async with BusTransport(bus, SERVICE, now_ms=now_ms) as transport:
            taken = await _carried_out(transport, count, MemoryDedupe())
    return taken


async def _publish(bus: Bus, numbers: Iterator[int]) -> None:
    """Several of these share the numbers."""
    for number in numbers:
        message = directive(number)
        out = DirectiveOut(
            service=SERVICE,
            lane=number % LANES,
            message_key=message["routing_key_used"],
            message_id=message["lease_id"],
            body=msgspec.json.encode(message),
        )
        await bus.publish_directive(out)


async def _carried_out(transport: Transport, directives: int, dedupe: Dedupe) -> Taken:
    counting = Counting(transport, directives)
    watch = AttemptMetrics(
        SERVICE, clock=time.monotonic, now_ms=now_ms, new_id=new_hex, take=lambda span: None
    )
    runner = Runner(
        Service(SERVICE, _nothing),
        counting,
        ObjectWorkspace(),
        now_ms=now_ms,
        concurrency=CONCURRENCY,
        wait_seconds=1.0,
        dedupe=dedupe,
        log=structlog.get_logger("lucius.bench"),
        watch=watch,
    )
    cpu, began = time.process_time(), time.perf_counter()
    run = asyncio.create_task(runner.run())
    try:
        async with asyncio.timeout(SECONDS_MAX):
            await counting.done.wait()
        return Taken(
            directives=directives,
            seconds=time.perf_counter() - began,
            cpu_seconds=time.process_time() - cpu,
        )
    finally:
        runner.stop()
        await run


async def _nothing(task: Task) -> dict[str, str]:
    return {"uri": "mem://nothing"}


def directive(number: int) -> dict[str, Json]:
    return {
        "type": "DIRECTIVE",
        "jobId": f"job_{number:026d}",
        "tenant_id": "bench",
        "stepId": "step_01",
        "protocol_id": "bench_v1",
        "step_type": "BENCH",
        "service": SERVICE,
        "attempt_no": 1,
        "lease_id": f"{number:024x}",
        "input_ref": {"uri": "mem://in"},
        "workspace_ref": {"uri": "mem://work"},
        "output_ref": {"uri": "mem://out"},
        "payload": {"language": "en"},
        "routing_key_used": f"bench{number % LANES}",
        "correlation_id": f"{number:024x}",
        "traceparent": f"00-{number + 1:032x}-{number + 1:016x}-01",
        "upstream": [],
        "reply_topic": reply_topic(number % LANES),
        "callback_token": "none",
        "lease_seconds": 900.0,
    }

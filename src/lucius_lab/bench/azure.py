"""The part of `lucius bench` about Azure: jobs on Azurite and the Service Bus emulator, and what they cost.

Everything runs on this machine, the emulators too, so the rate says little about Azure. The round trips do
not depend on the machine: each is a request to the tables, and on Azure each costs its latency. Looks at the
indexes, which come at fixed times whatever there is to do, are made rare: what is counted is the jobs' own.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from statistics import median

import msgspec

from lucius.api.app import make_app
from lucius.api.connection_limits import ConnectionLimits, server_config
from lucius.assembly import NoBus, open_bus
from lucius.assembly.embedded import Embedded
from lucius.assembly.stores import layout_of, open_store
from lucius.bus.nats.server import free_port
from lucius.cli.serving import QuietServer
from lucius.ledger.names import Tables
from lucius.ledger.store import Op, Row, Scanned, StoreUnavailable, TableStore
from lucius.settings import read_settings
from lucius_lab.bench.load import Count, complete
from lucius_lab.bench.main import NotMeasured
from lucius_lab.bench.server import echo
from lucius_lab.bench.wire import is_ready
from lucius_lab.emulators.own_azurite import own_azurite
from lucius_lab.emulators.own_service_bus import own_service_bus

HOST = "127.0.0.1"
PIPELINE = "OCR_EMBEDDING_SIS"
STEPS = 3
BUS = "servicebus-emulator"
LOOKS = "60s"
OWN_TABLE = Tables().meta
IN_FLIGHT = 16
READY_SECONDS = 0.05
QUIET_SECONDS = 0.3
START_SECONDS_MAX = 60.0


class AzureFigures(msgspec.Struct, frozen=True, kw_only=True):
    per_second: float
    lone_p50_ms: float
    trips: dict[str, int]
    """By kind, of a job that runs alone."""

    @property
    def trips_a_job(self) -> int:
        return sum(self.trips.values())


class CountingStore:
    """Any store, with what is asked of it for jobs counted: every call is one round trip. What processes keep
    in the table of their own, they ask for by the clock, however many jobs there are."""

    def __init__(self, inner: TableStore) -> None:
        self._inner = inner
        self._under_way = 0
        self.asked: Counter[str] = Counter()

    @property
    def spans(self) -> bool:
        return self._inner.spans

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        with self._counted("get", table):
            return await self._inner.get(table, partition, key)

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        with self._counted("query", table):
            return await self._inner.query(table, partition, start=start, end=end, limit=limit)

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        with self._counted("scan", table):
            return await self._inner.scan(table, after=after, limit=limit, key=key)

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        with self._counted("commit", ops[0].table if ops else ""):
            return await self._inner.commit(ops)

    async def ping(self) -> None:
        await self._inner.ping()

    async def close(self) -> None:
        await self._inner.close()

    async def quiet(self) -> None:
        """Returns once nothing was asked for a while: what is done after the end of a job is done as well."""
        before = None
        while self._under_way or before != self.asked.total():
            before = self.asked.total()
            await asyncio.sleep(QUIET_SECONDS)

    @contextmanager
    def _counted(self, kind: str, table: str) -> Iterator[None]:
        if table == OWN_TABLE:
            yield
            return
        self.asked[kind] += 1
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


async def measure_azure(jobs: int, lone: int, folder: Path, *, over_bus: bool) -> AzureFigures:
    """`over_bus`: directives go over the emulator, else they are handed out from the ledger. Raises
    `NotMeasured`, or `WireFault` if a measurement breaks off."""
    try:
        async with _lucius(folder, over_bus) as (port, store):
            warm = min(jobs, IN_FLIGHT)
            await complete(HOST, port, warm, warm, PIPELINE, "warm")
            await store.quiet()
            alone, asked = [], []
            for number in range(lone):
                store.asked.clear()
                alone += (await complete(HOST, port, 1, 1, PIPELINE, f"lone-{number}")).latencies_ms
                await store.quiet()
                asked.append(Counter(store.asked))
            loaded: Count = await complete(HOST, port, jobs, IN_FLIGHT, PIPELINE, "crowd")
    except (NoBus, StoreUnavailable) as fault:
        raise NotMeasured(str(fault)) from None
    # Metrics look at the indexes of all lanes every few seconds, and may fall into the count of a job.
    least = min(asked, key=Counter.total)
    return AzureFigures(
        per_second=loaded.per_second, lone_p50_ms=median(alone), trips=dict(sorted(least.items()))
    )


@asynccontextmanager
async def _lucius(folder: Path, over_bus: bool) -> AsyncIterator[tuple[int, CountingStore]]:
    port, data = free_port(), folder / f"azure-{over_bus}"
    async with AsyncExitStack() as stack:
        settings = read_settings({"LUCIUS_OUTBOX_RETRY_INTERVAL": LOOKS})
        settings = await stack.enter_async_context(own_azurite(settings, data))
        bus = None
        if over_bus:
            settings = await stack.enter_async_context(own_service_bus(settings))
            bus = await open_bus(BUS, settings)
        store = CountingStore(await open_store(settings, "ledger", data))
        lucius = Embedded(
            store,
            settings,
            layout=layout_of("ledger"),
            data=data,
            base_url=f"http://{HOST}:{port}",
            protocols=None,
            bus=bus,
        )
        stack.push_async_callback(lucius.stop)
        await lucius.start(dict.fromkeys(("ocr", "embedding", "sis"), echo))
        config = server_config(make_app(lucius.deployment), ConnectionLimits(), port=port, loop="none")
        server = QuietServer(config)
        serving = asyncio.create_task(server.serve())
        try:
            await _until_it_serves(port)
            yield port, store
        finally:
            server.should_exit = True
            await serving


async def _until_it_serves(port: int) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while not await is_ready(HOST, port):
        if time.monotonic() > until:
            raise NotMeasured("the server did not come up")
        await asyncio.sleep(READY_SECONDS)

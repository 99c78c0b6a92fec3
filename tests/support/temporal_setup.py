"""An orchestrator, an invoker and a worker in one process over one ledger, with a real Temporal and a real
NATS. Each of the two that have a store keeps what it wrote."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from lucius.assembly import NATS, Embedded, Part, open_bus
from lucius.assembly.temporal import invoker_engine, orchestrator_engine
from lucius.assembly.temporal_worker import WorkerProcess
from lucius.assembly.workflow_engine import WorkflowEngine
from lucius.bus.nats.server import NatsServer, free_port
from lucius.cli.serving import bind, make_server
from lucius.cli.temporal_parts import invoker_app
from lucius.engines.temporal.dev_server import dev_server
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import Op, Row, Scanned
from lucius.sdk import Handler
from lucius.settings import Settings, read_settings

SECRET = "a-secret-for-the-town"
# The rest is of the deployment: births, shares, names, checks.
ABOUT_JOBS = ("lucius_ledger", "job-idempotency", "lucius_due", "lucius_inflight", "lucius_job_index")


class Written:
    """A store that remembers what was written through it."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self.commits: list[Sequence[Op]] = []

    @property
    def spans(self) -> bool:
        return self._store.spans

    def about_jobs(self) -> list[list[tuple[str, str, str]]]:
        """Of each commit that touched rows about jobs: verb, table and key of those."""
        found = [
            [(op.verb.value, op.table, op.key) for op in ops if op.table in ABOUT_JOBS]
            for ops in self.commits
        ]
        return [rows for rows in found if rows]

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        return await self._store.get(table, partition, key)

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        return await self._store.query(table, partition, start=start, end=end, limit=limit)

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        return await self._store.scan(table, after=after, limit=limit, key=key)

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        etags = await self._store.commit(ops)
        self.commits.append(ops)
        return etags

    async def ping(self) -> None:
        await self._store.ping()

    async def close(self) -> None:
        await self._store.close()


class ClusterSetup:
    def __init__(self, folder: Path, stack: AsyncExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self.orchestrator: Embedded
        self.invoker: Embedded
        self.written: dict[Part, Written] = {}

    async def open(self, services: dict[str, Handler]) -> None:
        nats = NatsServer(self._folder / "nats", port=free_port())
        nats.start()
        self._stack.callback(nats.kill)
        await nats.ready()
        target = await self._stack.enter_async_context(dev_server(self._folder / "temporal.db"))
        listener = self._stack.enter_context(bind("127.0.0.1", 0))
        settings = read_settings(
            {
                "LUCIUS_NATS_URL": nats.url,
                "LUCIUS_TEMPORAL_ADDRESS": target.address,
                "LUCIUS_INVOKER_URL": f"http://127.0.0.1:{listener.getsockname()[1]}",
                "LUCIUS_INTERNAL_SECRET": SECRET,
            }
        )
        engine = invoker_engine(settings.temporal)
        self.invoker = await self._deployment(Part.INVOKER, settings, engine)
        server = make_server(invoker_app(settings, self.invoker, engine), settings)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await server.up.wait()

        async def stop_serving() -> None:
            server.should_exit = True
            await serving

        self._stack.push_async_callback(stop_serving)
        worker = WorkerProcess(settings.temporal)
        worker.start()
        self._stack.push_async_callback(worker.stop)
        self.orchestrator = await self._deployment(
            Part.ORCHESTRATOR, settings, orchestrator_engine(settings.temporal)
        )
        await self.invoker.start({})
        await self.orchestrator.start(services)

    async def _deployment(self, part: Part, settings: Settings, engine: WorkflowEngine) -> Embedded:
        store = self.written[part] = Written(await SqliteStore.open(self._folder / "lucius.db"))
        deployment = Embedded(
            store,
            settings,
            layout=LayoutName.LEDGER,
            data=self._folder,
            base_url="http://lucius.test",
            protocols=None,
            shared=True,
            part=part,
            bus=await open_bus(NATS, settings),
            engine=engine,
        )
        self._stack.push_async_callback(deployment.stop)
        return deployment

"""The parts of `lucius bench` about PostgreSQL: jobs a second, what a job asks of the database and what that
is spent on, how soon a worker at another replica has a job, and what a job costs in a ledger that is full.

The database is the machine's own PostgreSQL with its defaults (`fsync`, `synchronous_commit`), in a folder
that is removed. It counts its own work (`pg_stat_statements`) only while that is what is measured.
"""

import asyncio
import os
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from lucius.ledger.postgres.connection import Connection, PostgresAddress
from lucius_lab.bench.filled_ledger import fill
from lucius_lab.bench.load import Count, accept_batches, command, complete
from lucius_lab.bench.main import (
    CLIENTS_BATCH,
    FLATNESS_ROUNDS,
    FLATNESS_SHARE,
    HOST,
    LEDGER_JOBS_FEW,
    LONE_JOBS,
    PIPELINE,
    SERVICES,
    WAITING,
    Bench,
    NotMeasured,
    Server,
    http_workers,
    say,
    unless_one_dies,
    with_dots,
)
from lucius_lab.bench.wire import LoadConnection, WireFault
from lucius_lab.emulators.postgres import PostgresFailed, PostgresServer

# What processes on one database are given alike.
SHARED_KEYS: Final = {
    "LUCIUS_CALLBACK_KEYS": "bench:only-for-measurements-and-of-no-use-elsewhere",
    "LUCIUS_WEBHOOK_SECRETS": "whsec_b25seS1mb3ItYmVuY2hlcy1hbmQtb2Ytbm8tdXNl",
}
LONE_P50_MS_MAX: Final = 15
HAND_OVER_P50_MS_MAX: Final = 5
FLATNESS_RATIO_MAX: Final = 1.2
HAND_OVERS: Final = 100
HAND_OVERS_WARM: Final = 10
POLLS_FIRST_SECONDS: Final = 0.02  # the worker waits already when the job comes
LONE_JOBS_COUNTED: Final = 50
IDLE_SECONDS: Final = 3.0
SHOWN_MIN: Final = 0.05  # a job
DATABASE_SETTINGS: Final = {
    "shared_preload_libraries": "pg_stat_statements",
    "max_wal_size": "4GB",
}
_STATEMENTS: Final = (
    "SELECT toplevel, query, calls, wal_records, wal_bytes FROM pg_stat_statements WHERE calls > 0"
)
_WAL: Final = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn AS wal_bytes"
_CHANGE: Final = re.compile(r'(INSERT INTO|UPDATE|DELETE FROM)\s+lucius_store\."?([\w-]+)"?')
_READ: Final = re.compile(r'FROM lucius_store\."?([\w-]+)"?')
_VERBS: Final = {"INSERT INTO": "insert", "UPDATE": "update", "DELETE FROM": "delete"}


class Database:
    """A server of its own, and what its processes use."""

    def __init__(self, folder: Path, *, settings: dict[str, str] | None = None) -> None:
        self._server = PostgresServer(folder, settings={**DATABASE_SETTINGS, **(settings or {})})
        self._connection: Connection | None = None

    @property
    def url(self) -> str:
        return self._server.url()

    @property
    def env(self) -> dict[str, str]:
        """The variables of the processes that use it."""
        return {"LUCIUS_STORE": self.url, **SHARED_KEYS}

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)
        self._connection = await Connection.open(PostgresAddress(url=self.url, statement_seconds_max=600.0))
        await self.run("CREATE EXTENSION pg_stat_statements")
        await self.track("none")

    async def end(self) -> None:
        if self._connection is not None:
            await self._connection.close()
        await asyncio.to_thread(self._server.kill)

    async def run(self, text: str) -> None:
        assert self._connection is not None
        await self._connection.run(text)

    async def fetch(self, text: str) -> Sequence[Any]:
        assert self._connection is not None
        return await self._connection.fetch(text)

    async def track(self, what: str) -> None:
        """Which statements are counted from now on."""
        await self.run(f"ALTER SYSTEM SET pg_stat_statements.track = '{what}'")
        await self.run("SELECT pg_reload_conf()")
        await asyncio.sleep(0.2)  # sessions look at it between two statements
        await self.run("SELECT pg_stat_statements_reset()")

    def cpu_seconds(self) -> float:
        """Of the server, the sessions that are open, and the processes that have ended."""
        pid = self._server.pid
        assert pid is not None
        ticks = sum(_ticks(pid)[:4])
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            with suppress(OSError):  # it has ended just now
                ticks += sum(_ticks(int(child))[:2])
        return ticks / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int) -> list[int]:
    """In user mode and in the system, of it and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return [int(field) for field in fields[11:15]]


@asynccontextmanager
async def database(settings: dict[str, str] | None = None) -> AsyncIterator[Database]:
    """Raises `NotMeasured` where PostgreSQL is not installed."""
    # The server runs as another user where this process is root's, and must reach its folder.
    folder = await asyncio.to_thread(lambda: Path(tempfile.mkdtemp(prefix="lucius-bench-pg-")))
    try:
        made = Database(folder, settings=settings)
        try:
            await made.start()
            yield made
        finally:
            await made.end()
    except PostgresFailed as fault:
        raise NotMeasured(str(fault)) from None
    finally:
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


async def measure_postgres(bench: Bench) -> None:
    """Raises `NotMeasured`."""
    async with database() as made:
        await _with_workers(bench, made)
    async with database() as made:
        await _handed_over(bench, made)


async def _with_workers(bench: Bench, made: Database) -> None:
    options = bench.options
    async with bench.server((), made.env) as server, http_workers(server) as workers:

        async def completed(jobs: int, in_flight: int, tag: str) -> Count:
            return await unless_one_dies(workers, complete(HOST, server.port, jobs, in_flight, PIPELINE, tag))

        await completed(200, options.in_flight, "warm")
        before, database_before = server.cpu_seconds(), made.cpu_seconds()
        count = await completed(options.jobs, options.in_flight, "main")
        bench.add("PostgreSQL: completed, three external HTTP workers", count.per_second, "jobs/s")
        bench.add("  latency p50", count.percentile_ms(0.5), "ms")
        bench.add("  latency p99", count.percentile_ms(0.99), "ms")
        bench.add("  server CPU", (server.cpu_seconds() - before) / count.jobs * 1000, "ms/job")
        spent = made.cpu_seconds() - database_before
        bench.add("  PostgreSQL CPU", spent / count.jobs * 1000, "ms/job")
        lone_jobs = min(LONE_JOBS, options.jobs)
        lone = await completed(lone_jobs, 1, "lone")
        bench.add("PostgreSQL: lone job p50", lone.percentile_ms(0.5), "ms", at_most=LONE_P50_MS_MAX)
        bench.add("PostgreSQL: lone job p99", lone.percentile_ms(0.99), "ms")
        counted = min(LONE_JOBS_COUNTED, options.jobs)
        asked = await _counted(made, counted, completed(counted, 1, "lone-counted"))
        _add_asked(bench, "alone", asked)
        bench.add("PostgreSQL: round trips, nothing to do", sum(asked.idle.values()), "a second")
        for kind, calls in asked.idle.items():
            bench.add(f"  of these {kind}", calls, "a second")
        asked = await _counted(made, options.jobs, completed(options.jobs, options.in_flight, "counted"))
        _add_asked(bench, f"{options.in_flight} in flight", asked)


# -- what a job asks of the database -----------------------------------------------------------------------


class JobCost(msgspec.Struct, frozen=True, kw_only=True):
    """Of a job, on average. `trips`: calls by what they are for. `changes`: rows by verb and table, each with
    how many and its bytes of WAL. `idle`: calls a second of processes that have nothing to do."""

    trips: dict[str, float]
    idle: dict[str, float]
    wal_bytes: float
    changes: dict[str, tuple[float, float]]


async def _counted(made: Database, jobs: int, load: Coroutine[Any, Any, Count]) -> JobCost:
    """Without what the processes ask while there is nothing to do."""
    await made.run("CHECKPOINT")
    idle, _ = await _statements(made, asyncio.sleep(IDLE_SECONDS))
    began = time.monotonic()
    rows, wal_bytes = await _statements(made, load)
    looks = (time.monotonic() - began) / IDLE_SECONDS
    idle_trips, trips = _trips(idle), _trips(rows)
    changes: dict[str, tuple[float, float]] = {}
    for row in rows:
        text = " ".join(str(row["query"]).split())
        if (found := _CHANGE.match(text)) is not None and row["wal_bytes"]:
            name = f"{_VERBS[found[1]]} {found[2]}"
            calls, spent = changes.get(name, (0.0, 0.0))
            changes[name] = calls + row["calls"] / jobs, spent + float(row["wal_bytes"]) / jobs
    return JobCost(
        trips={
            kind: max(0.0, calls - idle_trips[kind] * looks) / jobs for kind, calls in trips.most_common()
        },
        idle={kind: calls / IDLE_SECONDS for kind, calls in idle_trips.most_common()},
        wal_bytes=wal_bytes / jobs,
        changes=changes,
    )


async def _statements(made: Database, meanwhile: Coroutine[Any, Any, object]) -> tuple[Sequence[Any], float]:
    """Those of the time that something else takes, and the bytes of WAL."""
    await made.track("all")
    ((before,),) = await made.fetch(_WAL)
    await meanwhile
    ((after,),) = await made.fetch(_WAL)
    rows = await made.fetch(_STATEMENTS)
    await made.track("none")
    return rows, float(after - before)


def _trips(rows: Sequence[Any]) -> Counter[str]:
    trips: Counter[str] = Counter()
    for row in rows:
        if row["toplevel"] and (kind := _call(" ".join(str(row["query"]).split()))):
            trips[kind] += row["calls"]
    return trips


def _call(text: str) -> str:
    """What a statement that a process sent is for; "" for those of the measurement."""
    if "lucius_store.commit" in text:
        return "commits"
    if "pg_notify" in text:
        return "notes"
    found = _READ.search(text)
    return "" if found is None else f"reads of {found[1]}"


def _add_asked(bench: Bench, when: str, asked: JobCost) -> None:
    bench.add(f"PostgreSQL: round trips, {when}", sum(asked.trips.values()), "a job")
    for kind, calls in asked.trips.items():
        if calls >= SHOWN_MIN:
            bench.add(f"  of these {kind}", calls, "a job")
    bench.add(f"PostgreSQL: WAL, {when}", asked.wal_bytes, "B/job")
    for name, (calls, wal_bytes) in sorted(asked.changes.items(), key=lambda item: -item[1][1]):
        if calls >= SHOWN_MIN:
            bench.add(f"  {name}, {calls:.1f} a job", wal_bytes, "B/job")


# -- from one replica to another ---------------------------------------------------------------------------


async def _handed_over(bench: Bench, made: Database) -> None:
    """From the answer to a command at one replica, which comes after its commit, to the worker that waits at
    another."""
    async with bench.server((), made.env) as one, bench.server((), made.env) as other:
        client, worker = LoadConnection(HOST, one.port), LoadConnection(HOST, other.port)
        numbers = range(HAND_OVERS_WARM + HAND_OVERS)
        seconds = [await _hand_over(client, worker, number) for number in numbers]
        client.close()
        worker.close()
    kept = sorted(seconds[HAND_OVERS_WARM:])
    bench.add(
        "PostgreSQL: commit to the worker at another replica p50",
        median(kept) * 1000,
        "ms",
        at_most=HAND_OVER_P50_MS_MAX,
    )
    bench.add("  the same p99", kept[int(len(kept) * 0.99)] * 1000, "ms")


async def _hand_over(client: LoadConnection, worker: LoadConnection, number: int) -> float:
    wish = {"service": SERVICES[0], "max": 1, "wait_seconds": 20}
    polling = asyncio.create_task(_timed(worker, "/v1/directives:lease", wish))
    await asyncio.sleep(POLLS_FIRST_SECONDS)
    status, accepted = await client.post("/v1/orchestrate", command(number, PIPELINE, "over"))
    committed = time.perf_counter()
    if status != 202:
        raise WireFault(f"{status}: {accepted}")
    leased, at = await polling
    if [directive["jobId"] for directive in leased["directives"]] != [accepted["jobId"]]:
        raise WireFault(f"another job came: {leased}")
    return at - committed


async def _timed(wire: LoadConnection, path: str, document: Any) -> tuple[Any, float]:
    _, answer = await wire.post(path, document)
    return answer, time.perf_counter()


# -- a ledger that is full ---------------------------------------------------------------------------------


async def measure_flatness(bench: Bench) -> None:
    """Two databases, each with a server, take turns: a machine changes its pace within seconds. Raises
    `NotMeasured`."""
    jobs = bench.ledger_jobs_full
    async with AsyncExitStack() as stack:
        few_rows, many_rows = [await stack.enter_async_context(database()) for _ in range(2)]
        for made in (few_rows, many_rows):
            async with bench.server((), made.env) as server:
                await accept_batches(HOST, server.port, LEDGER_JOBS_FEW, CLIENTS_BATCH, WAITING, "waiting")
        await with_dots(fill(many_rows.url, jobs))
        say(f"  {jobs:,} jobs wait")
        for made in (few_rows, many_rows):
            await made.run("VACUUM ANALYZE")
            await made.run("CHECKPOINT")
        few, many = [
            await stack.enter_async_context(bench.server(SERVICES, made.env))
            for made in (few_rows, many_rows)
        ]
        turns = [
            (
                await _cost(bench, few, few_rows, f"few{turn}"),
                await _cost(bench, many, many_rows, f"many{turn}"),
            )
            for turn in range(FLATNESS_ROUNDS + 1)
        ][1:]  # the first one warms up
        for name, which in ((f"{LEDGER_JOBS_FEW:,}", 0), (f"{jobs:,}", 1)):
            bench.add(
                f"PostgreSQL: server CPU, {name} in the ledger",
                median(turn[which].server_ms for turn in turns),
                "ms/job",
            )
            bench.add(
                f"PostgreSQL: its own CPU, {name} in the ledger",
                median(turn[which].database_ms for turn in turns),
                "ms/job",
            )
        bench.add(
            "  ratio of both together, median of the turns",
            median(b.together_ms / a.together_ms for a, b in turns if a.together_ms),
            "",
            at_most=FLATNESS_RATIO_MAX,
        )
        bench.add(
            "  ratio of the time a job takes, median of the turns",
            median(b.wall_ms / a.wall_ms for a, b in turns),
            "",
        )
        bench.add(f"PostgreSQL: server memory, {jobs:,} waiting", many.memory_mb(), "MB")
        ((size,),) = await many_rows.fetch("SELECT pg_database_size(current_database())")
        bench.add(f"PostgreSQL: size of the database, {jobs:,} waiting", size / 1e6, "MB")


class _Turn(msgspec.Struct, frozen=True, kw_only=True):
    server_ms: float
    database_ms: float
    wall_ms: float

    @property
    def together_ms(self) -> float:
        return self.server_ms + self.database_ms


async def _cost(bench: Bench, server: Server, made: Database, tag: str) -> _Turn:
    """Of a job that is completed."""
    jobs = max(1, bench.options.jobs // FLATNESS_SHARE)
    before, database_before = server.cpu_seconds(), made.cpu_seconds()
    count = await complete(HOST, server.port, jobs, bench.options.in_flight, PIPELINE, tag)
    return _Turn(
        server_ms=(server.cpu_seconds() - before) / jobs * 1000,
        database_ms=(made.cpu_seconds() - database_before) / jobs * 1000,
        wall_ms=count.seconds / jobs * 1000,
    )

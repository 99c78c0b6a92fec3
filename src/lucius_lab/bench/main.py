"""What the parts of `lucius bench` have in common."""

import asyncio
import importlib.util
import os
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, TypeVar

import msgspec
import uvloop

from lucius.cli.exits import EXIT_INTERRUPTED
from lucius.cli.options import BenchOptions
from lucius.telemetry import configure_logging
from lucius_lab.bench.load import Count, accept, accept_batches, complete
from lucius_lab.bench.wire import LoadConnection, WireFault
from lucius_lab.child_processes import helper

T = TypeVar("T")


class NotMeasured(Exception):
    """Something is not installed, or would not start. The text says what."""


HOST = "127.0.0.1"
PIPELINE = "OCR_EMBEDDING_SIS"
WAITING = "BENCH_WAITING"
SERVICES = ("ocr", "embedding", "sis")
START_SECONDS_MAX = 30.0
LEDGER_JOBS_FEW = 1_000
LEDGER_JOBS_FULL = 100_000
LEDGER_JOBS_FULL_QUICK = 5_000
FLATNESS_ROUNDS = 7
FLATNESS_SHARE = 4  # of the jobs, each round
LONE_JOBS = 300
TEMPORAL_SHARE = 20  # of the jobs: each takes as long as many on the other engine
TEMPORAL_LONE_JOBS = 30
TEMPORAL_ROUNDS = 2
AZURE_SHARE = 20
AZURE_JOBS_MIN = 32
AZURE_LONE_JOBS = 10
CLIENTS_BATCH = 2
SDK_DIRECTIVES_MIN = 500
NO_LIMITS: Final = {"LUCIUS_MAX_INFLIGHT_PER_TENANT": "10000000", "LUCIUS_MAX_INFLIGHT": "10000000"}

_WAITING_PROTOCOL = f"""\
protocol_id: bench_waiting_v1
request_types: [{WAITING}]
steps:
  - step_type: WAIT
    service: unserved
"""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: float
    unit: str
    goal: str = ""
    met: bool | None = None


class Bench:
    """Figures as they come in, and the server under test."""

    def __init__(self, options: BenchOptions, folder: Path) -> None:
        self.options = options
        self.folder = folder
        self.figures: list[Figure] = []
        self._servers = 0

    @property
    def ledger_jobs_full(self) -> int:
        usual = LEDGER_JOBS_FULL_QUICK if self.options.quick else LEDGER_JOBS_FULL
        return self.options.ledger_jobs or usual

    def add(self, name: str, value: float, unit: str, *, at_least: float = 0, at_most: float = 0) -> None:
        goal, met = "", None
        if at_least:
            goal, met = f"≥ {at_least:g}", value >= at_least
        elif at_most:
            goal, met = f"≤ {at_most:g}", value <= at_most
        self.figures.append(Figure(name=name, value=round(value, 3), unit=unit, goal=goal, met=met))
        say(f"  {name}: {value:,.2f} {unit}")

    @asynccontextmanager
    async def server(
        self,
        services: tuple[str, ...],
        env: Mapping[str, str] | None = None,
        *,
        data: Path | None = None,
    ) -> AsyncIterator["Server"]:
        """`env`: variables beside those of every server. `data`: a folder that stays when the server ends."""
        self._servers += 1
        home = self.folder / f"server-{self._servers}"
        protocols = home / "protocols"
        await asyncio.to_thread(protocols.mkdir, parents=True)
        await asyncio.to_thread((protocols / "waiting.yaml").write_text, _WAITING_PROTOCOL)
        port = _free_port()
        arguments = (str(port), str(data or home / "data"), str(protocols), ",".join(services))
        given = {**os.environ, **NO_LIMITS, **(env or {})}
        async with helper("lucius_lab.bench.server", *arguments, env=given) as process:
            server = Server(port, process)
            await server.ready()
            yield server


class Server:
    def __init__(self, port: int, process: Process) -> None:
        self.port = port
        self._process = process

    async def ready(self) -> None:
        until = time.monotonic() + START_SECONDS_MAX
        while True:
            wire = LoadConnection(HOST, self.port)
            try:
                await wire.get("/readyz")
            except WireFault:
                if time.monotonic() > until or self._process.returncode is not None:
                    raise
                await asyncio.sleep(0.05)
            else:
                return
            finally:
                wire.close()

    def cpu_seconds(self) -> float:
        fields = self._proc("stat").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        line = next(line for line in self._proc("status").splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) / 1024

    def _proc(self, name: str) -> str:
        return Path(f"/proc/{self._process.pid}/{name}").read_text()


def run_bench(options: BenchOptions) -> int:
    if not Path("/proc/self/stat").exists():
        say("lucius bench reads /proc and so needs Linux.")
        return 1
    with tempfile.TemporaryDirectory(prefix="lucius-bench-") as folder:
        bench = Bench(options, Path(folder))
        configure_logging("warning", plain=True)
        try:
            uvloop.run(_measure(bench))
        except WireFault as fault:
            say(f"The measurement broke off: {fault}")
            return 1
        except asyncio.CancelledError:
            return EXIT_INTERRUPTED
    _print_table(bench.figures)
    if options.json_out is not None:
        options.json_out.write_bytes(msgspec.json.format(msgspec.json.encode(bench.figures)))
        say(f"Written to {options.json_out}")
    return 0


async def _measure(bench: Bench) -> None:
    # The processes beside us are in sessions of their own: none may outlive a terminal that is closed.
    if (this := asyncio.current_task()) is not None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                asyncio.get_running_loop().add_signal_handler(number, this.cancel)
    say("The machine itself")
    bench.add("bare: Python additions", await asyncio.to_thread(_additions_per_second), "million/s")
    bench.add(
        "bare: SQLite FULL, one row a commit",
        await asyncio.to_thread(_commits_per_second, bench.folder),
        "/s",
    )
    for name, measure in PARTS.items():
        if bench.options.only in (None, name):
            await measure(bench)


async def _in_process(bench: Bench) -> None:
    options = bench.options
    say(f"Services in process, {options.in_flight} in flight")
    async with bench.server(SERVICES) as server:
        await complete(HOST, server.port, 200, options.in_flight, PIPELINE, "warm")
        cpu_seconds = server.cpu_seconds()
        count = await complete(HOST, server.port, options.jobs, options.in_flight, PIPELINE, "main")
        cpu_seconds = server.cpu_seconds() - cpu_seconds
        bench.add("completed, services in process", count.per_second, "jobs/s", at_least=500)
        bench.add("  latency p50", count.percentile_ms(0.5), "ms")
        bench.add("  latency p99", count.percentile_ms(0.99), "ms")
        bench.add("  server CPU", cpu_seconds / count.jobs * 1000, "ms/job")
        bench.add("  server memory", server.memory_mb(), "MB")
        lone = await complete(HOST, server.port, LONE_JOBS, 1, PIPELINE, "lone")
        bench.add("lone job p50", lone.percentile_ms(0.5), "ms", at_most=10)
        bench.add("lone job p99", lone.percentile_ms(0.99), "ms")


async def _external_workers(bench: Bench) -> None:
    options = bench.options
    say(f"Three external HTTP workers, {options.in_flight} in flight")
    async with bench.server(()) as server, http_workers(server) as workers:
        warm = complete(HOST, server.port, 100, options.in_flight, PIPELINE, "warm")
        await unless_one_dies(workers, warm)
        cpu_seconds = server.cpu_seconds()
        jobs = complete(HOST, server.port, options.jobs, options.in_flight, PIPELINE, "main")
        count = await unless_one_dies(workers, jobs)
        cpu_seconds = server.cpu_seconds() - cpu_seconds
        bench.add("completed, three external HTTP workers", count.per_second, "jobs/s")
        bench.add("  server CPU", cpu_seconds / count.jobs * 1000, "ms/job")


@asynccontextmanager
async def http_workers(server: "Server") -> AsyncIterator[list[Process]]:
    """One worker process of each service."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(helper("lucius_lab.bench.worker", str(server.port), service))
            for service in SERVICES
        ]


async def unless_one_dies(workers: list[Process], counting: Coroutine[Any, Any, Count]) -> Count:
    count = asyncio.create_task(counting)
    deaths = {asyncio.create_task(worker.wait()) for worker in workers}
    try:
        await asyncio.wait({count, *deaths}, return_when=asyncio.FIRST_COMPLETED)
        if not count.done():
            raise WireFault("a worker died")
        return count.result()
    finally:
        for task in (count, *deaths):
            task.cancel()
        await asyncio.wait({count, *deaths})


async def _accepting(bench: Bench) -> None:
    options = bench.options
    say("Accepting")
    async with bench.server(()) as server:
        single = await accept(HOST, server.port, options.jobs, options.in_flight, WAITING, "single")
        bench.add("accepted, one by one", single.per_second, "jobs/s")
        await accept_batches(HOST, server.port, 500, CLIENTS_BATCH, PIPELINE, "warm")
        batches = await accept_batches(HOST, server.port, options.jobs * 2, CLIENTS_BATCH, PIPELINE, "batch")
        bench.add("accepted, batches of 100", batches.per_second, "jobs/s", at_least=1_500)


async def _flatness(bench: Bench) -> None:
    """Two servers take turns: a machine changes its pace within seconds, and is then unfair to both alike."""
    waiting = bench.ledger_jobs_full
    say(f"Cost a job, with {LEDGER_JOBS_FEW:,} and with {waiting:,} jobs in the ledger, taking turns")
    async with bench.server(SERVICES) as few, bench.server(SERVICES) as many:
        await accept_batches(HOST, few.port, LEDGER_JOBS_FEW, CLIENTS_BATCH, WAITING, "few")
        loading = accept_batches(HOST, many.port, waiting, CLIENTS_BATCH, WAITING, "many")
        count = await with_dots(loading)
        say(f"  {waiting:,} jobs wait; they came in at {count.per_second:,.0f}/s")
        turns = range(FLATNESS_ROUNDS + 1)
        costs = [(await _cost(bench, few, f"few{n}"), await _cost(bench, many, f"many{n}")) for n in turns]
        del costs[0]  # warm
        bench.add(f"server CPU, {LEDGER_JOBS_FEW:,} in the ledger", median(one for one, _ in costs), "ms/job")
        bench.add(f"server CPU, {waiting:,} in the ledger", median(one for _, one in costs), "ms/job")
        # A turn of very few jobs may take less processor time than the system counts.
        if measured := [b / a for a, b in costs if a]:
            bench.add("  ratio, median of the turns", median(measured), "", at_most=1.2)
        bench.add(f"server memory, {LEDGER_JOBS_FEW:,} waiting", few.memory_mb(), "MB")
        bench.add(f"server memory, {waiting:,} waiting", many.memory_mb(), "MB")


async def measure_temporal_engine(bench: Bench) -> None:
    say("The temporal engine, beside a bare workflow of the same shape")
    if importlib.util.find_spec("temporalio") is None:
        say("  not measured: its library is not installed: pip install 'lucius[temporal]'")
        return
    from lucius_lab.bench.temporal import TemporalLoad, measure_temporal

    options = bench.options
    load = TemporalLoad(
        jobs=max(options.in_flight, options.jobs // TEMPORAL_SHARE),
        in_flight=options.in_flight,
        lone=TEMPORAL_LONE_JOBS,
        rounds=1 if options.quick else TEMPORAL_ROUNDS,
    )
    for acks, name in ((True, "temporal"), (False, "temporal, ACKs untold")):
        try:
            found = await measure_temporal(msgspec.structs.replace(load, acks=acks), bench.folder)
        except NotMeasured as fault:
            say(f"  not measured: {fault}")
            return
        rows = (
            ("bare workflow", found.bare),
            ("bare workflow, local calls", found.bare_local),
            ("our workflow alone", found.workflow),
            ("Lucius", found.lucius),
        )
        bare, lucius = found.bare, found.lucius
        for each, beside in rows:
            bench.add(f"{name}: {each}", beside.per_second, "jobs/s")
        bench.add("  ratio, Lucius to bare", lucius.per_second / bare.per_second, "", at_least=0.7)
        for each, beside in rows:
            bench.add(f"{name}: {each}, lone p50", beside.lone_p50_ms, "ms")
        bench.add("  ratio, Lucius to bare", lucius.lone_p50_ms / bare.lone_p50_ms, "", at_most=1.5)


async def measure_azure_adapters(bench: Bench) -> None:
    say("On Azurite and the Service Bus emulator")
    if importlib.util.find_spec("azure") is None:
        say("  not measured: Microsoft's libraries are not installed: pip install 'lucius[azure]'")
        return
    from lucius_lab.bench.azure import STEPS, measure_azure

    jobs = max(AZURE_JOBS_MIN, bench.options.jobs // AZURE_SHARE)
    for over_bus, name in ((False, "Azurite"), (True, "Azurite, Service Bus emulator")):
        try:
            found = await measure_azure(jobs, AZURE_LONE_JOBS, bench.folder, over_bus=over_bus)
        except NotMeasured as fault:
            say(f"  not measured: {fault}")
            return
        bench.add(f"{name}: completed", found.per_second, "jobs/s")
        bench.add(f"{name}: lone p50", found.lone_p50_ms, "ms")
        bench.add(f"{name}: round trips", found.trips_a_job, "a job")
        bench.add(f"{name}: round trips", found.trips_a_job / STEPS, "a step")
        for kind, trips in found.trips.items():
            bench.add(f"  of these {kind}", trips, "a job")


async def measure_postgres_store(bench: Bench) -> None:
    from lucius_lab.bench.postgres import measure_postgres

    say("The ledger in PostgreSQL")
    await _if_it_can_be_had(bench, measure_postgres)


async def measure_postgres_flatness(bench: Bench) -> None:
    from lucius_lab.bench.postgres import measure_flatness

    jobs = bench.ledger_jobs_full
    say(
        f"PostgreSQL: cost a job, with {LEDGER_JOBS_FEW:,} and with {jobs:,} jobs in the ledger, taking turns"
    )
    await _if_it_can_be_had(bench, measure_flatness)


async def _if_it_can_be_had(bench: Bench, measure: Callable[[Bench], Awaitable[None]]) -> None:
    try:
        await measure(bench)
    except NotMeasured as fault:
        say(f"  not measured: {fault}")


async def _sdk(bench: Bench) -> None:
    say("The sdk, with a handler that does nothing")
    from lucius_lab.bench.sdk import measure_sdk

    try:
        await measure_sdk(max(SDK_DIRECTIVES_MIN, bench.options.jobs), bench.folder, bench.add)
    except NotMeasured as fault:
        say(f"  not measured: {fault}")


async def measure_console_answers(bench: Bench) -> None:
    if bench.options.only is None:
        return  # a run of its own: `make bench-console`
    from lucius_lab.bench.console import measure_console

    await measure_console(bench)


PARTS: Final[Mapping[str, Callable[[Bench], Awaitable[None]]]] = {
    "in-process": _in_process,
    "workers": _external_workers,
    "accepting": _accepting,
    "flatness": _flatness,
    "sdk": _sdk,
    "temporal": measure_temporal_engine,
    "azure": measure_azure_adapters,
    "postgres": measure_postgres_store,
    "postgres-flatness": measure_postgres_flatness,
    "console": measure_console_answers,
}


async def _cost(bench: Bench, server: Server, tag: str) -> float:
    """Milliseconds of the server's processor a job."""
    jobs, before = max(1, bench.options.jobs // FLATNESS_SHARE), server.cpu_seconds()
    count = await complete(HOST, server.port, jobs, bench.options.in_flight, PIPELINE, tag)
    return (server.cpu_seconds() - before) / count.jobs * 1000


async def with_dots(loading: Coroutine[Any, Any, T]) -> T:
    began, task = time.monotonic(), asyncio.create_task(loading)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=10)
            if not task.done():
                say(f"  still loading, {time.monotonic() - began:.0f} s")
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait({task})


def _additions_per_second() -> float:
    began, total = time.perf_counter(), 0
    for number in range(3_000_000):
        total += number
    return 3 / (time.perf_counter() - began)


def _commits_per_second(folder: Path) -> float:
    connection = sqlite3.connect(folder / "bare.db", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, body BLOB)")
    began = time.perf_counter()
    for number in range(1_000):
        connection.execute("INSERT INTO t VALUES (?, ?)", (number, b"x" * 500))
    seconds = time.perf_counter() - began
    connection.close()
    return 1_000 / seconds


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def _print_table(figures: list[Figure]) -> None:
    width = max(len(figure.name) for figure in figures)
    sys.stdout.write("\n")
    for figure in figures:
        verdict = "" if figure.met is None else f"   goal {figure.goal}: {'met' if figure.met else 'NOT MET'}"
        sys.stdout.write(f"{figure.name:<{width}}  {figure.value:>12,.2f} {figure.unit:<9}{verdict}\n")
    sys.stdout.flush()


def say(text: str) -> None:
    sys.stderr.write(text + "\n")
    sys.stderr.flush()

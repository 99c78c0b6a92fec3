"""Fair shares, measured from outside: one tenant floods a lane, and another of the same lane wants little.

Three external HTTP workers, each with some attempts at a time that take a while, so that workers are short.
The flood comes first, all of it; then the quiet tenant submits a job every 100 ms, and so does a third one in
another lane. The same again in the order of arrival, as it was before lanes were shared: then the server
orders all directives of a lane by time alone.

    python -m lucius_lab.bench.fairness --jobs 50000 --stores embedded,postgres,nats
"""

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import uvloop

from lucius.bus.nats.server import NatsServer, free_port
from lucius.cli.options import BenchOptions
from lucius.core.routing import lane_of
from lucius.telemetry import configure_logging
from lucius_lab.bench.load import BATCH_COMMANDS
from lucius_lab.bench.main import HOST, Bench, Server, say
from lucius_lab.bench.postgres import database
from lucius_lab.bench.server import ORDER
from lucius_lab.bench.wire import LoadConnection, WireFault
from lucius_lab.child_processes import helper

SERVICE: Final = "unserved"
REQUEST_TYPE: Final = "BENCH_WAITING"
STORES: Final = ("embedded", "postgres", "nats")
WORKERS: Final = 3
EMPTY_JOBS: Final = 100
EVERY_SECONDS: Final = 0.1
LOOK_SECONDS: Final = 0.25
# The first and the last of the flood are left out of its throughput.
COUNTED_FROM, COUNTED_TO = 0.95, 0.1
FLOOD: Final = "flood"
QUIET: Final = next(name for n in range(999) if lane_of(name := f"quiet-{n}") == lane_of(FLOOD))
ELSEWHERE: Final = next(name for n in range(999) if lane_of(name := f"elsewhere-{n}") != lane_of(FLOOD))
SAME_LANE_MAX, OTHER_LANE_MAX, LOSS_MAX = 3.0, 2.0, 0.05


class FairnessOptions(msgspec.Struct, frozen=True, kw_only=True):
    jobs: int = 50_000
    stores: tuple[str, ...] = STORES
    at_a_time: int = 4  # of a worker
    work_ms: int = 40


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """Of one run: how long the jobs of each quiet tenant took, what the flood was worked off at, and what a
    job cost the server, which is the steadier figure on a machine that has other work."""

    quiet_ms: list[float]
    elsewhere_ms: list[float]
    flood_per_second: float
    cpu_ms: float


class StoreFigures(msgspec.Struct, frozen=True, kw_only=True):
    """p99 in milliseconds, on an empty system and while the flood is there, shared and in order of
    arrival."""

    store: str
    empty_ms: float
    quiet_ms: float
    elsewhere_ms: float
    quiet_before_ms: float
    elsewhere_before_ms: float
    flood_per_second: float
    flood_before_per_second: float
    cpu_ms: float
    cpu_before_ms: float

    @property
    def same_lane(self) -> float:
        return self.quiet_ms / self.empty_ms

    @property
    def other_lane(self) -> float:
        return self.elsewhere_ms / self.empty_ms

    @property
    def loss(self) -> float:
        return 1 - self.flood_per_second / self.flood_before_per_second

    @property
    def met(self) -> bool:
        return self.same_lane <= SAME_LANE_MAX and self.other_lane <= OTHER_LANE_MAX and self.loss <= LOSS_MAX


def percentile_ms(found: list[float], share: float) -> float:
    ordered = sorted(found)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def measure(options: FairnessOptions, folder: Path, store: str) -> StoreFigures:
    await asyncio.to_thread(folder.mkdir)
    bench = Bench(BenchOptions(), folder)
    async with _served(bench, store, folder, options, {}) as server:
        empty_ms = percentile_ms(await _quiet(server, QUIET, EMPTY_JOBS, "empty"), 0.99)
        shared = await _flooded(server, options)
    async with _served(bench, store, folder, options, {ORDER: "arrival"}) as server:
        before = await _flooded(server, options)
    return StoreFigures(
        store=store,
        empty_ms=empty_ms,
        quiet_ms=percentile_ms(shared.quiet_ms, 0.99),
        elsewhere_ms=percentile_ms(shared.elsewhere_ms, 0.99),
        quiet_before_ms=percentile_ms(before.quiet_ms, 0.99),
        elsewhere_before_ms=percentile_ms(before.elsewhere_ms, 0.99),
        flood_per_second=shared.flood_per_second,
        flood_before_per_second=before.flood_per_second,
        cpu_ms=shared.cpu_ms,
        cpu_before_ms=before.cpu_ms,
    )


@asynccontextmanager
async def _served(
    bench: Bench, store: str, folder: Path, options: FairnessOptions, more: dict[str, str]
) -> AsyncIterator[Server]:
    async with (
        _setup(store, folder) as env,
        bench.server((), {**env, **more}) as server,
        workers(server, options),
    ):
        await _quiet(server, QUIET, EMPTY_JOBS // 4, "warm")
        yield server


@asynccontextmanager
async def _setup(store: str, folder: Path) -> AsyncIterator[dict[str, str]]:
    """The variables of a server on that store or bus, which ends with it."""
    async with AsyncExitStack() as stack:
        if store == "postgres":
            yield (await stack.enter_async_context(database())).env
        elif store == "nats":
            home = Path(await asyncio.to_thread(tempfile.mkdtemp, dir=folder))
            nats = NatsServer(home, port=free_port())
            await asyncio.to_thread(nats.start)
            stack.callback(nats.kill)
            yield {"LUCIUS_BUS": "nats", "LUCIUS_NATS_URL": nats.url}
        else:
            yield {}


@asynccontextmanager
async def workers(server: Server, options: FairnessOptions) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        arguments = (str(server.port), str(options.at_a_time), str(options.work_ms))
        for _ in range(WORKERS):
            await stack.enter_async_context(helper("lucius_lab.bench.slow_worker", *arguments))
        yield


async def _flooded(server: Server, options: FairnessOptions) -> Seen:
    await _flood(server, options.jobs)
    over, cpu_seconds = asyncio.Event(), server.cpu_seconds()
    draining = asyncio.create_task(_drained(server, options.jobs, over))
    quiet = asyncio.create_task(_quiet(server, QUIET, None, "flooded", over))
    elsewhere = asyncio.create_task(_quiet(server, ELSEWHERE, None, "flooded", over))
    try:
        per_second, quiet_ms, elsewhere_ms = await draining, await quiet, await elsewhere
        jobs = options.jobs + len(quiet_ms) + len(elsewhere_ms)
        return Seen(
            flood_per_second=per_second,
            quiet_ms=quiet_ms,
            elsewhere_ms=elsewhere_ms,
            cpu_ms=(server.cpu_seconds() - cpu_seconds) / jobs * 1000,
        )
    finally:
        for task in (draining, quiet, elsewhere):
            task.cancel()


def _command(tenant: str, number: int, tag: str) -> dict[str, Any]:
    return {
        "tenant_id": tenant,
        "request_type": REQUEST_TYPE,
        "input_ref": {"uri": f"s3://bench/{tag}/{number}"},
        "output_ref": {"uri": f"s3://bench/{tag}/{number}.out"},
        "payload": {},
        "schema_version": "1",
    }


async def _flood(server: Server, jobs: int) -> None:
    wire = LoadConnection(HOST, server.port)
    for first in range(0, jobs, BATCH_COMMANDS):
        last = min(jobs, first + BATCH_COMMANDS)
        commands = [_command(FLOOD, number, "flood") for number in range(first, last)]
        status, answer = await wire.post("/v1/orchestrate:batch", {"commands": commands})
        if status != 200 or any("jobId" not in item for item in answer["items"]):
            raise WireFault(f"the flood was not accepted: {status}")
    wire.close()


async def _drained(server: Server, jobs: int, over: asyncio.Event) -> float:
    """How many jobs of the flood ended a second; returns once nearly all have, and says so."""
    wire = LoadConnection(HOST, server.port)
    began: tuple[float, int] | None = None
    try:
        while True:
            left, at = await _in_flight(wire, FLOOD), time.perf_counter()
            if began is None and left <= COUNTED_FROM * jobs:
                began = at, left
            if began is not None and left <= COUNTED_TO * jobs:
                return (began[1] - left) / max(at - began[0], LOOK_SECONDS)
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        over.set()
        wire.close()


async def _in_flight(wire: LoadConnection, tenant: str) -> int:
    _, page = await wire.get("/v1/tenants")
    return sum(int(item["in_flight"]) for item in page["items"] if item["tenant_id"] == tenant)


async def _quiet(
    server: Server, tenant: str, jobs: int | None, tag: str, over: asyncio.Event | None = None
) -> list[float]:
    """How long each job took of a tenant that submits one every 100 ms, so many of them or until it is
    over."""
    found: list[float] = []
    running: set[asyncio.Task[None]] = set()
    number, next_at = 0, time.perf_counter()
    while number < jobs if jobs is not None else not (over is not None and over.is_set()):
        task = asyncio.create_task(_one(server, _command(tenant, number, f"{tenant}/{tag}"), found))
        running.add(task)
        number, next_at = number + 1, next_at + EVERY_SECONDS
        await asyncio.sleep(max(0.0, next_at - time.perf_counter()))
    for task in tuple(running):
        await task
    return found


async def _one(server: Server, command: dict[str, Any], found: list[float]) -> None:
    wire, began, state = LoadConnection(HOST, server.port), time.perf_counter(), ""
    status, accepted = await wire.post("/v1/orchestrate", command)
    if status != 202:
        raise WireFault(f"{status}: {accepted}")
    while state not in ("SUCCEEDED", "FAILED_FINAL", "CANCELLED"):
        _, job = await wire.get(f"/v1/jobs/{accepted['jobId']}?wait=30")
        state = job["state"]
    found.append((time.perf_counter() - began) * 1000)
    wire.close()


def table(figures: list[StoreFigures]) -> str:
    lines = [
        "| store or bus | p99 alone | p99 beside the flood | the same, by arrival | p99 in another lane "
        "| flood, shared | flood, by arrival | server CPU a job, shared and by arrival |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {each.store} | {each.empty_ms:,.0f} ms | {each.quiet_ms:,.0f} ms ({each.same_lane:.1f} ×) "
        f"| {each.quiet_before_ms:,.0f} ms ({each.quiet_before_ms / each.empty_ms:,.0f} ×) "
        f"| {each.elsewhere_ms:,.0f} ms ({each.other_lane:.1f} ×) | {each.flood_per_second:,.0f}/s "
        f"| {each.flood_before_per_second:,.0f}/s ({-each.loss:+.1%}) "
        f"| {each.cpu_ms:.2f} ms, {each.cpu_before_ms:.2f} ms |"
        for each in figures
    ]
    return "\n".join(lines)


async def run(options: FairnessOptions) -> list[StoreFigures]:
    figures = []
    with tempfile.TemporaryDirectory(prefix="lucius-fairness-") as folder:
        for store in options.stores:
            say(f"{store}: {options.jobs:,} jobs, shared and by arrival")
            figures.append(await measure(options, Path(folder) / store, store))
            say(table(figures[-1:]).splitlines()[-1])
    return figures


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--stores", default=",".join(STORES))
    parser.add_argument("--work-ms", type=int, default=40)
    given = parser.parse_args(arguments)
    configure_logging("warning", plain=True)
    stores = tuple(name for name in given.stores.split(",") if name in STORES)
    figures = uvloop.run(run(FairnessOptions(jobs=given.jobs, stores=stores, work_ms=given.work_ms)))
    sys.stdout.write(table(figures) + os.linesep)
    return 0 if figures and all(each.met for each in figures) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

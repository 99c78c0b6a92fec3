"""How many jobs a second the workflow makes, and how long a lone one takes, beside a bare workflow.

`python -m lucius_lab.bench.temporal_workflow` starts a Temporal server, a worker process for each variant
in turn, and plays invoker and service itself: whatever is measured is Temporal and the workflow, not the
ledger. Rounds of all variants take turns, so that a busy machine is unfair to all alike; the table shows
medians.
"""

import argparse
import asyncio
import os
import signal
import statistics
import sys
import tempfile
import time
from itertools import count
from pathlib import Path

import msgspec
from temporalio.client import Client
from temporalio.worker import PollerBehaviorSimpleMaximum, Worker

from lucius.core.states import StepState
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import (
    StartOptions,
    TemporalLink,
    TemporalSignaller,
    TemporalStarter,
    TemporalTarget,
)
from lucius.engines.temporal.dev_server import dev_server
from lucius.engines.temporal.worker import WorkerLimits, build_worker, runner
from lucius.jobs.workflows import WorkflowLabels
from lucius_lab.bench.bare_temporal import BARE_WORKFLOW, BareCalls, BareInvoker, BareWorkflow
from lucius_lab.bench.load import Count
from lucius_lab.bench.stand_in_invoker import StandInInvoker
from lucius_lab.bench.stand_in_ledger import StandInLedger, StandInTimeouts
from lucius_lab.child_processes import helper

STEPS = 3
IN_FLIGHT = 64
LABELS = WorkflowLabels(tenant="tenant_a", request_type="OCR_EMBEDDING_SIS")
_numbers = count()


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    bare: bool = False
    local_calls: bool = True
    sandboxed: bool = False
    workflow_pollers: int = 5
    labels: bool = False
    acks: bool = False
    eager: bool = False


VARIANTS = (
    Variant(name="bare, activities", bare=True, local_calls=False),
    Variant(name="bare, local", bare=True),
    Variant(name="bare, local, with acks", bare=True, acks=True),
    Variant(name="job, activities", local_calls=False),
    Variant(name="job, local"),
    Variant(name="job, local, sandboxed", sandboxed=True),
    Variant(name="job, local, 16 pollers", workflow_pollers=16),
    Variant(name="job, local, with labels", labels=True),
    Variant(name="job, local, with acks", acks=True),
)


async def work(target: TemporalTarget, variant: Variant, url: str) -> None:
    """The worker process, until it is asked to end."""
    client = await TemporalLink(target).connected()
    ending = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ending.set)
    async with _worker(client, target, variant, url):
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await ending.wait()


def _worker(client: Client, target: TemporalTarget, variant: Variant, url: str) -> Worker:
    limits = WorkerLimits(
        sandboxed=variant.sandboxed, workflow_pollers=variant.workflow_pollers, activity_pollers=5
    )
    if not variant.bare:
        calls = InvokerCalls(url, "bench")
        return build_worker(client, target.task_queue, calls.activities(), limits, build_id="bench")
    return Worker(
        client,
        task_queue=target.task_queue,
        workflows=[BareWorkflow],
        activities=BareCalls(url).activities(),
        workflow_runner=runner(sandboxed=variant.sandboxed),
        workflow_task_poller_behavior=PollerBehaviorSimpleMaximum(maximum=limits.workflow_pollers),
    )


class BenchRound:
    def __init__(self, link: TemporalLink, invoker: BareInvoker, variant: Variant) -> None:
        self._link = link
        self._invoker = invoker
        self._variant = variant
        self._starter = TemporalStarter(
            link, StartOptions(local_calls=variant.local_calls, eager=variant.eager)
        )

    async def run(self, jobs: int, in_flight: int) -> Count:
        """The clock stops when the last workflow has closed."""
        client, numbers, latencies = await self._link.client(), iter(range(jobs)), []
        open_jobs: list[str] = []

        async def starter() -> None:
            for _ in numbers:
                began = time.perf_counter()
                stand_in = self._invoker.create(f"job_{next(_numbers):08d}", StandInTimeouts(steps=STEPS))
                await self._start(client, stand_in)
                await self._invoker.ended(stand_in)
                latencies.append((time.perf_counter() - began) * 1000)
                open_jobs.append(stand_in.job_id)
                self._invoker.forget(stand_in)

        began = time.perf_counter()
        await asyncio.gather(*(starter() for _ in range(in_flight)))
        for job_id in open_jobs[-in_flight:]:
            await client.get_workflow_handle(job_id).result()
        return Count(jobs=jobs, seconds=time.perf_counter() - began, latencies_ms=latencies)

    async def _start(self, client: Client, stand_in: StandInLedger) -> None:
        variant = self._variant
        if not variant.bare:
            await self._starter.start(
                stand_in.job_id, stand_in.position(), LABELS if variant.labels else None
            )
            return
        given = {
            "jobId": stand_in.job_id,
            "steps": STEPS,
            "local_calls": variant.local_calls,
            "signals": self._invoker.signals,
        }
        await client.start_workflow(
            BARE_WORKFLOW, given, id=stand_in.job_id, task_queue=self._link.target.task_queue
        )


async def measure(
    server: TemporalTarget, variant: Variant, jobs: int, lone: int, in_flight: int = IN_FLIGHT
) -> tuple[float, Count]:
    """Jobs a second with so many in flight, and the lone ones."""
    target = msgspec.structs.replace(server, task_queue=f"bench_{next(_numbers)}")
    link = TemporalLink(target)
    async with BareInvoker(
        TemporalSignaller(link), lambda: time.time_ns() // 1_000_000, secret="bench"
    ) as invoker:
        if variant.acks:
            invoker.script, invoker.signals = _with_ack, 2
        told = [msgspec.json.encode(part).decode() for part in (target, variant)]
        module, pipe = "lucius_lab.bench.temporal_workflow", asyncio.subprocess.PIPE
        async with helper(module, "--worker", *told, invoker.url, stdout=pipe) as worker:
            assert worker.stdout is not None
            await worker.stdout.readline()
            rounds = BenchRound(link, invoker, variant)
            await rounds.run(16, 4)  # warm
            alone = await rounds.run(lone, 1)
            loaded = await rounds.run(jobs, in_flight)
        if invoker.faults:
            raise invoker.faults[0]
    return loaded.per_second, alone


async def _with_ack(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
    await invoker.ack(stand_in)
    await invoker.result(stand_in, StepState.SUCCEEDED)


async def bench(names: list[str], rounds: int, jobs: int, lone: int) -> None:
    chosen = [variant for variant in VARIANTS if not names or variant.name in names]
    seen: dict[str, list[tuple[float, Count]]] = {variant.name: [] for variant in chosen}
    with tempfile.TemporaryDirectory() as folder:
        async with dev_server(Path(folder) / "temporal.db") as server:
            for _ in range(rounds):
                for variant in chosen:
                    per_second, alone = await measure(server, variant, jobs, lone)
                    seen[variant.name].append((per_second, alone))
                    p50 = alone.percentile_ms(0.5)
                    sys.stderr.write(f"{variant.name}: {per_second:.1f} jobs/s, {p50:.0f} ms\n")
    sys.stdout.write("| variant | jobs/s, 64 in flight | lone p50 ms | lone p99 ms |\n|---|---|---|---|\n")
    for name, results in seen.items():
        per_second = statistics.median(each for each, _ in results)
        p50 = statistics.median(alone.percentile_ms(0.5) for _, alone in results)
        p99 = statistics.median(alone.percentile_ms(0.99) for _, alone in results)
        sys.stdout.write(f"| {name} | {per_second:.1f} | {p50:.0f} | {p99:.0f} |\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument(
        "--variant", action="append", default=[], help="measure only this one; may be repeated"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--lone", type=int, default=30)
    chosen = parser.parse_args()
    if chosen.worker:
        target, variant, url = chosen.worker
        asyncio.run(
            work(
                msgspec.json.decode(target, type=TemporalTarget),
                msgspec.json.decode(variant, type=Variant),
                url,
            )
        )
        # A call of the library that is still on its way may take the interpreter down with it when that goes.
        os._exit(0)
    else:
        asyncio.run(bench(chosen.variant, chosen.rounds, chosen.jobs, chosen.lone))


if __name__ == "__main__":
    main()

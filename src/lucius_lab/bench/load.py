"""Load over real HTTP: commands that are posted and waited for, and workers that lease and answer."""

import asyncio
import time
from typing import Any

import msgspec

from lucius_lab.bench.wire import LoadConnection, WireFault

BATCH_COMMANDS = 100
DIRECTIVES = 8


class Count(msgspec.Struct, kw_only=True):
    """What a run of load saw."""

    jobs: int
    seconds: float
    latencies_ms: list[float]

    @property
    def per_second(self) -> float:
        return self.jobs / self.seconds if self.seconds else 0.0

    def percentile_ms(self, lane_leases: float) -> float:
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(lane_leases * len(ordered)))] if ordered else 0.0


def command(number: int, request_type: str, tag: str) -> dict[str, Any]:
    return {
        "tenant_id": f"tenant-{number % 64}",
        "request_type": request_type,
        "input_ref": {"uri": f"s3://bench/{tag}/{number}.pdf"},
        "output_ref": {"uri": f"s3://bench/{tag}/{number}.json"},
        "payload": {"ocr": {"language": "en"}, "sis": {"prompt": "What does it say?"}},
        "schema_version": "1",
    }


async def complete(host: str, port: int, jobs: int, in_flight: int, request_type: str, tag: str) -> Count:
    """Posts commands and waits for each job's end, `in_flight` at a time."""
    numbers = iter(range(jobs))
    latencies: list[float] = []

    async def client() -> None:
        wire = LoadConnection(host, port)
        for number in numbers:
            began = time.perf_counter()
            status, accepted = await wire.post("/v1/orchestrate", command(number, request_type, tag))
            if status != 202:
                raise WireFault(f"{status}: {accepted}")
            state = ""
            while state not in ("SUCCEEDED", "FAILED_FINAL", "CANCELLED"):
                _, job = await wire.get(f"/v1/jobs/{accepted['jobId']}?wait=30")
                state = job["state"]
            if state != "SUCCEEDED":
                raise WireFault(f"{accepted['jobId']} ended as {state}")
            latencies.append((time.perf_counter() - began) * 1000)
        wire.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(in_flight)))
    return Count(jobs=jobs, seconds=time.perf_counter() - began, latencies_ms=latencies)


async def accept(host: str, port: int, jobs: int, clients: int, request_type: str, tag: str) -> Count:
    """Posts commands one by one, without waiting for their jobs."""
    numbers = iter(range(jobs))
    latencies: list[float] = []

    async def client() -> None:
        wire = LoadConnection(host, port)
        for number in numbers:
            began = time.perf_counter()
            status, answer = await wire.post("/v1/orchestrate", command(number, request_type, tag))
            if status != 202:
                raise WireFault(f"{status}: {answer}")
            latencies.append((time.perf_counter() - began) * 1000)
        wire.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Count(jobs=jobs, seconds=time.perf_counter() - began, latencies_ms=latencies)


async def accept_batches(host: str, port: int, jobs: int, clients: int, request_type: str, tag: str) -> Count:
    """Posts commands in batches of 100."""
    starts = iter(range(0, jobs, BATCH_COMMANDS))
    latencies: list[float] = []

    async def client() -> None:
        wire = LoadConnection(host, port)
        for start in starts:
            commands = [command(start + n, request_type, tag) for n in range(BATCH_COMMANDS)]
            began = time.perf_counter()
            status, answer = await wire.post("/v1/orchestrate:batch", {"commands": commands})
            refused = [item for item in answer["items"] if "jobId" not in item] if status == 200 else [answer]
            if refused:
                raise WireFault(f"{status}: {refused[0]}")
            latencies.append((time.perf_counter() - began) * 1000)
        wire.close()

    began = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(clients)))
    return Count(jobs=jobs, seconds=time.perf_counter() - began, latencies_ms=latencies)


async def work(host: str, port: int, service: str, connections: int) -> None:
    """A worker that leases over HTTP and answers at once, until it is cancelled or the server goes away."""
    stamp = "2026-01-01T00:00:00Z"

    async def answer(wire: LoadConnection, directive: dict[str, Any]) -> None:
        head = {name: directive[name] for name in ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")}
        token = directive["callback_token"]
        ack = {"type": "ACK", "timestamp": stamp, **head}
        await wire.post("/v1/callbacks/ack", ack, bearer=token)
        result = {"type": "RESULT", "status": "SUCCEEDED", "timestamp": stamp, **head}
        result["output_ref"] = directive["input_ref"]
        await wire.post("/v1/callbacks/result", result, bearer=token)

    async def loop() -> None:
        wires = [LoadConnection(host, port) for _ in range(DIRECTIVES + 1)]
        while True:
            wish = {"service": service, "max": DIRECTIVES, "wait_seconds": 20}
            _, leased = await wires[DIRECTIVES].post("/v1/directives:lease", wish)
            directives = leased["directives"]
            await asyncio.gather(*(answer(wires[n], one) for n, one in enumerate(directives)))

    await asyncio.gather(*(loop() for _ in range(connections)))

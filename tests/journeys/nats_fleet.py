"""A whole deployment over NATS as real processes: APIs, reconcilers and services on one data folder and one
server, which can be killed one by one."""

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from lucius.bus.nats.server import NatsServer, free_port
from lucius_lab.chaos.checks import check, left_over
from lucius_lab.processes import PartProcess

SERVICES = ("one", "two", "three")
QUIET_SECONDS_MAX = 120.0
CALLS_MAX = 200  # at a time
WAIT_SECONDS = 20

PROTOCOL = "protocol_id: triple_v1\nrequest_types: [TRIPLE]\nsteps:\n" + "".join(
    f"""  - step_type: {name.upper()}
    service: {name}
    payload_key: {name}
    max_attempts: 90
    ack_timeout: 10s
    lease: 20s
    backoff: {{publish: [300ms], ack: [0], result: [0]}}
"""
    for name in SERVICES
)


class NatsFleet:
    def __init__(self, folder: Path, *, apis: int, reconcilers: int, workers: int) -> None:
        self.data, self.effects = folder / "data", folder / "effects.jsonl"
        self.server = NatsServer(folder / "nats", port=free_port())
        self._folder = folder
        protocols = folder / "protocols"
        protocols.mkdir(parents=True)
        (protocols / "triple.yaml").write_text(PROTOCOL)
        self._shared = ("--data", str(self.data), "--protocols", str(protocols), "--bus", "nats")
        self._env = {"LUCIUS_NATS_URL": self.server.url}
        self.apis = [self._part(f"api-{n}", "api", *self._shared, port="--port") for n in range(apis)]
        self.reconcilers: list[PartProcess] = []
        self.services: list[PartProcess] = []
        self._counts = (reconcilers, workers)

    def start(self) -> None:
        self.server.start()
        asyncio.run(self.server.ready())
        reconcilers, workers = self._counts
        for api in self.apis:
            api.begin()
        for api in self.apis:
            api.await_up()
        self._env["LUCIUS_PUBLIC_URL"] = self.apis[0].url
        self.reconcilers = [
            self._part(f"reconciler-{n}", "reconciler", *self._shared) for n in range(reconcilers)
        ]
        run = ("service", "run", "lucius_lab.chaos.work:work", "--bus", "nats", "--as")
        self.services = [
            self._part(f"{name}-{n}", *run, name, "--concurrency", "16")
            for name in SERVICES
            for n in range(workers)
        ]
        rest = [*self.reconcilers, *self.services]
        for part in rest:
            part.begin()
        for part in rest:
            part.await_up()

    def _part(self, name: str, *arguments: str, port: str = "--health-port") -> PartProcess:
        return PartProcess(self._folder, name, *arguments, port_option=port, env=self._env)

    @property
    def members(self) -> list[PartProcess]:
        return [*self.apis, *self.reconcilers, *self.services]

    def stop(self) -> None:
        """All that run, services first; each ends well."""
        running = [part for part in reversed(self.members) if part.running]
        for part in running:
            part.ask_to_stop()
        for part in running:
            assert part.ended() == 0, part.stderr[-2_000:]
            assert "Traceback" not in part.stderr, part.stderr[-4_000:]

    def kill_all(self) -> None:
        for part in self.members:
            part.kill()
        self.server.kill()

    def steps_done(self) -> int:
        return self.effects.read_bytes().count(b"\n") if self.effects.exists() else 0

    async def until_done(self, steps: int) -> None:
        async with asyncio.timeout(QUIET_SECONDS_MAX):
            while self.steps_done() < steps:
                await asyncio.sleep(0.02)

    def command(self, number: int, tenants: int = 40) -> dict[str, Any]:
        work = {"effects": str(self.effects), "seconds": 0.01}
        return {
            "tenant_id": f"tenant-{number % tenants}",
            "request_type": "TRIPLE",
            "input_ref": {"uri": f"s3://in/{number}"},
            "output_ref": {"uri": f"s3://out/{number}"},
            "payload": dict.fromkeys(SERVICES, work),
            "schema_version": "1",
            "idempotency_key": f"command-{number}",
        }

    async def findings(self, states: dict[str, str]) -> list[str]:
        """What is wrong once nothing is left to do."""
        deadline = time.monotonic() + QUIET_SECONDS_MAX
        while left_over(self.data) and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        return check(self.data, states, self.effects, len(SERVICES))


class Clients:
    """Many clients of several APIs at once."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._client = httpx2.AsyncClient(timeout=WAIT_SECONDS + 40)
        self._room = asyncio.Semaphore(CALLS_MAX)

    async def close(self) -> None:
        await self._client.aclose()

    async def submit(self, command: dict[str, Any], number: int) -> str:
        async with self._room:
            url = self._urls[number % len(self._urls)]
            answer = await self._client.post(f"{url}/v1/orchestrate", json=command)
        assert answer.status_code == 202, answer.text
        return str(answer.json()["jobId"])

    async def ended(self, job_id: str, number: int) -> str:
        """The state in which it ends."""
        while True:
            url = self._urls[number % len(self._urls)]
            async with self._room:
                answer = await self._client.get(f"{url}/v1/jobs/{job_id}?wait={WAIT_SECONDS}")
            job = answer.json()
            if job["completed_at"] is not None:
                return str(job["state"])

    async def states(self, jobs: Sequence[str]) -> dict[str, str]:
        found = await asyncio.gather(*(self.ended(job_id, n) for n, job_id in enumerate(jobs)))
        return dict(zip(jobs, found, strict=True))

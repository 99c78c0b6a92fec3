"""A service that is scaled in the middle of its work, as KEDA does it: nothing is lost, no attempt wasted."""

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from tests.journeys.nats_fleet import Clients

from lucius.bus.nats.server import NatsServer, free_port
from lucius_lab.chaos.work import DoneWork
from lucius_lab.processes import PartProcess

pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(600)]

JOBS = 200
WORK_SECONDS = 0.25
CONCURRENCY = 6
SECONDS_MAX = 240.0
PROTOCOL = """\
protocol_id: scaled_v1
request_types: [SCALED]
steps:
  - step_type: SCALED
    service: scaled
    payload_key: scaled
    max_attempts: 5
    backoff: {ack: [0], result: [0]}
"""


class ScaledFleet:
    """An API, a reconciler, and as many replicas of one service as are wanted."""

    def __init__(self, folder: Path, bus: str, stack: ExitStack) -> None:
        self.effects = folder / "effects.jsonl"
        self.replicas: list[PartProcess] = []
        self._folder, self._stack, self._begun = folder, stack, 0
        (folder / "protocols").mkdir()
        (folder / "protocols" / "scaled.yaml").write_text(PROTOCOL)
        self._env = {}
        if bus == "nats":
            server = NatsServer(folder / "nats", port=free_port())
            stack.callback(server.kill)
            server.start()
            asyncio.run(server.ready())
            self._env["LUCIUS_NATS_URL"] = server.url
        self._bus = ("--bus", bus)
        shared = ("--data", str(folder / "data"), "--protocols", str(folder / "protocols"), *self._bus)
        self.api = self._part("api", "api", *shared, port="--port")
        self.api.start()
        self._env |= {"LUCIUS_PUBLIC_URL": self.api.url, "LUCIUS_URL": self.api.url}
        self._part("reconciler", "reconciler", *shared).start()

    def scale(self, replicas: int) -> list[PartProcess]:
        """Starts what is missing; asks those that are too many to stop, and returns them."""
        while len(self.replicas) < replicas:
            self._begun += 1
            run = ("service", "run", "lucius_lab.chaos.work:work", "--as", "scaled", *self._bus)
            options = ("--concurrency", str(CONCURRENCY), "--data", str(self._folder / f"own-{self._begun}"))
            part = self._part(f"replica-{self._begun}", *run, *options)
            part.begin()
            self.replicas.append(part)
        left, self.replicas = self.replicas[replicas:], self.replicas[:replicas]
        for part in left:
            part.ask_to_stop()
        return left

    def done(self) -> list[DoneWork]:
        lines = self.effects.read_bytes().splitlines() if self.effects.exists() else []
        return [msgspec.json.decode(line, type=DoneWork) for line in lines]

    async def until_done(self, pieces: int) -> None:
        async with asyncio.timeout(SECONDS_MAX):
            while len(self.done()) < pieces:
                await asyncio.sleep(0.02)

    def _part(self, name: str, *arguments: str, port: str = "--health-port") -> PartProcess:
        part = PartProcess(self._folder, name, *arguments, port_option=port, env=self._env)
        self._stack.callback(part.kill)
        return part


@pytest.fixture(params=["memory", "nats"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ScaledFleet]:
    with ExitStack() as stack:
        yield ScaledFleet(tmp_path, request.param, stack)


async def test_scaling_from_3_to_1_to_4_loses_nothing_and_wastes_no_attempt(fleet: ScaledFleet) -> None:
    clients, began = Clients([fleet.api.url]), time.monotonic()
    fleet.scale(3)
    for part in fleet.replicas:
        part.await_up()
    work = {"effects": str(fleet.effects), "seconds": WORK_SECONDS}
    commands = [
        {
            "tenant_id": f"tenant-{number % 40}",
            "request_type": "SCALED",
            "input_ref": {"uri": f"s3://in/{number}"},
            "output_ref": {"uri": f"s3://out/{number}"},
            "payload": {"scaled": work},
            "schema_version": "1",
            "idempotency_key": f"command-{number}",
        }
        for number in range(JOBS)
    ]
    try:
        jobs = await asyncio.gather(*(clients.submit(command, 0) for command in commands))
        await fleet.until_done(JOBS // 5)
        stopped = fleet.scale(1)
        ends = [await asyncio.to_thread(part.ended) for part in stopped]
        in_the_middle = len(fleet.done())
        fleet.scale(4)
        states = await clients.states(jobs)
    finally:
        await clients.close()
    done = fleet.done()
    print(f"{JOBS} jobs in {time.monotonic() - began:.1f} s, stopped at {in_the_middle}")
    assert ends == [0, 0]
    assert JOBS // 5 <= in_the_middle < JOBS
    assert Counter(states.values()) == {"SUCCEEDED": JOBS}
    assert sorted(piece.job_id for piece in done) == sorted(jobs), "each piece of work was done once"
    assert {piece.attempt_no for piece in done} == {1}
    assert len({piece.pid for piece in done}) >= 4
    for part in fleet.scale(0):
        assert await asyncio.to_thread(part.ended) == 0
        assert "Traceback" not in part.stderr

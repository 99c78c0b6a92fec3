"""A disk that is full, a ledger that another program has locked, a disk that is slow: nothing is lost, and it
goes on by itself."""

import asyncio
import resource
import sqlite3
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx2
import pytest
from tests.support.api_setup import check_problem, until

from lucius_lab.chaos.checks import check, left_over
from lucius_lab.chaos.load import Load
from lucius_lab.chaos.run import SERVICES, ChaosFleet, ChaosPlan

# Each takes about a minute on two cores, and the limit leaves room for others that use them too.
pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(600)]

CLIENTS = 12
DISK_BYTES = 48 * 1024 * 1024
LOCKED_SECONDS = 8.0
PATIENCE_SECONDS = 180  # nothing takes that long unless the machine is busy with other things
SLOW_SYNC_MS = (50, 200)
SLOW_CLIENTS = 48
SLOW_JOBS = 80


class Running:
    """A fleet under load."""

    def __init__(self, fleet: ChaosFleet, load: Load, http: httpx2.AsyncClient) -> None:
        self.fleet = fleet
        self.load = load
        self.http = http
        self.accepted: list[str] = []

    async def submit(self) -> httpx2.Response:
        """One command, sent once."""
        answer = await self.http.post("/v1/orchestrate", json=self.load.command())
        if answer.status_code == 202:
            self.accepted.append(answer.json()["jobId"])
        return answer

    async def ready(self) -> httpx2.Response:
        return await self.http.get("/readyz")


@asynccontextmanager
async def under_load(folder: Path, plan: ChaosPlan, clients: int = CLIENTS) -> AsyncIterator[Running]:
    """Everything that was accepted must have ended well when this is over."""
    fleet = ChaosFleet(folder, plan, Random(plan.seed))
    effects = folder / "effects.jsonl"
    try:
        await asyncio.to_thread(fleet.start)
        load = Load(fleet.urls, effects, "disk", Random(plan.seed))
        async with (
            httpx2.AsyncClient(base_url=fleet.urls()[0], timeout=60) as http,
            asyncio.TaskGroup() as group,
        ):
            group.create_task(load.run(clients))
            running = Running(fleet, load, http)
            yield running
            for job_id in running.accepted:
                load.ended[job_id] = await load.wait_for(job_id)
            load.enough()

        async def quiet() -> bool:
            return not await asyncio.to_thread(left_over, folder / "data")

        await until(quiet, seconds=PATIENCE_SECONDS)
        assert await asyncio.to_thread(fleet.stop) == []
        assert check(folder / "data", load.ended, effects, len(SERVICES)) == []
    finally:
        fleet.kill_all()


class SmallDisk:
    """A file system of its own, which a big file fills."""

    def __init__(self, folder: Path) -> None:
        self._ballast = folder / "ballast"

    def fill(self, fleet: ChaosFleet) -> None:
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(65_536))
            except OSError:
                return

    def free(self, fleet: ChaosFleet) -> None:
        self._ballast.unlink()


class ShortFiles:
    """Where nothing can be mounted: no file of the processes may grow any more."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def fill(self, fleet: ChaosFleet) -> None:
        full = max(file.stat().st_size for file in self._folder.iterdir() if file.is_file())
        self._limit(fleet, full)

    def free(self, fleet: ChaosFleet) -> None:
        self._limit(fleet, resource.RLIM_INFINITY)

    def _limit(self, fleet: ChaosFleet, size: int) -> None:
        for member in fleet.members:
            resource.prlimit(member.pid, resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


@contextmanager
def small_disk(folder: Path) -> Iterator[SmallDisk | ShortFiles]:
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True).returncode != 0:
        yield ShortFiles(folder)
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


async def test_a_full_disk_refuses_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "data") as disk:
        async with under_load(tmp_path, ChaosPlan(apis=1, reconcilers=1, workers=1)) as running:
            await running.load.progress(10, seconds_max=PATIENCE_SECONDS)
            disk.fill(running.fleet)

            async def refused() -> httpx2.Response | None:
                answer = await running.submit()
                return answer if answer.status_code == 503 else None

            answer = await until(refused, seconds=60)
            check_problem(answer, 503, "SYSTEM_SATURATED")
            assert int(answer.headers["retry-after"]) > 0

            async def not_ready() -> dict[str, Any] | None:
                ready = await running.ready()
                return ready.json() if ready.status_code == 503 else None

            assert (await until(not_ready, seconds=30))["checks"]["ledger"] != "ok"
            assert (await running.http.get("/v1/jobs")).status_code == 200
            ended = len(running.load.ended)
            disk.free(running.fleet)
            await until(lambda: _is(running.ready, 200), seconds=30)
            await running.load.progress(10, seconds_max=PATIENCE_SECONDS)
            assert len(running.load.ended) >= ended + 10
            assert running.fleet.fallen() == []


async def _is(ask: Any, status: int) -> bool:
    return bool((await ask()).status_code == status)


async def test_a_ledger_locked_by_another_program_is_waited_for(tmp_path: Path) -> None:
    async with under_load(tmp_path, ChaosPlan(apis=2, reconcilers=1, workers=1)) as running:
        await running.load.progress(10, seconds_max=PATIENCE_SECONDS)
        other = sqlite3.connect(tmp_path / "data" / "lucius.db", isolation_level=None, timeout=30)
        try:
            other.execute("BEGIN EXCLUSIVE")
            until_time = time.monotonic() + LOCKED_SECONDS
            check_problem(await running.submit(), 503, "SYSTEM_SATURATED")
            assert (await running.http.get("/v1/jobs")).status_code == 200
            ended = len(running.load.ended)
            await asyncio.sleep(max(0.0, until_time - time.monotonic()))
            other.execute("ROLLBACK")
        finally:
            other.close()
        await running.load.progress(10, seconds_max=PATIENCE_SECONDS)
        assert len(running.load.ended) >= ended + 10
        assert running.fleet.fallen() == []


@pytest.fixture(scope="module")
def slow_sync(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose disk is slow."""
    source, library = (
        Path(__file__).with_name("slow_sync.c"),
        tmp_path_factory.mktemp("slow") / "slow_sync.so",
    )
    command = [
        "gcc",
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        "-o",
        str(library),
        str(source),
        "-nostdlib",
    ]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    least, most = map(str, SLOW_SYNC_MS)
    return {"LD_PRELOAD": str(library), "SLOW_SYNC_MS_MIN": least, "SLOW_SYNC_MS_MAX": most}


async def test_a_slow_disk_slows_down_and_breaks_nothing(tmp_path: Path, slow_sync: dict[str, str]) -> None:
    plan = ChaosPlan(apis=2, reconcilers=1, workers=2, env=slow_sync, ack_timeout="20s", lease="40s")
    async with under_load(tmp_path, plan, SLOW_CLIENTS) as running:
        began = time.monotonic()
        await running.load.progress(SLOW_JOBS, seconds_max=120)
        seconds = time.monotonic() - began
        assert len(running.load.ended) >= SLOW_JOBS
        assert running.load.repeats == 0  # nobody was sent away
    # A job takes at least six commits one after the other, and each of them alone would wait for the disk.
    alone = 1000 / (6 * sum(SLOW_SYNC_MS) / 2)
    assert SLOW_JOBS / seconds > 2 * alone
    assert retried(tmp_path / "data") == []  # no clock ran out because of it


def retried(data: Path) -> list[str]:
    connection = sqlite3.connect(f"file:{data / 'lucius.db'}?mode=ro", uri=True)
    try:
        text = "SELECT pk FROM lucius_ledger WHERE rk LIKE 'EVENT#%' AND body LIKE '%STEP_RETRYING%'"
        return [key for (key,) in connection.execute(text)]
    finally:
        connection.close()

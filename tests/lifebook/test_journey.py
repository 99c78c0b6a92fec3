"""Workers that are killed, calls that are throttled, messages that come twice: every run ends once.

The suite plays a short form; `make lifebook-journey` plays 500 runs of five steps over both stand-ins.
"""

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from decimal import Decimal
from pathlib import Path

import pytest
from tests.lifebook.deployed import Deployed, deployed
from tests.lifebook.fault_proxy import FaultProxy
from tests.lifebook.flows import RAN_VARIABLE
from tests.lifebook.servers import TOP
from tests.sizes import SOAKING, size

from lucius.lifebook.build import Lifebook
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.runs import AcceptedRun, RunRequest
from lucius.lifebook.states import Status

pytestmark = pytest.mark.xdist_group("lifebook")

JOBS = size(40, 500)
KILL_EVERY_SECONDS = 1
WORKERS = 3
SECONDS_MAX = size(150, 1_500)
STORES = ("ministack", "dynamodb-local") if SOAKING else ("ministack",)
PRICE = Decimal("0.625")
OWN = {
    "LIFEBOOK_LEASE": "4s",
    "LIFEBOOK_CLOCK_SKEW": "500ms",
    "LIFEBOOK_BACKOFF": "200ms,1s",
    "LIFEBOOK_MAX_ATTEMPTS": "100",
    "LIFEBOOK_PENDING_GRACE": "3s",
    "LIFEBOOK_QUEUED_GRACE": "15s",
    "LIFEBOOK_SWEEP_INTERVAL": "1s",
}


class Fleet:
    """Worker processes of which one is killed now and then, and another takes its place."""

    def __init__(self, env: Mapping[str, str], log: Path, seed: int) -> None:
        self._env = env
        self._log = log
        self._rng = random.Random(seed)
        self._workers: list[asyncio.subprocess.Process] = []
        self.kills = 0

    async def start(self) -> None:
        arguments = ("lifebook", "worker", "--concurrency", "8", "--log-level", "warning")
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "lucius", *arguments),
                env=dict(self._env),
                cwd=TOP,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._workers.append(process)

    async def kill_one(self) -> None:
        process = self._rng.choice(self._workers)
        self._workers.remove(process)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        await process.wait()
        self.kills += 1
        await self.start()

    async def end(self) -> None:
        for process in self._workers:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


async def _jobs(lifebook: Lifebook, ids: list[str]) -> list[LifebookJob]:
    found = []
    for start in range(0, len(ids), 16):
        found += await asyncio.gather(*(lifebook.writer.get(each) for each in ids[start : start + 16]))
    return [job for job in found if job is not None]


async def _play(place: Deployed, fleet: Fleet, ids: list[str]) -> list[LifebookJob]:
    """Kills until all runs have ended and their credits are settled."""
    for _ in range(WORKERS):
        await fleet.start()
    until = time.monotonic() + SECONDS_MAX
    open_ids = list(ids)
    while open_ids and time.monotonic() < until:
        await asyncio.sleep(KILL_EVERY_SECONDS)
        await fleet.kill_one()
        looked = await _jobs(place.lifebook, open_ids)
        open_ids = [job.job_id for job in looked if not job.terminal or job.settled_at is None]
    return await _jobs(place.lifebook, ids)


def _check_steps(notes: Path) -> int:
    """No step begins again once a later one has begun: its cursor was written by then. How many ran twice."""
    seen: dict[str, list[int]] = defaultdict(list)
    for line in notes.read_text(encoding="utf-8").splitlines():
        job_id, index, _ = line.split()
        seen[job_id].append(int(index))
    for job_id, indexes in seen.items():
        assert indexes == sorted(indexes), (job_id, indexes)
        assert set(indexes) == set(range(5))
    return sum(len(indexes) - 5 for indexes in seen.values())


@pytest.mark.timeout(SECONDS_MAX + 120)
@pytest.mark.parametrize("store", STORES)
async def test_every_run_ends_once_whatever_is_killed(
    store: str, request: pytest.FixtureRequest, ministack: dict[str, str], tmp_path: Path
) -> None:
    tables = request.getfixturevalue(store.replace("-", "_"))
    events, notes = tmp_path / "events.jsonl", tmp_path / "notes"
    variables = {**ministack, "AWS_ENDPOINT_URL_DYNAMODB": tables["AWS_ENDPOINT_URL_DYNAMODB"]}
    own = {**OWN, "LIFEBOOK_ANALYTICS": f"file:{events}"}
    async with (
        deployed(variables, **own) as place,
        FaultProxy(tables["AWS_ENDPOINT_URL_DYNAMODB"], seed=1).running() as table_proxy,
        FaultProxy(ministack["AWS_ENDPOINT_URL_SQS"], seed=2).running() as queue_proxy,
    ):
        env = {
            **place.env,
            "AWS_ENDPOINT_URL_DYNAMODB": table_proxy.url,
            "AWS_ENDPOINT_URL_SQS": queue_proxy.url,
            RAN_VARIABLE: str(notes),
        }
        started = time.monotonic()
        ids = await _submit_all(place, JOBS)
        fleet = Fleet(env, tmp_path / "workers.log", seed=3)
        try:
            jobs = await _play(place, fleet, ids)
            await _until_events(events, JOBS)
        finally:
            await fleet.end()
        took = time.monotonic() - started
        assert Counter(job.status for job in jobs) == {Status.COMPLETED: JOBS}, _tail(tmp_path)
        repeated = _check_steps(notes)
        bodies = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
        assert Counter(
            body["job_id"] for body in {body["event_id"]: body for body in bodies}.values()
        ) == dict.fromkeys(ids, 1)
        assert all(body["success"] and body["event"] == "workflow_run_completed" for body in bodies)
        assert {job.credits_spent for job in jobs} == {PRICE}
        account = await place.lifebook.balances.balance("ws")
        assert (account.held, account.spent) == (Decimal(0), PRICE * JOBS)
        assert account.available == 1_000 - PRICE * JOBS
        assert fleet.kills >= 2
        assert table_proxy.counts["throttled"] > 10
        assert queue_proxy.counts["doubled"] > 0
        attempts = sum(job.attempts for job in jobs)
        calls = table_proxy.counts["calls"] + queue_proxy.counts["calls"]
        sys.stdout.write(
            f"{store}: {JOBS} runs in {took:.0f} s, {fleet.kills} kills, {attempts} attempts, "
            f"{repeated} steps repeated, {calls} calls ({calls / JOBS:.0f} a run), "
            f"{table_proxy.counts['throttled'] + queue_proxy.counts['throttled']} throttled, "
            f"{table_proxy.counts['lost']} answers lost, {queue_proxy.counts['doubled']} deliveries doubled\n"
        )


async def _submit_all(place: Deployed, count: int) -> list[str]:
    ids = []
    for start in range(0, count, 10):
        told = await asyncio.gather(
            *(
                place.lifebook.runs.submit(
                    RunRequest(
                        workspace_id="ws", user_id="u", workflow_id="five", idempotency_key=f"k{number}"
                    )
                )
                for number in range(start, min(start + 10, count))
            )
        )
        ids += [each.job.job_id for each in told if isinstance(each, AcceptedRun)]
    assert len(ids) == count
    return ids


async def _until_events(path: Path, count: int) -> None:
    """Events that a worker left behind are sent by a sweeper, a moment after the end of their run."""
    until = time.monotonic() + 100
    while time.monotonic() < until:
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            if len({json.loads(line)["event_id"] for line in lines}) >= count:
                return
        await asyncio.sleep(0.5)


def _tail(folder: Path) -> str:
    return (folder / "workers.log").read_text(encoding="utf-8", errors="replace")[-3_000:]

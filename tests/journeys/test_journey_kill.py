"""The power goes out, again and again, under load: every job still ends once."""

import asyncio
import json
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.journeys.conftest import Hire, Launch
from tests.journeys.harness import Lucius, Worker
from tests.sizes import size
from tests.support.api_setup import envelope, until

JOBS = size(800, 2_000)
DUPLICATES = JOBS // 5
TENANTS = 20
KILLS = 5
SUBMITTERS = 6
OPEN_STATES = ("QUEUED", "DISPATCHING", "IN_PROGRESS")

# Short enough that what was handed out and lost in a crash comes back while the journey lasts. The lease is
# longer: a worker that acknowledged is alive here, and only waits for the server to come back.
STEP = """
  - step_type: {name}
    service: {service}
    payload_key: {service}
    max_attempts: 20
    ack_timeout: 2s
    lease: 10s
    backoff: {{publish: [0], ack: [0], result: [0]}}
"""
SERVICES = ("load_a", "load_b")
LOAD = "protocol_id: load_v1\nrequest_types: [LOAD]\nsteps:" + "".join(
    STEP.format(name=service.upper(), service=service) for service in SERVICES
)


class Load:
    """Commands to submit, some of them twice, and which job each became."""

    def __init__(self) -> None:
        chance = random.Random(7)
        self.commands = [envelope(request_type="LOAD", tenant_id=f"t{n % TENANTS}") for n in range(JOBS)]
        self.todo = [*range(JOBS), *chance.sample(range(JOBS), DUPLICATES)]
        chance.shuffle(self.todo)
        self.jobs: dict[int, set[str]] = {number: set() for number in range(JOBS)}
        self.firsts: Counter[int] = Counter()
        self.submitted = 0

    async def submit_all(self, url: str) -> None:
        numbers = iter(self.todo)
        async with httpx2.AsyncClient(base_url=url, timeout=30) as client:
            await asyncio.gather(*(self._submit(client, numbers) for _ in range(SUBMITTERS)))

    async def _submit(self, client: httpx2.AsyncClient, numbers: Any) -> None:
        for number in numbers:
            body = json.dumps(self.commands[number])
            while True:
                try:
                    answer = await client.post("/v1/orchestrate", content=body)
                except httpx2.TransportError:
                    await asyncio.sleep(0.05)  # as a client does that has heard nothing: the same again
                    continue
                assert answer.status_code in (202, 503), answer.text
                if answer.status_code == 202:
                    break
            self.jobs[number].add(answer.json()["jobId"])
            self.firsts[number] += not answer.json()["duplicate"]
            self.submitted += 1


async def kill_on_the_way(lucius: "Lucius", load: Load, workers: "list[Worker]") -> int:
    """Kills and restarts whenever another part of all that has to happen has happened."""
    whole = len(load.todo) + JOBS * len(SERVICES)
    killed = 0
    for part in range(1, KILLS + 1):

        async def far_enough(part: int = part) -> bool:
            happened = load.submitted + sum(worker.lines() for worker in workers)
            return happened >= whole * part / (KILLS + 2)

        await until(far_enough, seconds=60)
        await asyncio.to_thread(lucius.kill)
        killed += 1
        await asyncio.to_thread(lucius.start)
    return killed


async def holds_any(client: httpx2.AsyncClient, state: str) -> bool:
    """Whether the list has a job in this state. A page that looked far and found none is not yet its end."""
    cursor: dict[str, str] = {}
    while True:
        params = {"state": state, "limit": "1", **cursor}
        page = (await client.get("/v1/jobs", params=params)).json()
        if page["items"] or page["next_cursor"] is None:
            return bool(page["items"])
        cursor = {"cursor": page["next_cursor"]}


def rows(data: Path, table: str, keys: str = "%") -> list[tuple[str, str, dict[str, Any]]]:
    connection = sqlite3.connect(f"file:{data / 'lucius.db'}?mode=ro", uri=True)
    try:
        found = connection.execute(f'SELECT pk, rk, body FROM "{table}" WHERE rk LIKE ?', (keys,)).fetchall()
    finally:
        connection.close()
    return [(pk, rk, json.loads(body)) for pk, rk, body in found]


def check_ledger(data: Path, job_ids: set[str]) -> dict[tuple[str, str], tuple[int, str]]:
    """Everything ended once and nothing is left over; returns the attempt by which each step succeeded."""
    assert rows(data, "lucius_inflight") == []
    assert rows(data, "lucius_due") == []
    assert rows(data, "lucius_dispatch") == []
    assert len(rows(data, "job-idempotency")) == JOBS
    jobs = rows(data, "lucius_ledger", "JOB")
    assert {pk for pk, _, _ in jobs} == job_ids
    assert {body["state"] for _, _, body in jobs} == {"SUCCEEDED"}
    assert Counter(body["state"] for _, _, body in rows(data, "lucius_ledger", "OUTBOX#%")).keys() == {"SENT"}
    ends: Counter[tuple[str, str, str | None]] = Counter()
    for pk, _, body in rows(data, "lucius_ledger", "EVENT#%"):
        if body["type"] in ("JOB_CREATED", "JOB_SUCCEEDED", "STEP_SUCCEEDED"):
            ends[(pk, body["type"], body.get("step_id"))] += 1
    assert set(ends.values()) == {1}
    assert len(ends) == JOBS * (2 + len(SERVICES))
    return {
        (pk, body["step_id"]): (body["attempt_no"], body["lease_id"])
        for pk, _, body in rows(data, "lucius_ledger", "STEP#%")
    }


def check_effects(workers: "list[Worker]", won: dict[tuple[str, str], tuple[int, str]]) -> None:
    """Each step took effect by one attempt, which is the one the ledger names."""
    effects: dict[tuple[str, str], set[tuple[int, str]]] = {}
    for worker in workers:
        for line in worker.done():
            # After a crash the sender of an applied RESULT may only ever hear that it is a duplicate.
            if line["door"] == "result" and line["outcome"] in ("applied", "duplicate"):
                attempt = (line["attempt_no"], line["lease_id"])
                effects.setdefault((line["jobId"], line["stepId"]), set()).add(attempt)
    differing = {key: (won.get(key), effects.get(key)) for key in won.keys() | effects.keys()}
    assert {key: both for key, both in differing.items() if both[1] != {both[0]}} == {}


@pytest.mark.xdist_group("heavy")
async def test_every_job_ends_once_whatever_is_cut(launch: "Launch", hire: "Hire", tmp_path: Path) -> None:
    folder = tmp_path / "protocols"
    folder.mkdir()
    (folder / "load.yaml").write_text(LOAD)
    lucius = launch("--protocols", str(folder))
    workers = [
        hire(lucius.url, SERVICES, "--threads", "2"),
        hire(lucius.url, SERVICES, "--threads", "2", "--no-ack"),
        hire(lucius.url, SERVICES, "--threads", "2", "--behave", "twice", "--no-ack"),
    ]
    load = Load()
    _, killed = await asyncio.gather(load.submit_all(lucius.url), kill_on_the_way(lucius, load, workers))
    assert killed == KILLS
    async with httpx2.AsyncClient(base_url=lucius.url, timeout=30) as client:

        async def all_ended() -> bool:
            return not any([await holds_any(client, state) for state in OPEN_STATES])

        await until(all_ended, seconds=60)
    assert [number for number, ids in load.jobs.items() if len(ids) != 1] == []
    assert max(load.firsts.values()) == 1
    for worker in workers:
        worker.finish()
    assert lucius.stop() == 0
    job_ids = {job_id for ids in load.jobs.values() for job_id in ids}
    check_effects(workers, check_ledger(lucius.data, job_ids))
    assert "Traceback" not in lucius.stderr

"""`lucius dev --profile azure-local`: a ledger in Azurite and an emulated bus, behind Microsoft's libraries.

Each process of Lucius is killed under load, and every job ends once all the same.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx2
import pytest
from tests.journeys.azure_rows import rows
from tests.journeys.conftest import Hire, Launch
from tests.journeys.harness import Lucius
from tests.journeys.temporal_fleet import arguments_of, child_of
from tests.sizes import size
from tests.support.api_setup import envelope, until

# Azurite takes 30 to 60 transactions a second on two cores, and a job over a broker makes about 44 requests.
JOBS = size(24, 200)
DUPLICATES = JOBS // 10
SUBMITTERS = 8
SERVICES = ("load_a",)
# What was handed out and lost in a crash comes back while the journey lasts; what only waits for a slow store
# is not taken for lost.
STEP = """
  - step_type: {name}
    service: {service}
    payload_key: {service}
    max_attempts: 20
    ack_timeout: 20s
    lease: 20s
    backoff: {{publish: [0], ack: [0], result: [0]}}
"""
LOAD = "protocol_id: load_v1\nrequest_types: [LOAD]\nsteps:" + "".join(
    STEP.format(name=service.upper(), service=service) for service in SERVICES
)
pytestmark = [pytest.mark.xdist_group("azure-local"), pytest.mark.timeout(900)]

END_SECONDS_MAX = size(150, 600)
ITSELF = ("dev",)

Azure = Callable[..., "Lucius"]


@pytest.fixture
def protocols(tmp_path: Path) -> Path:
    folder = tmp_path / "protocols"
    folder.mkdir()
    (folder / "load.yaml").write_text(LOAD)
    return folder


@pytest.fixture
def azure(launch: "Launch") -> Iterator[Azure]:
    """Starts Lucius on the profile; an Azurite that a failed test left behind is ended with it."""
    begun: list[Lucius] = []

    def start(*options: str) -> "Lucius":
        begun.append(launch("--profile", "azure-local", *options))
        return begun[-1]

    yield start
    for lucius in begun:
        note = json.loads((lucius.data / "azurite" / "process.json").read_bytes())
        if str(lucius.data) in arguments_of(note["pid"]):
            os.kill(note["pid"], signal.SIGKILL)


async def submit_all(client: httpx2.AsyncClient) -> list[str]:
    """The job of each command, some of which are sent twice, until each was answered."""
    commands = [envelope(request_type="LOAD", tenant_id=f"t{number % 7}") for number in range(JOBS)]
    jobs: dict[int, set[str]] = {}
    numbers = iter([*range(JOBS), *range(DUPLICATES)])

    async def submitter() -> None:
        for number in numbers:
            while True:
                try:
                    answer = await client.post("/v1/orchestrate", content=json.dumps(commands[number]))
                except httpx2.TransportError:
                    await asyncio.sleep(0.1)
                    continue
                assert answer.status_code in (202, 503), answer.text
                if answer.status_code == 202:
                    break
                await asyncio.sleep(0.1)
            jobs.setdefault(number, set()).add(answer.json()["jobId"])

    await asyncio.gather(*(submitter() for _ in range(SUBMITTERS)))
    assert {len(ids) for ids in jobs.values()} == {1}
    return [job_id for ids in jobs.values() for job_id in ids]


async def ended_well(client: httpx2.AsyncClient, jobs: Sequence[str]) -> int:
    async def state(job_id: str) -> str:
        try:
            return str((await client.get(f"/v1/jobs/{job_id}")).json().get("state"))
        except httpx2.TransportError:
            return "unknown"

    states: Counter[str] = Counter()
    for first in range(0, len(jobs), SUBMITTERS):
        states.update(await asyncio.gather(*(state(job_id) for job_id in jobs[first : first + SUBMITTERS])))
    assert not states.keys() & {"FAILED_FINAL", "CANCELLED", "None"}, states
    return states["SUCCEEDED"]


async def check_ledger(data: Path, jobs: Sequence[str]) -> None:
    async def at_rest() -> bool:
        held = await rows(data)
        return not any(held.get(table) for table in ("lucius_inflight", "lucius_due", "lucius_dispatch"))

    await until(at_rest, seconds=60)
    held = await rows(data)
    truth = held["lucius_ledger"]
    assert Counter(pk for pk, rk, body in truth if rk == "JOB" and "tombstone" not in body) == Counter(jobs)
    ends = Counter(
        (pk, body["type"], body.get("step_id"))
        for pk, rk, body in truth
        if rk.startswith("EVENT#") and body["type"] in ("JOB_CREATED", "JOB_SUCCEEDED", "STEP_SUCCEEDED")
    )
    assert set(ends.values()) == {1}
    assert len(ends) == len(jobs) * (2 + len(SERVICES))


async def run_and_kill(
    lucius: "Lucius", victims: Sequence[tuple[str, ...]], *, restart_after: frozenset[tuple[str, ...]]
) -> None:
    async with httpx2.AsyncClient(base_url=lucius.url, timeout=30) as client:
        submitting = asyncio.create_task(submit_all(client))
        for victim in victims:
            await asyncio.sleep(2.0)
            if victim in restart_after:
                await asyncio.to_thread(lucius.kill)
                await asyncio.to_thread(lucius.start)
            else:
                os.kill(child_of(lucius.pid, *victim), signal.SIGKILL)
        jobs = await submitting

        async def all_ended() -> bool:
            return await ended_well(client, jobs) == JOBS

        await until(all_ended, seconds=END_SECONDS_MAX)
    await check_ledger(lucius.data, jobs)
    assert await asyncio.to_thread(lucius.stop) == 0


async def test_the_outbox_engine_killed_under_load(azure: Azure, hire: "Hire", protocols: Path) -> None:
    lucius = azure("--protocols", str(protocols))
    for _ in range(2):
        hire(lucius.url, SERVICES, "--threads", "3")
    await run_and_kill(lucius, [ITSELF] * 3, restart_after=frozenset({ITSELF}))
    assert "Traceback" not in lucius.stderr


async def test_the_temporal_engine_killed_under_load(azure: Azure, hire: "Hire", protocols: Path) -> None:
    lucius = azure("--engine", "temporal", "--protocols", str(protocols))
    for _ in range(2):
        hire(lucius.url, SERVICES, "--threads", "3")
    # Temporal's library logs a call that failed because its invoker was killed, with all its frames.
    victims = [("invoker",), ("worker", "--health-port"), ITSELF]
    await run_and_kill(lucius, victims, restart_after=frozenset({ITSELF}))

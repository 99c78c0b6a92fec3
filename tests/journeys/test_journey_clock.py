"""A machine whose clock is set, and a process that is stopped for a while, with real processes."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller

from lucius_lab.processes import PartProcess

HOUR = 3_600
DAY = 24 * HOUR
FREEZE_SECONDS = 17  # longer than a connection is kept for another request
OPENING_SECONDS = 8
ATTEMPTS = 40
PROTOCOL = """
protocol_id: clock_v1
request_types: [CLOCK]
steps:
  - step_type: CLOCK
    service: clock
    max_attempts: 2
    ack_timeout: 3s
    lease: 6s
    backoff: {publish: [0], ack: [0], result: [0]}
"""
CallerAt = Callable[["Lucius"], "Caller"]


class WallClock:
    """The clock on the wall of the processes that are started with its environment."""

    def __init__(self, library: Path, file: Path) -> None:
        self._file = file
        self.set(0)
        self.env = {"LD_PRELOAD": str(library), "SET_CLOCK_FILE": str(file)}

    def set(self, ahead_seconds: int) -> None:
        draft = self._file.with_suffix(".draft")
        draft.write_text(str(ahead_seconds))
        draft.replace(self._file)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source, built = Path(__file__).with_name("set_clock.c"), tmp_path_factory.mktemp("clock") / "set_clock.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-fno-builtin", "-nostdlib"]
    done = subprocess.run(["gcc", *options, "-o", str(built), str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return built


@pytest.fixture
def wall(library: Path, tmp_path: Path) -> WallClock:
    return WallClock(library, tmp_path / "ahead")


@pytest.fixture
def protocols(tmp_path: Path) -> Path:
    folder = tmp_path / "protocols"
    folder.mkdir()
    (folder / "clock.yaml").write_text(PROTOCOL)
    return folder


async def listed(caller: "Caller", **wanted: str) -> list[str]:
    """The job ids of a whole list."""
    found: list[str] = []
    cursor: str | None = None
    while True:
        more = {} if cursor is None else {"cursor": cursor}
        page: Any = (await caller.http.get("/v1/jobs", params={**wanted, **more})).json()
        found += [job["jobId"] for job in page["items"]]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


@pytest.mark.parametrize("ahead_seconds", [HOUR, 40 * DAY])
async def test_a_clock_that_is_set_back_hides_no_job(
    launch: "Launch", caller_at: CallerAt, wall: WallClock, ahead_seconds: int
) -> None:
    wall.set(ahead_seconds)
    lucius = launch(env=wall.env)
    caller = caller_at(lucius)
    made = [await caller.submit() for _ in range(4)]
    wall.set(0)  # while it runs
    (first,) = await caller.lease("ocr", most=1, wait=5)
    assert first["jobId"] == made[0]
    assert sorted(await listed(caller)) == sorted(made)
    lucius.kill()
    lucius.start()
    made.append(await caller.submit())
    taken = [directive["jobId"] for _ in range(4) for directive in await caller.lease("ocr", most=1, wait=5)]
    assert sorted(taken) == sorted(made[1:])
    assert sorted(await listed(caller)) == sorted(made)
    assert sorted(await listed(caller, tenant_id="acme")) == sorted(made)


async def test_deadlines_run_in_true_time_whatever_is_done_to_the_clock(
    launch: "Launch", caller_at: CallerAt, wall: WallClock, protocols: Path
) -> None:
    lucius = launch("--protocols", str(protocols), env=wall.env)
    caller = caller_at(lucius)
    for _ in range(2):
        await caller.submit(request_type="CLOCK")
    began = time.monotonic()
    answered, silent = await caller.lease("clock", most=2, wait=5)
    await caller.reply(answered, "ACK")
    wall.set(HOUR)
    await asyncio.sleep(1.5)
    wall.set(-HOUR)
    await asyncio.sleep(0.5)
    assert (await caller.reply(answered, "RESULT"))["outcome"] == "applied"
    again: list[Any] = await caller.lease("clock", most=1, wait=20)
    took_seconds = time.monotonic() - began
    assert [directive["jobId"] for directive in again] == [silent["jobId"]]
    assert 2.6 <= took_seconds <= 8, "3 s without an ACK, in true time"
    assert await caller.state(answered["jobId"]) == "SUCCEEDED"
    assert "clock_was_set" in lucius.stderr


async def test_after_a_restart_deadlines_of_a_clock_ahead_run_from_then_on(
    launch: "Launch", caller_at: CallerAt, wall: WallClock, protocols: Path
) -> None:
    wall.set(HOUR)
    lucius = launch("--protocols", str(protocols), env=wall.env)
    caller = caller_at(lucius)
    job_id = await caller.submit(request_type="CLOCK")
    assert len(await caller.lease("clock", wait=5)) == 1
    lucius.kill()
    wall.set(0)
    lucius.start()
    (again,) = await caller.lease("clock", wait=20)
    assert (again["jobId"], again["attempt_no"]) == (job_id, 2)


async def test_after_a_standstill_results_go_before_deadlines(
    launch: "Launch", caller_at: CallerAt, protocols: Path
) -> None:
    lucius = launch("--protocols", str(protocols))
    caller = caller_at(lucius)
    for _ in range(ATTEMPTS):
        await caller.submit(request_type="CLOCK")
    directives = await caller.lease("clock", most=ATTEMPTS, wait=5)
    assert len(directives) == ATTEMPTS
    for directive in directives:
        await caller.reply(directive, "ACK")
    os.kill(lucius.pid, signal.SIGSTOP)
    try:
        sending = [asyncio.create_task(caller.say(directive, "RESULT")) for directive in directives]
        await asyncio.sleep(FREEZE_SECONDS)
    finally:
        os.kill(lucius.pid, signal.SIGCONT)
    answers = [await one for one in sending]
    assert [answer.status_code for answer in answers] == [200] * ATTEMPTS
    assert {answer.json()["outcome"] for answer in answers} == {"applied"}


async def test_an_api_that_stands_still_alone_costs_no_attempt(tmp_path: Path, protocols: Path) -> None:
    """The reconciler goes on, and sees deadlines pass whose answers wait at the API's door."""
    env, data = {"LUCIUS_AUTH": "open"}, ("--data", str(tmp_path / "data"), "--protocols", str(protocols))
    api = PartProcess(tmp_path, "api", "api", *data, port_option="--port", env=env)
    reconciler = PartProcess(
        tmp_path, "reconciler", "reconciler", *data, port_option="--health-port", env=env
    )
    with ExitStack() as stack:
        for part in (api, reconciler):
            stack.callback(part.kill)
            part.start()
        async with httpx2.AsyncClient(base_url=api.url, timeout=60) as client:
            caller = Caller(client)
            await asyncio.sleep(OPENING_SECONDS)  # it has just begun, which is another reason to wait
            for _ in range(ATTEMPTS):
                await caller.submit(request_type="CLOCK")
            directives = await caller.lease("clock", most=ATTEMPTS, wait=5)
            for directive in directives:
                await caller.reply(directive, "ACK")
            os.kill(api.pid, signal.SIGSTOP)
            try:
                sending = [asyncio.create_task(caller.say(directive, "RESULT")) for directive in directives]
                await asyncio.sleep(FREEZE_SECONDS)
            finally:
                os.kill(api.pid, signal.SIGCONT)
            answers = [await one for one in sending]
            assert {answer.json()["outcome"] for answer in answers} == {"applied"}

"""How the process starts, stops, and lives through a full disk and a locked file."""

import asyncio
import resource
import shutil
import socket
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.journeys.conftest import Hire, Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller, check_problem, envelope, until

from lucius.cli.dev import run_dev
from lucius.cli.options import DevOptions
from lucius_lab import forks

DRAIN_SECONDS_MAX = 8.0


async def test_a_stop_drains_long_polls_and_ends_well(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch()
    caller = caller_at(lucius)
    job_id = await caller.submit()
    assert await caller.lease("embedding") == []
    polls = [asyncio.create_task(caller.lease("sis", wait=30)) for _ in range(5)]
    waits = [asyncio.create_task(caller.job(job_id, wait=60)) for _ in range(5)]
    await asyncio.sleep(0.3)
    began = time.monotonic()
    lucius.ask_to_stop()
    assert await asyncio.gather(*polls) == [[]] * 5
    assert {job["state"] for job in await asyncio.gather(*waits)} == {"DISPATCHING"}
    assert await asyncio.to_thread(lucius.ended) == 0
    assert time.monotonic() - began < DRAIN_SECONDS_MAX
    assert "Traceback" not in lucius.stderr
    lucius.start()
    assert (await caller.job(job_id))["state"] == "DISPATCHING"
    assert [one["jobId"] for one in await caller.lease("ocr", wait=5)] == [job_id]


async def test_a_ledger_in_memory_ends_with_its_process(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch(env={"LUCIUS_STORAGE_BACKEND": "memory"})
    assert "jobs are kept in memory" in lucius.stderr
    caller = caller_at(lucius)
    job_id = await caller.submit()
    assert (await caller.job(job_id))["state"] == "DISPATCHING"
    assert await asyncio.to_thread(lucius.stop) == 0
    lucius.start()
    assert (await caller.http.get(f"/v1/jobs/{job_id}")).status_code == 404


def test_parts_and_the_temporal_engine_refuse_a_ledger_in_memory(tmp_path: Path) -> None:
    for command, words in (
        (("reconciler", "--storage", "memory"), "a ledger in memory lives in one process"),
        (
            ("dev", "--engine", "temporal", "--storage", "memory"),
            "needs a ledger that several processes share",
        ),
    ):
        done = forks.run(*command, "--data", str(tmp_path))
        assert done.returncode in (1, 2)
        assert words in done.stderr
        assert "Traceback" not in done.stderr


async def test_a_successor_knows_what_a_killed_process_knew(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch(env={"LUCIUS_MAX_INFLIGHT_PER_TENANT": "2"})
    caller = caller_at(lucius)
    command = envelope(idempotency_key="k-1")
    job_id = (await caller.post("/v1/orchestrate", command)).json()["jobId"]
    waiting = await caller.submit(request_type="SIS")
    directive = await caller.directive(job_id, "ocr")
    before = await caller.job(job_id)
    lucius.kill()
    lucius.start()
    assert await caller.job(job_id) == before
    again = await caller.post("/v1/orchestrate", command)
    assert (again.json()["jobId"], again.headers["idempotent-replayed"]) == (job_id, "true")
    check_problem(await caller.post("/v1/orchestrate", envelope()), 429, "TENANT_LIMIT")
    assert await caller.reply(directive, "RESULT") == {"outcome": "applied", "stop": False}
    await caller.finish(waiting, "sis")
    await caller.submit()


async def test_a_result_that_came_to_a_closed_door_counts_when_it_is_open(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    """The lease runs out while nobody is there; who answers as soon as it can has not wasted its work."""
    lucius = launch(env={"LUCIUS_STEP_RESULT_TIMEOUT_SECONDS": "5", "LUCIUS_MAX_ATTEMPTS": "1"})
    caller = caller_at(lucius)
    answers, silent = await caller.submit(), await caller.submit(tenant_id="silent")
    directives = [await caller.directive(job_id, "ocr") for job_id in (answers, silent)]
    for directive in directives:
        assert (await caller.reply(directive, "ACK"))["outcome"] == "applied"
    lucius.kill()
    await asyncio.sleep(5.5)
    lucius.start()
    await asyncio.sleep(1.5)
    assert await caller.reply(directives[0], "RESULT") == {"outcome": "applied", "stop": False}
    assert await caller.state(answers) == "SUCCEEDED"
    ended = await caller.reach(silent, "FAILED_FINAL")
    assert ended["error_code"] == "LEASE_EXPIRED"


async def test_a_poller_that_hangs_up_takes_nothing_with_it(shared: "Lucius", caller: "Caller") -> None:
    await caller.lease("embedding")
    host, _, port = shared.url.removeprefix("http://").partition(":")
    wanted = b'{"service": "embedding", "wait_seconds": 30}'
    head = f"POST /v1/directives:lease HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(wanted)}\r\n\r\n"
    for _ in range(5):
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            connection.sendall(head.encode() + wanted)
            await asyncio.sleep(0.1)
    await asyncio.sleep(0.2)
    job_id = await caller.submit(request_type="EMBEDDING")
    assert [one["jobId"] for one in await caller.lease("embedding", wait=5)] == [job_id]


def test_a_port_of_its_own_is_told_and_a_taken_one_refused(launch: "Launch", tmp_path: Path) -> None:
    lucius = launch()
    port = lucius.url.rpartition(":")[2]
    assert int(port) > 0
    arguments = ("dev", "--port", port, "--data", str(tmp_path / "other"), "--services", "none")
    ended = forks.run(*arguments)
    assert ended.returncode == 1
    assert f"port {port}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "other").exists()


async def test_directives_carry_the_port_that_was_taken(shared: "Lucius", caller: "Caller") -> None:
    job_id = await caller.submit()
    directive = await caller.directive(job_id, "ocr")
    assert directive["callback_urls"]["result"] == f"{shared.url}/v1/callbacks/result"


def test_an_open_address_needs_authentication(tmp_path: Path) -> None:
    arguments = ("dev", "--host", "0.0.0.0", "--port", "0", "--data", str(tmp_path / "data"))
    ended = forks.run(*arguments)
    assert ended.returncode == 2
    assert "0.0.0.0" in ended.stderr
    for host in ("192.0.2.1", "::", "example.org", ""):
        assert run_dev(DevOptions(host=host, port=0, data=tmp_path / "data")) == 2
    assert not (tmp_path / "data").exists()


def test_data_that_cannot_be_used_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "lucius.db").write_bytes(b"this is a letter, not a ledger" * 400)
    arguments = ("dev", "--port", "0", "--data", str(tmp_path), "--services", "none", "--no-sample")
    ended = forks.run(*arguments)
    assert ended.returncode == 1
    assert "ledger" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_ledger_that_is_removed_takes_no_more_commands(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch()
    caller = caller_at(lucius)
    job_id = await caller.submit()
    directive = await caller.directive(job_id, "ocr")
    shutil.rmtree(lucius.data)
    await refused(caller)
    check_problem(await caller.say(directive, "RESULT"), 503, "SYSTEM_SATURATED")
    ready = await caller.http.get("/readyz")
    assert ready.status_code == 503
    assert "was removed or replaced" in ready.json()["checks"]["ledger"]
    successor = launch("--data", str(lucius.data))
    assert (await caller_at(successor).http.get(f"/v1/jobs/{job_id}")).status_code == 404
    await caller_at(successor).submit()
    await refused(caller)


async def refused(caller: "Caller") -> None:
    response = await caller.post("/v1/orchestrate", envelope())
    check_problem(response, 503, "SYSTEM_SATURATED")
    assert int(response.headers["retry-after"]) > 0


async def accepted_again(caller: "Caller", command: Any) -> str:
    async def look() -> str | None:
        response = await caller.post("/v1/orchestrate", command)
        return response.json()["jobId"] if response.status_code == 202 else None

    return str(await until(look))


async def test_a_full_disk_refuses_and_loses_nothing(
    launch: "Launch", hire: "Hire", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch()
    caller = caller_at(lucius)
    made = [await caller.submit() for _ in range(20)]
    running = await caller.directive(made[0], "ocr")
    # No file of the process may grow any more: to a program, a disk without room.
    full = max(file.stat().st_size for file in lucius.data.iterdir() if file.is_file())
    resource.prlimit(lucius.pid, resource.RLIMIT_FSIZE, (full, resource.RLIM_INFINITY))
    command = envelope()
    response = await caller.post("/v1/orchestrate", command)
    check_problem(response, 503, "SYSTEM_SATURATED")
    for _ in range(5):
        await refused(caller)
    check_problem(await caller.say(running, "RESULT"), 503, "SYSTEM_SATURATED")
    ready = await caller.http.get("/readyz")
    assert (ready.status_code, ready.json()["status"]) == (503, "failing")
    assert ready.json()["checks"]["ledger"] != "ok"
    listed = (await caller.http.get("/v1/jobs", params={"limit": 200})).json()["items"]
    assert len(listed) == 20
    assert await caller.state(made[0]) == "DISPATCHING"
    resource.prlimit(lucius.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    made.append(await accepted_again(caller, command))
    assert (await caller.http.get("/readyz")).status_code == 200
    assert (await caller.reply(running, "RESULT"))["outcome"] == "applied"
    worker = hire(lucius.url, ["ocr"])
    for job_id in made[1:]:
        # The first lease took everything along: what was handed out and lost comes back by its ACK timeout.
        if await caller.state(job_id) == "DISPATCHING" and (await caller.step_states(job_id)) == [
            "INITIATED"
        ]:
            await caller.reply(await caller.directive(job_id, "ocr"), "RESULT")
        await caller.reach(job_id, "SUCCEEDED")
    assert worker.process.poll() is None
    assert lucius.stop() == 0


async def test_a_locked_file_refuses_and_recovers(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch()
    caller = caller_at(lucius)
    job_id = await caller.submit()
    other = sqlite3.connect(lucius.data / "lucius.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        command = envelope()
        answers = await asyncio.gather(*(caller.post("/v1/orchestrate", command) for _ in range(5)))
        for answer in answers:
            check_problem(answer, 503, "SYSTEM_SATURATED")
        assert (await caller.job(job_id))["state"] == "DISPATCHING"
        other.execute("ROLLBACK")
    finally:
        other.close()
    second = await accepted_again(caller, command)
    listed = (await caller.http.get("/v1/jobs")).json()["items"]
    assert {job["jobId"] for job in listed} == {job_id, second}
    assert lucius.stop() == 0


def test_a_start_on_a_locked_file_is_given_up_clearly(launch: "Launch") -> None:
    lucius = launch()
    assert lucius.stop() == 0
    other = sqlite3.connect(lucius.data / "lucius.db", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        lucius.begin()
        assert lucius.ended() == 1
    finally:
        other.close()
    assert "Cannot use the ledger" in lucius.stderr
    assert "Traceback" not in lucius.stderr
    lucius.start()
    assert lucius.stop() == 0


async def test_a_body_that_never_ends_gets_its_answer(shared: "Lucius") -> None:
    host, _, port = shared.url.removeprefix("http://").partition(":")

    def send() -> bytes:
        with socket.create_connection((host, int(port)), timeout=20) as connection:
            head = f"POST /v1/orchestrate HTTP/1.1\r\nHost: {host}\r\nContent-Length: 99999999\r\n\r\n"
            connection.sendall(head.encode())
            for _ in range(24):
                connection.sendall(b"x" * 65_536)
            answer = b""
            while b"}" not in answer:
                answer += connection.recv(65_536)
            return answer

    answer = await asyncio.to_thread(send)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"BODY_TOO_LARGE" in answer

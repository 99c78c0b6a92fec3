"""The Python client and the command line against real processes, through restarts and power cuts."""

import asyncio
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.journeys import harness
from tests.journeys.conftest import Hire, Launch
from tests.support.api_setup import Caller, envelope

from lucius.client import JobFailed, Lucius, RetryPolicy
from lucius.client import blocking as blocking_client
from lucius_lab import forks

# A restart of the server on a busy machine takes longer than anybody at a terminal would wait.
STUBBORN = RetryPolicy(retries_max=200, total_seconds_max=60.0, pause_seconds_max=0.5)


async def test_run_and_watch_across_a_power_cut(launch: "Launch", hire: "Hire") -> None:
    server = launch()
    async with Lucius(server.url, "", retry=STUBBORN) as lucius:
        accepted = await lucius.submit(envelope())
        watched: list[Any] = []

        async def watch() -> None:
            async for event in lucius.watch(accepted.job_id):
                watched.append(event)  # noqa: PERF401 (looked at while it grows)

        watching = asyncio.create_task(watch())
        while not watched:
            await asyncio.sleep(0.05)
        server.kill()
        # Into the dark: tried again with its key until somebody is there.
        submitting = asyncio.create_task(lucius.submit(envelope(), idempotency_key="dark"))
        await asyncio.sleep(0.3)
        assert not watching.done()
        server.start()
        again = await lucius.submit(envelope(tenant_id="other"), idempotency_key="light")
        assert (await submitting).duplicate in (False, True)
        hire(server.url, ["ocr"])
        await asyncio.wait_for(watching, 60)
        for job_id in (accepted.job_id, again.job_id, (await submitting).job_id):
            assert (await lucius.wait(job_id, within_seconds=60)).succeeded
        trail = [event async for event in lucius.events(accepted.job_id)]
    assert watched == trail
    assert [event.seq for event in watched] == list(range(1, len(trail) + 1))
    assert watched[-1].type == "JOB_SUCCEEDED"


async def test_a_stream_shows_events_as_they_happen(shared: "harness.Lucius", caller: "Caller") -> None:
    async with Lucius(shared.url, "") as lucius:
        job_id = (await lucius.submit(envelope(request_type="SIS", payload={"prompt": "?"}))).job_id
        events = lucius.watch(job_id)
        assert (await anext(events)).type == "JOB_CREATED"
        directive = await caller.directive(job_id, "sis")
        await caller.reply(directive, "ACK")
        seen = []
        async with asyncio.timeout(10):
            async for event in events:
                seen.append(event.type)
                if event.type == "STEP_ACKED":
                    await caller.reply(directive, "RESULT", status="SUCCEEDED")
    assert seen[-2:] == ["STEP_SUCCEEDED", "JOB_SUCCEEDED"]


def test_the_blocking_client_runs_a_job_to_its_end(shared: "harness.Lucius", hire: "Hire") -> None:
    hire(shared.url, ["embedding"])
    with blocking_client.Lucius(shared.url, "") as lucius:
        job = lucius.run(envelope(request_type="EMBEDDING", tenant_id="blocked"), within_seconds=60)
        assert job.succeeded
        assert [event.type for event in lucius.watch(job.job_id)][-1] == "JOB_SUCCEEDED"
        assert [one.job_id for one in lucius.jobs(tenant_id="blocked")] == [job.job_id]


async def test_run_outlasts_a_silent_worker(shared: "harness.Lucius", hire: "Hire") -> None:
    hire(shared.url, ["quick"], "--behave", "silent")
    async with Lucius(shared.url, "") as lucius:
        # The worker takes the first attempt and says nothing; to the second it answers well.
        job = await lucius.run(envelope(request_type="QUICK"), within_seconds=60)
    assert job.attempts_total >= 2


async def test_run_raises_when_the_job_fails(shared: "harness.Lucius", caller: "Caller") -> None:
    command = envelope(request_type="SIS", payload={"prompt": "?"})
    async with Lucius(shared.url, "") as lucius:
        job_id = (await lucius.submit(command, idempotency_key="bound to fail")).job_id
        running = asyncio.create_task(lucius.run(command, idempotency_key="bound to fail"))
        directive = await caller.directive(job_id, "sis")
        error = {"code": "BAD_PDF", "message": "no pages"}
        await caller.reply(directive, "RESULT", status="FAILED_FINAL", error=error)
        with pytest.raises(JobFailed) as caught:
            await asyncio.wait_for(running, 20)
    assert (caught.value.job.job_id, caught.value.job.state) == (job_id, "FAILED_FINAL")
    assert caught.value.code == caught.value.job.error_code


def _lucius(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
    return forks.run(*arguments, env=kept | env)


def test_the_command_line_with_a_profile(shared: "harness.Lucius", tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[profiles.here]\nurl = "{shared.url}"\n')
    command = tmp_path / "command.json"
    command.write_text(json.dumps(envelope(tenant_id="profiled")))
    env = {"LUCIUS_CONFIG": str(config), "LUCIUS_PROFILE": "here"}
    sent = _lucius("submit", str(command), **env)
    assert (sent.returncode, sent.stderr) == (0, "")
    job_id = sent.stdout.strip()
    # The same content is the same job, for who types the same line again.
    again = _lucius("submit", str(command), "--json", **env)
    assert json.loads(again.stdout) == {"jobId": job_id, "state": "DISPATCHING", "duplicate": True}
    assert _lucius("jobs", "cancel", job_id, **env).stdout == f"{job_id}  CANCELLED\n"
    watched = _lucius("jobs", "watch", job_id, **env)
    assert watched.returncode == 3
    assert "JOB_CANCELLED" in watched.stdout
    listed = _lucius("jobs", "list", "--tenant", "profiled", "--profile", "here", LUCIUS_CONFIG=str(config))
    assert job_id in listed.stdout
    wrong = _lucius("jobs", "list", "--profile", "there", LUCIUS_CONFIG=str(config))
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert "Known: here." in wrong.stderr

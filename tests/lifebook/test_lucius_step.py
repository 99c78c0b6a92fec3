"""A step that is a job of Lucius, on a Lucius that runs."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from tests.lifebook.api_setup import Deployment
from tests.lifebook.servers import TOP

from lucius.client import Lucius
from lucius.lifebook.lucius_step import lucius_step
from lucius.lifebook.states import Status
from lucius.lifebook.workflows import StepRun, WorkflowRegistry, step, workflow_of

pytestmark = pytest.mark.xdist_group("lifebook")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    options = ("--port", "0", "--data", str(tmp_path), "--no-sample", "--json", "--log-level", "warning")
    process = subprocess.Popen(
        [sys.executable, "-m", "lucius", "dev", *options],
        env={name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")},
        cwd=TOP,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["url"]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _flow(url: str, tmp_path: Path) -> WorkflowRegistry:
    text = tmp_path / "letter.txt"
    text.write_text("Dear reader, a letter.", encoding="utf-8")

    def command(run: StepRun) -> dict[str, Any]:
        return {
            "tenant_id": run.workspace_id,
            "request_type": run.input.get("request_type", "EMBEDDING"),
            "input_ref": {"uri": (tmp_path / run.input.get("file", "letter.txt")).as_uri()},
            "output_ref": {"uri": (tmp_path / "out.json").as_uri()},
            "payload": {},
            "schema_version": "1",
        }

    class Flow:
        embed = step(credits="1", timeout_seconds=60)(
            lucius_step(command, client=lambda: Lucius(url, api_key=""))
        )

    return WorkflowRegistry([workflow_of(Flow, "flow")])


async def test_a_step_is_a_job_of_lucius(url: str, tmp_path: Path) -> None:
    deployment = Deployment(workflows=_flow(url, tmp_path))
    await deployment.balances.grant("ws", Decimal(100))
    asked = {"workspace_id": "ws", "user_id": "u", "workflow_id": "flow", "input": {}}
    job_id = (await deployment.ask("POST", "/v1/runs", 202, json=asked))["job_id"]
    await deployment.work()
    job = await deployment.ask("GET", f"/v1/runs/{job_id}", 200)
    assert (job["status"], job["last_error_message"]) == ("completed", None)
    (made,) = job["results"]
    async with Lucius(url, api_key="") as lucius:
        there = await lucius.job(made["job_id"])
        assert there.state == "SUCCEEDED"
        assert there.idempotency_key == f"{job_id}:0"
        assert made["final_output"] == there.final_output


async def test_a_job_of_lucius_that_fails_is_a_failure_of_the_step_and_a_redrive_begins_another(
    url: str, tmp_path: Path
) -> None:
    deployment = Deployment(workflows=_flow(url, tmp_path))
    await deployment.balances.grant("ws", Decimal(100))
    asked = {
        "workspace_id": "ws",
        "user_id": "u",
        "workflow_id": "flow",
        "input": {"file": "later.txt"},
    }
    job_id = (await deployment.ask("POST", "/v1/runs", 202, json=asked))["job_id"]
    await deployment.work()
    assert deployment.table.jobs[job_id].status is Status.DEAD, deployment.table.jobs[job_id]
    (tmp_path / "later.txt").write_text("here it is", encoding="utf-8")
    await deployment.ask("POST", f"/v1/runs/{job_id}:redrive", 202)
    await asyncio.sleep(0.01)
    await deployment.work()
    job = deployment.table.jobs[job_id]
    assert job.status is Status.COMPLETED, job

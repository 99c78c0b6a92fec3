"""Workers in TypeScript, Go and Python beside each other, on the steps of one job and on one queue."""

import os
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller
from tests.support.kits import built_go, built_typescript

from lucius_lab import forks

pytestmark = pytest.mark.xdist_group("heavy")

PROTOCOL = """
protocol_id: greetings_v1
request_types: [GREETINGS]
steps:
  - {step_type: HELLO, service: hello}
  - {step_type: OCR, service: ocr}
  - {step_type: HELLO, service: hello}
"""
JOBS = 12
ENDS_SECONDS_MAX = 30


async def test_kits_work_beside_the_python_service(
    tmp_path: Path, launch: Launch, caller_at: Callable[[Lucius], Caller]
) -> None:
    (tmp_path / "protocols").mkdir()
    (tmp_path / "protocols/greetings.yaml").write_text(PROTOCOL)
    lucius = launch("--protocols", str(tmp_path / "protocols"))
    caller = caller_at(lucius)
    data = lucius.data / "greetings"
    data.mkdir()
    (data / "name.txt").write_text("Ada\n")
    environment = {**os.environ, "LUCIUS_URL": lucius.url, "LUCIUS_REF_FILE_ROOTS": str(lucius.data)}
    logs = {name: (tmp_path / f"{name}.log") for name in ("typescript", "go")}
    with ExitStack() as ends:
        for name, command, folder in (
            ("typescript", ["node", "hello.mjs"], built_typescript(tmp_path / "ts")),
            ("go", [str(built_go(tmp_path))], tmp_path),
        ):
            log = ends.enter_context(logs[name].open("wb"))
            process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)
            ends.callback(process.kill)
            ends.callback(process.wait, ENDS_SECONDS_MAX)
            ends.callback(process.terminate)
        log = ends.enter_context((tmp_path / "python.log").open("wb"))
        service = ["service", "run", "ocr", "--log-level", "error"]
        ends.callback(forks.start(service, env=environment, folder=tmp_path, out=log, err=log).kill)
        made = [
            await caller.submit(
                request_type="GREETINGS",
                idempotency_key=f"greeting-{number}",
                input_ref={"uri": (data / "name.txt").as_uri()},
                output_ref={"uri": (data / f"output-{number}.txt").as_uri()},
                payload={},
            )
            for number in range(JOBS)
        ]
        for number, job_id in enumerate(made):
            job = await caller.job(job_id, wait=60)
            assert job["state"] == "SUCCEEDED", job["steps"]
            assert (job["attempts_total"], len(job["steps"])) == (3, 3)
            assert (data / f"output-{number}.txt").read_text().startswith("Hello, ")
    assert all("failed" not in log.read_text() for log in logs.values())

"""Schedules from the command line, over a kill in the middle of their ticks."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius

from lucius_lab import forks

DOCUMENT = """\
schedule_id: quick-one
command:
  tenant_id: acme
  request_type: OCR
  input_ref: {uri: "s3://in/1.pdf"}
  output_ref: {uri: "s3://out/1.json"}
  payload: {}
  schema_version: "1"
every: 1s
overlap: cancel_previous
"""


def said(lucius: Lucius, *arguments: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LUCIUS_")}
    done = forks.run(*arguments, "--json", env={**kept, "LUCIUS_URL": lucius.url})
    assert done.returncode == 0, done.stderr
    return done


def test_each_tick_brings_one_job_though_the_server_is_killed(launch: "Launch", tmp_path: Path) -> None:
    lucius = launch("--services", "none")

    def run(*arguments: str) -> Any:
        return json.loads(said(lucius, "schedules", *arguments).stdout)

    file = tmp_path / "quick.yaml"
    file.write_text(DOCUMENT)
    made = run("write", str(file))
    assert (made["paused"], len(made["next"])) == (False, 5)
    for _ in range(3):
        time.sleep(1.2)
        lucius.kill()
        lucius.start()
    until = time.monotonic() + 20
    while (shown := run("show", "quick-one"))["runs"] < 4:
        assert time.monotonic() < until
        time.sleep(0.2)
    assert run("pause", "quick-one")["runs"] >= shown["runs"]
    while True:  # a tick that was marked before the pause is still given
        runs = run("show", "quick-one")["runs"]
        listed = said(lucius, "jobs", "list", "--tenant", "acme", "--all").stdout
        keys = [each["idempotency_key"] for each in jobs_in(listed)]
        if len(keys) == runs:
            break
        assert time.monotonic() < until + 20
        time.sleep(0.2)
    assert len(set(keys)) == runs >= shown["runs"]
    assert [each["schedule_id"] for each in run("list")["items"]] == ["quick-one"]
    assert run("run", "quick-one")["duplicate"] is False
    run("delete", "quick-one")
    assert run("list")["items"] == []


def jobs_in(listed: str) -> list[Any]:
    return [job for line in listed.splitlines() for job in json.loads(line)["items"]]

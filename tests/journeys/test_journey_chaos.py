"""A service that loses, repeats and delays messages and is killed again and again: every job ends well."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller

from lucius.cli.service_new import write_skeleton
from lucius_lab.processes import PartProcess

JOBS = 40
SECONDS_MAX = 240
PROTOCOL = """\
protocol_id: hello_v1
request_types: [HELLO]
steps:
  - step_type: HELLO
    service: hello
    max_attempts: 50
    ack_timeout: 1s
    lease: 2s
    backoff: {ack: [100ms], result: [100ms], publish: [100ms]}
"""
CHAOS = {
    "LUCIUS_CHAOS_DELAY": "20ms",
    "LUCIUS_CHAOS_DROP": "10%",
    "LUCIUS_CHAOS_DUPLICATE": "20%",
    "LUCIUS_CHAOS_CRASH": "12%",
}
FAULTS = {"drop", "duplicate", "crash_before", "crash_after"}


async def test_every_job_ends_well(
    launch: Launch, caller_at: Callable[[Lucius], Caller], tmp_path: Path
) -> None:
    skeleton = tmp_path / "hello"
    write_skeleton(skeleton, name="hello", step_type="HELLO", lang="python")
    (skeleton / "protocols" / "hello.yaml").write_text(PROTOCOL)
    lucius = launch("--protocols", str(skeleton / "protocols"))
    caller = caller_at(lucius)
    arguments = ("service", "run", "service:handle", "--data", str(lucius.data))
    service = PartProcess(skeleton, "service", *arguments, env={"LUCIUS_URL": lucius.url, **CHAOS})
    crashes = 0
    try:
        service.begin()
        (lucius.data / "name.txt").write_text("Ada\n")
        jobs = [await caller.submit(**_hello(lucius.data, number)) for number in range(JOBS)]
        left = set(jobs)
        async with asyncio.timeout(SECONDS_MAX):
            while left:
                if not service.running:
                    crashes += 1
                    service.begin()
                left -= {job for job in left if await caller.state(job) == "SUCCEEDED"}
                await asyncio.sleep(0.1)
    finally:
        service.kill()
    assert {(lucius.data / f"{number}.txt").read_text() for number in range(JOBS)} == {"Hello, Ada!\n"}
    assert sum([(await caller.job(job))["attempts_total"] for job in jobs]) > JOBS
    struck = set(re.findall(r'"fault": "(\w+)"', service.stderr))
    assert struck <= FAULTS
    assert {"drop", "duplicate"} <= struck
    assert crashes > 0
    assert "chaos_on" in service.stderr


def _hello(data: Path, number: int) -> dict[str, object]:
    return {
        "request_type": "HELLO",
        "payload": {},
        "input_ref": {"uri": (data / "name.txt").as_uri()},
        "output_ref": {"uri": (data / f"{number}.txt").as_uri()},
    }

"""A Temporal server of one's own: it begins, ends with whoever started it, and says why it did not begin."""

import asyncio
import signal
import sys
from pathlib import Path

import pytest

from lucius.engines.temporal.client import TemporalTarget
from lucius.engines.temporal.dev_server import START_SECONDS_MAX, STOP_SECONDS_MAX, dev_server, find_program
from lucius.jobs.workflows import WorkflowsUnavailable
from lucius_lab.bench.temporal_workflow import Variant, measure

pytestmark = pytest.mark.xdist_group("temporal")

OWNER = """
import asyncio, pathlib, sys
from lucius.engines.temporal.dev_server import dev_server

async def main():
    async with dev_server(pathlib.Path(sys.argv[1])) as target:
        print(target.address, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


async def test_the_server_does_not_outlive_an_owner_that_is_killed(tmp_path: Path) -> None:
    owner = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", OWNER, str(tmp_path / "temporal.db")), stdout=asyncio.subprocess.PIPE
    )
    assert owner.stdout is not None
    address = (await asyncio.wait_for(owner.stdout.readline(), START_SECONDS_MAX)).decode().strip()
    host, _, port = address.rpartition(":")
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    # A connection that stays open would keep the server from ending: so it is tried again and again.
    async with asyncio.timeout(STOP_SECONDS_MAX * 2):
        while await _answers(host, int(port)):
            await asyncio.sleep(0.05)


async def _answers(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except ConnectionError:
        return False
    writer.close()
    return True


async def test_a_program_that_ends_at_once_is_not_waited_for(tmp_path: Path) -> None:
    with pytest.raises(WorkflowsUnavailable, match="ended with 1"):
        async with dev_server(tmp_path / "temporal.db", program="false"):
            pass


def test_the_program_is_found_beside_the_interpreter() -> None:
    assert Path(find_program()).parent == Path(sys.executable).parent


@pytest.mark.parametrize(
    "variant",
    [
        Variant(name="bare", bare=True),
        Variant(name="bare", bare=True, local_calls=False),
        Variant(name="job", acks=True, labels=True),
    ],
)
async def test_a_measurement_counts_jobs_that_ended(temporal: TemporalTarget, variant: Variant) -> None:
    per_second, alone = await measure(temporal, variant, jobs=4, lone=2)
    assert per_second > 0
    assert (alone.jobs, len(alone.latencies_ms)) == (2, 2)

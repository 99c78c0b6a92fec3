"""A backup that the store's own tools made of a ledger with jobs under way: put back, they end once."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from tests.conformance.ledger_checks import check_always, check_at_rest, run_out
from tests.conformance.ledger_plays import acked
from tests.conformance.ledger_setup import LAYOUTS, World, submit
from tests.conformance.postgres_setup import new_database
from tests.conformance.postgres_setup import open_store as open_postgres

from lucius.core.inputs import ResultStatus
from lucius.core.states import JobState
from lucius.ledger.job_ledger import LayoutName
from lucius_lab.emulators.postgres import find_programs

pytestmark = pytest.mark.xdist_group("postgres")


def run(program: str, *words: str) -> None:
    subprocess.run([find_programs() / program, *words], check=True, capture_output=True, timeout=120)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.value)
async def test_a_dump_of_postgresql_is_put_back(layout: LayoutName, tmp_path: Path) -> None:
    url, again, dump = await new_database(), await new_database(empty=True), str(tmp_path / "dump")
    store = await open_postgres(url)
    world = World(store, layout)
    begun = await acked(world)
    await world.deployment().result(begun, ResultStatus.FAILED_RETRY, "BUSY")
    waits = await submit(world.deployment(), 2, key="waits")
    schemas = ("--schema=lucius_store", "--schema=lucius")
    await asyncio.to_thread(run, "pg_dump", "--format=custom", *schemas, f"--file={dump}", url)
    lost = await submit(world.deployment(), 3, key="lost")
    await run_out(world)
    await store.close()

    await asyncio.to_thread(run, "pg_restore", "--no-owner", f"--dbname={again}", dump)
    restored = await open_postgres(again)
    after = World(restored, layout)
    after.clock, after.ids, after.places = world.clock, world.ids, world.places
    assert (await after.records()).keys() == {begun.job_id, waits}
    await check_always(after)
    assert await submit(after.deployment(), 2, key="waits") == waits
    assert await submit(after.deployment(), 3, key="lost") != lost
    await run_out(after)
    records = await check_at_rest(after)
    assert len(records) == 3
    assert {record.job.state for record in records.values()} == {JobState.SUCCEEDED}
    await restored.close()

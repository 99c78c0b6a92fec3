"""Two versions side by side on one ledger, under load: upgraded part by part, then rolled back. No job is
lost.

`make version-matrix` runs it with the version before, on every store and with both engines. In the suite both
versions are this one: parts are replaced under load, and the harness is kept in order.
"""

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.journeys.version_fleet import (
    THIS,
    Matrix,
    Version,
    await_rest,
    findings,
    matrix,
    open_ledger,
    version_before,
)

from lucius_lab import forks

pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(900)]

CELLS = [("sqlite", "outbox")]
if version_before("sqlite") is not None:
    CELLS = [
        (store, engine) for store in ("sqlite", "postgres", "azurite") for engine in ("outbox", "temporal")
    ]
CLIENTS = 8
JOBS_BETWEEN = 6
BETWEEN_SECONDS_MAX = 20.0
REST_SECONDS_MAX = 180.0
PILE_UP_SECONDS = 2.0
WAITED_SECONDS_MAX = 150.0


async def replace_all(cell: Matrix, version: Version, names: list[str]) -> None:
    """Part by part; jobs end between any two."""
    for name in names:
        await cell.fleet.run(name, version)
        await cell.load.progress(JOBS_BETWEEN, seconds_max=BETWEEN_SECONDS_MAX)


async def roll_back(cell: Matrix, version: Version, names: list[str]) -> None:
    """With work that waits: the version before has to find what this one wrote."""
    services = [name for name in names if name.startswith("service")]
    for name in services:
        await cell.fleet.end(name)
    await asyncio.sleep(PILE_UP_SECONDS)
    for name in names:
        if name not in services:
            await cell.fleet.run(name, version)
    for name in services:
        await cell.fleet.run(name, version)
    began = time.monotonic()
    await cell.load.progress(CLIENTS, seconds_max=WAITED_SECONDS_MAX)
    print(f"what had waited went on within {time.monotonic() - began:.1f} s")
    await cell.load.progress(JOBS_BETWEEN, seconds_max=BETWEEN_SECONDS_MAX)


@pytest.mark.parametrize(("store", "engine"), CELLS)
async def test_parts_are_upgraded_and_rolled_back_under_load(store: str, engine: str, tmp_path: Path) -> None:
    before = version_before(store) or Version("before")
    async with matrix(tmp_path, store, engine, seed=5) as cell:
        names, began = list(cell.fleet.roles), time.monotonic()
        for name in names:
            await cell.fleet.run(name, before)
        async with asyncio.TaskGroup() as group:
            group.create_task(cell.load.run(CLIENTS))
            await cell.load.progress(JOBS_BETWEEN, seconds_max=BETWEEN_SECONDS_MAX)
            if store == "postgres":
                await asyncio.to_thread(forks.run, "provision", "postgres", "--apply", env=cell.env)
            await replace_all(cell, THIS, names)
            ended_this = len(cell.load.ended)
            await roll_back(cell, before, names[::-1])
            ended_back = len(cell.load.ended)
            cell.load.enough()
        for name in names:  # a rollback is followed by another try
            await cell.fleet.run(name, THIS)
        ledger = await open_ledger(tmp_path, cell)
        try:
            await await_rest(ledger, seconds_max=REST_SECONDS_MAX)
            await cell.fleet.stop()
            wrong = await findings(ledger, cell, int(time.time() * 1000))
        finally:
            await ledger.store.close()
        states = Counter(cell.load.ended.values())
        print(
            f"{store}, {engine}: {sum(states.values())} jobs ({dict(states)}), {ended_this} by the upgrade, "
            f"{ended_back} by the rollback, {cell.load.repeats} calls repeated, "
            f"{len(cell.fleet.started)} starts, {time.monotonic() - began:.0f} s"
        )
        assert wrong == []
        assert cell.fleet.errors() == []
        assert ended_back > ended_this > 0

"""A fleet on PostgreSQL, each process with a data folder of its own. While jobs run, a process is killed each
two seconds, and PostgreSQL twice: every job ends once, and nothing is left over."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from tests.sizes import size

from lucius_lab.chaos.checks import check
from lucius_lab.chaos.load import Load
from lucius_lab.chaos.run import SERVICES, ChaosFleet, ChaosPlan, await_quiet
from lucius_lab.chaos.servers import Member

# `make postgres-journey` makes 2,000 jobs. The limit leaves room for others that use the machine.
pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(1_800)]

JOBS = size(200, 2_000)
CLIENTS = 64
SENT_TWICE_SHARE = 0.2
KILL_EVERY_SECONDS = 2.0
# Three workers of each of two services, each of which polls one of three replicas.
PLAN = ChaosPlan(store="postgres", apis=3, reconcilers=2, workers=3)


async def test_every_job_ends_once_though_every_process_is_killed(tmp_path: Path) -> None:
    chance, effects, began = Random(24), tmp_path / "effects.jsonl", time.monotonic()
    fleet = ChaosFleet(tmp_path, PLAN, chance)
    try:
        await asyncio.to_thread(fleet.start)
        load = Load(fleet.urls, effects, "fleet", chance, sent_twice_share=SENT_TWICE_SHARE)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(CLIENTS))
            killed = await _kill_all_the_time(fleet, load, chance)
            load.enough()
        took_seconds = time.monotonic() - began
        await asyncio.to_thread(await_quiet, fleet.ledger)
        findings = await asyncio.to_thread(fleet.stop)
        findings += await asyncio.to_thread(check, fleet.ledger, load.ended, effects, len(SERVICES))
    finally:
        await asyncio.to_thread(fleet.remove)
    print(
        f"{len(load.ended)} jobs, {load.sent_twice} of them sent twice, in {took_seconds:.0f} s; "
        f"{load.repeats} calls repeated; killed: {dict(killed)}"
    )
    assert findings == []
    assert killed["postgres"] == 2
    assert len(load.ended) >= JOBS


async def _kill_all_the_time(fleet: ChaosFleet, load: Load, chance: Random) -> Counter[str]:
    """Until so many jobs have ended. PostgreSQL dies after a third and after two thirds of them."""
    killed, (database,) = Counter[str](), fleet.databases
    crashes = [JOBS // 3, JOBS * 2 // 3]
    while crashes or len(load.ended) < JOBS:
        await asyncio.sleep(KILL_EVERY_SECONDS)
        assert fleet.fallen() == []
        victim: Member = chance.choice([member for member in fleet.members if member is not database])
        if crashes and len(load.ended) >= crashes[0]:
            victim = database
            crashes.pop(0)
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.begin)
        killed[victim.name] += 1
    return killed

"""Three replicas on PostgreSQL, services with limits, and a process that is killed each two seconds: never
more attempts out than there may be, nor directives in a second than the rate and one burst; nothing leaks."""

import asyncio
import time
from collections import Counter
from pathlib import Path
from random import Random

import pytest
from tests.sizes import SOAKING, size

from lucius_lab.chaos.checks import check
from lucius_lab.chaos.limits import loads_by_service
from lucius_lab.chaos.load import Load
from lucius_lab.chaos.run import SERVICES, ChaosFleet, ChaosPlan, await_quiet
from lucius_lab.chaos.servers import Member

# `make limits-journey` makes 2,000 jobs, at 20 at once and 100 a second. The short form has limits that bite
# on a machine of two cores.
pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(1_800)]

JOBS = size(60, 2_000)
CONCURRENCY, RATE, BURST = (20, 100, 10) if SOAKING else (4, 4, 2)
CLIENTS = 64
KILL_EVERY_SECONDS = 2.0
LIMITS = f"services: {{chaos_a: {{concurrency: {CONCURRENCY}, rate: {RATE}/s, burst: {BURST}}}}}"
PLAN = ChaosPlan(store="postgres", apis=3, reconcilers=1, workers=3, limits=LIMITS)


async def test_limits_hold_on_three_replicas_though_processes_are_killed(tmp_path: Path) -> None:
    chance, effects, began = Random(25), tmp_path / "effects.jsonl", time.monotonic()
    fleet = ChaosFleet(tmp_path, PLAN, chance)
    try:
        await asyncio.to_thread(fleet.start)
        load = Load(fleet.urls, effects, "limits", chance)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(CLIENTS))
            killed = await _kill_all_the_time(fleet, load, chance)
            load.enough()
        took_seconds = time.monotonic() - began
        await asyncio.to_thread(await_quiet, fleet.ledger)
        findings = await asyncio.to_thread(fleet.stop)
        findings += await asyncio.to_thread(check, fleet.ledger, load.ended, effects, len(SERVICES))
        found = await asyncio.to_thread(loads_by_service, fleet.ledger)
    finally:
        await asyncio.to_thread(fleet.remove)
    limited = found["chaos_a"]
    print(
        f"{len(load.ended)} jobs in {took_seconds:.0f} s, {sum(killed.values())} kills; chaos_a: "
        f"{limited.attempts} attempts, at most {limited.most_at_once} of {CONCURRENCY} at once, "
        f"{limited.most_in_a_second} of {RATE} + {BURST} in a second; chaos_b, which has no limits: at most "
        f"{found['chaos_b'].most_at_once} at once"
    )
    assert findings == []
    assert limited.most_at_once <= CONCURRENCY
    assert limited.most_in_a_second <= RATE + BURST
    assert limited.attempts >= JOBS, "places are given up, whatever was killed"


async def _kill_all_the_time(fleet: ChaosFleet, load: Load, chance: Random) -> Counter[str]:
    killed, (database,) = Counter[str](), fleet.databases
    while len(load.ended) < JOBS:
        await asyncio.sleep(KILL_EVERY_SECONDS)
        assert fleet.fallen() == []
        victim: Member = chance.choice([member for member in fleet.members if member is not database])
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.begin)
        killed[victim.name] += 1
    return killed

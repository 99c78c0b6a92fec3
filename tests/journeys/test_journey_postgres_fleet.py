"""A fleet on PostgreSQL, each process with a data folder of its own. While jobs run, a process is killed each
two seconds, and PostgreSQL twice: every job ends once, and nothing is left over.

The clocks of some processes are 30 s ahead of those of others. Where this machine has network namespaces, the
same is played on hosts of their own, whose network is cut as often as processes are killed.
"""

import asyncio
import subprocess
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from tests.sizes import size

from lucius_lab.chaos.checks import check
from lucius_lab.chaos.hosts import ChaosHosts, hosts_possible
from lucius_lab.chaos.load import Load
from lucius_lab.chaos.run import SERVICES, ChaosFleet, ChaosPlan, await_quiet
from lucius_lab.chaos.servers import Member

# `make postgres-journey` makes 2,000 jobs each way. The limit leaves room for others that use the machine.
pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(size(1_800, 5_400))]

# Cut connections are waited for: on hosts a job takes longer.
JOBS = {"processes": size(200, 2_000), "hosts": size(40, 2_000)}
CLIENTS = 64
SENT_TWICE_SHARE = 0.2
KILL_EVERY_SECONDS = 2.0
CUT_SECONDS_MAX = 4.0
CUT_LONG_SECONDS = float(size(8, 60))
AHEAD_SECONDS = 30
# Whose clocks are ahead.
AHEAD = ("api-1", "reconciler-1")
WAYS = [way for way in JOBS if way == "processes" or hosts_possible()]


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process whose clock is ahead."""
    folder = tmp_path_factory.mktemp("clock")
    library, file = folder / "set_clock.so", folder / "ahead"
    file.write_text(str(AHEAD_SECONDS))
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-fno-builtin", "-nostdlib", "-o", str(library)]
    done = subprocess.run(
        ["gcc", *options, str(Path(__file__).with_name("set_clock.c"))], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {"LD_PRELOAD": str(library), "SET_CLOCK_FILE": str(file)}


@pytest.mark.parametrize("way", WAYS)
async def test_every_job_ends_once_though_every_process_is_killed(
    tmp_path: Path, clock: dict[str, str], way: str
) -> None:
    # Three workers of each of two services, each of which polls one of three replicas.
    plan = ChaosPlan(
        store="postgres",
        apis=3,
        reconcilers=2,
        workers=3,
        hosts=way == "hosts",
        env_of=dict.fromkeys(AHEAD, clock),
    )
    chance, effects, began = Random(24), tmp_path / "effects.jsonl", time.monotonic()
    fleet = ChaosFleet(tmp_path, plan, chance)
    cuts: Counter[str] = Counter()
    try:
        await asyncio.to_thread(fleet.start)
        load = Load(
            fleet.urls,
            effects,
            "fleet",
            chance,
            sent_twice_share=SENT_TWICE_SHARE,
            api_key=fleet.api_key,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(CLIENTS))
            async with _network_cut(fleet.hosts, chance, cuts):
                killed = await _kill_all_the_time(fleet, load, chance, JOBS[way])
            load.enough()
        took_seconds = time.monotonic() - began
        await asyncio.to_thread(await_quiet, fleet.ledger)
        findings = await asyncio.to_thread(fleet.stop)
        findings += await asyncio.to_thread(check, fleet.ledger, load.ended, effects, len(SERVICES))
    finally:
        await asyncio.to_thread(fleet.remove)
    print(
        f"{len(load.ended)} jobs, {load.sent_twice} of them sent twice, in {took_seconds:.0f} s; "
        f"{load.repeats} calls repeated; killed: {dict(killed)}; cut: {dict(cuts)}"
    )
    assert findings == []
    assert killed["postgres"] == 2
    assert len(load.ended) >= JOBS[way]
    assert way == "processes" or cuts["long"] == 1


async def _kill_all_the_time(fleet: ChaosFleet, load: Load, chance: Random, jobs: int) -> Counter[str]:
    """Until so many jobs have ended. PostgreSQL dies after a third and after two thirds of them."""
    killed, (database,) = Counter[str](), fleet.databases
    crashes = [jobs // 3, jobs * 2 // 3]
    while crashes or len(load.ended) < jobs:
        await asyncio.sleep(KILL_EVERY_SECONDS)
        if fleet.hosts is not None:  # one that was killed while it is cut off gives up after ten seconds
            killed["begun again"] += fleet.begin_again()
        assert fleet.fallen() == []
        victim: Member = chance.choice([member for member in fleet.members if member is not database])
        if crashes and len(load.ended) >= crashes[0]:
            victim = database
            crashes.pop(0)
        await asyncio.to_thread(victim.kill)
        await asyncio.to_thread(victim.begin)
        killed[victim.name] += 1
    return killed


@asynccontextmanager
async def _network_cut(hosts: ChaosHosts | None, chance: Random, cuts: Counter[str]) -> AsyncIterator[None]:
    """One host after another, from all others or from the database alone, and one for long. The network is
    whole when this is over."""
    if hosts is None:
        yield
        return
    over = asyncio.Event()
    cutting = asyncio.create_task(_cut_all_the_time(hosts, chance, cuts, over))
    try:
        yield
    finally:
        over.set()
        await cutting


async def _cut_all_the_time(
    hosts: ChaosHosts, chance: Random, cuts: Counter[str], over: asyncio.Event
) -> None:
    hosts.cut_off_from_database("api-0")
    await asyncio.sleep(CUT_LONG_SECONDS)
    hosts.join_database("api-0")
    cuts["long"] += 1
    while not over.is_set():
        host, from_all = chance.choice(hosts.names()), chance.random() < 0.5
        cut, join = (
            (hosts.cut_off, hosts.join) if from_all else (hosts.cut_off_from_database, hosts.join_database)
        )
        cut(host)
        await asyncio.sleep(chance.uniform(1.0, CUT_SECONDS_MAX))
        join(host)
        cuts["from all" if from_all else "from the database"] += 1
        await asyncio.sleep(1.0)

"""A backlog moves by export and import, from a file to PostgreSQL and from there to Azure's tables, while its
jobs are under way: each ends once, and no attempt is wasted."""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.conformance.azurite_setup import azurite, new_prefix
from tests.conformance.azurite_setup import open_store as open_azurite
from tests.conformance.ledger_setup import SERVICES, Clock, Deployment, World, submit
from tests.conformance.postgres_setup import new_database
from tests.conformance.postgres_setup import open_store as open_postgres
from tests.sizes import size

from lucius.assembly.stores import mark_layout
from lucius.core.attempt import AttemptRef
from lucius.core.states import Fact, JobState
from lucius.ledger.index_audit import IndexAudit
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import TableStore

# `make transfer-journey` moves 1,000 open jobs.
pytestmark = [pytest.mark.xdist_group("azurite"), pytest.mark.timeout(1_800)]

JOBS = size(48, 1_000)
TENANTS = 4
AT_ONCE = 16
ENDS = frozenset({Fact.JOB_SUCCEEDED, Fact.JOB_FAILED, Fact.JOB_CANCELLED})


async def lucius(*words: str | Path, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """A process of its own, as an operator starts it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "lucius",
        *map(str, words),
        env={**os.environ, **(env or {})},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


def world_on(store: TableStore, layout: LayoutName, before: World | None) -> World:
    world = World(store, layout)
    world.clock = Clock(time.time_ns() // 1_000_000)
    if before is not None:
        world.ids = before.ids
    return world


async def work(deployment: Deployment, attempts: list[AttemptRef], *, ack: bool = True) -> None:
    room = asyncio.Semaphore(AT_ONCE)

    async def one(attempt: AttemptRef) -> None:
        async with room:
            if ack:
                await deployment.ack(attempt)
            await deployment.result(attempt)

    await asyncio.gather(*(one(attempt) for attempt in attempts))


async def test_a_backlog_moves_twice_and_every_job_ends_once(tmp_path: Path) -> None:
    began, took = time.monotonic(), dict[str, float]()

    def lap(name: str) -> None:
        took[name] = time.monotonic() - began - sum(took.values())

    folder = tmp_path / "data"
    first, begun = await a_backlog(folder)
    lap("backlog")

    code, out, err = await lucius("export", tmp_path / "one.jsonl", "--data", folder, "--json")
    assert code == 0, err
    assert json.loads(out)["summary"]["end"]["open_jobs"] == JOBS
    lap("export from SQLite")
    await flip_a_byte(tmp_path / "one.jsonl", tmp_path / "bad.jsonl", JOBS // 2)
    assert (tmp_path / "one.jsonl").stat().st_mode & 0o777 == 0o600
    lap("verify")

    url = await new_database()
    code, out, err = await lucius("import", tmp_path / "one.jsonl", "--store", url, "--storage", "ledger")
    assert (code, out) == (0, f"{JOBS:,} jobs written\n"), err
    lap("import into PostgreSQL")
    postgres = await open_postgres(url)
    second = world_on(postgres, LayoutName.LEDGER, first)
    deployment = second.deployment()
    await work(deployment, begun, ack=False)  # these workers had begun before the move
    waiting = await deployment.take("embedding", directives_max=JOBS // 4)
    await work(deployment, waiting)
    on_the_way = await deployment.take("ocr", directives_max=JOBS // 8)
    await postgres.close()
    lap("work")

    code, out, err = await lucius("export", tmp_path / "two.jsonl", "--store", url)
    assert code == 0, err
    lap("export from PostgreSQL")
    prefix = new_prefix()
    azure = {
        "LUCIUS_TABLE_CONNECTION": azurite().connection_string,
        "LUCIUS_TABLE_PREFIX": prefix,
        "LUCIUS_STORE": "azure-tables:",
    }
    code, out, err = await lucius("import", tmp_path / "two.jsonl", env=azure)
    assert (code, out) == (0, f"{JOBS:,} jobs written\n"), err
    lap("import into Azurite")
    tables = await open_azurite(prefix=prefix)
    third = world_on(tables, LayoutName.LEDGER, second)
    await work(third.deployment(), on_the_way)
    while taken := [each for service in SERVICES for each in await third.deployment().take(service)]:
        await work(third.deployment(), taken)
    lap("the rest of the work")
    await check_ends(third)
    await tables.close()
    print(f"{JOBS:,} jobs: " + ", ".join(f"{name} {seconds:.1f} s" for name, seconds in took.items()))


async def a_backlog(folder: Path) -> tuple[World, list[AttemptRef]]:
    """In a data folder: a quarter has done its first step, and another quarter is at it."""
    folder.mkdir()
    mark_layout(folder, "table")
    sqlite = await SqliteStore.open(folder / "lucius.db")
    world = world_on(sqlite, LayoutName.TABLE, None)
    deployment = world.deployment()
    for number in range(JOBS):
        tenant = f"tenant_{number % TENANTS}"
        await submit(deployment, number, request_type="OCR_EMBEDDING", tenant=tenant, key=f"key-{number}")
    await work(deployment, await deployment.take("ocr", directives_max=JOBS // 4))
    begun = await deployment.take("ocr", directives_max=JOBS // 4)
    for attempt in begun:
        await deployment.ack(attempt)
    await sqlite.close()
    return world, begun


async def flip_a_byte(source: Path, target: Path, line: int) -> None:
    whole = bytearray(source.read_bytes())
    place = 0
    for _ in range(line - 1):
        place = whole.index(b"\n", place) + 1
    whole[place + 200] ^= 4
    target.write_bytes(whole)
    code, out, err = await lucius("verify", target)
    assert (code, out) == (1, "")
    assert f"line {line:,}: " in err
    code, out, err = await lucius("verify", source)
    assert code == 0 and f"{JOBS:,} of them open" in out, err


async def check_ends(world: World) -> None:
    ledger = JobLedger(world.store, world.layout)
    attempts, states = Counter[int](), Counter[JobState]()
    for job_id in world.ids.jobs:
        loaded = await ledger.load(job_id)
        assert loaded is not None, job_id
        events = await ledger.events(job_id, limit=1_000)
        assert sum(event.type in ENDS for event in events) == 1
        states[loaded.record.job.state] += 1
        attempts[loaded.record.job.attempts_total] += 1
    assert states == {JobState.SUCCEEDED: JOBS}
    assert attempts == {2: JOBS}, "an attempt was wasted"
    for table in (ledger.tables.dispatch, ledger.tables.inflight):
        assert await world.store.scan(table, limit=1) == []
    audit = IndexAudit(ledger, now_ms=lambda: world.clock.now_ms + 3_600_000)
    after = None
    while rows := await audit.jobs(after, 200):
        for row in rows:
            assert await audit.compare(row) is None
        after = rows[-1].place

"""Rows that are replaced, and rows that come and go, leave tables in PostgreSQL as large as they were.

`make postgres-bloat` plays 1,000,000 transitions. Each is one commit of what a job's transition writes: its
row and a step's replaced, a due row moved, a row of the dispatch index that comes or goes, a slot with it.
"""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sizes import SOAKING, size

from lucius.ledger.names import Tables
from lucius.ledger.postgres.connection import Connection, PostgresAddress
from lucius.ledger.postgres.store import PostgresStore
from lucius.ledger.store import Op, delete, discard, insert, put, replace
from lucius_lab.emulators.postgres import PostgresServer

pytestmark = [pytest.mark.xdist_group("postgres"), pytest.mark.timeout(3_000)]

TRANSITIONS = size(16_000, 1_000_000)
JOBS = size(300, 2_000)
CLIENTS = 64
BODY_BYTES = 600
LANES = 16
LOOKS = 10
# Of the second half beside the first: room that vacuum gives back is used again.
GROWTH_MAX = 1.3
GROWTH_BYTES_MAX = 500_000  # of tables that are small in any case
HOT_SHARE_MIN = 0.8
COUNTED_SECONDS_MAX = 60.0
TABLES = Tables()
CHURNED = (TABLES.ledger, TABLES.due, TABLES.dispatch, TABLES.inflight)
_SIZES = (
    "SELECT relname AS name, pg_total_relation_size(relid) AS bytes, n_tup_upd AS replaced,"
    " n_tup_hot_upd AS hot, autovacuum_count AS vacuumed, n_live_tup AS rows"
    " FROM pg_stat_user_tables WHERE schemaname = 'lucius_store'"
)
_UNTUNED = (
    'ALTER TABLE lucius_store."{name}" RESET (fillfactor, autovacuum_vacuum_scale_factor,'
    " autovacuum_vacuum_threshold, autovacuum_vacuum_cost_delay)"
)


class TableUse(msgspec.Struct, frozen=True):
    name: str
    bytes: int
    replaced: int
    hot: int
    vacuumed: int
    rows: int


class ChurnedLedger:
    """Jobs that never end."""

    def __init__(self, store: PostgresStore, connection: Connection) -> None:
        self._store = store
        self._connection = connection
        self._etags: dict[str, list[str]] = {}
        self._due: dict[str, str] = {}
        self._waiting: dict[str, tuple[str, str]] = {}
        self._moves = count(1)
        self._moved = 0

    async def fill(self) -> None:
        for number in range(JOBS):
            job = f"job_{number:026d}"
            ops = [insert(TABLES.ledger, job, key, _body(0)) for key in ("JOB", "STEP#0#step_01")]
            ops += [insert(TABLES.ledger, job, f"EVENT#{seq:06d}", _body(0)) for seq in range(8)]
            self._etags[job] = (await self._store.commit(ops))[:2]

    async def move(self, transitions: int) -> None:
        done = iter(range(transitions))

        async def client(first: int) -> None:
            jobs = [job for number, job in enumerate(self._etags) if number % CLIENTS == first]
            for _, job in zip(done, _round_and_round(jobs), strict=False):
                await self._move(job)

        await asyncio.gather(*(client(number) for number in range(CLIENTS)))
        self._moved += transitions

    async def _move(self, job: str) -> None:
        number = next(self._moves)
        lane, state, step = f"{int(job[-6:]) % LANES:02d}", *self._etags[job]
        ops: list[Op] = [
            replace(TABLES.ledger, job, "JOB", _body(number), state),
            replace(TABLES.ledger, job, "STEP#0#step_01", _body(number), step),
            put(TABLES.due, lane, f"{number:015d}#{job}", b"{}"),
        ]
        if (before := self._due.get(job)) is not None:
            ops.append(discard(TABLES.due, lane, before))
        place, slot = f"ocr#{lane}", job
        if job in self._waiting:
            ops.append(delete(TABLES.dispatch, place, *self._waiting.pop(job)))
            ops.append(discard(TABLES.inflight, "acme", slot))
            self._etags[job] = (await self._store.commit(ops))[:2]
        else:
            key = f"{number:015d}#{job}"
            ops.append(insert(TABLES.dispatch, place, key, _body(0)[:80]))
            ops.append(put(TABLES.inflight, "acme", slot, b"DEFAULT"))
            etags = await self._store.commit(ops)
            self._etags[job], self._waiting[job] = etags[:2], (key, etags[-2])
        self._due[job] = f"{number:015d}#{job}"

    async def vacuum(self) -> None:
        """The short form is over before PostgreSQL would look by itself."""
        for name in CHURNED:
            await self._connection.run(f'VACUUM lucius_store."{name}"')

    async def use(self, *, counted: bool = True) -> dict[str, TableUse]:
        """`counted`: once PostgreSQL has counted what was replaced, some seconds later."""
        async with asyncio.timeout(COUNTED_SECONDS_MAX):
            while True:
                await self._connection.fetch("SELECT pg_stat_clear_snapshot()")
                found = {row["name"]: TableUse(*row) for row in await self._connection.fetch(_SIZES)}
                if not counted or found[TABLES.ledger].replaced >= 2 * self._moved:
                    return found
                await asyncio.sleep(0.1)


def _round_and_round(jobs: list[str]) -> Iterator[str]:
    while True:
        yield from jobs


def _body(number: int) -> bytes:
    return (b"%020d" % number) * (BODY_BYTES // 20)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    folder = Path(tempfile.mkdtemp(prefix="lucius-bloat-"))
    made = PostgresServer(folder, settings={"fsync": "off"})
    made.start()
    yield made
    made.kill()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
async def ledger(server: PostgresServer, request: pytest.FixtureRequest) -> AsyncIterator[ChurnedLedger]:
    name = f"bloat{abs(hash(request.node.name)) % 10**9}"
    admin = await Connection.open(PostgresAddress(url=server.url()), plans=False)
    await admin.run(f"CREATE DATABASE {name}")
    await admin.close()
    address = PostgresAddress(url=server.url(name), statement_seconds_max=60.0)
    store = await PostgresStore.open(address)
    connection = await Connection.open(address, plans=False)
    yield ChurnedLedger(store, connection)
    await connection.close()
    await store.close()


async def test_tables_stay_as_large_as_they_were(ledger: ChurnedLedger) -> None:
    await ledger.fill()
    seen: list[dict[str, TableUse]] = []
    for look in range(LOOKS):
        await ledger.move(TRANSITIONS // LOOKS)
        if not SOAKING:
            await ledger.vacuum()
        seen.append(await ledger.use(counted=look == LOOKS - 1))
    for name in CHURNED:
        sizes = [use[name].bytes for use in seen]
        print(f"{name}: {[f'{bytes_ / 1e6:.2f}' for bytes_ in sizes]} MB, {seen[-1][name]}")
        assert max(sizes[LOOKS // 2 :]) <= max(sizes[: LOOKS // 2]) * GROWTH_MAX + GROWTH_BYTES_MAX, name
    replaced = seen[-1][TABLES.ledger]
    assert replaced.hot / replaced.replaced >= HOT_SHARE_MIN
    assert seen[-1][TABLES.due].vacuumed > 0 or not SOAKING
    writers = seen[-1]["writers"]
    assert writers.bytes < 1_000_000
    assert writers.hot / writers.replaced >= HOT_SHARE_MIN


async def test_the_settings_of_the_tables_are_why(server: PostgresServer, ledger: ChurnedLedger) -> None:
    """The same transitions in tables as PostgreSQL makes them: fewer rows are replaced in place, and more
    room is taken."""
    connection: Any = ledger._connection
    for name in CHURNED:
        await connection.run(_UNTUNED.format(name=name))
        await connection.run(f'ALTER TABLE lucius_store."{name}" SET (autovacuum_enabled = false)')
    await ledger.fill()
    for name in CHURNED:
        await connection.run(f'VACUUM FULL lucius_store."{name}"')
    await ledger.move(min(TRANSITIONS, 8_000))
    found = await ledger.use()
    plain = found[TABLES.ledger].hot / found[TABLES.ledger].replaced
    await connection.run(f'ALTER TABLE lucius_store."{TABLES.ledger}" SET (fillfactor = 75)')
    await connection.run(f'VACUUM FULL lucius_store."{TABLES.ledger}"')
    before = found[TABLES.ledger]
    await ledger.move(min(TRANSITIONS, 8_000))
    after = (await ledger.use())[TABLES.ledger]
    tuned = (after.hot - before.hot) / (after.replaced - before.replaced)
    print(f"replaced in place: {plain:.2f} of the rows, and {tuned:.2f} with room in their pages")
    assert tuned > plain


async def test_a_reader_that_holds_vacuum_back_costs_room_once(ledger: ChurnedLedger) -> None:
    await ledger.fill()
    await ledger.move(TRANSITIONS // 4)
    reader = await Connection.open(PostgresAddress(url=ledger._store.address.url), plans=False)
    await reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
    await reader.fetch("SELECT count(*) FROM lucius_store.tables")
    await ledger.move(TRANSITIONS // 4)
    held = await ledger.use(counted=False)
    await reader.run("COMMIT")
    await reader.close()
    for _ in range(2):
        if not SOAKING:
            await ledger.vacuum()
        await ledger.move(TRANSITIONS // 4)
    after = await ledger.use(counted=False)
    for name in CHURNED:
        print(f"{name}: {held[name].bytes / 1e6:.2f} MB while held, {after[name].bytes / 1e6:.2f} MB after")
        assert after[name].bytes <= held[name].bytes * GROWTH_MAX + GROWTH_BYTES_MAX, name

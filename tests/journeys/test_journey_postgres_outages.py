"""A fleet on PostgreSQL works while its database has one trouble after another: clients are told to come
back, then everything goes on, and every job ends once.

The stores alone meet the same in tests/ledger; a database that is killed, and hosts that are cut off from it,
are in test_journey_postgres_fleet.
"""

import asyncio
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from tests.sizes import size

from lucius.ledger.postgres.connection import CallFailed, Connection, PostgresAddress
from lucius_lab.chaos.checks import check
from lucius_lab.chaos.load import Load
from lucius_lab.chaos.run import SERVICES, ChaosFleet, ChaosPlan, await_quiet
from lucius_lab.chaos.servers import ChaosDatabase

# It mostly waits, for conditions: it may run beside others.
pytestmark = [pytest.mark.xdist_group("postgres-outages"), pytest.mark.timeout(900)]

CLIENTS = 16
CONNECTIONS_MAX = 60
TROUBLE_SECONDS = float(size(3, 30))
# Longer than a session waits for a lock.
LOCKED_SECONDS = float(size(7, 30))
GOES_ON_SECONDS_MAX = 120.0
JOBS_BETWEEN = size(10, 200)
SOURCE = Path(__file__).parents[1] / "support" / "full_disk.c"
NO_ROOM = "No space left on device"
SESSIONS_ENDED = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'lucius %'"
    " AND pid <> pg_backend_pid()"
)


class TroubledDatabase:
    """Each method is one trouble, and returns once it is over."""

    def __init__(self, database: ChaosDatabase, full: Path, load: Load) -> None:
        self._database = database
        self._load = load
        self._full = full

    @property
    def _address(self) -> PostgresAddress:
        return PostgresAddress(
            url=self._database.server_url, application_name="operator", statement_seconds_max=60.0
        )

    @asynccontextmanager
    async def session(self) -> AsyncIterator[Connection]:
        connection = await Connection.open(self._address, plans=False)
        try:
            yield connection
        finally:
            await connection.close()

    @asynccontextmanager
    async def long_reader(self) -> AsyncIterator[None]:
        """Holds vacuum back, and stands no time-out."""
        async with self.session() as reader:
            await reader.run("SET idle_in_transaction_session_timeout = 0; SET statement_timeout = 0")
            await reader.run("BEGIN ISOLATION LEVEL REPEATABLE READ")
            await reader.fetch("SELECT FROM lucius_store.tables")
            yield
            await reader.run("COMMIT")

    async def restarted(self) -> None:
        await asyncio.to_thread(self._database.restart)

    async def read_only(self) -> None:
        """As after a failover to a copy that is not promoted."""
        await self._set("default_transaction_read_only", "on")
        await asyncio.sleep(TROUBLE_SECONDS)
        await self._set("default_transaction_read_only", "off")

    async def without_room_on_its_disk(self) -> None:
        """From when the room runs out that its files have left."""
        self._full.touch()
        before = self._database.stderr.count(NO_ROOM)
        async with asyncio.timeout(GOES_ON_SECONDS_MAX):
            while self._database.stderr.count(NO_ROOM) == before:
                await asyncio.sleep(0.1)
        await asyncio.sleep(TROUBLE_SECONDS)
        self._full.unlink()

    async def sessions_cut_in_the_midst(self) -> None:
        until = time.monotonic() + TROUBLE_SECONDS
        async with self.session() as operator:
            while time.monotonic() < until:
                await operator.fetch(SESSIONS_ENDED)
                await asyncio.sleep(0.2)

    async def without_a_free_connection(self) -> None:
        """Others have all of them, those of Lucius too, until it has tried for long enough and sends a client
        away."""
        held: list[Connection] = []
        before = self._load.refused[503]
        try:
            async with asyncio.timeout(GOES_ON_SECONDS_MAX):
                while self._load.refused[503] == before:
                    try:
                        held.append(await Connection.open(self._address, plans=False))
                    except CallFailed:
                        await held[0].fetch(SESSIONS_ENDED)
        finally:
            for connection in held:
                connection.abort()

    async def impatient(self) -> None:
        """With time-outs of an operator, shorter than anything takes here."""
        names = ("statement_timeout", "idle_in_transaction_session_timeout", "idle_session_timeout")
        for name in names:
            await self._set(name, "40ms")
        async with self.session() as operator:
            await operator.fetch(SESSIONS_ENDED)
        await asyncio.sleep(TROUBLE_SECONDS)
        for name in names:
            await self._set(name, "0")

    async def locked(self) -> None:
        """By a statement that waits for all others and lets none pass, as some changes of a schema do."""
        async with self.session() as operator:
            await operator.run("BEGIN; LOCK TABLE lucius_store.lucius_ledger IN ACCESS EXCLUSIVE MODE")
            await asyncio.sleep(LOCKED_SECONDS)
            await operator.run("ROLLBACK")

    async def failed_over(self) -> None:
        """To a copy that has what was confirmed."""
        await asyncio.to_thread(self._database.fail_over)

    async def _set(self, name: str, value: str) -> None:
        async with self.session() as operator:
            await operator.run("SET statement_timeout = 0; SET idle_session_timeout = 0")
            await operator.run(f"ALTER SYSTEM SET {name} = '{value}'")
            await operator.run("SELECT pg_reload_conf()")


@pytest.fixture
def full_disk() -> Iterator[dict[str, str]]:
    """The environment of a database whose disk has no room while a file is there."""
    folder = Path(tempfile.mkdtemp(prefix="lucius-full-disk-"))
    folder.chmod(0o755)  # the server runs as another user
    library = folder / "full_disk.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-fno-builtin", "-nostdlib", "-o", str(library)]
    done = subprocess.run(["gcc", *options, str(SOURCE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    yield {
        "FULL_DISK_FILE": str(folder / "full"),
        "FULL_DISK_FOLDER": "/base/",
        "LD_PRELOAD": str(library),
    }
    shutil.rmtree(folder, ignore_errors=True)


async def test_a_fleet_goes_on_after_every_trouble_of_its_database(
    tmp_path: Path, full_disk: dict[str, str]
) -> None:
    plan = ChaosPlan(
        store="postgres",
        database_settings={
            "max_connections": str(CONNECTIONS_MAX),
            "fsync": "off",
            "log_min_messages": "error",
            "wal_retrieve_retry_interval": "200ms",
        },
        database_env=full_disk,
        database_copied=True,
    )
    chance, effects = Random(24), tmp_path / "effects.jsonl"
    fleet = ChaosFleet(tmp_path, plan, chance)
    load = Load(fleet.urls, effects, "outages", chance)
    database = TroubledDatabase(fleet.databases[0], Path(full_disk["FULL_DISK_FILE"]), load)
    troubles = {
        database.read_only: "read-only transaction",
        database.without_room_on_its_disk: NO_ROOM,
        database.sessions_cut_in_the_midst: "terminating connection due to administrator command",
        database.without_a_free_connection: "too many clients already",
        database.impatient: "terminating connection due to idle-session timeout",
        database.locked: "canceling statement due to lock timeout",
    }
    try:
        await asyncio.to_thread(fleet.start)
        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(CLIENTS))
            await _more(load)
            await _met(load, fleet, database.restarted, "database system is shut down")
            async with database.long_reader():
                for trouble, trace in troubles.items():
                    await _met(load, fleet, trouble, trace)
            await _met(load, fleet, database.failed_over, "archive recovery complete")
            load.enough()
        await asyncio.to_thread(await_quiet, fleet.ledger)
        findings = await asyncio.to_thread(fleet.stop)
        findings += await asyncio.to_thread(check, fleet.ledger, load.ended, effects, len(SERVICES))
    finally:
        await asyncio.to_thread(fleet.remove)
    assert findings == []


async def _met(load: Load, fleet: ChaosFleet, trouble: Callable[[], Awaitable[None]], trace: str) -> None:
    """`trace`: what PostgreSQL says meanwhile, so that the trouble was one."""
    (database,) = fleet.databases
    began, refused, traces = time.monotonic(), load.refused[503], database.stderr.count(trace)
    await trouble()
    assert database.stderr.count(trace) > traces, trouble.__name__
    over = time.monotonic()
    await _more(load)
    print(
        f"{trouble.__name__}: {over - began:.1f} s, {load.refused[503] - refused} refused, "
        f"{JOBS_BETWEEN} more jobs {time.monotonic() - over:.1f} s later"
    )
    assert fleet.fallen() == []


async def _more(load: Load) -> None:
    before = len(load.ended)
    await load.progress(JOBS_BETWEEN, seconds_max=GOES_ON_SECONDS_MAX)
    assert len(load.ended) - before >= JOBS_BETWEEN

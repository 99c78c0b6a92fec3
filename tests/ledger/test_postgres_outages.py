"""Servers of their own that fail over, have no room on their disk, or end sessions: nothing that was answered
is lost, nothing is doubled, and it goes on by itself."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lucius.ledger.postgres.connection import Connection, PostgresAddress
from lucius.ledger.postgres.store import PostgresStore
from lucius.ledger.store import StoreUnavailable, insert, put
from lucius_lab.emulators.postgres import PostgresServer

pytestmark = pytest.mark.xdist_group("postgres")

T, P = "lucius_ledger", "job_1"
PATIENCE_SECONDS = 30.0
SOURCE = Path(__file__).parents[1] / "support" / "full_disk.c"


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="lucius-outage-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made, ignore_errors=True)


async def run_in(url: str, text: str) -> None:
    connection = await Connection.open(PostgresAddress(url=url), plans=False)
    try:
        await connection.run(text)
    finally:
        await connection.close()


class SteadyWriters:
    """Clients that insert rows without a pause, each once its last one was answered."""

    def __init__(self, store: PostgresStore) -> None:
        self._store = store
        self.answered: list[str] = []
        self._stopped = asyncio.Event()

    async def write(self, writer: int) -> None:
        number = 0
        while not self._stopped.is_set():
            key = f"{writer}-{number:05d}"
            await self._store.commit([insert(T, P, key, b""), insert("lucius_due", key, "K", b"")])
            self.answered.append(key)
            number += 1

    async def more(self, count: int) -> None:
        goal = len(self.answered) + count
        async with asyncio.timeout(PATIENCE_SECONDS):
            while len(self.answered) < goal:
                await asyncio.sleep(0.02)

    def stop(self) -> None:
        self._stopped.set()


@asynccontextmanager
async def steady_writers(store: PostgresStore) -> AsyncIterator[SteadyWriters]:
    writers = SteadyWriters(store)
    async with asyncio.TaskGroup() as group:
        for number in range(8):
            group.create_task(writers.write(number))
        await writers.more(50)
        yield writers
        writers.stop()
    found = [row.key for row in await store.query(T, P, limit=1_000_000)]
    assert found == sorted(writers.answered)
    assert len(await store.scan("lucius_due", limit=1_000_000)) == len(found)


async def test_a_failover_in_the_midst_of_commits(folder: Path) -> None:
    """To a copy that has what was answered, as synchronous replication promises: also what became of commits
    whose answers were lost is known there."""
    settings = {"synchronous_standby_names": "*", "synchronous_commit": "local"}
    primary = PostgresServer(folder / "one", settings={**settings, "wal_keep_size": "256MB"})
    await asyncio.to_thread(primary.start)
    copy = PostgresServer(folder / "two", primary=primary)
    try:
        await asyncio.to_thread(copy.start)
        await run_in(primary.url(), "CREATE DATABASE ledger")
        await run_in(primary.url(), "ALTER DATABASE ledger SET synchronous_commit = on")
        hosts = f"127.0.0.1:{primary.port},127.0.0.1:{copy.port}"
        url = f"postgresql://lucius@{hosts}/ledger?target_session_attrs=read-write"
        store = await PostgresStore.open(PostgresAddress(url=url, patience_seconds_max=PATIENCE_SECONDS))
        async with steady_writers(store) as writers:
            await asyncio.to_thread(primary.kill)
            await run_in(copy.url(), "ALTER SYSTEM SET synchronous_standby_names = ''")
            await run_in(copy.url(), "SELECT pg_reload_conf()")
            await asyncio.to_thread(copy.promote)
            await writers.more(100)
        await store.close()
    finally:
        copy.kill()
        primary.kill()


async def test_a_disk_without_room_refuses_and_goes_on_once_there_is_some(folder: Path) -> None:
    library, full = folder / "full_disk.so", folder / "full"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-fno-builtin", "-nostdlib"]
    done = subprocess.run(["gcc", *options, "-o", str(library), str(SOURCE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    # PostgreSQL works in its data folder, and names its files from there.
    env = {"FULL_DISK_FILE": str(full), "FULL_DISK_FOLDER": "/base/", "LD_PRELOAD": str(library)}
    server = PostgresServer(folder / "server", settings={"fsync": "off"}, env=env)
    await asyncio.to_thread(server.start)
    try:
        await run_in(server.url(), "CREATE DATABASE ledger")
        address = PostgresAddress(url=server.url("ledger"), patience_seconds_max=0.5)
        store = await PostgresStore.open(address)
        answered = 0
        full.touch()
        with pytest.raises(StoreUnavailable, match="No space left"):
            for number in range(1_000):
                await store.commit([insert(T, P, f"{number:05d}", bytes(8_000))])
                answered = number + 1
        assert len(await store.query(T, P, limit=10_000)) == answered
        full.unlink()
        for number in range(answered, answered + 100):
            await store.commit([insert(T, P, f"{number:05d}", bytes(8_000))])
        assert len(await store.query(T, P, limit=10_000)) == answered + 100
        await store.close()
    finally:
        server.kill()


async def test_sessions_that_the_server_ends_for_being_idle_are_opened_again(folder: Path) -> None:
    """Both time-outs are an operator's, and shorter than any pause between commits here. No transaction of
    ours is ever idle; a session that was ended meanwhile costs its caller nothing."""
    settings = {"idle_in_transaction_session_timeout": "20ms", "idle_session_timeout": "50ms", "fsync": "off"}
    server = PostgresServer(folder / "server", settings=settings)
    await asyncio.to_thread(server.start)
    try:
        await run_in(server.url(), "CREATE DATABASE ledger")
        heard = asyncio.Event()
        stores = [await PostgresStore.open(PostgresAddress(url=server.url("ledger"))) for _ in range(2)]
        for store in stores:
            await store.on_nudge(lambda note: heard.set())
        for number in range(6):
            await stores[0].commit([put(T, P, f"{number}", b"")])
            assert len(await stores[1].query(T, P, limit=100)) == number + 1
            await asyncio.sleep(0.12)
        for store in stores:
            await store.close()
    finally:
        server.kill()


async def test_a_statement_time_out_of_the_operator_does_not_count(folder: Path) -> None:
    """A commit may take as long as LUCIUS_POSTGRES_STATEMENT_TIMEOUT says, whatever the database says."""
    server = PostgresServer(folder / "server", settings={"fsync": "off"})
    await asyncio.to_thread(server.start)
    try:
        await run_in(server.url(), "CREATE DATABASE ledger")
        await run_in(server.url(), "ALTER DATABASE ledger SET statement_timeout = '1ms'")
        store = await PostgresStore.open(PostgresAddress(url=server.url("ledger")))
        await asyncio.gather(*(store.commit([insert(T, P, f"{n:03d}", bytes(4_000))]) for n in range(300)))
        assert len(await store.query(T, P, limit=1_000)) == 300
        await store.close()
    finally:
        server.kill()

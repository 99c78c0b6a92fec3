"""Several processes on one file, and processes that die."""

import asyncio
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import insert

T, P = "lucius_ledger", "job_1"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    ready = await SqliteStore.open(path, busy_timeout_ms=200)
    yield ready
    await ready.close()


def write_connection(store: SqliteStore) -> sqlite3.Connection:
    connection = store._writer._connection
    assert connection is not None
    return connection


@contextmanager
def write_lock(path: Path) -> Iterator[sqlite3.Connection]:
    """Another connection that holds the write lock."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield other
    finally:
        other.close()


# Several processes

COUNT = """
import asyncio, sys
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import Conflict, insert, replace

async def add(store, times):
    while times:
        row = await store.get("counters", "p", "count")
        try:
            await store.commit([
                replace("counters", "p", "count", b"%d" % (int(row.body) + 1), row.etag),
                insert("log", "p", f"{int(row.body):06d}", sys.argv[2].encode()),
            ])
            times -= 1
        except Conflict:
            pass

async def main():
    store = await SqliteStore.open(sys.argv[1], busy_timeout_ms=30_000)
    await asyncio.gather(*(add(store, 125) for _ in range(4)))
    await store.close()

asyncio.run(main())
"""

WRITE_FOR_EVER = """
import asyncio, os, sys
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import insert

async def write(store, writer):
    number = 0
    while True:
        key = f"{writer:02d}-{number:06d}"
        await store.commit([insert("one", "p", key, b"x" * 500), insert("two", key, "K", b"x" * 500)])
        os.write(1, key.encode() + b"\\n")
        number += 1

async def main():
    store = await SqliteStore.open(sys.argv[1])
    await asyncio.gather(*(write(store, writer) for writer in range(16)))

asyncio.run(main())
"""


async def run_child(code: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, *arguments, stdout=asyncio.subprocess.PIPE, env=dict(os.environ)
    )


async def test_two_processes_count_and_lose_nothing(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.commit([insert("counters", "p", "count", b"0")])
    children = [await run_child(COUNT, str(path), name) for name in ("first", "second")]
    await asyncio.gather(*(child.communicate() for child in children))
    assert [child.returncode for child in children] == [0, 0]
    row = await store.get("counters", "p", "count")
    assert row is not None
    assert row.body == b"1000"
    log = await store.query("log", "p", limit=2_000)
    assert [int(entry.key) for entry in log] == list(range(1_000))
    assert {entry.body for entry in log} == {b"first", b"second"}
    assert len({entry.etag for entry in log}) == 1_000
    await store.close()


async def test_processes_may_create_the_file_at_once(path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(path) for _ in range(6)))
    await asyncio.gather(*(s.commit([insert(T, P, f"{n}", b"")]) for n, s in enumerate(stores)))
    assert len(await stores[0].query(T, P, limit=10)) == 6
    await asyncio.gather(*(s.close() for s in stores))


async def test_a_killed_process_loses_nothing_it_acknowledged(path: Path) -> None:
    child = await run_child(WRITE_FOR_EVER, str(path))
    assert child.stdout is not None
    acknowledged = [await child.stdout.readline() for _ in range(1_500)]
    child.send_signal(signal.SIGKILL)
    acknowledged += (await child.stdout.read()).splitlines(keepends=True)
    await child.wait()
    keys = {line.decode().strip() for line in acknowledged if line.endswith(b"\n")}
    assert len(keys) >= 1_500
    store = await SqliteStore.open(path)
    found = {row.key for row in await store.query("one", "p", limit=100_000)}
    assert keys <= found
    for key in found:  # whatever was written was written whole
        assert await store.get("two", key, "K") is not None
    await store.commit([insert("one", "p", "after", b"")])
    await store.close()


async def test_the_loop_may_end_without_a_close(path: Path) -> None:
    """A process that is torn down in the middle of a commit leaves a file that opens."""

    def in_a_loop_of_its_own(work: Callable[[], Any]) -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(work())
        finally:
            loop.close()

    async def leave() -> None:
        store = await SqliteStore.open(path)
        task = asyncio.ensure_future(store.commit([insert(T, P, "maybe", b"")]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    await asyncio.to_thread(in_a_loop_of_its_own, leave)
    store = await SqliteStore.open(path)
    await store.commit([insert(T, P, "sure", b"")])
    assert {row.key for row in await store.query(T, P, limit=10)} >= {"sure"}
    await store.close()

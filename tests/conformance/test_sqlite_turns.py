"""Processes that write one SQLite file take turns: whoever waits goes before whoever has just been."""

import asyncio
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.sqlite.write_lock import PATIENCE_SECONDS, WriteLock
from lucius.ledger.store import StoreUnavailable, put


@pytest.fixture
def enter(tmp_path: Path) -> Iterator[Callable[[], WriteLock]]:
    """A write lock as each process has one: the lock is the file's, however often one process opens it."""
    with ExitStack() as stack:

        def enter_one() -> WriteLock:
            write_lock = WriteLock(tmp_path / "lucius.db")
            stack.callback(write_lock.close)
            return write_lock

        yield enter_one


def test_where_nobody_waits_everybody_may_go(enter: Callable[[], WriteLock]) -> None:
    one, other = enter(), enter()
    for _ in range(3):
        assert one.may_go(0.0)
        assert other.may_go(0.0)
        one.passed()
        other.passed()


def test_whoever_waits_goes_first(enter: Callable[[], WriteLock]) -> None:
    busy, waiting = enter(), enter()
    assert waiting.may_go(0.0)
    waiting.wait()
    assert not busy.may_go(0.0)
    assert waiting.may_go(0.0)
    waiting.passed()
    assert busy.may_go(0.0)


def test_of_two_that_wait_one_is_next_and_then_the_other(enter: Callable[[], WriteLock]) -> None:
    busy, first, second = enter(), enter(), enter()
    first.wait()
    second.wait()
    assert not second.may_go(0.0)
    first.passed()
    assert second.may_go(0.0)
    second.wait()
    assert not busy.may_go(0.0)
    assert not first.may_go(0.0)


def test_one_that_stands_still_is_passed_by(enter: Callable[[], WriteLock]) -> None:
    busy, still = enter(), enter()
    still.wait()
    assert not busy.may_go(10.0)
    assert not busy.may_go(10.0 + PATIENCE_SECONDS / 2)
    assert busy.may_go(10.0 + PATIENCE_SECONDS)
    busy.passed()
    assert not busy.may_go(11.5)  # patience begins anew with each turn


def test_one_that_dies_is_not_waited_for(enter: Callable[[], WriteLock]) -> None:
    busy, dying = enter(), enter()
    dying.wait()
    dying.close()
    assert busy.may_go(0.0)


async def test_stores_that_waited_for_the_lock_all_get_it(tmp_path: Path) -> None:
    path = tmp_path / "lucius.db"
    stores = [await SqliteStore.open(path) for _ in range(3)]
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        commits = [
            asyncio.create_task(store.commit([put("t", "p", f"k{number}", b"{}")]))
            for number, store in enumerate(stores)
        ]
        await asyncio.sleep(0.05)
        assert not any(commit.done() for commit in commits)
        other.execute("ROLLBACK")
        async with asyncio.timeout(10):
            await asyncio.gather(*commits)
        assert len(await stores[0].query("t", "p", limit=10)) == 3
    finally:
        other.close()
        for store in stores:
            await store.close()


async def test_one_that_gave_up_holds_nobody_up(tmp_path: Path, enter: Callable[[], WriteLock]) -> None:
    path = tmp_path / "lucius.db"
    hasty = await SqliteStore.open(path, busy_timeout_ms=50)
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreUnavailable):
            await hasty.commit([put("t", "p", "k", b"{}")])
        assert enter().may_go(0.0)
    finally:
        other.close()
        await hasty.close()

"""What only a file can do wrong: durability, several processes, groups, faults of the disk and the lock."""

import asyncio
import resource
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lucius.ledger.sqlite import file as sqlite_file
from lucius.ledger.sqlite import writer as sqlite_writer
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import Conflict, Row, StoreUnavailable, delete, discard, insert, put, replace

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


# Durability


async def test_what_was_committed_is_there_after_reopening(path: Path) -> None:
    first = await SqliteStore.open(path)
    etags = await first.commit([insert(T, P, "a", b"1"), insert("other-table", P, "b", b"2")])
    await first.close()
    assert not path.with_name(path.name + "-wal").exists()
    second = await SqliteStore.open(path)
    assert await second.get(T, P, "a") == Row("a", etags[0], b"1")
    assert await second.get("other-table", P, "b") == Row("b", etags[1], b"2")
    await second.commit([replace(T, P, "a", b"3", etags[0])])
    await second.close()


async def test_an_etag_never_comes_back_after_reopening(path: Path) -> None:
    seen: set[str] = set()
    for _ in range(3):
        store = await SqliteStore.open(path)
        for _ in range(2):
            await store.commit([discard(T, P, "K")])
            seen.update(await store.commit([insert(T, P, "K", b"")]))
        await store.close()
    assert len(seen) == 6


async def test_every_commit_is_synced(store: SqliteStore) -> None:
    connection = write_connection(store)
    assert connection.execute("PRAGMA synchronous").fetchall() == [(2,)]
    assert connection.execute("PRAGMA journal_mode").fetchall() == [("wal",)]


async def test_close_finishes_what_is_queued(path: Path) -> None:
    store = await SqliteStore.open(path)
    commits = [asyncio.ensure_future(store.commit([insert(T, P, f"{n:04d}", b"")])) for n in range(600)]
    await asyncio.sleep(0)
    await store.close()
    await asyncio.gather(*commits)
    again = await SqliteStore.open(path)
    assert len(await again.query(T, P, limit=1_000)) == 600
    await again.close()


async def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="unable to open"):
        await SqliteStore.open(tmp_path / "no such folder" / "store.db")
    (tmp_path / "text").write_bytes(b"this is not a database, but it is long enough to be asked" * 40)
    with pytest.raises(StoreUnavailable, match="not a database"):
        await SqliteStore.open(tmp_path / "text")


# Groups


async def test_a_file_whose_creator_died_half_way_is_finished(path: Path) -> None:
    with sqlite3.connect(path) as left:
        left.execute(sqlite_file.CREATE_STORE)
    left.close()
    store = await SqliteStore.open(path)
    try:
        [etag] = await store.commit([insert("Jobs", "p", "k", b"{}")])
        assert await store.get("Jobs", "p", "k") == Row("k", etag, b"{}")
    finally:
        await store.close()


async def test_a_file_that_another_creates_meanwhile_is_waited_for(path: Path) -> None:
    creator = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    creator.execute("PRAGMA locking_mode = EXCLUSIVE")
    creator.execute("BEGIN EXCLUSIVE")
    opening = asyncio.create_task(SqliteStore.open(path, busy_timeout_ms=20_000))
    await asyncio.sleep(0.3)
    assert not opening.done()
    creator.execute(sqlite_file.CREATE_STORE)
    creator.execute("COMMIT")
    creator.close()
    store = await opening
    try:
        assert len(await store.commit([insert("Jobs", "p", "k", b"{}")])) == 1
    finally:
        await store.close()


async def test_a_conflict_in_a_group_fails_its_caller_only(store: SqliteStore) -> None:
    await store.commit([insert(T, P, "taken", b"")])
    callers = []
    for number in range(40):
        ops = [insert(T, P, f"row-{number:02d}", b""), put("fresh", P, f"row-{number:02d}", b"")]
        if number % 4 == 3:
            ops.append(insert(T, P, "taken", b""))
        callers.append(store.commit(ops))
    outcomes = await asyncio.gather(*callers, return_exceptions=True)
    lost = {number for number, outcome in enumerate(outcomes) if isinstance(outcome, Conflict)}
    assert lost == set(range(3, 40, 4))
    expected = [f"row-{number:02d}" for number in range(40) if number not in lost]
    assert [row.key for row in await store.query(T, P, end="taken", limit=100)] == expected
    assert [row.key for row in await store.query("fresh", P, limit=100)] == expected


async def test_callers_of_one_group_who_name_the_same_row_take_turns(store: SqliteStore) -> None:
    (etag,) = await store.commit([insert(T, P, "K", b"0")])
    first, second, third, fourth = await asyncio.gather(
        store.commit([replace(T, P, "K", b"1", etag), put(T, P, "beside", b"1")]),
        store.commit([replace(T, P, "K", b"2", etag), put(T, P, "beside", b"2")]),
        store.commit([delete(T, P, "K", etag), insert(T, P, "other", b"3")]),
        store.commit([discard(T, P, "gone"), discard(T, P, "never there")]),
        return_exceptions=True,
    )
    assert isinstance(first, list)
    assert isinstance(second, Conflict) and isinstance(third, Conflict)
    assert (second.index, third.index) == (0, 0)
    assert fourth == ["", ""]
    assert [(row.key, row.body) for row in await store.query(T, P, limit=9)] == [
        ("K", b"1"),
        ("beside", b"1"),
    ]
    row = await store.get(T, P, "K")
    assert row is not None and row.etag == first[0]


async def test_a_group_that_ran_a_second_time_gives_new_etags(store: SqliteStore) -> None:
    await store.commit([insert(T, P, "taken", b"")])
    given = await asyncio.gather(
        store.commit([insert(T, P, "a", b""), insert(T, P, "b", b"")]),
        store.commit([insert(T, P, "c", b""), insert(T, P, "taken", b"")]),
        store.commit([insert(T, P, "d", b"")]),
        return_exceptions=True,
    )
    assert isinstance(given[1], Conflict)
    etags = [etag for caller in (given[0], given[2]) for etag in caller]  # type: ignore[union-attr]
    stored = {row.key: row.etag for row in await store.query(T, P, limit=9)}
    assert etags == [stored["a"], stored["b"], stored["d"]]
    assert len(set(stored.values())) == 4


async def test_many_callers_share_one_transaction(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    write_connection(store).set_trace_callback(
        lambda text: begun.append(text) if text[:5] == "BEGIN" else None
    )
    await asyncio.gather(*(store.commit([insert(T, P, f"{n}", b"")]) for n in range(200)))
    assert len(begun) == 1
    monkeypatch.setattr(sqlite_writer, "GROUP_CALLERS_MAX", 16)
    await asyncio.gather(*(store.commit([insert(T, P, f"again-{n}", b"")]) for n in range(160)))
    assert len(begun) == 11
    assert len(await store.query(T, P, limit=1_000)) == 360


async def test_nobody_is_answered_before_the_commit(store: SqliteStore, path: Path) -> None:
    """Each caller that was answered finds its row with a connection that knows nothing of the store."""
    other = sqlite3.connect(path)

    async def write_and_look(number: int) -> int:
        await store.commit([insert(T, P, f"{number}", b"")])
        ((count,),) = other.execute(f'SELECT count(*) FROM "{T}" WHERE rk = ?', (f"{number}",)).fetchall()
        return int(count)

    assert await asyncio.gather(*(write_and_look(number) for number in range(100))) == [1] * 100
    other.close()


async def test_readers_see_committed_rows_only(store: SqliteStore) -> None:
    etags = await store.commit([insert(T, P, "a", b"0"), insert(T, P, "b", b"0")])

    async def write() -> None:
        nonlocal etags
        for number in range(1, 40):
            body = b"%d" % number
            etags = await store.commit(
                [replace(T, P, "a", body, etags[0]), replace(T, P, "b", body, etags[1])]
            )

    writing = asyncio.ensure_future(write())
    seen = set()
    while not writing.done():
        a, b = await store.query(T, P, limit=10)
        assert a.body == b.body
        seen.add(a.body)
        await asyncio.sleep(0)
    await writing
    assert len(seen) > 1


async def test_the_waiting_room_has_a_bound(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_writer, "WAITING_CALLERS_MAX", 10)
    commits = [store.commit([insert(T, P, f"{n}", b"")]) for n in range(12)]
    outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert [isinstance(outcome, StoreUnavailable) for outcome in outcomes] == [False] * 10 + [True] * 2
    assert len(await store.query(T, P, limit=100)) == 10


# Cancelled callers


async def test_a_cancelled_caller_disturbs_nobody(store: SqliteStore) -> None:
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await store.commit([insert(T, P, "taken", b"")])
    for rounds in range(6):  # cancelled while queued, while at COMMIT, and about when it is resolved
        keys = [f"{rounds}-{number:02d}" for number in range(20)]
        tasks = [asyncio.ensure_future(store.commit([insert(T, P, key, b"")])) for key in keys]
        loser = asyncio.ensure_future(store.commit([insert(T, P, "taken", b"")]))
        for _ in range(rounds):
            await asyncio.sleep(0)
        for task in (*tasks[:5], loser):
            task.cancel()
        outcomes = await asyncio.gather(*tasks, loser, return_exceptions=True)
        assert all(isinstance(outcome, list) for outcome in outcomes[5:20])
        assert all(isinstance(outcome, asyncio.CancelledError | list) for outcome in outcomes[:5])
        found = {row.key for row in await store.query(T, P, start=f"{rounds}-", end=f"{rounds}.", limit=100)}
        assert found >= set(keys[5:])
    await store.ping()
    assert complaints == []


async def test_who_is_cancelled_while_queued_writes_nothing(store: SqliteStore, path: Path) -> None:
    with write_lock(path) as other:
        task = asyncio.ensure_future(store.commit([insert(T, P, "never", b"")]))
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        other.execute("ROLLBACK")
    await store.ping()
    assert await store.get(T, P, "never") is None


# Faults


async def test_a_lock_held_too_long(store: SqliteStore, path: Path) -> None:
    with write_lock(path) as other:
        commits = [store.commit([insert(T, P, f"{n}", b"")]) for n in range(3)]
        outcomes = await asyncio.gather(*commits, store.ping(), return_exceptions=True)
        assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
        assert "locked" in str(outcomes[0])
        assert await store.query(T, P, limit=10) == []  # reads go on
        other.execute("ROLLBACK")
    await store.ping()
    await store.commit([insert(T, P, "0", b"")])


async def test_a_lock_released_in_time_is_waited_for(path: Path) -> None:
    store = await SqliteStore.open(path, busy_timeout_ms=5_000)
    with write_lock(path) as other:
        commit = asyncio.ensure_future(store.commit([insert(T, P, "K", b"")]))
        await asyncio.sleep(0.1)
        assert not commit.done()
        other.execute("COMMIT")
        await commit
    await store.close()


async def test_a_full_disk_fails_the_group_and_heals(store: SqliteStore) -> None:
    await store.commit([insert(T, P, "first", b"x")])
    connection = write_connection(store)
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    commits = [store.commit([insert(T, P, f"big-{n}", b"x" * 30_000)]) for n in range(3)]
    outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert "full" in str(outcomes[0])
    assert not connection.in_transaction
    assert [row.key for row in await store.query(T, P, limit=10)] == ["first"]
    await store.commit([put(T, P, "first", b"small still fits")])
    connection.execute("PRAGMA max_page_count = 1000000")
    await store.commit([insert(T, P, "big-0", b"x" * 30_000)])


async def test_a_fault_undoes_new_tables_and_etags(store: SqliteStore) -> None:
    connection = write_connection(store)
    ((pages,),) = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(StoreUnavailable):
        await store.commit([insert("fresh", P, "K", b"x" * 60_000)])
    connection.execute("PRAGMA max_page_count = 1000000")
    assert await store.get("fresh", P, "K") is None
    (etag,) = await store.commit([insert("fresh", P, "K", b"1")])
    assert await store.get("fresh", P, "K") == Row("K", etag, b"1")


async def test_a_commit_the_disk_refuses(store: SqliteStore, path: Path) -> None:
    """The write fails inside COMMIT itself: the operating system lets no file grow."""
    await store.commit([insert(T, P, "first", b"x")])
    wal_bytes = path.with_name(path.name + "-wal").stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (wal_bytes + 20_000, hard))
    try:
        commits = [store.commit([insert(T, P, f"big-{n}", b"x" * 30_000)]) for n in range(3)]
        outcomes = await asyncio.gather(*commits, return_exceptions=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert all(isinstance(outcome, StoreUnavailable) for outcome in outcomes)
    assert [row.key for row in await store.query(T, P, limit=10)] == ["first"]
    await store.commit([insert(T, P, "big-0", b"x" * 30_000)])
    await store.ping()


async def test_a_file_that_turns_read_only(store: SqliteStore) -> None:
    await store.commit([insert(T, P, "K", b"")])
    write_connection(store).execute("PRAGMA query_only = ON")
    with pytest.raises(StoreUnavailable, match="readonly"):
        await store.commit([put(T, P, "K", b"2")])
    await store.ping()  # the spoilt connection was given up
    await store.commit([put(T, P, "K", b"3")])


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_file_that_is_removed_or_replaced_takes_no_more_writes(
    store: SqliteStore, path: Path, tmp_path: Path, *, replaced: bool
) -> None:
    await store.commit([insert(T, P, "a", b"1")])
    path.rename(tmp_path / "elsewhere.db")
    if replaced:
        other = await SqliteStore.open(path)
        await other.commit([insert(T, P, "b", b"2")])
        await other.close()
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match="was removed or replaced"):
            await store.commit([insert(T, P, "c", b"3")])
        with pytest.raises(StoreUnavailable):
            await store.ping()
    if not replaced:  # a mistake that is taken back
        (tmp_path / "elsewhere.db").rename(path)
        await store.commit([insert(T, P, "d", b"4")])


async def test_a_spoilt_connection_is_replaced(store: SqliteStore) -> None:
    await store.commit([insert(T, P, "K", b"1")])
    write_connection(store).close()
    with pytest.raises(StoreUnavailable):
        await store.commit([put(T, P, "K", b"2")])
    await store.commit([put(T, P, "K", b"3")])
    row = await store.get(T, P, "K")
    assert row is not None
    assert row.body == b"3"


async def test_a_fault_in_the_code_leaves_nobody_waiting(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr(store._writer, "_batches", broken)
        with pytest.raises(StoreUnavailable, match="broken"):
            await store.commit([insert(T, P, "K", b"")])
    await store.commit([insert(T, P, "K", b"")])

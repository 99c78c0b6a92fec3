"""PostgreSQL behind a wire that breaks, and a server that refuses or dies: what a commit says is so."""

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial

import pytest
from tests.conformance.postgres_setup import drop_database, new_database, open_store, postgres
from tests.support.cut_proxy import Cut, CutProxy, cut_proxy

from lucius.ledger.names import Tables
from lucius.ledger.postgres.connection import Connection, PostgresAddress
from lucius.ledger.postgres.keys import key_from_text, key_to_text
from lucius.ledger.postgres.schema import SCHEMA_VERSION, UnusableDatabase, migrate
from lucius.ledger.postgres.store import PostgresStore
from lucius.ledger.store import (
    Conflict,
    Op,
    StoreError,
    StoreUnavailable,
    delete,
    discard,
    insert,
    put,
    replace,
)

pytestmark = pytest.mark.xdist_group("postgres")

T, P = "lucius_ledger", "job_1"
MARK = b"marked"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    made = await new_database()
    yield made
    await drop_database(made)


@pytest.fixture
async def proxy() -> AsyncIterator[CutProxy]:
    async with cut_proxy(postgres().port) as ready:
        ready.mark = MARK
        yield ready


@pytest.fixture
async def direct(url: str) -> AsyncIterator[PostgresStore]:
    store = await open_store(url)
    yield store
    await store.close()


@pytest.fixture
async def store(url: str, proxy: CutProxy, direct: PostgresStore) -> AsyncIterator[PostgresStore]:
    """The same database, past the proxy."""
    ready = await open_store(url.replace(str(postgres().port), str(proxy.port)))
    await ready.ping()
    yield ready
    await ready.close()


async def _run(url: str, text: str) -> None:
    connection = await Connection.open(PostgresAddress(url=url), plans=False)
    try:
        await connection.run(text)
    finally:
        await connection.close()


# A commit whose answer was lost


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
@pytest.mark.parametrize("times", [1, 3])
async def test_a_commit_takes_effect_once(
    store: PostgresStore, direct: PostgresStore, proxy: CutProxy, cut: Cut, times: int
) -> None:
    kept, gone = await direct.commit([insert(T, P, "kept", b"1"), insert(T, P, "gone", b"1")])
    proxy.cuts = [cut] * times
    etags = await store.commit(
        [
            insert(T, P, "new", MARK),
            replace(T, P, "kept", b"2", kept),
            delete(T, P, "gone", gone),
            put("other", "p", "put", b"3"),
            discard(T, P, "nothing"),
        ]
    )
    assert proxy.cuts == [] or cut is Cut.AFTER
    rows = {row.key: row for row in await direct.query(T, P, limit=10)}
    assert {key: row.body for key, row in rows.items()} == {"new": MARK, "kept": b"2"}
    assert [rows["new"].etag, rows["kept"].etag] == etags[:2]
    await store.commit([replace(T, P, "new", b"5", etags[0])])


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
async def test_removals_alone_are_settled_too(
    store: PostgresStore, direct: PostgresStore, proxy: CutProxy, cut: Cut
) -> None:
    """Even if another writer has put a row in the same place since then."""
    (etag,) = await direct.commit([insert(T, P, "marked", b"1")])
    proxy.cuts = [cut]

    async def meanwhile() -> None:
        if cut is Cut.AFTER:
            await direct.commit([insert(T, P, "marked", b"of another")])

    proxy.meanwhile = meanwhile
    assert await store.commit([delete(T, P, "marked", etag)]) == [""]
    row = await direct.get(T, P, "marked")
    assert (row is not None) == (cut is Cut.AFTER)


async def test_a_commit_that_arrives_late_is_refused(
    store: PostgresStore, direct: PostgresStore, proxy: CutProxy
) -> None:
    proxy.cuts = [Cut.LATE]
    (etag,) = await store.commit([put(T, P, "K", MARK)])
    (newer,) = await direct.commit([put(T, P, "K", b"newer")])
    assert newer != etag
    await proxy.release()
    row = await direct.get(T, P, "K")
    assert row is not None
    assert row.body == b"newer"


async def test_what_others_did_after_a_lost_answer_does_not_hide_it(
    store: PostgresStore, direct: PostgresStore, proxy: CutProxy
) -> None:
    proxy.cuts = [Cut.AFTER]

    async def meanwhile() -> None:
        for number in range(20):
            row = await direct.get(T, P, "K")
            assert row is not None
            await direct.commit([replace(T, P, "K", b"%d" % number, row.etag)])

    proxy.meanwhile = meanwhile
    (etag,) = await store.commit([insert(T, P, "K", MARK)])
    with pytest.raises(Conflict):
        await store.commit([replace(T, P, "K", b"", etag)])


async def test_a_conflict_after_a_cut_is_a_real_one(
    store: PostgresStore, direct: PostgresStore, proxy: CutProxy
) -> None:
    proxy.cuts = [Cut.BEFORE]

    async def meanwhile() -> None:
        await direct.commit([insert(T, P, "K", b"of another")])

    proxy.meanwhile = meanwhile
    with pytest.raises(Conflict):
        await store.commit([insert(T, P, "K", MARK)])


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
async def test_a_group_with_a_conflict_is_settled_for_each_caller(
    store: PostgresStore, direct: PostgresStore, proxy: CutProxy, cut: Cut
) -> None:
    await direct.commit([insert(T, P, "05", b"of another")])
    # The first sending meets the conflict, the second is the one with each caller apart.

    async def send(number: int) -> object:
        return await store.commit([insert(T, P, f"{number:02d}", MARK), put(T, P, f"x{number:02d}", b"")])

    proxy.cuts = [Cut.BEFORE, cut]
    outcomes = await asyncio.gather(*(send(number) for number in range(10)), return_exceptions=True)
    assert [isinstance(outcome, Conflict) for outcome in outcomes] == [number == 5 for number in range(10)]
    keys = [row.key for row in await direct.query(T, P, limit=100)]
    assert keys == [f"{n:02d}" for n in range(10)] + [f"x{n:02d}" for n in range(10) if n != 5]


async def test_refusals_of_an_earlier_group_are_not_those_of_a_commit_that_landed(
    url: str, direct: PostgresStore, proxy: CutProxy
) -> None:
    address = url.replace(str(postgres().port), str(proxy.port))
    store = await PostgresStore.open(PostgresAddress(url=address, writers_max=1))
    await direct.commit([insert(T, P, "0", b"of another")])
    commits = (store.commit([insert(T, P, f"{number}", b"")]) for number in range(3))
    outcomes = await asyncio.gather(*commits, return_exceptions=True)
    assert [isinstance(outcome, Conflict) for outcome in outcomes] == [True, False, False]
    for key in ("K1", "K2"):
        proxy.cuts = [Cut.AFTER]
        await store.commit([insert(T, P, key, MARK)])
        await store.commit([insert(T, P, f"after {key}", b"")])
    await store.close()


async def test_what_cannot_be_found_out_is_said(url: str, proxy: CutProxy) -> None:
    address = PostgresAddress(
        url=url.replace(str(postgres().port), str(proxy.port)),
        patience_seconds_max=0.5,
        connect_seconds_max=0.3,
    )
    store = await PostgresStore.open(address)
    await store.ping()
    proxy.cuts = [Cut.AFTER]

    async def meanwhile() -> None:
        proxy.silent = True

    proxy.meanwhile = meanwhile
    with pytest.raises(StoreError, match="not known") as caught:
        await store.commit([insert(T, P, "K", MARK)])
    assert not isinstance(caught.value, StoreUnavailable)
    proxy.silent = False
    assert await store.get(T, P, "K") is not None
    await store.ping()
    await store.close()


async def test_a_session_that_the_server_ends_while_nothing_is_asked_is_opened_again(
    store: PostgresStore, proxy: CutProxy
) -> None:
    """The last word of the server arrives, and the end of the connection does not yet."""
    said = b"SFATAL\0VFATAL\0C57P02\0Mterminating connection because of crash of another process\0\0"
    await store.on_nudge(lambda note: None)
    await store.get(T, P, "K")
    proxy.say(b"E" + (len(said) + 4).to_bytes(4, "big") + said)
    await asyncio.sleep(0.05)
    with pytest.raises(StoreUnavailable):
        await store.nudge(b"{}")
    await store.commit([insert(T, P, "K", b"1")])
    assert await store.get(T, P, "K") is not None


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER])
async def test_a_session_that_breaks_as_it_begins_says_nothing_of_the_commit_before(
    url: str, store: PostgresStore, direct: PostgresStore, proxy: CutProxy, cut: Cut
) -> None:
    """A writer whose session was ended while it was idle takes a new one, and that breaks before anything was
    sent on it."""
    await asyncio.gather(*(store.commit([insert(T, P, f"{number}", b"")]) for number in range(70)))
    ended = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
    await _run(url, f"{ended} AND pid <> pg_backend_pid()")
    await asyncio.sleep(0.05)
    proxy.mark = b"DELETE FROM lucius_store.writers WHERE began_at"
    proxy.cuts = [cut]
    outcomes = await asyncio.gather(*(store.commit([insert(T, P, f"after {n}", b"")]) for n in range(3)))
    assert proxy.cuts == []
    assert [row.key for row in await direct.query(T, P, start="after", limit=10)] == [
        f"after {n}" for n in range(3)
    ]
    assert all(etag for etags in outcomes for etag in etags)


async def test_a_process_that_begins_while_the_server_starts_waits_for_it(url: str) -> None:
    server = postgres()
    await asyncio.to_thread(server.stop)
    opening = asyncio.create_task(open_store(url))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(server.start)
    store = await opening
    await store.ping()
    await store.close()


# Groups


async def test_one_caller_that_cannot_be_served_leaves_the_others_alone(direct: PostgresStore) -> None:
    """A text that PostgreSQL refuses, though no key of ours has any: sent past the check."""
    outcomes = await asyncio.gather(
        *(direct.commit([insert(T, P, f"{n}", b"x")]) for n in range(5)),
        direct._written([Op(insert(T, P, "", b"").verb, "no such table", P, "K", b"")]),
        return_exceptions=True,
    )
    assert all(isinstance(outcome, list) for outcome in outcomes[:5])


async def test_long_places_are_refused_before_they_are_sent(direct: PostgresStore) -> None:
    long = "\U0001f600" * 500
    with pytest.raises(ValueError, match="at most 2600"):
        await direct.commit([insert(T, long, long, b"")])
    await direct.commit([insert(T, "p", long, b"")])
    assert await direct.get(T, "p", long) is not None


@pytest.mark.parametrize(
    "keys", [["", "\x00", "\x00\x00", "\x00\x01", "\x01", "\x01\x00", "\x01\x01", "\x02", "a\x00", "a\x01b"]]
)
def test_keys_keep_their_order(keys: list[str]) -> None:
    mapped = [key_to_text(key) for key in keys]
    assert sorted(keys) == keys
    assert sorted(mapped) == mapped
    assert [key_from_text(text) for text in mapped] == keys
    assert not any("\x00" in text for text in mapped)


# The server


async def test_a_server_that_crashes_loses_nothing_and_doubles_nothing(url: str) -> None:
    store = await open_store(url)
    answered: list[str] = []
    stopped = asyncio.Event()

    async def write(writer: int) -> None:
        number = 0
        while not stopped.is_set():
            key = f"{writer}-{number:05d}"
            await store.commit([insert(T, P, key, b""), insert("lucius_due", key, "K", b"")])
            answered.append(key)
            number += 1

    tasks = [asyncio.create_task(write(writer)) for writer in range(8)]
    for how in (None, signal.SIGINT, signal.SIGQUIT):
        await asyncio.sleep(0.5)
        before = len(answered)
        await asyncio.to_thread(postgres().kill if how is None else partial(postgres().stop, how=how))
        await asyncio.to_thread(postgres().start)
        while len(answered) < before + 20:
            await asyncio.sleep(0.05)
    stopped.set()
    await asyncio.gather(*tasks)
    found = [row.key for row in await store.query(T, P, limit=100_000)]
    assert found == sorted(answered)
    assert len(await store.scan("lucius_due", limit=100_000)) == len(answered)
    await store.close()


async def test_a_server_that_is_read_only_takes_reads_and_says_so(url: str, direct: PostgresStore) -> None:
    await direct.commit([insert(T, P, "K", b"1")])
    name = url.rpartition("/")[2]
    await _run(url, f"ALTER DATABASE {name} SET default_transaction_read_only = on")
    store = await PostgresStore.open(PostgresAddress(url=url, patience_seconds_max=0.3))
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.ping()
    with pytest.raises(StoreUnavailable, match="read-only"):
        await store.commit([insert(T, P, "K2", b"")])
    assert await store.get(T, P, "K") is not None
    await _run(postgres().url(), f"ALTER DATABASE {name} RESET ALL")
    await store.commit([insert(T, P, "K2", b"")])
    await store.close()


async def test_a_server_without_free_connections_is_busy(url: str, direct: PostgresStore) -> None:
    await direct.ping()
    plain = url.replace("lucius@", "plain@")
    await _run(url, "CREATE ROLE plain LOGIN SUPERUSER")
    try:
        await _run(url, "ALTER ROLE plain CONNECTION LIMIT 1")
        store = await PostgresStore.open(PostgresAddress(url=plain, patience_seconds_max=0.3))
        holder = await Connection.open(PostgresAddress(url=plain))
        try:
            await store.ping()
        except StoreUnavailable as fault:
            assert "too many connections" in str(fault)
        await holder.close()
        await store.ping()
        await store.close()
    finally:
        await _run(url, "DROP OWNED BY plain; DROP ROLE plain")


@pytest.mark.parametrize("kind", ["statement", "lock"])
async def test_a_lock_that_is_held_for_long_is_an_outage(url: str, direct: PostgresStore, kind: str) -> None:
    (etag,) = await direct.commit([insert(T, P, "K", b"1")])
    store = await PostgresStore.open(
        PostgresAddress(url=url, statement_seconds_max=0.2, patience_seconds_max=0.5)
    )
    await store.ping()
    blocker = await Connection.open(PostgresAddress(url=url), plans=False)
    await blocker.run("BEGIN")
    await blocker.fetch("UPDATE lucius_store.lucius_ledger SET sum = sum WHERE rk = 'K'")
    with pytest.raises(StoreUnavailable, match="timeout"):
        await store.commit([replace(T, P, "K", b"2", etag)])
    await store.commit([insert(T, P, f"beside {kind}", b"")])
    await blocker.run("ROLLBACK")
    await store.commit([replace(T, P, "K", b"2", etag)])
    await blocker.close()
    await store.close()


# The schema


async def test_many_processes_may_make_the_schema_at_once() -> None:
    made = await new_database(empty=True)
    stores = await asyncio.gather(*(open_store(made) for _ in range(6)))
    for number, store in enumerate(stores):
        await store.commit([insert(T, P, f"{number}", b"")])
    assert len(await stores[0].query(T, P, limit=10)) == 6
    for store in stores:
        await store.close()
    await drop_database(made)


async def test_a_migration_may_be_repeated(url: str, direct: PostgresStore) -> None:
    await direct.commit([insert(T, P, "K", b"1"), insert("came_later", P, "K", b"2")])
    connection = await Connection.open(PostgresAddress(url=url), plans=False)
    await migrate(connection, Tables(ledger="another_ledger"))
    await migrate(connection, Tables(meta="came_later"))
    await connection.close()
    for table in (T, "came_later", "another_ledger"):
        await direct.commit([put(table, P, "K", b"3")])
        row = await direct.get(table, P, "K")
        assert row is not None
        assert row.body == b"3"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (f"version = {SCHEMA_VERSION - 1}", "too old .*run `lucius provision postgres --apply`"),
        (f"version = {SCHEMA_VERSION + 2}, serves_from = {SCHEMA_VERSION + 1}", "too new .*update Lucius"),
    ],
)
async def test_a_schema_of_another_time_is_refused(url: str, change: str, words: str) -> None:
    """Also by a role that could change it: other processes may be at work on it."""
    await _run(url, f"UPDATE lucius_store.schema_version SET {change}")
    for creates in (False, True):
        with pytest.raises(UnusableDatabase, match=words):
            await PostgresStore.open(PostgresAddress(url=url), creates=creates)
    connection = await Connection.open(PostgresAddress(url=url), plans=False)
    ((version,),) = await connection.fetch("SELECT version FROM lucius_store.schema_version")
    await connection.close()
    assert version != SCHEMA_VERSION


async def test_the_next_version_serves_this_one_too(url: str) -> None:
    await _run(url, f"UPDATE lucius_store.schema_version SET version = {SCHEMA_VERSION + 1}")
    store = await PostgresStore.open(PostgresAddress(url=url), creates=False)
    await store.ping()
    await store.close()


async def test_a_database_without_a_schema_is_refused_where_none_is_to_be_made() -> None:
    made = await new_database(empty=True)
    with pytest.raises(
        UnusableDatabase, match="no schema of Lucius: run `lucius provision postgres --apply`"
    ):
        await PostgresStore.open(PostgresAddress(url=made), creates=False)
    await drop_database(made)


async def test_an_address_that_leads_nowhere_names_no_secret() -> None:
    address = PostgresAddress(
        url=f"postgresql://u:sesame@127.0.0.1:{postgres().port}/none", patience_seconds_max=0.1
    )
    with pytest.raises(StoreUnavailable) as caught:
        await PostgresStore.open(address)
    assert "sesame" not in str(caught.value)
    assert "sesame" not in repr(address)

"""How many rows there may be: PostgreSQL counts in the commit, whichever process it comes from."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import msgspec
import pytest
from tests.conformance.postgres_setup import new_database, open_store

from lucius.ledger.postgres.connection import Connection, PostgresAddress
from lucius.ledger.postgres.store import PostgresStore
from lucius.ledger.store import Bound, BoundReached, Conflict, Op, RowScope, discard, insert, put

pytestmark = pytest.mark.xdist_group("postgres")

T = "lucius_inflight"


@pytest.fixture
async def url() -> str:
    return await new_database()


@pytest.fixture
async def stores(url: str) -> AsyncIterator[list[PostgresStore]]:
    """Three processes."""
    opened = [await open_store(url) for _ in range(3)]
    yield opened
    await asyncio.gather(*(store.close() for store in opened))


def slot(partition: str, key: str, *bounds: Bound, body: bytes = b"{}") -> Op:
    return msgspec.structs.replace(put(T, partition, key, body), bounds=bounds)


@pytest.mark.parametrize("scope", RowScope)
async def test_a_row_too_many_is_refused_and_one_that_goes_makes_room(
    stores: list[PostgresStore], scope: RowScope
) -> None:
    two = Bound(scope, 2)
    first, other, _ = stores
    await first.commit([slot("acme", "1", two), insert("lucius_ledger", "1", "JOB", b"")])
    await other.commit([slot("acme", "2", two)])
    with pytest.raises(BoundReached) as refused:
        await first.commit([slot("acme", "3", two), insert("lucius_ledger", "3", "JOB", b"")])
    assert refused.value.bound == two
    assert await first.get("lucius_ledger", "3", "JOB") is None
    if scope is not RowScope.TABLE:  # what is counted apart has room
        await first.commit([slot("other", "3", two, body=b'{"mode":"OTHER"}')])
    await other.commit([discard(T, "acme", "1")])
    await first.commit([slot("acme", "4", two)] if scope is not RowScope.TABLE else [slot("x", "4", two)])
    with pytest.raises(BoundReached):
        await other.commit([slot("acme", "5", two)])


async def test_of_a_group_only_those_are_refused_that_find_no_room(stores: list[PostgresStore]) -> None:
    store = stores[0]
    await store.commit([insert("lucius_ledger", "7", "JOB", b"")])

    async def create(number: int) -> str:
        row = insert("lucius_ledger", f"{number}", "JOB", b"")
        try:
            await store.commit([row, slot("acme", f"{number}", Bound(RowScope.PARTITION, 10))])
        except (BoundReached, Conflict) as refused:
            return type(refused).__name__
        return "created"

    found = await asyncio.gather(*(create(number) for number in range(30)))
    assert found[7] == "Conflict"
    assert sorted(found) == ["BoundReached"] * 19 + ["Conflict"] + ["created"] * 10
    assert len(await store.query(T, "acme", limit=100)) == 10


async def test_processes_that_race_never_overshoot(stores: list[PostgresStore], url: str) -> None:
    bounds = Bound(RowScope.PARTITION, 7), Bound(RowScope.TABLE, 10)
    held = {"acme": 0, "other": 0}
    most, over = 0, asyncio.Event()

    async def client(number: int) -> int:
        store, tenant, created = stores[number % 3], ("acme", "other")[number % 2], 0
        for turn in range(12):
            key = f"{number}-{turn}"
            with suppress(BoundReached):
                await store.commit([slot(tenant, key, *bounds)])
                created += 1
                await asyncio.sleep(0.001)
                await store.commit([discard(T, tenant, key)])
        return created

    async def count() -> None:
        nonlocal most
        connection = await Connection.open(PostgresAddress(url=url), plans=False)
        while not over.is_set():
            rows = await connection.fetch(f"SELECT pk, count(*) AS n FROM lucius_store.{T} GROUP BY pk")
            counts = {row["pk"]: row["n"] for row in rows}
            most = max(most, sum(counts.values()))
            for tenant in held:
                held[tenant] = max(held[tenant], counts.get(tenant, 0))
        await connection.close()

    counting = asyncio.create_task(count())
    created = await asyncio.gather(*(client(number) for number in range(30)))
    over.set()
    await counting
    assert 0 < most <= 10
    assert max(held.values()) <= 7
    assert sum(created) > 30
    assert await stores[0].query(T, "acme", limit=10) == []


async def test_a_count_that_was_lost_is_taken_from_the_rows(stores: list[PostgresStore], url: str) -> None:
    two = Bound(RowScope.PARTITION, 2)
    await stores[0].commit([slot("acme", "1")])  # by a program that counts nothing
    await stores[0].commit([slot("acme", "2", two)])
    connection = await Connection.open(PostgresAddress(url=url), plans=False)
    await connection.run("DELETE FROM lucius_store.counts")
    await connection.close()
    with pytest.raises(BoundReached):
        await stores[1].commit([slot("acme", "3", two)])


async def test_programs_of_version_1_go_on(url: str, stores: list[PostgresStore]) -> None:
    connection = await Connection.open(PostgresAddress(url=url), plans=False)
    ((writer,),) = await connection.fetch("INSERT INTO lucius_store.writers DEFAULT VALUES RETURNING id")
    ((table,),) = await connection.fetch("SELECT id FROM lucius_store.tables WHERE name = $1", T)
    one = "lucius_store.commit($1, 1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
    values = [1], False, [table], [1], ["acme"], ["1"], [writer << 35], [0], [-1], [b"{}"]
    await connection.fetch(f"SELECT {one}", writer, *values)
    await connection.close()
    assert [row.key for row in await stores[0].query(T, "acme", limit=10)] == ["1"]

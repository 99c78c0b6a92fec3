"""Rows on Azurite: any key, any size, the columns they lie in, and what a call costs."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.core.credentials import AzureNamedKeyCredential
from azure.data.tables import EdmType
from azure.data.tables.aio import TableClient
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.azure_faults import FaultProxy, fault_proxy
from tests.conformance.azurite_setup import azurite, new_prefix, new_write_id, open_store

from lucius.ledger.azure_tables.entity import NOT_OURS, PART_BYTES_MAX, PARTS_MAX, EntityTooLarge
from lucius.ledger.azure_tables.names import key_to_azure, table_to_azure
from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius.ledger.checksums import DAMAGED
from lucius.ledger.names import Tables
from lucius.ledger.store import Row, StoreUnavailable, delete, discard, insert, put, replace
from lucius_lab.emulators.azurite import ACCOUNT, ACCOUNT_KEY, HOST

pytestmark = pytest.mark.xdist_group("azurite")
T, P = "lucius_ledger", "job_1"
EDGES = "\x00\x1f #/\\?%'+&\x7f\x9fé€\ue000\uffff\U0001f600ab"


@pytest.fixture
async def proxy() -> AsyncIterator[FaultProxy]:
    async with fault_proxy(azurite().port) as ready:
        yield ready


@pytest.fixture
async def store(proxy: FaultProxy) -> AsyncIterator[AzureTablesStore]:
    store = await open_store(connection_string=proxy.connection_string, prefix=new_prefix())
    await store.commit([put(T, "warm", "up", b"")])  # the table is there
    proxy.passed.clear()
    yield store
    await store.close()


async def _stored_or_refused(cases: list[tuple[str, str]]) -> None:
    store = await open_store()
    try:
        for number, (partition, key) in enumerate(cases):
            body = b"%d" % number
            try:
                (etag,) = await store.commit([put(T, partition, key, body)])
            except ValueError as refused:
                assert "in Azure, at most" in str(refused) or "longer than" in str(refused)
                assert len(key) > 170 or len(partition) > 170
                continue
            assert await store.get(T, partition, key) == Row(key, etag, body)
            rows = await store.query(T, partition, start=key, limit=1)
            assert rows == [Row(key, etag, body)]
            assert await store.query(T, partition, start=key + "\x00", end=key + "\x00\x00", limit=1) == []
    finally:
        await store.close()


_LETTERS = st.one_of(st.sampled_from(EDGES), st.characters(exclude_categories=["Cs"]))
_KEYS = st.one_of(
    st.text(_LETTERS, max_size=12),
    st.builds(
        lambda text, times: text * times, st.text(_LETTERS, min_size=1, max_size=3), st.integers(1, 600)
    ),
)


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(_KEYS, _KEYS), min_size=1, max_size=4))
def test_any_key_is_stored_and_found_or_refused(cases: list[tuple[str, str]]) -> None:
    asyncio.run(_stored_or_refused(cases))


async def test_rows_of_every_size_come_back(store: AzureTablesStore) -> None:
    chance = random.Random(7)
    bodies = [b"x" * 32_768, b"x" * 32_769, "é".encode() * 30_000, b'"\\' * 16_384, b"\x00", b"{}\n"]
    bodies += [chance.randbytes(size) for size in (PART_BYTES_MAX - 100, PART_BYTES_MAX + 1, 700_000)]
    for number, body in enumerate(bodies):
        (etag,) = await store.commit([put(T, P, f"{number:02d}", body)])
        assert await store.get(T, P, f"{number:02d}") == Row(f"{number:02d}", etag, body)
    assert [row.body for row in await store.query(T, P, limit=100)] == bodies


# aiohttp would have megabytes come from a file; Azure takes no more than four of them at a time.
@pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")
async def test_what_is_too_large_never_leaves(proxy: FaultProxy, store: AzureTablesStore) -> None:
    chance = random.Random(7)
    with pytest.raises(EntityTooLarge, match="at most 720896"):
        await store.commit(
            [put(T, P, "fits", b""), put(T, P, "K", chance.randbytes(PARTS_MAX * PART_BYTES_MAX))]
        )
    with pytest.raises(EntityTooLarge, match="at most 4194304"):
        await store.commit([put(T, P, f"{n}", chance.randbytes(400_000)) for n in range(8)])
    assert proxy.passed == []
    # Just below: seven of them are 3.7 MB on the wire.
    assert len(await store.commit([put(T, P, f"{n}", chance.randbytes(390_000)) for n in range(7)])) == 7


async def _entity(prefix: str, key: str) -> tuple[TableClient, Any]:
    client = TableClient.from_connection_string(azurite().connection_string, table_to_azure(prefix, T))
    return client, await client.get_entity(P, key_to_azure(key))


async def test_the_columns_of_a_row() -> None:
    prefix = new_prefix()
    store = await open_store(prefix=prefix)
    await store.commit(
        [put(T, P, "STEP#0", b'{"a":1}'), put(T, P, "large", random.Random(7).randbytes(70_000))]
    )
    client, entity = await _entity(prefix, "STEP#0")
    async with client:
        assert entity["Body"] == '{"a":1}' and entity["RowKey"] == "STEP!Z0"
        assert (entity["Bytes"].value, entity["Bytes"].edm_type) == (7, EdmType.INT64)
        large = await client.get_entity(P, "large")
        assert len(large["Part00"]) == PART_BYTES_MAX and 4_464 < len(large["Part01"]) < 4_600
        entity["Body"] = '{"a":2345}'
        await client.update_entity(entity)
        row = await store.get(T, P, "STEP#0")
        assert row is not None and row.damage == NOT_OURS and row.body == b""
        entity["Body"] = '{"a":2}'
        await client.update_entity(entity)
        (row, other) = await store.query(T, P, limit=2)
        assert row.damage == DAMAGED and row.body == b"" and not other.damage
    await store.close()


async def test_what_calls_cost(proxy: FaultProxy, store: AzureTablesStore) -> None:
    async def cost(call: Any) -> int:
        proxy.passed.clear()
        await call
        return len(proxy.passed)

    rows = [insert(T, P, f"{n:03d}", b"{}") for n in range(5)]
    assert await cost(store.commit(rows)) == 1
    (etag,) = await store.commit([insert(T, P, "JOB", b"{}")])
    assert await cost(store.commit([replace(T, P, "JOB", b"[]", etag), put(T, P, "000", b"")])) == 1
    assert await cost(store.get(T, P, "JOB")) == 1
    assert await cost(store.query(T, P, limit=100)) == 1
    assert await cost(store.query(T, P, limit=2)) == 1
    assert await cost(store.commit([discard(T, P, "000")])) == 1
    assert await cost(store.commit([])) == 0
    # A removal of what is not there costs one more in a transaction, which it would otherwise fail.
    assert await cost(store.commit([discard(T, P, "none"), put(T, P, "a", b""), discard(T, P, "001")])) == 2


async def test_the_tables_are_made_once_and_found_missing(proxy: FaultProxy) -> None:
    prefix = new_prefix()
    store = await open_store(connection_string=proxy.connection_string, prefix=prefix)
    await store.create_tables()
    await store.create_tables()
    proxy.passed.clear()
    (etag,) = await store.commit([insert(Tables().ledger, P, "JOB", b"")])
    await store.commit([delete(Tables().ledger, P, "JOB", etag)])
    assert len(proxy.passed) == 2
    assert await store.get("another", P, "JOB") is None
    await store.ping()
    await store.close()


async def test_installations_do_not_meet() -> None:
    mine, theirs = await open_store(prefix="a"), await open_store(prefix="ab")
    await mine.commit([insert("bjobs", P, "K", b"mine")])
    assert await theirs.get("jobs", P, "K") is None
    await theirs.commit([insert("jobs", P, "K", b"theirs")])
    row = await mine.get("bjobs", P, "K")
    assert row is not None and row.body == b"mine"
    await mine.close()
    await theirs.close()


async def test_an_account_and_a_credential() -> None:
    url = f"http://{HOST}:{azurite().port}/{ACCOUNT}"
    store = await AzureTablesStore.open(
        account_url=url,
        credential=AzureNamedKeyCredential(ACCOUNT, ACCOUNT_KEY),
        new_write_id=new_write_id,
        prefix=new_prefix(),
    )
    await store.ping()
    await store.close()
    with pytest.raises(ValueError, match="a connection string, or"):
        await AzureTablesStore.open(account_url=url, new_write_id=new_write_id)


async def test_a_wrong_key_is_no_reason_to_wait() -> None:
    store = await AzureTablesStore.open(
        account_url=f"http://{HOST}:{azurite().port}/{ACCOUNT}",
        credential=AzureNamedKeyCredential(ACCOUNT, "d3Jvbmc="),
        new_write_id=new_write_id,
        patience_seconds_max=600.0,
    )
    for call in (store.ping(), store.get(T, P, "K"), store.query(T, P, limit=1), store.create_tables()):
        with pytest.raises(StoreUnavailable, match="403"):
            await call
    await store.close()


async def test_an_answer_that_was_cut_is_put_together(proxy: FaultProxy, store: AzureTablesStore) -> None:
    (etag, *_) = await store.commit([put(T, P, key, b"1") for key in ("JOB", "OUTBOX", "STEP")])
    proxy.rows_per_page = 1
    proxy.passed.clear()
    assert [row.body for row in await store.query(T, P, start="JOB", limit=200)] == [b"1"] * 3
    assert len(proxy.passed) == 4  # three pages, and a look at the first row again
    assert [row.key for row in await store.query(T, P, start="JOB", limit=1)] == ["JOB"]
    # All rows change between the first page and the second.
    other = await open_store(prefix=store._prefix)
    changes = [replace(T, P, "JOB", b"2", etag), put(T, P, "OUTBOX", b"2"), put(T, P, "STEP", b"2")]
    pages = 0

    async def change_before_the_second() -> None:
        nonlocal pages
        pages += 1
        if pages == 2:
            await other.commit(changes)

    proxy.before_pages = change_before_the_second
    assert [row.body for row in await store.query(T, P, start="JOB", limit=200)] == [b"2"] * 3
    await other.close()

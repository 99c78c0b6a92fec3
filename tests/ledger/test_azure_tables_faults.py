"""A wire that fails: no write is lost, none is done twice, and what is said of an outcome is true."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from tests.conformance.azure_faults import AFTER, BEFORE, Fault, FaultProxy, fault_proxy
from tests.conformance.azurite_setup import azurite, new_prefix, open_store

from lucius.bus.nats.server import free_port
from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius.ledger.store import (
    Conflict,
    Op,
    Row,
    StoreError,
    StoreUnavailable,
    delete,
    discard,
    insert,
    put,
    replace,
)
from lucius_lab.emulators.azurite import connection_string

pytestmark = pytest.mark.xdist_group("azurite")
T, P = "lucius_ledger", "job_1"
Prepare = Callable[[AzureTablesStore], Awaitable[list[Op]]]


class Setup:
    """The store behind the proxy, and somebody else who has a wire of his own to the same tables."""

    def __init__(self, proxy: FaultProxy, store: AzureTablesStore, other: AzureTablesStore) -> None:
        self.proxy, self.store, self.other = proxy, store, other

    async def rows(self) -> dict[str, bytes]:
        return {row.key: row.body for row in await self.other.query(T, P, limit=100)}

    async def row(self, key: str) -> Row:
        row = await self.other.get(T, P, key)
        assert row is not None
        return row


@pytest.fixture
async def setup() -> AsyncIterator[Setup]:
    async with fault_proxy(azurite().port) as proxy:
        prefix = new_prefix()
        store = await open_store(connection_string=proxy.connection_string, prefix=prefix)
        other = await open_store(prefix=prefix)
        await store.commit([put(T, "warm", "up", b"")])  # the table is there, and a connection is open
        proxy.passed.clear()
        yield Setup(proxy, store, other)
        await store.close()
        await other.close()


async def _insert(store: AzureTablesStore) -> list[Op]:
    return [insert(T, P, "new", b"mine")]


async def _replace(store: AzureTablesStore) -> list[Op]:
    (etag,) = await store.commit([insert(T, P, "old", b"old")])
    return [replace(T, P, "old", b"mine", etag)]


async def _delete(store: AzureTablesStore) -> list[Op]:
    (etag,) = await store.commit([insert(T, P, "old", b"old")])
    return [delete(T, P, "old", etag)]


async def _put(store: AzureTablesStore) -> list[Op]:
    await store.commit([insert(T, P, "old", b"old")])
    return [put(T, P, "old", b"mine")]


async def _discard(store: AzureTablesStore) -> list[Op]:
    await store.commit([insert(T, P, "old", b"old")])
    return [discard(T, P, "old")]


async def _several(store: AzureTablesStore) -> list[Op]:
    job, gone = await store.commit([insert(T, P, "JOB", b"1"), insert(T, P, "gone", b"")])
    return [
        put(T, P, "STEP", b"mine"),
        replace(T, P, "JOB", b"mine", job),
        delete(T, P, "gone", gone),
        insert(T, P, "EVENT", b"mine"),
    ]


async def _removals(store: AzureTablesStore) -> list[Op]:
    one, two = await store.commit([insert(T, P, "1", b""), insert(T, P, "2", b"")])
    return [delete(T, P, "1", one), delete(T, P, "2", two)]


WRITES: list[Prepare] = [_insert, _replace, _delete, _put, _discard, _several, _removals]


@pytest.mark.parametrize("fault", [*BEFORE, *AFTER], ids=lambda fault: fault.value)
@pytest.mark.parametrize("prepare", WRITES, ids=lambda prepare: prepare.__name__.strip("_"))
async def test_a_write_is_done_once_whatever_happens_on_the_way(
    setup: Setup, prepare: Prepare, fault: Fault
) -> None:
    ops = await prepare(setup.store)
    written = {op.key: op.body for op in ops if op.body}
    setup.proxy.passed.clear()
    setup.proxy.once(fault)
    etags = await setup.store.commit(ops)
    rows = await setup.rows()
    assert {key: rows.get(key) for key in written} == written
    assert not rows.keys() & {op.key for op in ops if not op.body}
    for op, etag in zip(ops, etags, strict=True):
        assert (etag != "") == bool(op.body)
        if etag:
            assert (await setup.row(op.key)).etag == etag
    assert setup.proxy.writes == 1  # what was passed on is not sent again


@pytest.mark.parametrize("fault", AFTER, ids=lambda fault: fault.value)
async def test_what_was_written_and_changed_since_counts_as_written(setup: Setup, fault: Fault) -> None:
    async def change() -> None:
        row = await setup.row("new")
        await setup.other.commit([replace(T, P, "new", b"theirs", row.etag)])

    setup.proxy.once(fault)
    setup.proxy.meanwhile = change
    (etag,) = await setup.store.commit([insert(T, P, "new", b"mine")])
    assert await setup.rows() == {"new": b"theirs"}
    with pytest.raises(Conflict):  # our version is gone, and its ETag with it
        await setup.store.commit([replace(T, P, "new", b"again", etag)])


async def test_one_row_of_a_commit_tells_for_all(setup: Setup) -> None:
    """JOB was changed over and over since, and the event that was inserted with it still tells."""
    (job,) = await setup.store.commit([insert(T, P, "JOB", b"0")])

    async def change() -> None:
        for number in range(9):
            row = await setup.row("JOB")
            await setup.other.commit([replace(T, P, "JOB", b"theirs %d" % number, row.etag)])

    setup.proxy.once(Fault.DROPPED_AFTER)
    setup.proxy.meanwhile = change
    await setup.store.commit([replace(T, P, "JOB", b"mine", job), insert(T, P, "EVENT", b"mine")])
    assert await setup.rows() == {"EVENT": b"mine", "JOB": b"theirs 8"}


@pytest.mark.parametrize("fault", [Fault.DROPPED_AFTER, Fault.DROPPED_BEFORE])
async def test_what_nobody_can_tell_is_not_called_a_conflict(setup: Setup, fault: Fault) -> None:
    (job,) = await setup.store.commit([insert(T, P, "JOB", b"0")])

    async def change() -> None:
        for _ in range(9):
            row = await setup.row("JOB")
            await setup.other.commit([replace(T, P, "JOB", b"theirs", row.etag)])

    setup.proxy.once(fault)
    setup.proxy.meanwhile = change
    with pytest.raises(StoreError, match="too often") as caught:
        await setup.store.commit([replace(T, P, "JOB", b"mine", job)])
    assert type(caught.value) is StoreError
    assert await setup.rows() == {"JOB": b"theirs"}


async def _theirs(setup: Setup) -> None:
    for key in ("new", "old"):
        row = await setup.other.get(T, P, key)
        if row is not None:
            await setup.other.commit([replace(T, P, key, b"theirs", row.etag)])
        elif key == "new":
            await setup.other.commit([insert(T, P, key, b"theirs")])


@pytest.mark.parametrize("fault", BEFORE, ids=lambda fault: fault.value)
@pytest.mark.parametrize(
    "prepare", [_insert, _replace, _delete], ids=lambda prepare: prepare.__name__.strip("_")
)
async def test_a_conflict_after_a_fault_is_one(setup: Setup, prepare: Prepare, fault: Fault) -> None:
    (op,) = await prepare(setup.store)
    setup.proxy.once(fault)
    setup.proxy.meanwhile = lambda: _theirs(setup)
    with pytest.raises(Conflict) as caught:
        await setup.store.commit([op])
    assert (caught.value.index, caught.value.op) == (0, op)
    assert (await setup.rows())[op.key] == b"theirs"


@pytest.mark.parametrize(
    "prepare", [_insert, _replace, _several], ids=lambda prepare: prepare.__name__.strip("_")
)
async def test_a_copy_that_comes_late_leaves_nothing(setup: Setup, prepare: Prepare) -> None:
    """The first copy is under way while the second is written, and a third party builds upon that."""
    ops = await prepare(setup.store)
    setup.proxy.once(Fault.LATE)
    await setup.store.commit(ops)
    for op in ops:
        if op.body:
            row = await setup.row(op.key)
            await setup.other.commit([replace(T, P, op.key, b"theirs", row.etag)])
    before = await setup.rows()
    await setup.proxy.release()
    assert await setup.rows() == before
    assert set(before.values()) == {b"theirs"}


async def test_a_store_that_stays_busy_is_unavailable(setup: Setup) -> None:
    hurried = await open_store(
        connection_string=setup.proxy.connection_string, prefix=new_prefix(), patience_seconds_max=0.3
    )
    setup.proxy.choose = lambda _: Fault.BUSY
    calls = [hurried.get(T, P, "K"), hurried.query(T, P, limit=1), hurried.commit([insert(T, P, "K", b"")])]
    for call in (*calls, hurried.ping(), hurried.create_tables()):
        with pytest.raises(StoreUnavailable, match="503 ServerBusy"):
            await call
    assert setup.proxy.passed == []
    await hurried.close()


async def test_an_outcome_that_stays_unknown_is_called_so(setup: Setup) -> None:
    hurried = await open_store(
        connection_string=setup.proxy.connection_string,
        prefix=setup.store._prefix,
        patience_seconds_max=0.3,
    )
    for fault in (Fault.DROPPED_AFTER, Fault.DROPPED_BEFORE):
        setup.proxy.choose = lambda call, fault=fault: fault if call.writes else Fault.BUSY  # type: ignore[misc]
        with pytest.raises(StoreError) as caught:
            await hurried.commit([insert(T, P, fault.value, b"")])
        assert type(caught.value) is StoreError
    assert set(await setup.rows()) == {"dropped-after"}
    await hurried.close()


async def test_nobody_listens() -> None:
    store = await open_store(connection_string=connection_string(free_port()), patience_seconds_max=0.2)
    for call in (store.ping(), store.get(T, P, "K"), store.query(T, P, limit=1)):
        with pytest.raises(StoreUnavailable):
            await call
    await store.close()


async def test_reads_get_through(setup: Setup) -> None:
    await setup.other.commit([put(T, P, f"{n:02d}", b"%d" % n) for n in range(6)])
    faults = [Fault.BUSY, Fault.DROPPED_AFTER, Fault.TIMED_OUT_BEFORE, Fault.GATEWAY_AFTER]
    calls = 0

    def every_second(_: object) -> Fault | None:
        nonlocal calls
        calls += 1
        return faults[calls // 2 % 4] if calls % 2 else None

    setup.proxy.choose = every_second
    setup.proxy.rows_per_page = 2
    assert [row.body for row in await setup.store.query(T, P, limit=100)] == [b"%d" % n for n in range(6)]
    for number in range(6):
        assert (await setup.store.get(T, P, f"{number:02d}")) is not None
    assert await setup.store.get(T, P, "none") is None


async def test_a_table_is_created_through_a_bad_wire(setup: Setup) -> None:
    faults = [Fault.TIMED_OUT_AFTER, Fault.DROPPED_BEFORE, Fault.BUSY]
    setup.proxy.choose = lambda call: faults.pop() if faults and call.url.path.endswith("/Tables") else None
    await setup.store.commit([insert("another", P, "K", b"mine")])
    assert faults == []
    row = await setup.other.get("another", P, "K")
    assert row is not None and row.body == b"mine"


async def test_giving_up_waiting_leaves_the_store_usable(setup: Setup) -> None:
    """Whoever waits for a commit may stop waiting; others go on over the same connections."""
    asked = asyncio.Event()

    def busy(_: object) -> Fault:
        asked.set()
        return Fault.BUSY

    setup.proxy.choose = busy
    waiting = asyncio.ensure_future(setup.store.commit([insert(T, P, "K", b"")]))
    await asked.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    setup.proxy.once()
    await setup.store.commit([insert(T, P, "K", b"")])
    assert set(await setup.rows()) == {"K"}

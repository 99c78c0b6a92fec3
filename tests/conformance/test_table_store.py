"""What every table store does alike. A new adapter joins by one more name in `stores.EVERY_KIND`."""

import pytest
from tests.conformance.stores import ALL, P, Store, T, keys, one, store

from lucius.ledger.store import (
    KEY_LENGTH_MAX,
    OPS_MAX,
    Conflict,
    Op,
    Row,
    SpanRefused,
    Verb,
    delete,
    discard,
    insert,
    put,
    replace,
)

__all__ = ["store"]


# Verbs


async def test_insert_then_get(store: Store) -> None:
    etag = await one(store, insert(T, P, "JOB", b'{"a":1}'))
    assert etag != ""
    assert await store.get(T, P, "JOB") == Row("JOB", etag, b'{"a":1}')


async def test_what_is_not_there_is_none(store: Store) -> None:
    assert await store.get(T, P, "JOB") is None
    assert await store.query(T, P, limit=ALL) == []
    await one(store, insert(T, P, "JOB", b"1"))
    assert await store.get(T, P, "STEP") is None
    assert await store.get(T, "job_2", "JOB") is None
    assert await store.get("another", P, "JOB") is None
    assert await store.query(T, "job_2", limit=ALL) == []


async def test_tables_and_partitions_are_apart(store: Store) -> None:
    places = [(T, P), (T, "job_2"), ("job-idempotency", P), ("Jobs", P), ("jobs", P)]
    for number, (table, partition) in enumerate(places):
        await one(store, insert(table, partition, "K", b"%d" % number))
    for number, (table, partition) in enumerate(places):
        (row,) = await store.query(table, partition, limit=ALL)
        assert row.body == b"%d" % number


async def test_insert_conflicts_with_a_row(store: Store) -> None:
    etag = await one(store, insert(T, P, "JOB", b"first"))
    with pytest.raises(Conflict) as caught:
        await one(store, insert(T, P, "JOB", b"second"))
    assert caught.value.index == 0
    assert caught.value.op.body == b"second"
    assert await store.get(T, P, "JOB") == Row("JOB", etag, b"first")


async def test_replace_wants_the_etag(store: Store) -> None:
    old = await one(store, insert(T, P, "JOB", b"1"))
    new = await one(store, replace(T, P, "JOB", b"2", old))
    assert new != old
    assert await store.get(T, P, "JOB") == Row("JOB", new, b"2")
    for stale in (old, "", "nonsense", "*", f"0{new}", f" {new}"):
        with pytest.raises(Conflict):
            await one(store, replace(T, P, "JOB", b"3", stale))
    with pytest.raises(Conflict):
        await one(store, replace(T, P, "missing", b"3", new))
    assert await store.get(T, P, "JOB") == Row("JOB", new, b"2")


async def test_delete_wants_the_etag(store: Store) -> None:
    old = await one(store, insert(T, P, "JOB", b"1"))
    new = await one(store, replace(T, P, "JOB", b"2", old))
    for stale in (old, "", "nonsense"):
        with pytest.raises(Conflict):
            await one(store, delete(T, P, "JOB", stale))
    assert await one(store, delete(T, P, "JOB", new)) == ""
    assert await store.get(T, P, "JOB") is None
    with pytest.raises(Conflict):
        await one(store, delete(T, P, "JOB", new))


async def test_put_and_discard_take_what_is_there(store: Store) -> None:
    first = await one(store, put(T, P, "K", b"1"))
    second = await one(store, put(T, P, "K", b"2"))
    assert first != second
    assert await store.get(T, P, "K") == Row("K", second, b"2")
    assert await one(store, discard(T, P, "K")) == ""
    assert await store.get(T, P, "K") is None
    assert await one(store, discard(T, P, "K")) == ""
    assert await one(store, discard("never_written", P, "K")) == ""


async def test_an_etag_never_comes_back(store: Store) -> None:
    seen: set[str] = set()
    for _ in range(5):
        etag = await one(store, insert(T, P, "K", b"same"))
        seen.add(etag)
        etag = await one(store, replace(T, P, "K", b"same", etag))
        seen.add(etag)
        await one(store, delete(T, P, "K", etag))
    assert len(seen) == 10
    await one(store, insert(T, P, "K", b"same"))
    for stale in seen:
        with pytest.raises(Conflict):
            await one(store, replace(T, P, "K", b"other", stale))


async def test_bodies_come_back_byte_for_byte(store: Store) -> None:
    bodies = [b"", b"\x00\xff" * 10, "ünïcödé".encode(), b"x" * 900_000]
    for number, body in enumerate(bodies):
        await one(store, insert(T, P, f"{number}", body))
    assert [row.body for row in await store.query(T, P, limit=ALL)] == bodies


# Commits


async def test_one_etag_for_each_op(store: Store) -> None:
    gone = await one(store, insert(T, P, "gone", b""))
    kept = await one(store, insert(T, P, "kept", b""))
    etags = await store.commit(
        [
            insert(T, P, "new", b"n"),
            replace(T, P, "kept", b"k", kept),
            delete(T, P, "gone", gone),
            put(T, P, "put", b"p"),
            discard(T, P, "nothing"),
        ]
    )
    assert (etags[2], etags[4]) == ("", "")
    rows = await store.query(T, P, limit=ALL)
    assert rows == [Row("kept", etags[1], b"k"), Row("new", etags[0], b"n"), Row("put", etags[3], b"p")]
    assert len({etags[0], etags[1], etags[3], gone, kept}) == 5


@pytest.mark.parametrize("verb", [Verb.INSERT, Verb.REPLACE, Verb.DELETE])
async def test_a_conflict_names_its_op_and_leaves_nothing(store: Store, verb: Verb) -> None:
    kept = await one(store, insert(T, P, "kept", b"old"))
    gone = await one(store, insert(T, P, "gone", b"old"))
    await one(store, insert(T, P, "over", b"old"))
    taken = await one(store, insert(T, P, "taken", b"old"))
    before = await store.query(T, P, limit=ALL)
    losing = Op(verb, T, P, "taken", b"new", f"{taken}9")
    good = [
        insert(T, P, "new", b""),
        replace(T, P, "kept", b"new", kept),
        delete(T, P, "gone", gone),
        put(T, P, "over", b"new"),
    ]
    for index in range(len(good) + 1):
        with pytest.raises(Conflict) as caught:
            await store.commit([*good[:index], losing, *good[index:]])
        assert (caught.value.index, caught.value.op) == (index, losing)
        assert await store.query(T, P, limit=ALL) == before


async def test_the_first_of_two_conflicts_is_named(store: Store) -> None:
    await store.commit([insert(T, P, "a", b""), insert(T, P, "b", b"")])
    with pytest.raises(Conflict) as caught:
        await store.commit([put(T, P, "c", b""), insert(T, P, "b", b""), insert(T, P, "a", b"")])
    assert caught.value.index == 1


async def test_nothing_is_a_commit_too(store: Store) -> None:
    assert await store.commit([]) == []


async def test_spans_or_refuses(store: Store) -> None:
    for other in (insert(T, "job_2", "K", b"2"), insert("another", P, "K", b"2")):
        ops = [insert(T, P, f"K-{other.table}-{other.partition}", b"1"), other]
        if store.spans:
            assert len(await store.commit(ops)) == 2
        else:
            with pytest.raises(SpanRefused):
                await store.commit(ops)
        written = [await store.get(op.table, op.partition, op.key) is not None for op in ops]
        assert written == [store.spans, store.spans]


async def test_a_conflict_rolls_back_every_partition(store: Store) -> None:
    if not store.spans:
        with pytest.raises(SpanRefused):
            await store.commit([put(T, "a", "K", b""), put(T, "b", "K", b"")])
        return
    await one(store, insert("x", "a", "K", b""))
    with pytest.raises(Conflict) as caught:
        await store.commit(
            [insert("fresh", "a", "K", b""), put(T, "b", "K", b""), insert("x", "a", "K", b"")]
        )
    assert caught.value.index == 2
    assert await store.get("fresh", "a", "K") is None
    assert await store.get(T, "b", "K") is None
    await one(store, insert("fresh", "a", "K", b"now"))


# Limits


async def test_the_most_ops_a_partition_takes(store: Store) -> None:
    await store.commit([insert(T, P, f"{n:03d}", b"") for n in range(OPS_MAX)])
    assert len(await keys(store)) == OPS_MAX
    with pytest.raises(ValueError, match="at most 100"):
        await store.commit([insert(T, P, f"x{n:03d}", b"") for n in range(OPS_MAX + 1)])
    assert len(await keys(store)) == OPS_MAX


async def test_the_bound_is_per_partition(store: Store) -> None:
    ops = [insert(T, f"p{n % 2}", f"{n}", b"") for n in range(2 * OPS_MAX)]
    if not store.spans:
        with pytest.raises(SpanRefused):
            await store.commit(ops)
        return
    assert len(await store.commit(ops)) == 2 * OPS_MAX


async def test_a_row_is_named_once_in_a_commit(store: Store) -> None:
    with pytest.raises(ValueError, match="twice"):
        await store.commit([insert(T, P, "other", b""), put(T, P, "K", b"1"), discard(T, P, "K")])
    assert await keys(store) == []


@pytest.mark.parametrize("key", ["k" * (KEY_LENGTH_MAX + 1), "\ud800"])
async def test_keys_have_a_bound_and_are_text(store: Store, key: str) -> None:
    with pytest.raises(ValueError):
        await store.commit([insert(T, P, "fine", b""), insert(T, P, key, b"")])
    with pytest.raises(ValueError):
        await store.commit([insert(T, key, "K", b"")])
    assert await keys(store) == []


@pytest.mark.parametrize("table", ["", "1abc", 'a"b', "a b", "a;b", "_store", "sqlite_x", "a" * 64, "ä"])
async def test_table_names_are_plain(store: Store, table: str) -> None:
    with pytest.raises(ValueError, match="table name"):
        await one(store, insert(table, P, "K", b""))
    with pytest.raises(ValueError, match="table name"):
        await store.get(table, P, "K")
    with pytest.raises(ValueError, match="table name"):
        await store.query(table, P, limit=1)


async def test_a_body_is_bytes(store: Store) -> None:
    with pytest.raises(TypeError):
        await store.commit([insert(T, P, "K", "text")])  # type: ignore[arg-type]
    assert await keys(store) == []


# Order

STRANGE = ["", " ", "#", "%", "'", "/", "0", "10", "2", "?", "A", "\\", "_", "a", "a\x00b", "a b", "ab", "aé"]
STRANGE += ["~", "\x7f", "é", "ß", "€", "\ue000", "\uffff", "\U00010000", "\U0001f600", "k" * KEY_LENGTH_MAX]


async def test_rows_come_in_the_order_of_code_points(store: Store) -> None:
    await store.commit([insert(T, P, key, key.encode()) for key in reversed(STRANGE)])
    rows = await store.query(T, P, limit=ALL)
    assert [row.key for row in rows] == sorted(STRANGE)
    assert all(row.body == row.key.encode() for row in rows)
    for key in STRANGE:
        assert await keys(store, start=key, limit=1) == [key]
        row = await store.get(T, P, key)
        assert row is not None
        assert row.key == key


async def test_start_is_in_and_end_is_out(store: Store) -> None:
    await store.commit([insert(T, P, key, b"") for key in "abcde"])
    assert await keys(store, start="b", end="d") == ["b", "c"]
    assert await keys(store, start="bb", end="dd") == ["c", "d"]
    assert await keys(store, start="c") == ["c", "d", "e"]
    assert await keys(store, end="c") == ["a", "b"]
    assert await keys(store, start="d", end="b") == []
    assert await keys(store, start="c", end="c") == []
    assert await keys(store, start="f") == []


async def test_limit(store: Store) -> None:
    await store.commit([insert(T, P, key, b"") for key in "abcde"])
    assert await keys(store, limit=2) == ["a", "b"]
    assert await keys(store, start="b", end="e", limit=2) == ["b", "c"]
    assert await keys(store, start="b", end="e", limit=9) == ["b", "c", "d"]
    assert await keys(store, limit=0) == []
    with pytest.raises(ValueError, match="-1 rows"):
        await keys(store, limit=-1)


# Scans


async def _scanned(store: Store, table: str, *, limit: int, key: str | None = None) -> list[tuple[str, str]]:
    """Every place of a table, read page by page."""
    found: list[tuple[str, str]] = []
    after: tuple[str, str] | None = None
    while True:
        page = await store.scan(table, after=after, limit=limit, key=key)
        found += [row.place for row in page]
        assert len(page) <= limit
        if len(page) < limit:
            return found
        after = page[-1].place


SCANNED = sorted(
    (partition, key)
    for partition in ("job_1", "job_10", "job_2", "tenant#é#202701", "z/?#\\", "Ω")
    for key in ("EVENT#00000001", "JOB", "STEP#0#step_01", "é#1")
)


@pytest.mark.parametrize("limit", [1, 3, 7, ALL])
async def test_a_scan_reads_a_whole_table_in_order(store: Store, limit: int) -> None:
    for partition, key in reversed(SCANNED):
        await one(store, insert(T, partition, key, partition.encode() + key.encode()))
    await one(store, insert("another", "job_1", "JOB", b"1"))
    assert await _scanned(store, T, limit=limit) == SCANNED
    jobs = [place for place in SCANNED if place[1] == "JOB"]
    assert await _scanned(store, T, limit=limit, key="JOB") == jobs


async def test_a_scan_gives_rows_as_they_are(store: Store) -> None:
    etag = await one(store, insert(T, P, "JOB", b'{"a":1}'))
    (row,) = await store.scan(T, limit=ALL)
    assert (row.partition, row.key, row.etag, row.body, row.damage) == (P, "JOB", etag, b'{"a":1}', "")
    assert await store.scan(T, after=(P, "JOB"), limit=ALL) == []
    assert await store.scan(T, after=(P, "EVENT"), limit=ALL, key="JOB") == [row]
    assert await store.scan(T, after=(P, "JOB"), limit=ALL, key="JOB") == []
    assert await store.scan(T, limit=0) == []
    assert await store.scan("nothing", limit=ALL) == []
    with pytest.raises(ValueError, match="cannot return"):
        await store.scan(T, limit=-1)


async def test_a_scan_forgets_partitions_that_are_empty(store: Store) -> None:
    for partition in ("a", "b", "c"):
        await one(store, insert(T, partition, "JOB", b"1"))
    await one(store, discard(T, "b", "JOB"))
    assert await _scanned(store, T, limit=1) == [("a", "JOB"), ("c", "JOB")]
    await one(store, insert(T, "b", "JOB", b"2"))
    assert await _scanned(store, T, limit=1, key="JOB") == [("a", "JOB"), ("b", "JOB"), ("c", "JOB")]

"""Races, the life of a store, and any sequence of commits against a plain model."""

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.azurite_setup import AZURITE
from tests.conformance.postgres_setup import POSTGRES
from tests.conformance.stores import ALL, KINDS, P, Store, T, keys, one, opened, store

from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import (
    Conflict,
    Op,
    Row,
    SpanRefused,
    StoreUnavailable,
    Verb,
    insert,
    put,
    replace,
)

__all__ = ["store"]


# Races


async def test_one_replace_wins_each_round(store: Store) -> None:
    etag = await one(store, insert(T, P, "K", b"start"))
    for number in range(4):
        ops = [replace(T, P, "K", b"%d-%d" % (number, task), etag) for task in range(50)]
        outcomes = await asyncio.gather(*(store.commit([op]) for op in ops), return_exceptions=True)
        wins = [task for task, outcome in enumerate(outcomes) if isinstance(outcome, list)]
        assert len(wins) == 1
        assert sum(isinstance(outcome, Conflict) for outcome in outcomes) == 49
        row = await store.get(T, P, "K")
        assert row is not None
        assert row.body == b"%d-%d" % (number, wins[0])
        etag = row.etag


async def test_one_insert_wins_and_losers_leave_nothing(store: Store) -> None:
    async def claim(task: int) -> bool:
        try:
            await store.commit([insert(T, P, f"mine-{task:02d}", b""), insert(T, P, "IDX", b"%d" % task)])
        except Conflict as conflict:
            assert conflict.index == 1
            return False
        return True

    outcomes = await asyncio.gather(*(claim(task) for task in range(50)))
    assert sum(outcomes) == 1
    assert await keys(store) == ["IDX", f"mine-{outcomes.index(True):02d}"]


async def test_counting_by_compare_and_swap_loses_nothing(store: Store) -> None:
    await one(store, insert(T, P, "count", b"0"))

    async def add(times: int) -> None:
        while times:
            row = await store.get(T, P, "count")
            assert row is not None
            try:
                await one(store, replace(T, P, "count", b"%d" % (int(row.body) + 1), row.etag))
            except Conflict:
                await asyncio.sleep(0)
                continue
            times -= 1

    await asyncio.gather(*(add(10) for _ in range(8)))
    row = await store.get(T, P, "count")
    assert row is not None
    assert row.body == b"80"


# Life


async def test_ping_and_close(store: Store) -> None:
    await store.ping()
    await one(store, insert(T, P, "K", b""))
    await store.ping()
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable):
        await store.ping()
    with pytest.raises(StoreUnavailable):
        await one(store, insert(T, P, "K2", b""))
    with pytest.raises(StoreUnavailable):
        await store.get(T, P, "K")
    with pytest.raises(StoreUnavailable):
        await store.query(T, P, limit=1)


# The hooks and the reopening of the in-process store, on which crash tests stand


class Crash(Exception):
    """Stands for the death of the process."""


def _crash(_: Sequence[Op]) -> None:
    raise Crash


@pytest.mark.parametrize("after", [False, True])
async def test_a_crash_around_a_commit(after: bool) -> None:
    store = MemoryStore(after_commit=_crash) if after else MemoryStore(before_commit=_crash)
    with pytest.raises(Crash):
        await store.commit([insert(T, P, "a", b"1"), insert(T, P, "b", b"2")])
    again = store.reopen()
    assert await keys(again) == (["a", "b"] if after else [])
    etag = await one(again, put(T, P, "a", b"3"))
    assert await store.get(T, P, "a") == Row("a", etag, b"3")
    assert again.spans is store.spans


# Against a model

Place = tuple[str, str, str]
_PLACES = st.tuples(
    st.sampled_from(["one", "two-2"]), st.sampled_from("pq"), st.sampled_from(["a", "b", "ç", "d#1"])
)
_OPS = st.tuples(
    st.sampled_from(Verb), _PLACES, st.binary(max_size=4), st.sampled_from(["now", "old", "junk"])
)
_COMMITS = st.lists(st.lists(_OPS, max_size=5, unique_by=lambda op: op[1]), max_size=12)
Script = list[list[tuple[Verb, Place, bytes, str]]]


class Model:
    """The port's rules over one plain dict."""

    def __init__(self, *, spans: bool) -> None:
        self.spans = spans
        self.rows: dict[Place, tuple[str, bytes]] = {}
        self.old: dict[Place, str] = {}

    def op(self, verb: Verb, place: Place, body: bytes, which: str) -> Op:
        now = self.rows.get(place, ("none", b""))[0]
        return Op(verb, *place, body, {"now": now, "old": self.old.get(place, "none"), "junk": "junk"}[which])

    def refusal(self, ops: Sequence[Op]) -> int | type[SpanRefused] | None:
        if not self.spans and len({(op.table, op.partition) for op in ops}) > 1:
            return SpanRefused
        for index, op in enumerate(ops):
            row = self.rows.get((op.table, op.partition, op.key))
            if op.verb is Verb.INSERT and row is not None:
                return index
            if op.verb in (Verb.REPLACE, Verb.DELETE) and (row is None or row[0] != op.etag):
                return index
        return None

    def apply(self, ops: Sequence[Op], etags: list[str]) -> None:
        for op, etag in zip(ops, etags, strict=True):
            place = (op.table, op.partition, op.key)
            if place in self.rows:
                self.old[place] = self.rows.pop(place)[0]
            if op.verb not in (Verb.DELETE, Verb.DISCARD):
                assert etag not in ("", self.old.get(place))
                self.rows[place] = (etag, op.body)
            else:
                assert etag == ""

    def partition(self, table: str, partition: str) -> list[Row]:
        found = {key: row for (t, p, key), row in self.rows.items() if (t, p) == (table, partition)}
        return [Row(key, *found[key]) for key in sorted(found)]


async def _play(kind: str, script: Script) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with opened(kind, Path(folder)) as store:
            model = Model(spans=store.spans)
            for commit in script:
                ops = [model.op(*op) for op in commit]
                expected = model.refusal(ops)
                try:
                    etags = await store.commit(ops)
                except Conflict as conflict:
                    assert conflict.index == expected
                except SpanRefused:
                    assert expected is SpanRefused
                else:
                    assert expected is None
                    model.apply(ops, etags)
                for table in ("one", "two-2"):
                    for partition in "pq":
                        rows = await store.query(table, partition, limit=ALL)
                        assert rows == model.partition(table, partition)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(script=_COMMITS)
def test_any_sequence_matches_a_plain_dict(kind: str, script: Script) -> None:
    asyncio.run(_play(kind, script))


@pytest.mark.parametrize("kind", [POSTGRES, AZURITE])
@settings(max_examples=8, deadline=None)
@given(script=_COMMITS)
def test_any_sequence_matches_a_plain_dict_over_a_wire(kind: str, script: Script) -> None:
    asyncio.run(_play(kind, script))

"""Partitions as one list: in order, without a gap, and without reading much more than is wanted."""

import random
from bisect import bisect_left

import pytest

from lucius.ledger.merged_ranges import MergedRanges

ROWS_MAX = 250
PARTITIONS = [f"p{number}" for number in range(16)]


class Rows:
    """Keys of some partitions; `read` counts those that were read."""

    def __init__(self, keys: dict[str, list[str]]) -> None:
        self.keys = {partition: sorted(of_it) for partition, of_it in keys.items()}
        self.read_rows = 0
        self.queries = 0

    async def read(self, partition: str, start: str, rows: int) -> list[tuple[str, str]]:
        keys = self.keys.get(partition, [])
        at = bisect_left(keys, start)
        found = keys[at : at + rows]
        self.read_rows += len(found)
        self.queries += 1
        return [(key, f"{partition} {key}") for key in found]

    def merged(self, first_rows: int, start: str = "") -> MergedRanges[str]:
        return MergedRanges(self.read, PARTITIONS, start, first_rows=first_rows, rows_max=ROWS_MAX)


async def taken(rows: MergedRanges[str], most: int) -> list[str]:
    found: list[str] = []
    while len(found) < most and (row := await rows.next()) is not None:
        found.append(row)
    return found


@pytest.mark.parametrize("first_rows", [1, 8, 1_000])
async def test_all_rows_come_once_and_in_order(first_rows: int) -> None:
    chance = random.Random(7)
    keys: dict[str, list[str]] = {}
    for number in range(3_000):
        # Some partitions have most of the rows, some none.
        partition = PARTITIONS[int(12 * chance.random() ** 3)]
        keys.setdefault(partition, []).append(f"{chance.random():.12f} {number}")
    rows = Rows(keys)
    expected = sorted((key, f"{partition} {key}") for partition, of_it in keys.items() for key in of_it)
    merged = rows.merged(first_rows)
    assert await taken(merged, 4_000) == [row for _, row in expected]
    assert await merged.next() is None
    start = expected[1_000][0]
    assert await taken(rows.merged(first_rows, start), 5) == [row for _, row in expected[1_000:1_005]]


async def test_a_page_of_many_partitions_reads_little_more_than_the_page() -> None:
    rows = Rows({partition: [f"{n:06d}{partition}" for n in range(10_000)] for partition in PARTITIONS})
    assert len(await taken(rows.merged(8), 50)) == 50
    assert (rows.read_rows, rows.queries) == (16 * 8, 16)


async def test_where_one_partition_has_them_all_the_others_are_read_once() -> None:
    rows = Rows({"p3": [f"{n:06d}" for n in range(10_000)]})
    assert len(await taken(rows.merged(8), 50)) == 50
    assert rows.read_rows <= 8 + 32 + 128
    assert rows.queries <= 16 + 2


async def test_a_store_that_does_not_go_on_behind_a_damaged_key_ends_the_partition() -> None:
    async def read(partition: str, start: str, rows: int) -> list[tuple[str, str]]:
        return [("a", "same")] * rows

    merged = MergedRanges(read, ["p"], "", first_rows=2, rows_max=2)
    assert len(await taken(merged, 100)) <= 4

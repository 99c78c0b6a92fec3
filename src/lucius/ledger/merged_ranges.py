"""Rows of several partitions as one list, in the order of their keys, read as they are wanted.

In: how a range of one partition is read. Out: one row after the other. Of each partition a few rows are read
at first, and more of it once these are used up: else a page that is merged from many partitions would read,
and check, a whole page of each.
"""

from collections.abc import Awaitable, Callable, Sequence
from heapq import heapify, heappop, heapreplace
from typing import Generic, TypeVar

GROWTH = 4

T = TypeVar("T")
# Of a partition: the rows with keys from here on, so many of them; fewer only at its end.
ReadRange = Callable[[str, str, int], Awaitable[list[tuple[str, T]]]]


class MergedRanges(Generic[T]):
    """`first_rows`: what of a partition is read at first; `rows_max`: at most at once."""

    def __init__(
        self, read: ReadRange[T], partitions: Sequence[str], start: str, *, first_rows: int, rows_max: int
    ) -> None:
        rows = max(1, min(first_rows, rows_max))
        self._ranges = [_Range(read, partition, start, rows, rows_max) for partition in partitions]
        self._heap: list[tuple[str, int, T]] | None = None
        self._taken = False

    async def next(self) -> T | None:
        """None once there are no more."""
        if self._heap is None:
            self._heap = []
            for number, each in enumerate(self._ranges):
                if (found := await each.next()) is not None:
                    self._heap.append((found[0], number, found[1]))
            heapify(self._heap)
        elif self._taken:
            _, number, _ = self._heap[0]
            if (found := await self._ranges[number].next()) is not None:
                heapreplace(self._heap, (found[0], number, found[1]))
            else:
                heappop(self._heap)
        # The row that is given stays at the top: the next of its partition is read when it is asked for.
        self._taken = bool(self._heap)
        return self._heap[0][2] if self._heap else None


class _Range(Generic[T]):
    def __init__(self, read: ReadRange[T], partition: str, start: str, rows: int, rows_max: int) -> None:
        self._read = read
        self._partition = partition
        self._start = start
        self._rows = rows
        self._rows_max = rows_max
        self._page: list[tuple[str, T]] = []
        self._at = 0
        self._is_last = False

    async def next(self) -> tuple[str, T] | None:
        if self._at == len(self._page) and not self._is_last:
            self._page, self._at = await self._read(self._partition, self._start, self._rows), 0
            after = f"{self._page[-1][0]}\x00" if self._page else ""
            # Beyond a damaged key a store does not go on.
            self._is_last = len(self._page) < self._rows or after <= self._start
            self._start, self._rows = after, min(GROWTH * self._rows, self._rows_max)
        if self._at == len(self._page):
            return None
        self._at += 1
        return self._page[self._at - 1]

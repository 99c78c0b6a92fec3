"""Due rows from a time that is still to come, as the clock says that wrote them.

A clock that ran ahead and was set right leaves rows behind that would be due only once the time has come that
it said it was. They are looked for slowly, at the start and then now and again, one page of a lane at a look.

In: the due index and the time. Out: those rows. Who meets them knows what to do.
"""

from collections.abc import Callable

from lucius.core.due import ran_ahead
from lucius.ledger.indexes import DueEntry, Indexes
from lucius.ledger.names import MS_MAX

PAGE_ROWS_MAX = 64
WALK_EVERY_MS = 600_000


class FarRows:
    def __init__(
        self, indexes: Indexes, *, now_ms: Callable[[], int], walk_every_ms: int = WALK_EVERY_MS
    ) -> None:
        self._indexes = indexes
        self._now_ms = now_ms
        self._walk_every_ms = walk_every_ms
        self._from: dict[int, str] = {}  # lanes whose walk goes on there
        self._walk_at_ms: dict[int, int] = {}  # lanes whose walk is over, and when the next begins

    async def page(self, lane: int) -> list[DueEntry]:
        """Those among the next rows of this lane; none while no walk is due."""
        now_ms = self._now_ms()
        if now_ms < self._walk_at_ms.get(lane, 0):
            return []
        start = self._from.get(lane) or f"{now_ms + 1:014d}"
        entries = await self._indexes.due(lane, MS_MAX - 1, PAGE_ROWS_MAX, start=start)
        if len(entries) < PAGE_ROWS_MAX:
            self._from.pop(lane, None)
            self._walk_at_ms[lane] = now_ms + self._walk_every_ms
        else:
            self._from[lane] = f"{entries[-1].key}\x00"
        return [entry for entry in entries if ran_ahead(entry.row.written_at_ms, now_ms)]

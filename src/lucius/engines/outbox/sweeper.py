"""What time asks for: deadlines, retries and chores, found through the due index, lane by lane.

The sweeper sleeps until the earliest deadline that it knows of, and looks at every lane at least once an
interval for what other processes wrote. Each look also sees what falls due before the next one. Now and again
it looks at rows that are due much later, for those that a clock that ran ahead has put there.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from lucius.bus.wake import WakeEvent
from lucius.core.model import Event, JobRecord
from lucius.engines.lane_leases import all_lanes
from lucius.engines.outbox.far_rows import FarRows
from lucius.jobs.due import DueOutcome
from lucius.jobs.reply_backlog import ReplyBacklog, StandstillClock
from lucius.ledger.indexes import DueEntry, Indexes
from lucius.ledger.store import StoreError, StoreUnavailable, Unreadable

ROWS_MAX = 64
# Deadlines that follow each other closely are met together.
REST_MS = 20

log = structlog.get_logger("lucius.sweeper")


class DueRowHandler(Protocol):
    """Does what a due row asks for."""

    async def meet(self, entry: DueEntry) -> DueOutcome: ...


class Sweeper:
    def __init__(
        self,
        indexes: Indexes,
        due_handler: DueRowHandler,
        *,
        now_ms: Callable[[], int],
        look_every_ms: int,
        lanes: Callable[[], frozenset[int]] = all_lanes,
        reply_backlog: ReplyBacklog | None = None,
        far: FarRows | None = None,
        beat: StandstillClock | None = None,
    ) -> None:
        """`reply_backlog` has to know when the deadlines of a lane could not be read. `far`: finds the rows
        of clocks that ran ahead; None: another sweeper looks for them. `beat`: wants to know when this
        process runs, and when it will again."""
        self._far = far
        self._beat = beat
        self._lanes = lanes
        self._reply_backlog = reply_backlog
        self._indexes = indexes
        self._due_handler = due_handler
        self._now_ms = now_ms
        self._look_every_ms = look_every_ms
        self._wake = WakeEvent()
        self._next_ms: int | None = None
        self.actions: Counter[str] = Counter()

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if after.job.due_at_ms is not None:
            self._note_due(after.job.due_at_ms)

    def nudge(self, lane: int, at_ms: int) -> None:
        """Another process says that a row of this lane falls due before the next look."""
        if lane in self._lanes():
            self._note_due(at_ms)

    def _note_due(self, due_at_ms: int) -> None:
        if self._next_ms is None or due_at_ms < self._next_ms:
            self._next_ms = due_at_ms
            if due_at_ms - self._now_ms() < self._look_every_ms:
                self._wake.set()

    async def run(self) -> None:
        while True:
            await self.sweep()
            await self._sleep()

    async def _sleep(self) -> None:
        """Until the next look or deadline; a deadline that is heard of meanwhile only shortens the sleep."""
        now = asyncio.get_running_loop().time
        look_at = now() + self._look_every_ms / 1000
        while True:
            left = look_at - now()
            if self._next_ms is not None:
                left = min(left, (self._next_ms - self._now_ms()) / 1000)
            if left <= 0:
                return
            self._wake.clear()
            if self._beat is not None:
                self._beat.ran(again_in_ms=left * 1000)
            await self._wake.wait(left)

    async def sweep(self) -> int:
        """Meets every row that is due now; returns how many there were."""
        self._next_ms = None
        if self._beat is not None:
            self._beat.ran()
        lanes = sorted(self._lanes())
        if self._indexes.spans:
            return sum([await self._look_at(lane) for lane in lanes])
        # Each lane is a partition of its own, and one that is slow or throttled must not hold the others up.
        return sum(await asyncio.gather(*(self._look_at(lane) for lane in lanes)))

    async def _look_at(self, lane: int) -> int:
        try:
            return await self._sweep_lane(lane)
        except StoreError as fault:
            log.warning("sweep_failed", lane=lane, error=str(fault))
            return 0

    async def _sweep_lane(self, lane: int) -> int:
        """One walk over what is due now: rows that must wait never hide those behind them."""
        now_ms, met, start = self._now_ms(), 0, ""
        while True:
            seen = await self._read(lane, now_ms + self._look_every_ms, start)
            entries = [entry for entry in seen if entry.at_ms <= now_ms]
            if len(entries) < len(seen):
                soon_ms = max(seen[len(entries)].at_ms, now_ms + REST_MS)
                self._next_ms = soon_ms if self._next_ms is None else min(self._next_ms, soon_ms)
            if len(entries) > 1:
                self.actions.update(await asyncio.gather(*(self._meet(entry) for entry in entries)))
            elif entries:
                self.actions[await self._meet(entries[0])] += 1
            met += len(entries)
            if len(entries) < ROWS_MAX:
                return met + await self._sweep_far(lane)
            start = f"{entries[-1].key}\x00"

    async def _sweep_far(self, lane: int) -> int:
        if self._far is None:
            return 0
        entries = await self._far.page(lane)
        for entry in entries:
            self.actions[await self._meet(entry)] += 1
        return len(entries)

    async def _read(self, lane: int, until_ms: int, start: str) -> list[DueEntry]:
        try:
            entries = await self._indexes.due(lane, until_ms, ROWS_MAX, start=start)
        except StoreError:
            if self._reply_backlog is not None:
                self._reply_backlog.ledger_failed(lane)
            raise
        if self._reply_backlog is not None:
            self._reply_backlog.ledger_read(lane)
        if self._beat is not None:
            self._beat.ran()
        return entries

    async def _meet(self, entry: DueEntry) -> str:
        try:
            outcome = await self._due_handler.meet(entry)
        except StoreUnavailable:
            raise
        except Unreadable:
            return "unreadable"  # the quarantine has told of it, and passes its rows over from here on
        except StoreError as fault:
            # Its own rows did not answer, or cannot be read; it is met again.
            log.warning("due_row_waits_for_ledger", jobId=entry.job_id, lane=entry.lane, error=str(fault))
            return "failed"
        except Exception:
            # One job that cannot be read or moved must not stop the clock of all others.
            log.exception("due_row_failed", jobId=entry.job_id, lane=entry.lane)
            return "failed"
        if outcome is DueOutcome.ACTED:
            # What came of it is told with its events.
            log.debug("due_row_acted", jobId=entry.job_id, lane=entry.lane)
        return outcome.value

"""How many directives may be out on a lane before a service acknowledges one.

Each (service, lane) has a window. A workflow that finds it full is told when to come again; the more wait,
the later, so that a long queue costs no more questions than a short one. One that does not come again in time
is not counted any more: another process may have let it in, or it was paused, or has ended.

The count is this process's own, kept from its commits. Several invokers have a window each, and one that has
just started begins with an empty one: a lane holds at most one window for every invoker, and one more for
each restart until what was sent before it is acknowledged or runs out. What another process committed is not
heard here: once a lane is full the ledger is asked, now and then.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from lucius.core.decide import is_publishable
from lucius.core.model import Event, JobRecord
from lucius.core.states import OutboxState, StepState
from lucius.engines.unacknowledged import Unacknowledged
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import Loaded
from lucius.ledger.store import Unreadable

Place = tuple[str, int]  # a service and one of its lanes

LATE_TIMES = 2  # how many times as long as it was told one may take to come again


class WindowLimits(msgspec.Struct, frozen=True, kw_only=True):
    directives_max: int = 128  # of one service and lane that are not acknowledged yet
    again_in_ms: int = 1_000
    again_in_ms_max: int = 60_000
    recheck_every_ms: int = 1_000
    rechecks_max: int = 32  # reads of the ledger at a time
    waiting_max: int = 10_000  # jobs remembered as waiting for one lane


class _LaneState:
    """It knows jobs by their ids: a job has one attempt at a time."""

    __slots__ = ("out", "rechecked_at_ms", "waiting")

    def __init__(self) -> None:
        self.out = Unacknowledged()
        self.waiting: dict[str, int] = {}  # until when each is expected again
        self.rechecked_at_ms: int | None = None


class LaneWindow:
    def __init__(self, ledger: JobLedger, limits: WindowLimits, *, now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._limits = limits
        self._now_ms = now_ms
        self._lanes: dict[Place, _LaneState] = {}

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        """A commit happened."""
        job_id = after.job.job_id
        for record in (before, after):
            place = None if record is None else _place(record)
            if place is not None and place in self._lanes:
                lane = self._lanes[place]
                lane.out.left(after.job)
                if place != _place(after) or not is_publishable(after):
                    lane.waiting.pop(job_id, None)
        place = _place(after)
        if place is not None and _awaits_ack(after):
            self._lane(place).out.entered(after.job)

    def out(self, place: Place) -> int:
        """How many directives are out on this lane without an ACK, as far as this process knows."""
        return len(self._lanes[place].out) if place in self._lanes else 0

    async def enter(self, place: Place, job_id: str) -> int | None:
        """None: there is room, and it is taken. Else after how many ms to ask again."""
        lane, limits = self._lane(place), self._limits
        if job_id not in lane.out and len(lane.out) >= limits.directives_max:
            await self._recheck(place, lane)
        if job_id not in lane.out and len(lane.out) >= limits.directives_max:
            if len(lane.waiting) < limits.waiting_max:
                lane.waiting.setdefault(job_id, 0)
            turns = -(-len(lane.waiting) // limits.directives_max)
            again_in_ms = min(turns * limits.again_in_ms, limits.again_in_ms_max)
            if job_id in lane.waiting:
                lane.waiting[job_id] = self._now_ms() + LATE_TIMES * again_in_ms
            return again_in_ms
        lane.waiting.pop(job_id, None)
        lane.out.setdefault(job_id, 0)
        return None

    def leave(self, place: Place, job_id: str) -> None:
        """It was not published after all."""
        self._lane(place).out.pop(job_id, None)

    def _lane(self, place: Place) -> _LaneState:
        lane = self._lanes.get(place)
        if lane is None:
            lane = self._lanes[place] = _LaneState()
        return lane

    async def _fresh(self, job_id: str) -> Loaded | None:
        try:
            return await self._ledger.load(job_id, fresh=True)
        except Unreadable:
            return None  # it takes no room from jobs that can go on

    async def _recheck(self, place: Place, lane: _LaneState) -> None:
        now_ms = self._now_ms()
        if lane.rechecked_at_ms is not None and now_ms - lane.rechecked_at_ms < self._limits.recheck_every_ms:
            return
        lane.rechecked_at_ms = now_ms
        lane.waiting = {job_id: until_ms for job_id, until_ms in lane.waiting.items() if until_ms > now_ms}
        jobs, step = tuple(lane.out), self._limits.rechecks_max
        for first in range(0, len(jobs), step):
            page = jobs[first : first + step]
            found = await asyncio.gather(*(self._fresh(job_id) for job_id in page))
            for job_id, loaded in zip(page, found, strict=True):
                record = None if loaded is None else loaded.record
                if record is None or _place(record) != place or not _is_out(record):
                    lane.out.pop(job_id, None)


def _place(record: JobRecord) -> Place | None:
    outbox = record.outbox
    return None if outbox is None else (outbox.service, outbox.lane)


def _awaits_ack(record: JobRecord) -> bool:
    return _is_out(record) and record.outbox is not None and record.outbox.state is OutboxState.SENT


def _is_out(record: JobRecord) -> bool:
    """Sent and not acknowledged, or perhaps being sent at this moment."""
    outbox = record.outbox
    return (
        outbox is not None
        and not record.job.terminal
        and record.steps[outbox.step_index].state is StepState.INITIATED
    )

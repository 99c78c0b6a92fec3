"""The scheduler: ticks of schedules become commands, each once.

In: schedules that are due, found by a look each second. Out: commands whose idempotency key is the tick, so
that the same tick brings the same job however often it is tried, and by whichever process. What a tick does
(run, or skip because the job before is still open) is committed before it is done: a process that dies in
between leaves a decision that the next one carries out.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import msgspec
import structlog

from lucius.contracts.envelope import parse_envelope
from lucius.contracts.schedules import Overlap, ScheduleSpec, due_ms, next_tick_ms, tick_key
from lucius.core.due import ran_ahead
from lucius.core.inputs import Cancel
from lucius.core.refusal import Refused
from lucius.jobs.submit import JobSubmitter, Submitted
from lucius.jobs.writer import InputHandler
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.names import MS_MAX
from lucius.ledger.schedules import DueSchedule, Schedule, Schedules, StoredSchedule
from lucius.ledger.store import StoreError, Unreadable

PAGE_ROWS_MAX = 100
FAR_EVERY_MS = 60_000
QUEUE_LOOK_MS = 2_000
BUSY_RETRY_MS = 5_000
BACKFILL_TICKS_MAX = 500

log = structlog.get_logger("lucius.scheduler")
_replace = msgspec.structs.replace


class Backfilled(msgspec.Struct, frozen=True, kw_only=True):
    """What a backfill did. `more_from_ms`: the tick at which to go on; None: the range is done."""

    job_ids: tuple[str, ...]
    duplicates: int
    more_from_ms: int | None
    refused: Refused | None


class Scheduler:
    def __init__(
        self,
        schedules: Schedules,
        submitter: JobSubmitter,
        controls: InputHandler,
        ledger: JobLedger,
        *,
        now_ms: Callable[[], int],
        look_every_ms: int,
    ) -> None:
        """`controls`: cancels the job of the tick before, where a schedule asks for that."""
        self.schedules = schedules
        self._submitter = submitter
        self._controls = controls
        self._ledger = ledger
        self._now_ms = now_ms
        self._look_every_ms = look_every_ms
        self._far_at_ms = 0

    async def run(self) -> None:
        while True:
            try:
                await self.look()
            except StoreError as fault:
                log.warning("schedules_not_read", error=str(fault))
            await asyncio.sleep(self._look_every_ms / 1000)

    async def look(self) -> None:
        """Runs what is due."""
        now_ms = self._now_ms()
        while due := await self.schedules.due(now_ms, PAGE_ROWS_MAX):
            moved = [await self._meet(each) for each in due]
            if not any(moved):
                break
        if now_ms >= self._far_at_ms:
            self._far_at_ms = now_ms + FAR_EVERY_MS
            await self._pull_in(now_ms)

    async def _pull_in(self, now_ms: int) -> None:
        """Schedules that a clock wrote which ran ahead: their next tick is counted anew."""
        after_ms = now_ms
        while rows := await self.schedules.due(MS_MAX - 1, PAGE_ROWS_MAX, after_ms=after_ms):
            for row in rows:
                stored = await self._load(row.schedule_id) if ran_ahead(row.written_at_ms, now_ms) else None
                if stored is not None and stored.schedule.look_ms == row.look_ms:
                    schedule = stored.schedule
                    since_ms = now_ms - schedule.spec.catch_up_ms
                    await self.schedules.change(stored, at_next(schedule, since_ms, now_ms))
            if len(rows) < PAGE_ROWS_MAX:
                return
            after_ms = rows[-1].look_ms

    async def _load(self, schedule_id: str) -> StoredSchedule | None:
        try:
            return await self.schedules.get(schedule_id)
        except Unreadable:
            return None  # the quarantine tells of it

    async def _meet(self, due: DueSchedule) -> bool:
        """Whether the row of a schedule that is due has moved."""
        try:
            stored = await self.schedules.get(due.schedule_id)
        except Unreadable:
            return False
        if stored is None or stored.schedule.look_ms != due.look_ms:
            await self.schedules.drop(due)
            return True
        if stored.schedule.pending_ms is not None:
            return await self._carry_out(stored)
        return await self._decide(stored)

    async def _decide(self, stored: StoredSchedule) -> bool:
        schedule, now_ms = stored.schedule, self._now_ms()
        spec, tick_ms = schedule.spec, schedule.next_ms
        if tick_ms is None or schedule.paused:
            return await self.schedules.change(stored, _replace(schedule, look_ms=None))
        if now_ms - due_ms(spec, tick_ms) > spec.catch_up_ms:
            log.warning("ticks_missed", schedule=spec.schedule_id, first_ms=tick_ms)
            after = at_next(schedule, now_ms - spec.catch_up_ms, now_ms)
            return await self.schedules.change(stored, _replace(after, missed=schedule.missed + 1))
        if spec.overlap is not Overlap.CANCEL_PREVIOUS and await self._is_open(schedule.last_job_id):
            if spec.overlap is Overlap.QUEUE:
                after = _replace(schedule, look_ms=now_ms + QUEUE_LOOK_MS, updated_at_ms=now_ms)
            else:
                skipped = schedule.skipped + 1
                after = _replace(at_next(schedule, tick_ms, now_ms), skipped=skipped)
            return await self.schedules.change(stored, after)
        after = _replace(schedule, pending_ms=tick_ms, updated_at_ms=now_ms)
        return await self.schedules.change(stored, after)

    async def _carry_out(self, stored: StoredSchedule) -> bool:
        schedule, now_ms = stored.schedule, self._now_ms()
        spec, tick_ms = schedule.spec, schedule.pending_ms
        assert tick_ms is not None
        previous = schedule.last_job_id
        if spec.overlap is Overlap.CANCEL_PREVIOUS and previous is not None and await self._is_open(previous):
            with suppress(Unreadable):
                await self._controls.apply(previous, Cancel())
        answer = await self.submit(spec, tick_key(spec, tick_ms))
        if isinstance(answer, Refused):
            late_ms = now_ms - due_ms(spec, tick_ms)
            if answer.retry_after_seconds is not None and late_ms <= spec.catch_up_ms:
                wait_ms = max(1, answer.retry_after_seconds) * 1000
                after = _replace(
                    schedule, look_ms=now_ms + min(wait_ms, BUSY_RETRY_MS), problem=answer.message
                )
                return await self.schedules.change(stored, _replace(after, updated_at_ms=now_ms))
            log.warning("tick_refused", schedule=spec.schedule_id, code=answer.code.value)
            after = _replace(at_next(schedule, tick_ms, now_ms), problem=answer.message)
            return await self.schedules.change(stored, _replace(after, missed=schedule.missed + 1))
        after = _replace(
            at_next(schedule, tick_ms, now_ms),
            last_tick_ms=tick_ms,
            last_job_id=answer.job_id,
            problem=None,
            runs=schedule.runs + 1,
        )
        return await self.schedules.change(stored, after)

    async def submit(self, spec: ScheduleSpec, key: str) -> Submitted | Refused:
        envelope = parse_envelope(spec.command, key_header=key)
        if isinstance(envelope, Refused):
            return envelope
        return await self._submitter.submit(envelope)

    async def backfill(self, schedule: Schedule, from_ms: int, to_ms: int) -> Backfilled:
        """Runs the ticks of a range, with its ends. Those that were run before bring no second job."""
        job_ids: list[str] = []
        duplicates, refused, after_ms = 0, None, from_ms - 1
        next_ms = tick_after(schedule, after_ms)
        while next_ms is not None and next_ms <= to_ms and len(job_ids) + duplicates < BACKFILL_TICKS_MAX:
            answer = await self.submit(schedule.spec, tick_key(schedule.spec, next_ms))
            if isinstance(answer, Refused):
                refused = answer
                break
            if answer.duplicate:
                duplicates += 1
            else:
                job_ids.append(answer.job_id)
            next_ms = tick_after(schedule, next_ms)
        more = next_ms is not None and next_ms <= to_ms
        return Backfilled(
            job_ids=tuple(job_ids),
            duplicates=duplicates,
            more_from_ms=next_ms if more else None,
            refused=refused,
        )

    async def _is_open(self, job_id: str | None) -> bool:
        if job_id is None:
            return False
        try:
            loaded = await self._ledger.load(job_id, fresh=True)
        except Unreadable:
            return False
        return loaded is not None and not loaded.record.job.terminal


def tick_after(schedule: Schedule, after_ms: int) -> int | None:
    return next_tick_ms(schedule.spec, after_ms, from_ms=schedule.created_at_ms)


def at_next(schedule: Schedule, after_ms: int, now_ms: int) -> Schedule:
    """The schedule as it waits for its first tick after a time."""
    next_ms = tick_after(schedule, after_ms)
    return _replace(
        schedule,
        next_ms=next_ms,
        pending_ms=None,
        look_ms=None if next_ms is None or schedule.paused else due_ms(schedule.spec, next_ms),
        updated_at_ms=now_ms,
    )

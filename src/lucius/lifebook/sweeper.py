"""What was left behind: found through the sparse index and in the dead-letter queue, and taken further.

- `pending` and never enqueued: its credits are held, it is enqueued.
- `queued` or `failed` for hours and not taken: gets another message; two do no harm.
- `running` with a lease that ran out: the attempt is counted; another follows, or the job is dead.
- ended, with credits not released or an event not sent: both are done.
- in the dead-letter queue while its job is not dead: decided by the record.

All of it may run in several processes at once and be broken off anywhere.
"""

from typing import Final

import msgspec
import structlog

from lucius.lifebook import machine
from lucius.lifebook.chores import Chores
from lucius.lifebook.codec import EVENT_PREFIX, SHARDS
from lucius.lifebook.dead_letters import each_dead, released
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.message import UnreadableBody, parse_body
from lucius.lifebook.queue import JobDelivery, JobQueue
from lucius.lifebook.refusals import RunCode, RunRefused
from lucius.lifebook.runs import Runs
from lucius.lifebook.states import Status
from lucius.lifebook.writer import LifebookWriter

log = structlog.get_logger("lucius.lifebook")

ROWS_MAX: Final = 200
DEAD_MESSAGES_MAX: Final = 500
DEAD_VISIBILITY_MS: Final = 5_000


class Swept(msgspec.Struct, kw_only=True):
    """How much a sweep took further."""

    enqueued: int = 0
    lost: int = 0
    ended: int = 0
    events: int = 0
    from_dlq: int = 0
    faults: int = 0


class LifebookSweeper:
    def __init__(self, *, writer: LifebookWriter, queue: JobQueue, runs: Runs, chores: Chores) -> None:
        self._writer = writer
        self._queue = queue
        self._runs = runs
        self._chores = chores

    async def sweep(self) -> Swept:
        """Once over everything that is due. A fault with one job does not keep the others waiting."""
        swept = Swept()
        for shard in range(SHARDS):
            now_ms = self._writer.now_ms()
            for item_id in await self._writer.table.due(str(shard), now_ms=now_ms, rows_max=ROWS_MAX):
                try:
                    await self._take_further(item_id, swept)
                except Exception as fault:
                    swept.faults += 1
                    log.warning("sweep_failed", item=item_id, fault=type(fault).__name__)
        await self.sweep_dead(swept)
        return swept

    async def sweep_dead(self, swept: Swept) -> None:
        """Looks at what is in the dead-letter queue. What stays there is hidden while it is looked at."""
        dead = each_dead(
            self._queue, messages_max=DEAD_MESSAGES_MAX, visibility_ms=DEAD_VISIBILITY_MS, brief=True
        )
        stay: list[JobDelivery] = []
        async for delivery in dead:
            before = swept.from_dlq
            try:
                await self._look_at_dead(delivery, swept)
            except Exception as fault:
                swept.faults += 1
                log.warning("sweep_failed", item=delivery.message_id, fault=type(fault).__name__)
            if swept.from_dlq == before:
                stay.append(delivery)
        await released(self._queue, stay)

    async def _take_further(self, item_id: str, swept: Swept) -> None:
        if item_id.startswith(EVENT_PREFIX):
            event = await self._writer.table.event(item_id.removeprefix(EVENT_PREFIX))
            if event is not None and event.sent_at is None:
                await self._chores.send(event)
                swept.events += 1
            return
        job = await self._writer.get(item_id)
        # The index lags behind: the record says whether anything is due.
        if job is None or job.sweep_at is None or job.sweep_at > self._writer.now_ms():
            return
        if job.terminal:
            await self._chores.settle(job)
            swept.ended += 1
        elif job.status is Status.RUNNING:
            await self._lost(job, swept)
        else:
            await self._enqueue(job, swept)

    async def _enqueue(self, job: LifebookJob, swept: Swept) -> None:
        wait_ms = max((job.next_attempt_at or 0) - self._writer.now_ms(), 0)
        done = await self._runs.enqueue(job, delay_ms=wait_ms)
        if isinstance(done, RunRefused) and done.code is RunCode.CREDITS_INSUFFICIENT:
            await self._runs.not_paid(job)
        else:
            log.info("enqueued_again", job_id=job.job_id, status=job.status)
            swept.enqueued += 1

    async def _lost(self, job: LifebookJob, swept: Swept) -> LifebookJob | None:
        policy = self._writer.policy
        after = await self._writer.change(
            job.job_id, lambda now, at: _if_lost(now, policy=policy, now_ms=at), known=job
        )
        if isinstance(after, RunRefused) or after.status is Status.RUNNING:
            return None
        log.warning("attempt_lost", job_id=job.job_id, attempts=after.attempts, status=after.status)
        swept.lost += 1
        if after.terminal:
            await self._chores.after_end(after)
        else:
            await self._enqueue(after, swept)
        return after

    async def _look_at_dead(self, delivery: JobDelivery, swept: Swept) -> None:
        message = parse_body(delivery.body)
        if isinstance(message, UnreadableBody):
            return
        job = await self._writer.get(message.job_id)
        if job is None or job.workspace_id != message.workspace_id or job.status is Status.DEAD:
            return
        if job.status is Status.RUNNING:
            after = await self._lost(job, swept)
            if after is None or after.status is Status.DEAD:
                return
        elif not job.terminal and message.attempt >= job.message_attempt:
            await self._enqueue(job, swept)
        await self._queue.delete_dead(delivery)
        swept.from_dlq += 1


def _if_lost(job: LifebookJob, *, policy: machine.Policy, now_ms: int) -> LifebookJob | RunRefused:
    return job if job.status is not Status.RUNNING else machine.lost(job, policy=policy, now_ms=now_ms)

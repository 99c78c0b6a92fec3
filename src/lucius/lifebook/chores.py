"""What stands around the life of a job: its credits are held before it, released after it, its event is sent.

All of it may be done again and does no harm: after a crash a sweeper does. After the end a fault is logged
and left to it.
"""

import structlog

from lucius.lifebook.analytics import Sink, event_of_end
from lucius.lifebook.credits import Balances
from lucius.lifebook.job import ZERO, AnalyticsEvent, LifebookJob
from lucius.lifebook.machine import hold_id_of, settled
from lucius.lifebook.refusals import RunRefused
from lucius.lifebook.writer import LifebookWriter

log = structlog.get_logger("lucius.lifebook")


class Chores:
    def __init__(self, *, writer: LifebookWriter, balances: Balances, sink: Sink) -> None:
        self._writer = writer
        self._balances = balances
        self._sink = sink

    async def held(self, job: LifebookJob) -> bool:
        """Holds what the job may still spend, before it runs; once however often it is asked."""
        amount = job.credits_reserved - job.credits_spent
        if amount == ZERO or not self._writer.policy.credits_held:
            return True
        return await self._balances.hold(job.workspace_id, hold_id_of(job), amount)

    async def after_end(self, job: LifebookJob) -> None:
        """For the process that has just written the end of the job. Does not raise: what could not be done is
        found by a sweeper."""
        event = event_of_end(job, self._writer.policy)
        try:
            await self.settle(job)
            await self.send(event)
        except Exception as fault:
            log.warning("chores_left", job_id=job.job_id, fault=type(fault).__name__)

    async def settle(self, job: LifebookJob) -> LifebookJob | RunRefused:
        if job.settled_at is not None:
            return job
        unspent = job.credits_reserved - job.credits_spent
        await self._balances.settle(job.workspace_id, hold_id_of(job), unspent, ttl_at=job.ttl_at)
        policy, redrives = self._writer.policy, job.redrives
        return await self._writer.change(
            job.job_id,
            # A job that was redriven meanwhile has a life that is not settled.
            lambda now, at: settled(now, policy=policy, now_ms=at) if now.redrives == redrives else now,
            known=job,
        )

    async def send(self, event: AnalyticsEvent) -> None:
        if event.sent_at is not None:
            return
        await self._sink.send(event)
        now_ms = self._writer.now_ms()
        ttl_at = (now_ms + self._writer.policy.retention_ms) // 1000
        await self._writer.table.note_sent(event, now_ms=now_ms, ttl_at=ttl_at)

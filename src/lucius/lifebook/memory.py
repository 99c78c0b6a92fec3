"""The table of jobs in memory, for simulation and tests: the same promises, nothing kept."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as BadBase64

import msgspec

from lucius.lifebook.codec import EVENT_PREFIX, guard_id_of, shard_of
from lucius.lifebook.job import AnalyticsEvent, Guard, LifebookJob, is_expired, summary_of
from lucius.lifebook.table import BadCursor, SummaryPage


class MemoryTable:
    def __init__(self) -> None:
        self.jobs: dict[str, LifebookJob] = {}
        self.guards: dict[str, Guard] = {}
        self.events: dict[str, AnalyticsEvent] = {}

    async def create(self, job: LifebookJob, guard: Guard, *, now_ms: int) -> Guard | None:
        found = self.guards.get(guard.guard_id)
        if found is not None and not is_expired(found.ttl_at, now_ms):
            return None if found == guard else found
        self.guards[guard.guard_id] = guard
        self.jobs[job.job_id] = job
        return None

    async def get(self, job_id: str, *, now_ms: int) -> LifebookJob | None:
        job = self.jobs.get(job_id)
        return None if job is None or is_expired(job.ttl_at, now_ms) else job

    async def replace(
        self, before: LifebookJob, after: LifebookJob, *, event: AnalyticsEvent | None = None
    ) -> bool:
        found = self.jobs.get(before.job_id)
        if found is None or (found.version, found.lease_owner) != (before.version, before.lease_owner):
            return found == after
        if event is not None and event.event_id in self.events:
            return False
        self.jobs[after.job_id] = after
        if event is not None:
            self.events[event.event_id] = event
        if before.ttl_at != after.ttl_at:
            guard_id = guard_id_of(after.workspace_id, after.idempotency_key)
            self.guards[guard_id] = Guard(
                guard_id=guard_id, job_id=after.job_id, fingerprint=after.fingerprint, ttl_at=after.ttl_at
            )
        return True

    async def discard(self, job: LifebookJob) -> bool:
        if self.jobs.get(job.job_id) != job:
            return False
        del self.jobs[job.job_id]
        self.guards.pop(guard_id_of(job.workspace_id, job.idempotency_key), None)
        return True

    async def page(
        self, workspace_id: str, *, now_ms: int, rows_max: int, cursor: str | None = None
    ) -> SummaryPage:
        jobs = sorted(
            (job for job in self.jobs.values() if job.workspace_id == workspace_id),
            key=lambda job: (job.created_at, job.job_id),
            reverse=True,
        )
        if cursor is not None:
            after = _opened(cursor, workspace_id)
            jobs = [job for job in jobs if (job.created_at, job.job_id) < after]
        rows = tuple(summary_of(job) for job in jobs[:rows_max] if not is_expired(job.ttl_at, now_ms))
        more = len(jobs) > rows_max
        last = jobs[rows_max - 1] if more else None
        return SummaryPage(rows, None if last is None else _sealed(last))

    async def due(self, shard: str, *, now_ms: int, rows_max: int) -> list[str]:
        waiting = [(job.sweep_at, job.job_id) for job in self.jobs.values() if job.sweep_at is not None]
        waiting += [
            (event.sweep_at, EVENT_PREFIX + event.event_id)
            for event in self.events.values()
            if event.sweep_at is not None
        ]
        found = sorted(each for each in waiting if each[0] <= now_ms and shard_of(each[1]) == shard)
        return [item_id for _, item_id in found[:rows_max]]

    async def event(self, event_id: str) -> AnalyticsEvent | None:
        return self.events.get(event_id)

    async def note_sent(self, event: AnalyticsEvent, *, now_ms: int, ttl_at: int) -> None:
        self.events[event.event_id] = msgspec.structs.replace(
            event, sent_at=now_ms, ttl_at=ttl_at, sweep_at=None
        )


def _sealed(job: LifebookJob) -> str:
    place = [job.workspace_id, job.created_at, job.job_id]
    return urlsafe_b64encode(msgspec.json.encode(place)).decode()


def _opened(cursor: str, workspace_id: str) -> tuple[int, str]:
    try:
        place = msgspec.json.decode(urlsafe_b64decode(cursor), type=tuple[str, int, str])
    except (BadBase64, ValueError, msgspec.DecodeError):
        raise BadCursor("The cursor was not given out here.") from None
    if place[0] != workspace_id:
        raise BadCursor("The cursor belongs to another workspace.")
    return place[1], place[2]

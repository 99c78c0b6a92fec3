"""Which jobs moved, for those who look at lists of jobs.

In: the commits of this process, and the names of jobs that moved in others. Out: for each listener the newest
state of each job that it may see. A listener takes one job after the other; where more move than it takes,
the oldest are left out and counted.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from lucius.api.streams import Streams
from lucius.core.model import Event, Job, JobRecord, Json
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import StoreError

MESSAGES_PER_SECOND_MAX = 20
MOVED_MAX = 2 * MESSAGES_PER_SECOND_MAX
UNREAD_MAX = 1_000
OVERVIEW_SECONDS_MIN = 1.0

_Tenants = frozenset[str] | None
_Seen = tuple[_Tenants, _Tenants]
"""The tenants whose figures are asked for, and those that the caller sees; None: all."""


class MovedJobs:
    """What one listener has not taken yet."""

    def __init__(self, sees: Callable[[str], bool]) -> None:
        self.wake = asyncio.Event()
        self.missed = 0
        self._sees = sees
        self._jobs: OrderedDict[str, Job] = OrderedDict()

    @property
    def waiting(self) -> bool:
        return bool(self._jobs)

    def offer(self, job: Job) -> None:
        if not self._sees(job.tenant_norm):
            return
        known = self._jobs.get(job.job_id)
        if known is not None and known.version > job.version:
            return
        self._jobs[job.job_id] = job
        if len(self._jobs) > MOVED_MAX:
            self._jobs.popitem(last=False)
            self.missed += 1
        self.wake.set()

    def take(self) -> Job | None:
        return self._jobs.popitem(last=False)[1] if self._jobs else None

    def take_missed(self) -> int:
        missed, self.missed = self.missed, 0
        return missed


class JobFeed:
    """All streams of jobs of this process; they share their places with the streams of events."""

    def __init__(self, ledger: JobLedger, streams: Streams) -> None:
        self.streams = streams
        self.clock = streams.clock
        self._ledger = ledger
        self._open: set[MovedJobs] = set()
        self._unread: OrderedDict[str, None] = OrderedDict()
        self._reading: asyncio.Task[None] | None = None
        self._overviews: dict[_Seen, tuple[float, bytes]] = {}

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if self._open and events:
            self._offer(after.job)

    def look_again(self, job_id: str) -> None:
        """Another process moved this job."""
        if not self._open or job_id in self._unread:
            return
        if len(self._unread) >= UNREAD_MAX:
            for moved in self._open:
                moved.missed += 1
            return
        self._unread[job_id] = None
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        try:
            while self._unread and self._open:
                job_id, _ = self._unread.popitem(last=False)
                try:
                    job = await self._ledger.layout.job(self._ledger.store, job_id)
                except StoreError:
                    continue
                if job is not None:
                    self._offer(job)
        finally:
            self._unread.clear()
            self._reading = None

    def _offer(self, job: Job) -> None:
        for moved in self._open:
            moved.offer(job)

    def enter(self, moved: MovedJobs) -> None:
        self._open.add(moved)

    def leave(self, moved: MovedJobs) -> None:
        self._open.discard(moved)

    def close(self) -> None:
        for moved in self._open:
            moved.wake.set()

    async def overview(self, seen: _Seen, make: Callable[[], Awaitable[dict[str, Json]]]) -> bytes:
        """What is seen of the figures, made once a second however many look at them."""
        known = self._overviews.get(seen)
        if known is not None and self.clock() - known[0] < OVERVIEW_SECONDS_MIN:
            return known[1]
        made = sse_message(b"overview", await make())
        now = self.clock()
        self._overviews = {
            each: kept for each, kept in self._overviews.items() if now - kept[0] < OVERVIEW_SECONDS_MIN
        }
        self._overviews[seen] = (now, made)
        return made


def sse_message(event: bytes, data: dict[str, Json]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event, msgspec.json.encode(data))

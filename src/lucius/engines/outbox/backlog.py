"""How much waits, measured in the background: a scrape of the metrics never reads the ledger.

In: the dispatch index, the list of finally failed jobs, the counts of admission; once after a start, the open
jobs. Out: figures for `Metrics`, of the lanes that this process looks after: where several share the lanes,
the figures of all add up. Every look is bounded: at most `ROWS_MAX` rows of a partition, so a depth of that
size means "so many or more". Between two queries the loop is let go. Directives that workflows send stand in
no index of their own: they are counted when the open jobs are.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, runtime_checkable

import structlog

from lucius.core.decide import is_publishable
from lucius.core.inputs import Ack, Progress, Result
from lucius.core.model import Outbox
from lucius.core.states import Engine
from lucius.engines.lane_leases import all_lanes
from lucius.engines.outbox.retention import Retention
from lucius.engines.outbox.sweeper import Sweeper
from lucius.engines.webhooks.delivery import WebhookDelivery
from lucius.jobs.admission import Admission
from lucius.jobs.writer import JobWriter as Applying
from lucius.ledger.indexes import Indexes
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.name_index import NameIndex
from lucius.ledger.names import MS_MAX, dispatch_partition, lane_partition, split_dispatch_key
from lucius.ledger.quarantine import Quarantine
from lucius.ledger.rows import decode_dispatch
from lucius.ledger.store import Row, StoreError, TableStore, Unreadable
from lucius.telemetry import Metrics
from lucius.telemetry.open_jobs import OpenJobs

LOOK_EVERY_SECONDS = 5.0
ROWS_MAX = 1_000
PAGE_ROWS_MAX = 250
SERVICES_MAX = 100
CENSUS_PAGE_JOBS = 64
CENSUS_PAUSE_SECONDS = 0.01
CENSUS_JOBS_MAX = 200_000
# A commit is heard of a moment after it can be read: jobs that are met are kept apart for a little longer.
CENSUS_GRACE_SECONDS = 5.0
# Where other processes move jobs too, their moves are not heard of here: count again.
CENSUS_EVERY_SECONDS = 60.0

log = structlog.get_logger("lucius.depths")


class _Unsent:
    """Directives of jobs with workflows that wait to leave: how many by service and lane, since when."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, int]] = Counter()
        self.since_ms: dict[str, int] = {}

    def add(self, outbox: Outbox) -> None:
        self.counts[outbox.service, outbox.lane] += 1
        since_ms = self.since_ms.get(outbox.service, outbox.created_at_ms)
        self.since_ms[outbox.service] = min(since_ms, outbox.created_at_ms)


class BacklogMeter:
    def __init__(
        self,
        ledger: JobLedger,
        indexes: Indexes,
        services: NameIndex,
        admission: Admission,
        metrics: Metrics,
        *,
        now_ms: Callable[[], int],
        lanes: Callable[[], frozenset[int]] = all_lanes,
        shared: bool = False,
    ) -> None:
        """`shared`: other processes move jobs as well."""
        self._lanes = lanes
        self._shared = shared
        self._ledger = ledger
        self._indexes = indexes
        self._services = services
        self._admission = admission
        self._metrics = metrics
        self._now_ms = now_ms
        self._unsent = _Unsent()

    async def run(self) -> None:
        counting = self._census_for_ever() if self._shared else self._census_and_grace()
        census = asyncio.create_task(counting)
        try:
            while True:
                try:
                    await self.look()
                except StoreError as fault:
                    log.warning("depths_not_measured", error=str(fault))
                await asyncio.sleep(LOOK_EVERY_SECONDS)
        finally:
            census.cancel()
            await asyncio.gather(census, return_exceptions=True)

    async def look(self) -> None:
        depths = self._metrics.depths
        waiting: dict[str, float] = {}
        oldest: dict[str, float] = {}
        places: dict[tuple[str, int], tuple[float, int | None]] = {}
        lanes = dict.fromkeys(sorted(self._lanes()), 0.0)
        now_ms = self._now_ms()
        for service in (await self._services.all())[:SERVICES_MAX]:
            waiting[service] = 0
            for lane in lanes:
                rows = await self._rows(self._ledger.tables.dispatch, dispatch_partition(service, lane))
                if not rows:
                    continue
                waiting[service] += len(rows)
                lanes[lane] += len(rows)
                at_ms = min(filter(None, map(_time_of, rows)), default=None)
                places[service, lane] = (len(rows), at_ms)
                if at_ms is not None:
                    oldest[service] = max(oldest.get(service, 0), max(0, now_ms - at_ms) / 1000)
        for (service, lane), count in self._unsent.counts.items():
            if service in waiting and lane in lanes:
                waiting[service] += count
                lanes[lane] += count
                depth, since_ms = places.get((service, lane), (0.0, None))
                first_ms = self._unsent.since_ms[service]
                places[service, lane] = (depth + count, min(first_ms, since_ms or first_ms))
                age_seconds = max(0, now_ms - self._unsent.since_ms[service]) / 1000
                oldest[service] = max(oldest.get(service, 0), age_seconds)
        depths.waiting, depths.oldest_seconds, depths.lanes = waiting, oldest, lanes
        depths.places = places
        depths.dlq_jobs = sum(
            [len(await self._rows(self._ledger.tables.dlq, lane_partition(lane))) for lane in lanes]
        )
        depths.tenants = self._admission.by_tenant

    async def _rows(self, table: str, partition: str) -> list[Row]:
        """The first rows of a partition, page by page: a long read would hold up the loop."""
        rows: list[Row] = []
        while len(rows) < ROWS_MAX:
            start = f"{rows[-1].key}\x00" if rows else ""
            page = await self._ledger.store.query(table, partition, start=start, limit=PAGE_ROWS_MAX)
            await asyncio.sleep(0)
            rows += page
            if len(page) < PAGE_ROWS_MAX:
                break
        return rows

    async def _census_and_grace(self) -> None:
        while True:
            try:
                await self.census()
                self._metrics.open.counted_at_ms = self._now_ms()
                break
            except StoreError as fault:
                log.warning("open_jobs_not_counted", error=str(fault))
                await asyncio.sleep(LOOK_EVERY_SECONDS)
        await asyncio.sleep(CENSUS_GRACE_SECONDS)
        self._metrics.open.census_over()

    async def _census_for_ever(self) -> None:
        while True:
            # Jobs that move while it counts are met by both.
            counted = self._metrics.counting = OpenJobs()
            try:
                await self.census(counted)
                counted.census_over()
                counted.counted_at_ms = self._now_ms()
                self._metrics.open = counted
            except StoreError as fault:
                log.warning("open_jobs_not_counted", error=str(fault))
            finally:
                self._metrics.counting = None
            await asyncio.sleep(CENSUS_EVERY_SECONDS)

    async def census(self, counted: OpenJobs | None = None) -> int:
        """Counts the jobs that are open, each of which has a row in the due index: into `counted`, or beside
        those whose beginning this process has heard of."""
        found, unsent = 0, _Unsent()
        for lane in sorted(self._lanes()):
            start = ""
            while found < CENSUS_JOBS_MAX:
                entries = await self._indexes.due(lane, MS_MAX - 1, CENSUS_PAGE_JOBS, start=start)
                for entry in entries:
                    await self._count(entry.job_id, counted, unsent)
                found += len(entries)
                if len(entries) < CENSUS_PAGE_JOBS:
                    break
                start = f"{entries[-1].key}\x00"
                await asyncio.sleep(CENSUS_PAUSE_SECONDS)
        self._unsent = unsent
        return found

    async def _count(self, job_id: str, counted: OpenJobs | None, unsent: _Unsent) -> None:
        try:
            loaded = await self._ledger.peek(job_id)
        except Unreadable:
            return  # counted by the quarantine
        if loaded is not None and not loaded.record.job.terminal:
            job, outbox = loaded.record.job, loaded.record.outbox
            self._metrics.found_open(loaded.record, counted)
            if job.engine is Engine.TEMPORAL and outbox is not None and is_publishable(loaded.record):
                unsent.add(outbox)


def _time_of(row: Row) -> int | None:
    try:
        due_at_ms = decode_dispatch(row).due_at_ms
        return split_dispatch_key(row.key)[1] if due_at_ms is None else due_at_ms
    except (ValueError, Unreadable):
        return None


_REPLIES = {kind.__name__: kind.__name__.upper() for kind in (Ack, Progress, Result)}


@runtime_checkable
class GroupCommits(Protocol):
    """A store that writes what several callers ask for in one transaction."""

    @property
    def group_sizes(self) -> Mapping[int, int]:
        """How many transactions carried how many commits."""
        ...


def follow_engine(
    metrics: Metrics,
    sweeper: Sweeper,
    retention: Retention,
    writer: Applying,
    webhooks: WebhookDelivery,
    store: TableStore,
) -> None:
    """Shows what the engine's parts count for themselves."""

    def replies() -> Iterator[tuple[tuple[str, str], int]]:
        for (kind, outcome), count in writer.outcomes.items():
            if kind in _REPLIES:
                yield (_REPLIES[kind], outcome), count

    metrics.follow("replies", "Replies by what became of them", ("type", "outcome"), replies)
    metrics.follow(
        "sweeper_actions",
        "Due rows by what was done about them",
        ("action",),
        lambda: [((action,), count) for action, count in sweeper.actions.items()],
    )
    metrics.follow(
        "webhook_deliveries",
        "Tries to deliver a webhook by outcome",
        ("outcome",),
        lambda: [((outcome,), count) for outcome, count in webhooks.outcomes.items()],
    )
    metrics.follow("jobs_forgotten", "Jobs that retention removed", (), lambda: [((), retention.forgotten)])
    if isinstance(store, GroupCommits):
        metrics.follow_groups(lambda: store.group_sizes)


def follow_quarantine(metrics: Metrics, quarantine: Quarantine) -> None:
    """Shows what damage there is, as far as this process has met it."""
    metrics.follow(
        "rows_quarantined",
        "Rows that could not be read when they were met, by reason",
        ("reason",),
        lambda: [((reason,), count) for reason, count in quarantine.noted.items()],
    )
    metrics.follow_now("quarantine_rows", "Rows that cannot be read now", (), lambda: [((), len(quarantine))])
    metrics.follow_now(
        "store_findings",
        "Problems that the last check of the whole store found",
        (),
        lambda: [((), len(quarantine.findings))],
    )

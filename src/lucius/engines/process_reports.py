"""What each process knows alone, told to the others: who asks it for work, how deep its lanes are.

In: what this process sees. Out: a small row every few seconds, and the rows of all processes together. A
process that stopped writing is left out after a while, and its row is removed later by any other.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import structlog

from lucius.core.why import Wait
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.quarantine import read_page
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import StoreError, discard, put
from lucius.telemetry import Metrics

PARTITION: Final = "reports"
EVERY_SECONDS: Final = 5.0
CURRENT_MS: Final = 20_000  # four reports
KEPT_MS: Final = 3_600_000
PROCESSES_MAX: Final = 500
SERVICES_MAX: Final = 200
CLIENTS_MAX: Final = 20
OPEN_COUNTS_MAX: Final = 5_000
WAITS_MAX: Final = 2_000
CLIENT_KEPT_MS: Final = 60_000
CLIENT_CHARS_MAX: Final = 120

log = structlog.get_logger("lucius.reports")


class LaneDepth(msgspec.Struct, frozen=True, kw_only=True):
    """Directives of one service that wait in one lane; `oldest_at_ms` None: not known."""

    service: str
    lane: int
    depth: int
    oldest_at_ms: int | None = None


class ServiceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Who works for one service, as far as a process sees it. `polls`: calls for directives that wait now;
    `asked_max`: how many directives they would take; `clients`: what the pollers call themselves, and when
    each was seen last; `concurrency`: attempts at a time of the service in this process, None where it is
    not in this process."""

    polls: int = 0
    asked_max: int = 0
    asked_at_ms: int | None = None
    clients: dict[str, int] = {}
    concurrency: int | None = None


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True):
    """`lanes` and `dlq_jobs` are of the lanes that the process looks after; None: it looks after none.
    `open_jobs`: by tenant, state and request type, of the same lanes; `waits`: what they wait for, with the
    name of the tenant where there is room for it; `counted_at_ms`: when all of them were counted last."""

    process: str
    part: str
    version: str
    at_ms: int
    services: dict[str, ServiceReport] = {}
    lanes: list[LaneDepth] | None = None
    dlq_jobs: int | None = None
    open_jobs: list[tuple[str, str, str, int]] = []
    waits: list[tuple[str | None, Wait, int]] = []
    counted_at_ms: int | None = None


class _Polls:
    __slots__ = ("asked_at_ms", "clients", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[object, int] = {}
        self.asked_at_ms = 0
        self.clients: dict[str, int] = {}


class WorkerSightings:
    """The workers that ask this process for directives."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._polls: dict[str, _Polls] = {}
        self._in_process: dict[str, int] = {}

    def runs(self, service: str, concurrency: int) -> None:
        """The service runs in this process."""
        self._in_process[service] = concurrency

    def asks(self, service: str, client: str, directives_max: int) -> object:
        """A worker asks; `left` takes what this returns."""
        polls = self._polls.get(service)
        if polls is None:
            if len(self._polls) >= SERVICES_MAX:
                return None
            polls = self._polls[service] = _Polls()
        poll = object()
        polls.waiting[poll] = directives_max
        self._seen(polls, client)
        return poll

    def left(self, service: str, poll: object) -> None:
        polls = self._polls.get(service)
        if polls is not None:
            polls.waiting.pop(poll, None)
            polls.asked_at_ms = self._now_ms()

    def _seen(self, polls: _Polls, client: str) -> None:
        now_ms = polls.asked_at_ms = self._now_ms()
        polls.clients[client[:CLIENT_CHARS_MAX]] = now_ms
        if len(polls.clients) > CLIENTS_MAX:
            del polls.clients[min(polls.clients, key=lambda each: polls.clients[each])]

    def report(self) -> dict[str, ServiceReport]:
        now_ms, found = self._now_ms(), {}
        for service, polls in self._polls.items():
            seen = {name: at_ms for name, at_ms in polls.clients.items() if now_ms - at_ms < CLIENT_KEPT_MS}
            found[service] = ServiceReport(
                polls=len(polls.waiting),
                asked_max=sum(polls.waiting.values()),
                asked_at_ms=now_ms if polls.waiting else polls.asked_at_ms,
                clients=seen,
                concurrency=self._in_process.get(service),
            )
        for service, concurrency in self._in_process.items():
            if service not in found:
                found[service] = ServiceReport(asked_at_ms=now_ms, concurrency=concurrency)
        return found


_decode = RowDecoder(ProcessReport)


class ProcessReports:
    def __init__(
        self,
        ledger: JobLedger,
        workers: WorkerSightings,
        metrics: Metrics,
        *,
        process: str,
        part: str,
        version: str,
        shared: bool,
        now_ms: Callable[[], int],
    ) -> None:
        """`process`: a name that no other process has, nor had. `shared`: others work on the ledger too, so
        that reports are written and read."""
        self._store, self._table, self._quarantine = ledger.store, ledger.tables.meta, ledger.quarantine
        self._workers = workers
        self._metrics = metrics
        self._process, self._part, self._version = process, part, version
        self._shared = shared
        self._now_ms = now_ms

    def own(self) -> ProcessReport:
        """This process as it is now."""
        depths = self._metrics.depths
        lanes = None
        if self._metrics.measures:
            lanes = [
                LaneDepth(service=service, lane=lane, depth=int(depth), oldest_at_ms=oldest_at_ms)
                for (service, lane), (depth, oldest_at_ms) in depths.places.items()
            ]
        return ProcessReport(
            process=self._process,
            part=self._part,
            version=self._version,
            at_ms=self._now_ms(),
            services=self._workers.report(),
            lanes=lanes,
            dlq_jobs=int(depths.dlq_jobs) if self._metrics.measures else None,
            open_jobs=self._open_jobs(),
            waits=self._waits(),
            counted_at_ms=self._counted_at_ms(),
        )

    def _open_jobs(self) -> list[tuple[str, str, str, int]]:
        if not self._metrics.measures:
            return []
        counts = [(*place, jobs) for place, jobs in self._metrics.open.by_tenant() if jobs]
        return counts[:OPEN_COUNTS_MAX]

    def _waits(self) -> list[tuple[str | None, Wait, int]]:
        if not self._metrics.measures:
            return []
        sums = self._metrics.open.waits().most_common()
        found: list[tuple[str | None, Wait, int]] = [
            (tenant, wait, jobs) for (tenant, wait), jobs in sums[:WAITS_MAX]
        ]
        rest: Counter[Wait] = Counter()
        for (_, wait), jobs in sums[WAITS_MAX:]:
            rest[wait] += jobs
        return found + [(None, wait, jobs) for wait, jobs in rest.items()]

    def _counted_at_ms(self) -> int | None:
        """Where no other process moves jobs, the counts hold from the first census on."""
        at_ms = self._metrics.open.counted_at_ms if self._metrics.measures else None
        return at_ms if self._shared or at_ms is None else self._now_ms()

    async def all(self) -> list[ProcessReport]:
        """Of every process that is there, as it was a few seconds ago; of this one as it is now."""
        own = self.own()
        if not self._shared:
            return [own]
        others = [report for report in await self._read() if report.process != self._process]
        return [own, *(each for each in others if abs(own.at_ms - each.at_ms) <= CURRENT_MS)]

    async def write(self) -> None:
        report = self.own()
        await self._store.commit([put(self._table, PARTITION, self._process, encode(report))])
        for other in await self._read():
            if report.at_ms - other.at_ms > KEPT_MS:
                await self._store.commit([discard(self._table, PARTITION, other.process)])

    async def _read(self) -> list[ProcessReport]:
        return await read_page(
            self._store, self._quarantine, self._table, PARTITION, _decode, limit=PROCESSES_MAX
        )

    async def run(self) -> None:
        while True:
            try:
                await self.write()
            except StoreError as fault:
                log.warning("report_not_written", error=str(fault))
            await asyncio.sleep(EVERY_SECONDS)


def services_of(reports: list[ProcessReport]) -> Mapping[str, ServiceReport]:
    """What all processes see of each service, added up."""
    found: dict[str, ServiceReport] = {}
    for report in reports:
        for name, seen in report.services.items():
            known = found.get(name, ServiceReport())
            times = [at_ms for at_ms in (known.asked_at_ms, seen.asked_at_ms) if at_ms is not None]
            inside = [each for each in (known.concurrency, seen.concurrency) if each is not None]
            found[name] = ServiceReport(
                polls=known.polls + seen.polls,
                asked_max=known.asked_max + seen.asked_max,
                asked_at_ms=max(times, default=None),
                clients={**known.clients, **seen.clients},
                concurrency=sum(inside) if inside else None,
            )
    return found

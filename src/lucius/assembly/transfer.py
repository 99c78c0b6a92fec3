"""A ledger, or one tenant of it, as a file, and from there into another ledger.

In: an open ledger and a file. Out: lines that tell everything of every job (see `chained_lines`), a verdict
on such a file, or the jobs in another ledger, on any store and in either layout. `TransferFault` says why
something was not done, and what to do.

The first line says what the file is, the last how many lines of each kind there are, so that a file that was
cut short is noticed. Between them stand jobs, each as of one moment, then schedules, pauses, what was used
and, where they are asked for, API keys: ids, rights and hashes. Callback and webhook secrets, the rows of
processes and results that services keep are not in it.

An import reads the whole file before it writes anything. It marks the ledger with the file's last sum, so
that one that was cut off is gone on with, and none is done twice.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from lucius import __version__
from lucius.assembly.stores import (
    MEMORY_STORAGE,
    STORES,
    claim_layout,
    is_elsewhere,
    layout_of_folder,
    ledger_folder,
    mark_layout,
    read_layout,
)
from lucius.contracts.keys import StoredKey
from lucius.engines.process_reports import CURRENT_MS, ProcessReport
from lucius.engines.process_reports import PARTITION as REPORTS
from lucius.ledger.api_keys import PARTITION as KEYS
from lucius.ledger.chained_lines import BadLine, ChainReader, ChainWriter
from lucius.ledger.flow import FlowLedger, FlowPause, PauseKind
from lucius.ledger.job_copy import JobCopy, JobImport, read_job_copy
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.lists import Lists
from lucius.ledger.name_index import NameIndex
from lucius.ledger.names import month_of
from lucius.ledger.rows import ROW_SCHEMA, RowDecoder, encode
from lucius.ledger.schedules import Schedule, Schedules
from lucius.ledger.store import (
    Conflict,
    Row,
    Scanned,
    StoreError,
    TableStore,
    Unreadable,
    insert,
    replace,
)
from lucius.ledger.usage import DailyUsage, UsageSums
from lucius.settings import Settings, StoreKind

FORMAT: Final = "lucius-export"
FORMAT_VERSION: Final = 1
IMPORTS: Final = "imports"  # the partition in which a ledger notes what was imported
DAY_FIRST: Final = "00000000"
DAY_LAST: Final = "99999999"
PAGE_ROWS_MAX: Final = 200
AT_ONCE: Final = 16  # reads and writes of jobs: a store that is a network away answers many at a time

Report = Callable[[str], None]


class TransferFault(Exception):
    """It was not done. The text says why, and what to do."""


class ExportHead(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="head"):
    """`tenant`: the one that was asked for; None: all. `running`: processes worked on the ledger meanwhile,
    so that its jobs may have gone on since. `row_schema`: of the rows that the jobs came from."""

    format: str
    format_version: int
    row_schema: int
    lucius: str
    made_at: str
    layout: str
    tenant: str | None
    running: bool


class ScheduleLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="schedule"):
    schedule: Schedule


class KeyLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="api_key"):
    key: StoredKey


class PauseLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="pause"):
    """What an operator has paused."""

    pause: FlowPause


class UsageLine(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="usage"):
    """What services reported that they used for a tenant, of one day at one service."""

    tenant_norm: str
    daily: DailyUsage


class ExportEnd(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="end"):
    """`left_out`: jobs that could not be read, where that was accepted."""

    jobs: int
    open_jobs: int
    schedules: int
    api_keys: int
    pauses: int = 0
    usage_sums: int = 0
    left_out: tuple[str, ...] = ()


ExportLine = ExportHead | JobCopy | ScheduleLine | KeyLine | PauseLine | UsageLine | ExportEnd
_decode_line: Final[msgspec.json.Decoder[ExportLine]] = msgspec.json.Decoder(ExportLine)


class ExportSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a file holds. `last_sum`: of its last line, which stands for all of it."""

    head: ExportHead
    end: ExportEnd
    lines: int
    last_sum: str
    tenants: tuple[str, ...]


class ImportSummary(msgspec.Struct, frozen=True, kw_only=True):
    """`jobs_there`: written before by an import of the same file that was cut off."""

    export: ExportSummary
    jobs_written: int
    jobs_there: int
    schedules_written: int
    api_keys_written: int


class _ImportNote(msgspec.Struct, frozen=True, kw_only=True):
    """`done_at_ms`: None while it is under way."""

    begun_at_ms: int
    done_at_ms: int | None = None


_note: Final = RowDecoder(_ImportNote)
_report: Final = RowDecoder(ProcessReport)


# -- export ------------------------------------------------------------------------------------------------


async def export_ledger(
    ledger: JobLedger,
    layout: LayoutName,
    target: Path,
    *,
    tenant: str | None,
    api_keys: bool,
    running: bool,
    accept_damage: bool,
    made_at: str,
    report: Report,
) -> ExportSummary:
    """Raises `TransferFault`, `StoreError` and `OSError`; then there is no `target`. `tenant`: in its
    normalised form."""
    head = ExportHead(
        format=FORMAT,
        format_version=FORMAT_VERSION,
        row_schema=ROW_SCHEMA,
        lucius=__version__,
        made_at=made_at,
        layout=layout.value,
        tenant=tenant,
        running=running,
    )
    counts: Counter[str] = Counter()
    left_out: list[str] = []
    tenants: set[str] = set()
    with ChainWriter(target) as file:
        file.write(msgspec.json.encode(head))
        async for copies in _job_pages(ledger, tenant, left_out):
            if left_out and not accept_damage:
                raise TransferFault(
                    f"{left_out[0]}. `lucius doctor` names every row that cannot be read; with "
                    "--accept-damage such jobs are left out"
                )
            for copy in copies:
                tenants.add(copy.job.tenant_norm)
                counts["jobs"] += 1
                counts["open"] += not copy.job.terminal
                file.write(msgspec.json.encode(copy))
            report(f"{counts['jobs']:,} jobs written")
        async for line in _lines_beside_jobs(ledger, tenant, api_keys=api_keys):
            counts[type(line).__name__] += 1
            file.write(msgspec.json.encode(line))
        end = ExportEnd(
            jobs=counts["jobs"],
            open_jobs=counts["open"],
            schedules=counts[ScheduleLine.__name__],
            api_keys=counts[KeyLine.__name__],
            pauses=counts[PauseLine.__name__],
            usage_sums=counts[UsageLine.__name__],
            left_out=tuple(left_out),
        )
        file.write(msgspec.json.encode(end))
        file.finish()
        return ExportSummary(
            head=head, end=end, lines=file.lines, last_sum=file.last_sum, tenants=tuple(sorted(tenants))
        )


async def _job_pages(
    ledger: JobLedger, tenant: str | None, left_out: list[str]
) -> AsyncIterator[list[JobCopy]]:
    """In the order in which they lie; those that cannot be read are named in `left_out`."""
    table, key = ledger.layout.job_rows
    after: tuple[str, str] | None = None
    room = asyncio.Semaphore(AT_ONCE)

    async def copy_of(row: Scanned) -> JobCopy | None:
        async with room:
            try:
                job = ledger.layout.job_in(row)
                if job is None or (tenant is not None and job.tenant_norm != tenant):
                    return None
                return await read_job_copy(ledger, job.job_id)
            except Unreadable as fault:
                left_out.append(str(fault))
                return None

    while rows := await ledger.store.scan(table, after=after, limit=PAGE_ROWS_MAX, key=key):
        copies = await asyncio.gather(*(copy_of(row) for row in rows))
        yield [copy for copy in copies if copy is not None]
        if len(rows) < PAGE_ROWS_MAX:
            return
        after = rows[-1].place


async def _lines_beside_jobs(
    ledger: JobLedger, tenant: str | None, *, api_keys: bool
) -> AsyncIterator[ScheduleLine | KeyLine | PauseLine | UsageLine]:
    store, meta = ledger.store, ledger.tables.meta
    async for schedule in _schedules(ledger, tenant):
        yield ScheduleLine(schedule=schedule)
    for pause in await FlowLedger(store, meta, ledger.quarantine).pauses():
        if tenant is None or (pause.kind is PauseKind.TENANT and pause.name == tenant):
            yield PauseLine(pause=pause)
    sums = UsageSums(store, meta, ledger.quarantine)
    for used_by in await sums.tenants() if tenant is None else [tenant]:
        for daily in await sums.read(used_by, DAY_FIRST, DAY_LAST):
            yield UsageLine(tenant_norm=used_by, daily=daily)
    if api_keys:
        async for key in _api_keys(ledger, tenant):
            yield KeyLine(key=key)


async def _schedules(ledger: JobLedger, tenant: str | None) -> AsyncIterator[Schedule]:
    schedules = Schedules(ledger.store, ledger.tables.meta, ledger.quarantine)
    after = ""
    while page := await schedules.page(after, PAGE_ROWS_MAX):
        for schedule in page:
            if tenant is None or schedule.spec.tenant_norm == tenant:
                yield schedule
        after = page[-1].spec.schedule_id


async def _api_keys(ledger: JobLedger, tenant: str | None) -> AsyncIterator[StoredKey]:
    """Of one tenant: those that open nothing else."""
    decode, start = RowDecoder(StoredKey), ""
    while rows := await ledger.store.query(ledger.tables.meta, KEYS, start=start, limit=PAGE_ROWS_MAX):
        for row in rows:
            key = decode.at(ledger.tables.meta, KEYS, row)
            if tenant is None or key.tenants == (tenant,):
                yield key
        start = rows[-1].key + "\x00"


async def processes_at_work(ledger: JobLedger, now_ms: int) -> list[str]:
    """Processes that wrote a report into the ledger a moment ago."""
    rows = await ledger.store.query(ledger.tables.meta, REPORTS, limit=PAGE_ROWS_MAX)
    found = []
    for row in rows:
        try:
            report = _report(row)
        except Unreadable:
            continue  # of another version, perhaps: it does not say that a process runs now
        if abs(now_ms - report.at_ms) <= CURRENT_MS:
            found.append(f"{report.part} {report.process}")
    return found


# -- verify ------------------------------------------------------------------------------------------------


def export_lines(path: Path) -> Iterator[ExportLine]:
    """Each line as a value, checked before it is given. Raises `BadLine` and `OSError`."""
    reader = ChainReader(path)
    for body in reader:
        yield _line_in(body, reader.lines)


def verify_export(path: Path, look: Callable[[JobCopy], str | None] | None = None) -> ExportSummary:
    """Looks at every byte and every job. `look`: says what else is wrong with a job. Raises `BadLine`,
    `TransferFault` and `OSError`."""
    reader = ChainReader(path)
    verdict = _Verdict(look)
    for body in reader:
        number = reader.lines
        if verdict.head is None:
            verdict.head = _head_in(body, number)
        else:
            verdict.take(_line_in(body, number), number)
    if verdict.head is None:
        raise BadLine(1, "the file is empty")
    if verdict.end is None:
        raise BadLine(reader.lines + 1, "it is not there: the file was cut short")
    verdict.check_counts(verdict.end, reader.lines)
    return ExportSummary(
        head=verdict.head,
        end=verdict.end,
        lines=reader.lines,
        last_sum=reader.last_sum,
        tenants=tuple(sorted(verdict.tenants)),
    )


class _Verdict:
    """What the lines so far say, one by one and together."""

    def __init__(self, look: Callable[[JobCopy], str | None] | None) -> None:
        self._look = look
        self._jobs: set[str] = set()
        self._counts: Counter[str] = Counter()
        self.head: ExportHead | None = None
        self.end: ExportEnd | None = None
        self.tenants: set[str] = set()

    def take(self, line: ExportLine, number: int) -> None:
        if self.end is not None or isinstance(line, ExportHead):
            raise BadLine(number, "it is out of place")
        if isinstance(line, ExportEnd):
            self.end = line
        elif isinstance(line, JobCopy):
            self._take_job(line, number)
        else:
            self._counts[type(line).__name__] += 1

    def _take_job(self, copy: JobCopy, number: int) -> None:
        job = copy.job
        fault = copy.fault
        if fault is None and self._look is not None:
            fault = self._look(copy)
        if job.job_id in self._jobs:
            fault = "the job stands in the file twice"
        if fault is not None:
            raise BadLine(number, f"{job.job_id}: {fault}")
        self._jobs.add(job.job_id)
        self.tenants.add(job.tenant_norm)
        self._counts["open"] += not job.terminal

    def check_counts(self, end: ExportEnd, number: int) -> None:
        counts = self._counts
        beside = (ScheduleLine, KeyLine, PauseLine, UsageLine)
        found = (len(self._jobs), counts["open"], *(counts[kind.__name__] for kind in beside))
        said = (end.jobs, end.open_jobs, end.schedules, end.api_keys, end.pauses, end.usage_sums)
        if found != said:
            raise BadLine(number, "it counts other lines than there are")


def _head_in(body: bytes, number: int) -> ExportHead:
    line = _line_in(body, number)
    if not isinstance(line, ExportHead) or line.format != FORMAT:
        raise BadLine(number, "it is not the first line of an export of Lucius")
    if line.format_version > FORMAT_VERSION or line.row_schema > ROW_SCHEMA:
        raise TransferFault(
            f"the export was made by Lucius {line.lucius}, in a format that this version ({__version__}) "
            "does not know: use that version, or a later one"
        )
    return line


def _line_in(body: bytes, number: int) -> ExportLine:
    try:
        return _decode_line.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
        raise BadLine(number, f"it is intact, and does not say what it should: {fault}") from None


# -- import ------------------------------------------------------------------------------------------------


class LedgerImport:
    def __init__(self, ledger: JobLedger, *, now_ms: Callable[[], int], report: Report) -> None:
        self._ledger = ledger
        self._store: TableStore = ledger.store
        self._meta = ledger.tables.meta
        self._jobs = JobImport(ledger, now_ms=now_ms)
        self._flow = FlowLedger(self._store, self._meta, ledger.quarantine)
        self._usage = UsageSums(self._store, self._meta, ledger.quarantine)
        self._now_ms = now_ms
        self._report = report

    async def run(self, path: Path, *, accept_running: bool) -> ImportSummary:
        """Raises `BadLine`, `TransferFault`, `StoreError` and `OSError`; the first two before anything is
        written."""
        self._report("Looking at every line.")
        export = await asyncio.to_thread(verify_export, path, self._jobs.too_large)
        if export.head.running and not accept_running:
            raise TransferFault(
                "the export was made while processes worked on its ledger: jobs that they went on with would "
                "run here as well. Stop them and export again; --accept-running imports it all the same"
            )
        note = await self._begin(export)
        written: Counter[str] = Counter()
        await self._write_first(path)
        room = asyncio.Semaphore(AT_ONCE)
        batch: list[JobCopy] = []
        for line in export_lines(path):
            if isinstance(line, JobCopy):
                batch.append(line)
                if len(batch) == PAGE_ROWS_MAX:
                    await self._write_jobs(batch, room, written)
                    batch = []
            elif isinstance(line, ScheduleLine):
                written["schedules"] += await self._schedules().create(line.schedule)
            elif isinstance(line, KeyLine):
                written["keys"] += await self._write_key(line.key)
        await self._write_jobs(batch, room, written)
        await self._finish(export, note)
        return ImportSummary(
            export=export,
            jobs_written=written["jobs"],
            jobs_there=written["there"],
            schedules_written=written["schedules"],
            api_keys_written=written["keys"],
        )

    async def _begin(self, export: ExportSummary) -> Row:
        """The note that this import is under way. Raises `TransferFault` where it may not be."""
        there = await self._store.get(self._meta, IMPORTS, export.last_sum)
        if there is not None:
            if _note(there).done_at_ms is not None:
                raise TransferFault(
                    "this ledger has that export already: what retention removed since would come back"
                )
            return there
        await self._check_room(export)
        note = encode(_ImportNote(begun_at_ms=self._now_ms()))
        await self._store.commit([insert(self._meta, IMPORTS, export.last_sum, note)])
        begun = await self._store.get(self._meta, IMPORTS, export.last_sum)
        if begun is None:
            raise StoreError("what was just written is not there")
        return begun

    async def _check_room(self, export: ExportSummary) -> None:
        """A whole ledger goes into one without jobs, a tenant into one without jobs of that tenant."""
        tenant = export.head.tenant
        found = await self._first_job(tenant)
        if found is None:
            await self._check_usage(tenant)
            return
        if tenant is None:
            raise TransferFault(
                f"the ledger is not empty: it has {found}. Import into an empty one; single tenants "
                "(`lucius export --tenant`) go into any that has no job of theirs"
            )
        raise TransferFault(
            f"the ledger has jobs of {tenant} already: {found}. Two histories of one tenant are not put "
            "together"
        )

    async def _check_usage(self, tenant: str | None) -> None:
        used = [each for each in await self._usage.tenants() if tenant is None or each == tenant]
        if used:
            raise TransferFault(
                f"the ledger has sums of what {used[0]} used: what came from both would be counted as one"
            )

    async def _first_job(self, tenant: str | None) -> str | None:
        table, key = self._ledger.layout.job_rows
        after: tuple[str, str] | None = None
        while rows := await self._store.scan(table, after=after, limit=PAGE_ROWS_MAX, key=key):
            for row in rows:
                job = self._ledger.layout.job_in(row)
                if job is not None and (tenant is None or job.tenant_norm == tenant):
                    return job.job_id
            after = rows[-1].place
        return None

    async def _write_first(self, path: Path) -> None:
        """Before any job moves: what is paused, what was used so far, and the names by which jobs are found
        that lie in partitions of their own."""
        months: set[str] = set()
        tenants: set[str] = set()
        services: set[str] = set()
        for line in export_lines(path):
            if isinstance(line, JobCopy):
                months.add(month_of(line.job.created_at_ms))
                tenants.add(line.job.tenant_norm)
                services.update(name for step in line.steps for name in (step.service, *step.fallback))
            elif isinstance(line, PauseLine):
                await self._flow.pause(line.pause)
            elif isinstance(line, UsageLine):
                tenants.add(line.tenant_norm)
                await self._usage.bring(line.tenant_norm, line.daily)
        tenant_names = NameIndex(self._ledger, "tenants", now_ms=self._now_ms)
        service_names = NameIndex(self._ledger, "services")
        for tenant in sorted(tenants):
            await tenant_names.add(tenant)
        for service in sorted(services):
            await service_names.add(service)
        await Lists(self._ledger, tenant_names).record_time(self._now_ms(), imported=months)

    async def _write_jobs(
        self, copies: list[JobCopy], room: asyncio.Semaphore, written: Counter[str]
    ) -> None:
        async def write(copy: JobCopy) -> bool:
            async with room:
                return await self._jobs.write(copy)

        new = await asyncio.gather(*(write(copy) for copy in copies))
        written["jobs"] += sum(new)
        written["there"] += len(new) - sum(new)
        self._report(f"{written['jobs'] + written['there']:,} jobs imported")

    def _schedules(self) -> Schedules:
        return Schedules(self._store, self._meta, self._ledger.quarantine)

    async def _write_key(self, key: StoredKey) -> bool:
        try:
            await self._store.commit([insert(self._meta, KEYS, key.key_id, encode(key))])
        except Conflict:
            return False
        return True

    async def _finish(self, export: ExportSummary, note: Row) -> None:
        done = msgspec.structs.replace(_note(note), done_at_ms=self._now_ms())
        await self._store.commit([replace(self._meta, IMPORTS, export.last_sum, encode(done), note.etag)])


# -- where it goes -----------------------------------------------------------------------------------------


async def open_target(settings: Settings, storage: str, data: Path) -> JobLedger:
    """The ledger to import into, made where there is none. `storage`: the layout that was asked for, or "":
    as the ledger says, `ledger` for a new one. The caller holds the folder of a ledger in a file. Raises
    `TransferFault`, a `StoreError` or an `OSError`."""
    if storage == MEMORY_STORAGE or settings.store is StoreKind.MEMORY:
        raise TransferFault("a ledger in memory ends with this command: name a store that keeps what it gets")
    store = await STORES[settings.store](settings, data)
    try:
        if is_elsewhere(settings):
            there = await read_layout(store, settings.tables)
            layout = LayoutName(storage) if storage else there or LayoutName.LEDGER
            await claim_layout(store, settings.tables, layout)
        else:
            folder = ledger_folder(settings, data)
            layout = LayoutName(storage) if storage else layout_of_folder(folder) or LayoutName.LEDGER
            await asyncio.to_thread(mark_layout, folder, layout.value)
    except BaseException:
        await store.close()
        raise
    return JobLedger(store, layout, settings.tables)

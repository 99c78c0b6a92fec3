"""What the console reads, from a ledger that holds very many jobs, while others come in.

In: how many jobs. Out: for each thing that a page asks, how long the answers took. The ledger is filled with
copies of a few finished jobs, whose rows are those that Lucius writes; they are put into the file at once,
which no process has open meanwhile. Then a server works on it as ever: a steady stream of jobs comes in, is
worked off and followed by a listener, while one caller asks as a page does.
"""

import asyncio
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from lucius.assembly.clock_and_ids import time_ordered_id
from lucius.assembly.stores import STORE_NAME, open_store
from lucius.core.states import JobState
from lucius.ledger.checksums import partition_sum, sealed
from lucius.ledger.job_copy import JobCopy, JobImport, read_job_copy
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.sqlite.file import statements
from lucius.ledger.store import Op
from lucius.settings import read_settings
from lucius_lab.bench.load import command
from lucius_lab.bench.main import HOST, Bench, Server, say, with_dots
from lucius_lab.bench.wire import LoadConnection, WireFault

DAYS: Final = 30
TEMPLATES: Final = 16
REQUEST_TYPE: Final = "OCR"
CHUNK_JOBS: Final = 2_000
FAILED_EVERY: Final = 200
CANCELLED_EVERY: Final = 500
EVENTS_PER_SECOND: Final = 200
ANSWER_MS_MAX: Final = 100.0
ROUNDS: Final = 200
ROUNDS_QUICK: Final = 10
FEW: Final = 100
# Of the others a ledger of few jobs has less to answer.
COMPARED: Final = ("list, the newest", "list, two weeks back", "search, document id", "overview")
ERROR_CODE: Final = "UNREADABLE_DOCUMENT"


async def measure_console(bench: Bench) -> None:
    """What an answer costs a server that has nothing else to do, few jobs or many; then how long answers of
    the full one take while jobs come in."""
    many = bench.ledger_jobs_full
    rounds = ROUNDS_QUICK if bench.options.quick else ROUNDS
    say(f"What the console asks, with {FEW:,} and {many:,} jobs, and {EVENTS_PER_SECOND} events/s coming in")
    services = (REQUEST_TYPE.lower(),)
    few_last, many_last = [await _filled(bench, jobs) for jobs in (FEW, many)]
    async with (
        bench.server(services, data=_data(bench, FEW)) as few,
        bench.server(services, data=_data(bench, many)) as full,
    ):
        of_few, of_many = _questions(few_last, FEW), _questions(many_last, many)
        for name in COMPARED:
            one = await _cpu_ms(few, of_few[name], rounds)
            other = await _cpu_ms(full, of_many[name], rounds)
            bench.add(f"{name}: server CPU, {FEW:,} jobs", one, "ms")
            bench.add(f"{name}: server CPU, {many:,} jobs", other, "ms")
        asked = _Asked(full)
        per_second = await asked.ask(of_many, rounds)
    bench.add("events that came in meanwhile", per_second, "/s")
    for name, taken in asked.taken_ms.items():
        bench.add(f"{name}: p50", _percentile(taken, 0.5), "ms")
        bench.add(f"{name}: p99", _percentile(taken, 0.99), "ms", at_most=ANSWER_MS_MAX)


def _data(bench: Bench, jobs: int) -> Path:
    return bench.folder / f"console-{jobs}"


async def _filled(bench: Bench, jobs: int) -> str:
    """Makes a ledger of so many jobs; the id of the last."""
    data = _data(bench, jobs)
    async with bench.server((REQUEST_TYPE.lower(),), data=data) as server:
        made = await _templates(server)
    began = time.perf_counter()
    last = await with_dots(asyncio.to_thread(_fill, data, await _copies(data, made), jobs))
    say(f"  {jobs:,} jobs written in {time.perf_counter() - began:,.0f} s")
    return last


def _percentile(taken: Sequence[float], part: float) -> float:
    ordered = sorted(taken)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


# -- the ledger --------------------------------------------------------------------------------------------


async def _templates(server: Server) -> list[str]:
    """Jobs of several tenants that were worked off."""
    wire, made = LoadConnection(HOST, server.port), list[str]()
    for number in range(TEMPLATES):
        made.append(await _submit(wire, command(number, REQUEST_TYPE, "template")))
    for job_id in made:
        _, job = await wire.get(f"/v1/jobs/{job_id}?wait=30")
        if job["state"] != JobState.SUCCEEDED.value:
            raise WireFault(f"{job_id} is {job['state']}")
    wire.close()
    return made


async def _submit(wire: LoadConnection, document: dict[str, Any]) -> str:
    status, accepted = await wire.post("/v1/orchestrate", {**document, "payload": {}})
    if status != 202:
        raise WireFault(f"{status}: {accepted}")
    return str(accepted["jobId"])


async def _copies(data: Path, job_ids: Sequence[str]) -> list[JobCopy]:
    store = await open_store(read_settings({}), LayoutName.LEDGER.value, data)
    try:
        ledger = JobLedger(store, LayoutName.LEDGER)
        found = [await read_job_copy(ledger, job_id) for job_id in job_ids]
        return [msgspec.structs.replace(copy, key=None) for copy in found if copy is not None]
    finally:
        await store.close()


class _NoStore:
    """Stands for a store of which nothing is asked but whether commits span: only its rows are planned."""

    spans = True
    job_bytes_max = None


def _fill(data: Path, copies: Sequence[JobCopy], jobs: int) -> str:
    """Writes the rows of so many jobs, spread over the last month; the id of the last."""
    now_ms = time.time_ns() // 1_000_000
    step_ms = DAYS * 86_400_000 / jobs
    ledger = JobLedger(_NoStore(), LayoutName.LEDGER)  # type: ignore[arg-type]
    importer = JobImport(ledger, now_ms=lambda: now_ms)
    texts = [(copy.job.job_id, msgspec.json.encode(copy)) for copy in copies]
    with closing(sqlite3.connect(data / STORE_NAME, isolation_level=None)) as file:
        file.execute("PRAGMA synchronous = OFF")
        last = ""
        for first in range(0, jobs, CHUNK_JOBS):
            rows: dict[str, list[tuple[str, bytes, str, str]]] = defaultdict(list)
            for number in range(first, min(first + CHUNK_JOBS, jobs)):
                at_ms = int(now_ms - (jobs - number) * step_ms)
                last, made = _made(texts[number % len(texts)], number, at_ms)
                for op in _rows_of(importer, made):
                    etag = sealed(1, partition_sum(op.table, op.partition), op.key, op.body)
                    rows[op.table].append((etag, op.body, op.partition, op.key))
            file.execute("BEGIN")
            for table, values in rows.items():
                of_table = statements(table)
                file.execute(of_table.create)
                file.executemany(of_table.put, values)
            file.execute("COMMIT")
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return last


def _made(template: tuple[str, bytes], number: int, at_ms: int) -> tuple[str, JobCopy]:
    template_id, text = template
    job_id = f"job_{time_ordered_id(at_ms)}"
    text = text.replace(template_id.encode(), job_id.encode())
    text = text.replace(template_id.removeprefix("job_").encode(), job_id.removeprefix("job_").encode())
    copy = msgspec.json.decode(text, type=JobCopy)
    changes: dict[str, Any] = {}
    if number % FAILED_EVERY == 0:
        changes = {
            "state": JobState.FAILED_FINAL,
            "error_code": ERROR_CODE,
            "error_message": "page 3 is damaged",
        }
    elif number % CANCELLED_EVERY == 1:
        changes = {"state": JobState.CANCELLED}
    job = msgspec.structs.replace(
        copy.job,
        created_at_ms=at_ms,
        updated_at_ms=at_ms + 900,
        completed_at_ms=at_ms + 900,
        doc_id=f"doc-{number}",
        **changes,
    )
    return job_id, msgspec.structs.replace(copy, job=job)


def _rows_of(importer: JobImport, copy: JobCopy) -> Iterator[Op]:
    yield from importer._own_rows(copy)
    yield from importer._rows_around(copy)


# -- asking ------------------------------------------------------------------------------------------------


def _questions(last: str, jobs: int) -> dict[str, str]:
    return {
        "list, the newest": "/v1/jobs?limit=50",
        "list, two weeks back": "/v1/jobs?limit=50&created_before=14d",
        "list of a tenant": "/v1/jobs?limit=50&tenant_id=tenant-3",
        "filter, failed": "/v1/jobs?limit=50&state=FAILED_FINAL",
        "filter, failed with a code": f"/v1/jobs?limit=50&state=FAILED_FINAL&error_code={ERROR_CODE}",
        "filter, in flight": "/v1/jobs?limit=50&state=QUEUED,DISPATCHING,IN_PROGRESS",
        "filter, of the last hour": "/v1/jobs?limit=50&created_after=1h",
        "search, document id": f"/v1/jobs?limit=50&q=doc-{jobs // 2}",
        "search, beginning of one": f"/v1/jobs?limit=50&q=doc-{jobs // 2}"[:-1],
        "search, job id": f"/v1/jobs?limit=50&q={last}",
        "search, beginning of one, job": f"/v1/jobs?limit=50&q={last[:16]}",
        "search, any part of a job id": f"/v1/jobs?limit=50&q={last[-8:]}",
        "counts by state": "/v1/jobs:counts",
        "overview": "/v1/overview?window=1h",
        "overview of a day": "/v1/overview?window=24h",
        "failed jobs": "/v1/admin/dlq?limit=200",
    }


async def _cpu_ms(server: Server, path: str, rounds: int) -> float:
    """Of the server's processor, an answer. It counts hundredths of a second: one answer alone is less."""
    wire = LoadConnection(HOST, server.port)
    try:
        await _timed(wire, path)
        before = server.cpu_seconds()
        for _ in range(rounds):
            await _timed(wire, path)
        return (server.cpu_seconds() - before) * 1000 / rounds
    finally:
        wire.close()


class _Asked:
    """How long each answer took, in ms, while jobs came in."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.taken_ms: dict[str, list[float]] = defaultdict(list)

    async def ask(self, questions: Mapping[str, str], rounds: int) -> float:
        """How many events came in a second meanwhile."""
        load = _Load(self._server)
        beside = [asyncio.create_task(load.run()), asyncio.create_task(_listen(self._server))]
        wire = LoadConnection(HOST, self._server.port)
        try:
            await load.steady()
            began, before = time.perf_counter(), load.events
            for round_no in range(rounds + 1):
                for name, path in questions.items():
                    taken = await _timed(wire, path)
                    if round_no:  # the first reads what the file system has not read yet
                        self.taken_ms[name].append(taken)
            for task in beside:
                if task.done():
                    task.result()
            return (load.events - before) / (time.perf_counter() - began)
        finally:
            wire.close()
            for task in beside:
                task.cancel()
                with suppress(asyncio.CancelledError, WireFault):
                    await task


async def _timed(wire: LoadConnection, path: str) -> float:
    began = time.perf_counter()
    status, answer = await wire.get(path)
    taken_ms = (time.perf_counter() - began) * 1000
    if status != 200:
        raise WireFault(f"{path}: {status} {answer}")
    return taken_ms


class _Load:
    """Jobs that come in at a pace that makes so many events a second."""

    WARM_JOBS = 20
    CLIENTS = 8  # one alone waits for its commits

    def __init__(self, server: Server) -> None:
        self._port = server.port
        self._events_a_job = 1
        self._jobs = 0
        self._is_steady = asyncio.Event()

    @property
    def events(self) -> int:
        return self._jobs * self._events_a_job

    async def steady(self) -> None:
        await self._is_steady.wait()

    async def run(self) -> None:
        with closing(LoadConnection(HOST, self._port)) as wire:
            first = await _submit(wire, command(0, REQUEST_TYPE, "first"))
            await wire.get(f"/v1/jobs/{first}?wait=30")
            _, page = await wire.get(f"/v1/jobs/{first}/events")
        self._events_a_job = len(page["items"])
        pause, due = self._events_a_job / EVENTS_PER_SECOND, time.perf_counter()

        async def client() -> None:
            nonlocal due
            with closing(LoadConnection(HOST, self._port)) as wire:
                while True:
                    due, now = max(due, time.perf_counter() - 1) + pause, time.perf_counter()
                    await asyncio.sleep(max(0.0, due - now))
                    await _submit(wire, command(self._jobs, REQUEST_TYPE, "stream"))
                    self._jobs += 1
                    if self._jobs >= self.WARM_JOBS:
                        self._is_steady.set()

        await asyncio.gather(*(client() for _ in range(self.CLIENTS)))


async def _listen(server: Server) -> None:
    """As an open page does."""
    reader, writer = await asyncio.open_connection(HOST, server.port)
    head = f"GET /v1/jobs:stream HTTP/1.1\r\nHost: {HOST}:{server.port}\r\nAccept: text/event-stream\r\n\r\n"
    with closing(writer):
        writer.write(head.encode())
        while await reader.read(65_536):
            pass
    raise WireFault("the stream of jobs ended")

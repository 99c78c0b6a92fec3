"""A small Lucius around any table store: the kernel, hand-outs, sweeper, retention.

In: a store, a layout. Out: a `World` whose `Deployment`s are processes that share the store, each with a
ledger and a cache of its own; a process can be made to die or to fall asleep at any of its writes. Ids are
counted, time moves when it is told to. What must hold of the rows is in `ledger_checks`.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from tests.conformance.azurite_setup import AZURITE, open_store
from tests.conformance.postgres_setup import POSTGRES
from tests.conformance.postgres_setup import open_store as open_postgres
from tests.support.flow_setup import LimitedRegistry
from tests.support.payloads import payload_of

from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.contracts.envelope import Envelope
from lucius.core.attempt import AttemptRef
from lucius.core.inputs import Ack, Result, ResultStatus
from lucius.core.model import Event, JobRecord, Json
from lucius.core.states import Engine
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.engines.outbox.retention import Retention
from lucius.engines.outbox.sweeper import Sweeper
from lucius.jobs.new_job import NewIds
from lucius.jobs.references import ReferencePolicy
from lucius.jobs.submit import Submitted
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.jobs.workflows import WorkflowSignaller
from lucius.jobs.writer import Applied
from lucius.ledger.job_deletion import JobDeletion
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.lists import Lists
from lucius.ledger.memory import MemoryStore
from lucius.ledger.names import Tables
from lucius.ledger.slots import Slots
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import Op, Row, Scanned, TableStore

START_MS = 1_800_000_000_000  # 2027-01-15
DAY_MS = 86_400_000
KEEP_MS = 30 * DAY_MS
ROWS_MAX = 100_000
REGISTRY = LimitedRegistry()  # a test may limit a service for its time
SERVICES = ("ocr", "embedding", "sis")
TENANT = "tenant_a"
T = Tables()
STORES = ("memory", "memory-no-spans", "sqlite")
EVERY_STORE = (*STORES, POSTGRES, AZURITE)
LAYOUTS = tuple(LayoutName)
Rows = dict[tuple[str, str, str], Row]


class Clock:
    def __init__(self, now_ms: int = START_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


class Ids:
    def __init__(self) -> None:
        self.jobs: list[str] = []
        self.next_job_id: str | None = None
        self._leases = 0

    def new_ids(self) -> NewIds:
        number = len(self.jobs) + 1
        self.jobs.append(self.next_job_id or f"job_{number:026d}")
        self.next_job_id = None
        trace = f"00-{number:032x}-{number:016x}-01"
        return NewIds(job_id=self.jobs[-1], correlation_id=f"correlation-{number}", traceparent=trace)

    def new_lease_id(self) -> str:
        self._leases += 1
        return f"lease-{self._leases}"


class Died(BaseException):
    """The process is no more. Not an `Exception`: nothing it runs into may survive it."""


class Trial(msgspec.Struct, kw_only=True):
    """What happens to a process at one of its writes, counted from 0."""

    at: int | Callable[[Sequence[Op]], bool]
    dies_before: bool = False
    dies_after: bool = False
    sleeps: Callable[[], Awaitable[None]] | None = None


class Places(set[tuple[str, str]]):
    """The partitions that anybody ever wrote to, and how often anybody did."""

    commits = 0


class TriedStore:
    """A store as one process sees it. Counts its commits and remembers where they wrote. `waits` is awaited
    before every call: whoever gives it decides in which order processes get on. `frugal`: what lies where
    nobody ever wrote is not asked of the store, since a sweeper looks there all the time."""

    def __init__(
        self,
        inner: TableStore,
        places: Places,
        trial: Trial | None = None,
        waits: Callable[[], Awaitable[None]] | None = None,
        *,
        frugal: bool = False,
    ) -> None:
        self.inner = inner
        self._frugal = frugal
        self.commits: list[Sequence[Op]] = []
        self._places = places
        self.trial = trial
        self._waits = waits
        self._dead = False

    @property
    def spans(self) -> bool:
        return self.inner.spans

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        await self._turn()
        if self._frugal and (table, partition) not in self._places:
            return None
        return await self.inner.get(table, partition, key)

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        await self._turn()
        if self._frugal and (table, partition) not in self._places:
            return []
        return await self.inner.query(table, partition, start=start, end=end, limit=limit)

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        await self._turn()
        return await self.inner.scan(table, after=after, limit=limit, key=key)

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        await self._turn()
        trial, number = self.trial, len(self.commits)
        self.commits.append(ops)
        now = trial is not None and (trial.at == number if isinstance(trial.at, int) else trial.at(ops))
        if now and trial is not None:
            self.trial = None
            if trial.dies_before:
                self._die()
            if trial.sleeps is not None:
                await trial.sleeps()
        self._places.update((op.table, op.partition) for op in ops)
        self._places.commits += 1
        try:
            etags = await self.inner.commit(ops)
        finally:
            if now and trial is not None and trial.dies_after:
                self._die()
        return etags

    async def ping(self) -> None:
        await self.inner.ping()

    async def close(self) -> None:
        self._dead = True

    def _die(self) -> None:
        self._dead = True
        raise Died

    async def _turn(self) -> None:
        if self._dead:
            raise Died
        if self._waits is not None:
            await self._waits()


class Deployment:
    """One process."""

    def __init__(
        self,
        store: TriedStore,
        layout: LayoutName,
        clock: Clock,
        ids: Ids,
        *,
        engine: Engine = Engine.OUTBOX,
        signaller: WorkflowSignaller | None = None,
    ) -> None:
        self.store, self.clock = store, clock
        self.kernel = kernel = Kernel(
            store,
            KernelOptions(
                registry=REGISTRY,
                layout=layout,
                engine=engine,
                callbacks=ReferencePolicy(schemes=frozenset({"https"})),
            ),
            now_ms=clock,
            ids=ids,
            signaller=signaller,
        )
        self.ledger, self.indexes = kernel.ledger, kernel.indexes
        self.lists = Lists(kernel.ledger, kernel.tenants)
        self.slots, self.admission = Slots(kernel.ledger), kernel.admission
        self.writer, self.due_handler = kernel.writer, kernel.due_handler
        self.submitter, self.reruns = kernel.submitter, kernel.reruns
        self.sweeper = Sweeper(self.indexes, self.due_handler, now_ms=clock, look_every_ms=1_000)
        self.retention = Retention(JobDeletion(self.ledger), now_ms=clock, keep_ms=KEEP_MS)

    async def warm(self) -> None:
        """Writes down the names that are written down once, so that they are no part of what is counted."""
        await self.kernel.tenants.add(TENANT)
        for service in SERVICES:
            await self.kernel.services.add(service)
        self.store.commits.clear()

    async def take(self, service: str, *, directives_max: int = 100) -> list[AttemptRef]:
        """What a worker gets that polls a process which has just started."""
        dispatcher = LedgerDispatcher(
            self.kernel.fair_share,
            self.writer,
            self.due_handler,
            CallbackTokens([SigningKey(kid="1", secret="s" * 32)]),
            callback_base="http://lucius.test",
            now_ms=self.clock,
            look_every_ms=1_000,
            flow=self.kernel.flow,
        )
        taken = await dispatcher.take(service, directives_max=directives_max, wait_ms=0)
        return [
            AttemptRef(
                job_id=handed.record.job.job_id,
                step_id=handed.step.step_id,
                attempt_no=handed.step.attempt_no,
                lease_id=handed.step.lease_id or "",
            )
            for handed in taken
        ]

    async def ack(self, attempt: AttemptRef) -> Applied:
        applied = await self.writer.apply(attempt.job_id, Ack(**whose(attempt)))
        assert isinstance(applied, Applied)
        return applied

    async def result(
        self, attempt: AttemptRef, status: ResultStatus = ResultStatus.SUCCEEDED, code: str | None = None
    ) -> Applied:
        uri = {"uri": f"s3://out/{attempt.job_id}/{attempt.step_id}/{attempt.attempt_no}"}
        reply = Result(**whose(attempt), status=status, output_ref=uri, error_code=code)
        applied = await self.writer.apply(attempt.job_id, reply)
        assert isinstance(applied, Applied)
        return applied

    async def work(self) -> int:
        """A good worker for every service, until there is nothing left to take."""
        done = 0
        while taken := [attempt for service in SERVICES for attempt in await self.take(service)]:
            for attempt in taken:
                await self.ack(attempt)
                await self.result(attempt)
            done += len(taken)
        return done


class World:
    """What outlives a process: the rows, the clock, the numbers already given."""

    def __init__(self, store: TableStore, layout: LayoutName, *, frugal: bool = False) -> None:
        self.store, self.layout, self.frugal = store, layout, frugal
        self.clock, self.ids = Clock(), Ids()
        self.places = Places()

    def deployment(
        self, trial: Trial | None = None, *, waits: Callable[[], Awaitable[None]] | None = None
    ) -> Deployment:
        store = TriedStore(self.store, self.places, trial, waits, frugal=self.frugal)
        return Deployment(store, self.layout, self.clock, self.ids)

    async def rows(self) -> Rows:
        """Every row there is."""
        found: Rows = {}
        for table, partition in sorted(self.places):
            for row in await self.store.query(table, partition, limit=ROWS_MAX):
                found[table, partition, row.key] = row
        return found

    async def records(self) -> dict[str, JobRecord]:
        """Every job there is, as a process sees it that has just started."""
        ledger = JobLedger(self.store, self.layout)
        loaded = [await ledger.load(job_id) for job_id in self.ids.jobs]
        return {each.record.job.job_id: each.record for each in loaded if each is not None}

    async def events(self, job_id: str) -> list[Event]:
        return await JobLedger(self.store, self.layout).events(job_id, limit=ROWS_MAX)


@asynccontextmanager
async def opened_world(kind: str, layout: LayoutName, folder: Path) -> AsyncIterator[World]:
    store: TableStore
    if kind == "sqlite":
        store = await SqliteStore.open(folder / "ledger.db")
    elif kind == "azurite":
        store = await open_store()
    elif kind == "postgres":
        store = await open_postgres()
    else:
        store = MemoryStore(spans=kind == "memory")
    try:
        yield World(store, layout, frugal=kind == "azurite")
    finally:
        await store.close()


def envelope(
    number: int = 1, *, request_type: str = "OCR", key: str | None = None, tenant: str = TENANT, **more: Json
) -> Envelope:
    return Envelope(
        tenant_id=tenant,
        tenant_norm=tenant,
        request_type=request_type,
        input_ref={"uri": f"s3://in/{number}"},
        output_ref={"uri": f"s3://out/{number}"},
        payload=payload_of(request_type),
        schema_version="1",
        idempotency_key=key,
        **more,
    )


async def submit(deployment: Deployment, number: int = 1, **more: Json) -> str:
    accepted = await deployment.submitter.submit(envelope(number, **more))
    assert isinstance(accepted, Submitted)
    return accepted.job_id


def whose(attempt: AttemptRef) -> dict[str, Json]:
    return {
        "step_id": attempt.step_id,
        "attempt_no": attempt.attempt_no,
        "lease_id": attempt.lease_id,
        "content": {"type": "REPLY"}.copy,
    }

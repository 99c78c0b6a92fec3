"""What a service is given by the process it runs in: a transport, and a store for its RESULTs.

Without a bus, services of this process call the dispatcher and the writer. With one they use it, as services
elsewhere do, and read in the ledger whether an attempt still counts. RESULTs are kept in a file of the data
folder, in tables, as objects, or nowhere, as the command line says.
"""

import asyncio
import sqlite3
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import quote

import structlog

from lucius.assembly.clock_and_ids import now_ms, wall_ms
from lucius.assembly.stores import open_tables
from lucius.bus.port import Bus
from lucius.contracts.messages import parse_reply
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.core.states import JobState
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.jobs.writer import JobWriter
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import (
    OPS_MAX,
    Conflict,
    Op,
    StoreError,
    StoreUnavailable,
    TableStore,
    discard,
    insert,
    put,
)
from lucius.sdk import (
    Dedupe,
    DeliveryFailed,
    Directive,
    DurableDedupe,
    MemoryDedupe,
    ReplyAnswer,
    ResultStore,
    SqliteResultStore,
)
from lucius.sdk.bus_transport import BusTransport
from lucius.sdk.directive import Key
from lucius.sdk.result_stores.entry import name_of, pack_undelivered, unpack_undelivered
from lucius.sdk.result_stores.objects import ObjectResultStore
from lucius.settings import Settings
from lucius.telemetry.context import Subject
from lucius.workspace import ObjectWorkspace, root_of

REPLY_RETRY_SECONDS = 0.5

log = structlog.get_logger("lucius.assembly")

_APPLIED = ReplyAnswer("applied")


class InProcess:
    """Calls the dispatcher and the writer."""

    def __init__(self, service: str, dispatcher: LedgerDispatcher, writer: JobWriter) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._writer = writer

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        taken = await self._dispatcher.take(
            self._service,
            directives_max=max_directives,
            wait_ms=round(wait_seconds * 1000),
            picked_up=True,
        )
        return [self._dispatcher.message(handed, signed=False) for handed in taken]

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        if message["type"] == "ACK":
            return _APPLIED  # the hand-out was its ACK
        parsed = parse_reply(message, expected=None)
        if isinstance(parsed, Refused):
            return ReplyAnswer("refused", stop=True)
        job_id, reply = parsed
        while True:
            try:
                applied = await self._writer.apply(job_id, reply)
            except StoreUnavailable as fault:
                log.warning("reply_waits_for_ledger", **Subject(job_id, reply).ids(), error=str(fault))
                await asyncio.sleep(REPLY_RETRY_SECONDS)
                continue
            if isinstance(applied, Refused):
                return ReplyAnswer("refused", stop=True)
            return ReplyAnswer(applied.outcome.value, stop=applied.stop)


_COUNTS = ReplyAnswer("sent")
_STOP = ReplyAnswer("sent", stop=True)
_STALE = ReplyAnswer("stale", stop=True)


class OverBus:
    """Uses the bus, and asks the ledger whether an attempt still counts."""

    def __init__(self, bus: Bus, service: str, ledger: JobLedger) -> None:
        self._ledger = ledger
        self._transport = BusTransport(bus, service, now_ms=wall_ms, ask=self._ask)

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        return await self._transport.lease(max_directives=max_directives, wait_seconds=wait_seconds)

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        return await self._transport.reply(directive, message)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _ask(self, directive: Directive) -> ReplyAnswer:
        try:
            loaded = await self._ledger.load(directive.job_id, fresh=True)
        except StoreError as fault:
            raise DeliveryFailed(f"the ledger cannot be asked: {fault}") from None
        if loaded is None or not directive.attempt.is_current(loaded.record):
            return _STALE
        return _STOP if loaded.record.job.state is JobState.CANCELLING else _COUNTS


FILE, MEMORY, TABLES = "file", "memory", "tables"


class NoResultStore(Exception):
    """What was asked for cannot be used. The text says why, without secrets."""


def results_fault(where: str | None, settings: Settings) -> str | None:
    """Why RESULTs could never be kept there; None if they could."""
    if where is None or where in (FILE, MEMORY):
        return None
    if where == TABLES:
        return None if settings.table_account.wanted else "--results tables needs LUCIUS_TABLE_CONNECTION."
    if root_of(where) is None:
        return f"--results {where}: this version offers file, memory, tables, or the URI of a folder."
    return None


async def open_memory(
    stack: AsyncExitStack,
    where: str | None,
    service: str,
    settings: Settings,
    data: Path,
    workspace: ObjectWorkspace,
) -> Dedupe:
    """`where` None: in a file, and in memory where no file can be written. Raises `NoResultStore`."""
    if where == MEMORY:
        return MemoryDedupe()
    try:
        result_store = await _result_store(stack, where, quote(service, safe=""), settings, data, workspace)
    except (OSError, sqlite3.Error, StoreError) as fault:
        if where is not None:
            raise NoResultStore(f"Results cannot be kept: {fault}") from None
        log.warning("results_in_memory_only", service=service, reason=str(fault))
        return MemoryDedupe()
    return DurableDedupe(result_store, now_ms=now_ms)


async def _result_store(
    stack: AsyncExitStack,
    where: str | None,
    name: str,
    settings: Settings,
    data: Path,
    workspace: ObjectWorkspace,
) -> ResultStore:
    if where in (None, FILE):
        file = await SqliteResultStore.open(data / f"results-{name}.db")
        stack.push_async_callback(file.close)
        return file
    if where == TABLES:
        store = await open_tables(settings)
        stack.push_async_callback(store.close)
        return TableResultStore(store, settings.tables.meta, name)
    assert where is not None
    objects = ObjectResultStore(workspace, f"{where.rstrip('/')}/{name}", now_ms=now_ms)
    await objects.undelivered(1)  # a place that cannot be reached is told now
    return objects


ROWS_AN_ENTRY = 3
TIME_DIGITS = 15


class TableResultStore:
    """The store stays its owner's to close."""

    def __init__(self, store: TableStore, table: str, service: str) -> None:
        self._store = store
        self._table = table
        self._partition = f"results#{service}"

    async def find(self, key: Key) -> bytes | None:
        row = await self._store.get(self._table, self._partition, f"R#{name_of(key)}")
        return None if row is None or row.damage else row.body

    async def keep(self, key: Key, result: bytes, reply_to: bytes, *, at_ms: int) -> bytes:
        name = name_of(key)
        ops = [
            insert(self._table, self._partition, f"R#{name}", result),
            put(self._table, self._partition, f"O#{name}", pack_undelivered(reply_to, result)),
            put(self._table, self._partition, f"T#{_time(at_ms)}#{name}", b"{}"),
        ]
        try:
            await self._store.commit(ops)
        except Conflict:
            kept = await self.find(key)
            if kept is None:
                raise  # it was swept away between the two
            return kept
        return result

    async def settle(self, key: Key) -> None:
        await self._store.commit([self._discard(f"O#{name_of(key)}")])

    async def undelivered(self, undelivered_max: int) -> list[tuple[bytes, bytes]]:
        rows = await self._store.query(
            self._table, self._partition, start="O#", end="O$", limit=undelivered_max
        )
        return [unpack_undelivered(row.body) for row in rows if not row.damage]

    async def sweep(self, *, before_ms: int, entries_max: int) -> None:
        limit = min(entries_max, OPS_MAX // ROWS_AN_ENTRY)
        rows = await self._store.query(
            self._table, self._partition, start="T#", end=f"T#{_time(before_ms)}", limit=limit
        )
        names = [row.key.rpartition("#")[2] for row in rows]
        ops = [self._discard(row.key) for row in rows]
        ops += [self._discard(f"{kind}#{name}") for name in names for kind in "RO"]
        if ops:
            await self._store.commit(ops)

    async def close(self) -> None:
        """Nothing of its own is open."""

    def _discard(self, key: str) -> Op:
        return discard(self._table, self._partition, key)


def _time(at_ms: int) -> str:
    return f"{max(0, at_ms):0{TIME_DIGITS}d}"

"""Group commit: many callers' commits in one call of PostgreSQL, one round trip and one flush for all.

In: the ops of each caller. Out: a future per caller, with its ETags or its refusal, resolved only after the
transaction that carried it is durable, or is known to have left nothing.

A writer is a connection with a row of its own in `writers`. Each commit notes its number there, in the same
transaction. When an answer is lost, another connection fences that row and reads it: the fence waits for a
transaction that is still under way and refuses one that comes later, so that the number says what became of
the commit, whatever happened since. See docs/decisions/090-postgresql.md.

No row is named twice in a group. Where an op does not fit what is there, all of the group is undone, and it
is sent again with each caller apart, so that a conflict fails only its caller. Callers are sorted by their
first op, which is the row that guards the others: two groups that want the same jobs do not wait for each
other in a circle.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final
from zlib import crc32

from lucius.ledger.checksums import partition_sum
from lucius.ledger.postgres.connection import (
    CONFLICT_STATE,
    FENCED_STATE,
    READ_ONLY_STATE,
    CallFailed,
    Connection,
    Outage,
    PostgresAddress,
    RetryPause,
)
from lucius.ledger.postgres.keys import check_place, key_to_text
from lucius.ledger.postgres.schema import (
    BEGIN_WRITER,
    COMMIT,
    CREATE_TABLE,
    END_WRITER,
    KIND_STEP,
    PRUNE_COUNTS,
    PRUNE_WRITERS,
    READ_TABLES,
    SETTLE,
)
from lucius.ledger.store import (
    Bound,
    BoundReached,
    Conflict,
    Op,
    RowScope,
    StoreError,
    StoreUnavailable,
    Verb,
)

GROUP_CALLERS_MAX: Final = 64
GROUP_OPS_MAX: Final = 1_024
WAITING_CALLERS_MAX: Final = 20_000
# An ETag is the number of a writer and what that writer counts: unique without a word to the server.
ETAG_BITS: Final = 35
ETAGS_MAX: Final = (1 << ETAG_BITS) - 1_000_000
# A writer that is older gives way to a new one, before its row may be pruned.
WRITER_SECONDS_MAX: Final = 3_600.0
ETAG_DIGITS_MAX: Final = 18
NO_ETAG: Final = -1
COUNT_NAME_LENGTH_MAX: Final = 200

_NUMBERS: Final = {Verb.INSERT: 1, Verb.REPLACE: 2, Verb.DELETE: 3, Verb.PUT: 4, Verb.DISCARD: 5}
_INSERT, _REPLACE, _DELETE, _PUT, _DISCARD = Verb
_SIGN: Final = 1 << 31

GroupOutcome = list[str] | Exception


def sum_of(etag: int, partition: int, key: str, body: bytes) -> int:
    """A checksum as PostgreSQL's integer. `partition`: what the sums of its rows begin with."""
    number = (crc32(body, crc32(key.encode(), partition)) ^ etag) & 0xFFFF_FFFF
    return number - (number & _SIGN) * 2


def etag_number(etag: str) -> int:
    """What never was an ETag of this store matches nothing."""
    if etag.isascii() and etag.isdecimal() and etag[0] != "0" and len(etag) <= ETAG_DIGITS_MAX:
        return int(etag)
    return NO_ETAG


class _GroupCaller:
    __slots__ = ("future", "ops", "places")

    def __init__(self, ops: Sequence[Op], future: asyncio.Future[GroupOutcome]) -> None:
        self.ops = ops
        self.future = future
        self.places = [(op.table, op.partition, op.key) for op in ops]

    @property
    def guard(self) -> tuple[str, str, str]:
        return self.places[0] if self.places else ("", "", "")

    def resolve(self, outcome: GroupOutcome) -> None:
        if not self.future.done():  # a caller that was cancelled no longer listens
            self.future.set_result(outcome)


class TableNumbers:
    """The tables that are known to exist, by name."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def get(self, name: str) -> int | None:
        return self._numbers.get(name)

    async def read(self, connection: Connection) -> None:
        self._numbers = {row["name"]: row["id"] for row in await connection.fetch(READ_TABLES)}

    async def create(self, connection: Connection, name: str) -> None:
        rows = await connection.fetch(CREATE_TABLE, name)
        self._numbers[name] = rows[0]["id"]


class _Writer:
    """A connection, the row that speaks for it, and what it counts."""

    def __init__(self, connection: Connection, writer_id: int, until: float) -> None:
        self.connection = connection
        self.id = writer_id
        self.until = until
        self.number = 0
        self.etag_next = writer_id << ETAG_BITS
        self.etag_end = self.etag_next + ETAGS_MAX

    def spent(self, now: float) -> bool:
        return self.connection.closed or now >= self.until or self.etag_next >= self.etag_end


class _Group:
    """The ops of several callers, as the columns of one call."""

    def __init__(self, callers: Sequence[_GroupCaller]) -> None:
        self.callers = callers
        self.ends: list[int] = []
        self.etags: list[int] = []

    def columns(self, tables: TableNumbers, etag_next: int) -> tuple[list[Any], ...]:
        """The ops', and those of their bounds."""
        numbers, verbs, partitions, keys, sums, olds, bodies = [], [], [], [], [], [], []
        bounds: tuple[list[Any], ...] = ([], [], [], [])
        self.ends, self.etags = [], []
        sum_table, sum_partition, place, etag = "", "", 0, etag_next
        for caller in self.callers:
            for op in caller.ops:
                table, partition, verb = op.table, op.partition, op.verb
                if table != sum_table or partition != sum_partition:
                    sum_table, sum_partition = table, partition
                    place = partition_sum(table, partition)
                numbers.append(tables.get(table))
                verbs.append(_NUMBERS[verb])
                partitions.append(key_to_text(partition))
                keys.append(key_to_text(op.key))
                self.etags.append(etag)
                guarded = verb is _REPLACE or verb is _DELETE
                olds.append(etag_number(op.etag) if guarded else NO_ETAG)
                removes = verb is _DELETE or verb is _DISCARD
                sums.append(0 if removes else sum_of(etag, place, op.key, op.body))
                bodies.append(b"" if removes else op.body)
                etag += 1
                for bound in op.bounds:
                    values = len(numbers), bound.scope.value, _count_name(op, bound), bound.rows_max
                    for column, value in zip(bounds, values, strict=True):
                        column.append(value)
            self.ends.append(len(numbers))
        return numbers, verbs, partitions, keys, self.etags, sums, olds, bodies, *bounds

    def resolve(self, refused: Sequence[int] | None) -> None:
        """`refused`: the op at which each caller was, counted from 1; 0 if it was not."""
        first = 0
        for number, (caller, end) in enumerate(zip(self.callers, self.ends, strict=True)):
            at_op = refused[number] if refused else 0
            if at_op:
                caller.resolve(_refusal(caller.ops, at_op, first))
            else:
                caller.resolve(self._etags(caller.ops, first))
            first = end

    def _etags(self, ops: Sequence[Op], first: int) -> list[str]:
        return [
            "" if op.verb is _DELETE or op.verb is _DISCARD else str(self.etags[first + number])
            for number, op in enumerate(ops)
        ]

    def refuse(self, fault: Exception) -> None:
        for caller in self.callers:
            caller.resolve(fault)


def _refusal(ops: Sequence[Op], at_op: int, first: int) -> Conflict | BoundReached:
    kind, number = divmod(at_op, KIND_STEP)
    index = number - 1 - first
    for bound in ops[index].bounds:
        if bound.scope.value == kind:
            return BoundReached(bound)
    return Conflict(index, ops[index])


def _count_name(op: Op, bound: Bound) -> str:
    """Of what is counted. Long ones are told apart by a part of their digest."""
    of = {
        RowScope.PARTITION: op.partition,
        RowScope.TABLE: "",
        RowScope.BODY: op.body.decode(errors="replace"),
    }
    name = key_to_text(f"{bound.scope.value} {op.table} {of[bound.scope]}")
    if len(name) <= COUNT_NAME_LENGTH_MAX:
        return name
    return f"{name[:COUNT_NAME_LENGTH_MAX]} {sha256(name.encode()).hexdigest()[:32]}"


class PostgresWriter:
    def __init__(self, address: PostgresAddress, tables: TableNumbers) -> None:
        self._address = address
        self._tables = tables
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[_GroupCaller] = deque()
        self._idle: list[_Writer | None] = [None] * address.writers_max
        self._turns: set[asyncio.Task[None]] = set()
        self._turn_due = False
        self._closed = False
        self.group_sizes: Counter[int] = Counter()  # groups that were sent, by the number of callers

    def submit(self, ops: Sequence[Op]) -> asyncio.Future[GroupOutcome]:
        """Queues one caller's ops, already checked against the limits. No ops at all is a question: could
        something be written now?"""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if len(self._waiting) >= WAITING_CALLERS_MAX:
            raise StoreUnavailable(f"{WAITING_CALLERS_MAX} commits are waiting already")
        for op in ops:
            check_place(op.partition, op.key)
        future: asyncio.Future[GroupOutcome] = self._loop.create_future()
        self._waiting.append(_GroupCaller(ops, future))
        self._take_turn_soon()
        return future

    async def close(self) -> None:
        """Finishes what is queued, as far as the database can be reached."""
        if self._closed:
            return
        self._closed = True
        while self._turns or self._turn_due:
            await asyncio.sleep(0)
            if self._turns:
                await asyncio.wait(self._turns)
        for writer in self._idle:
            if writer is not None:
                await self._end(writer)
        self._idle = []

    def _take_turn_soon(self) -> None:
        # Not at once: other callers that are ready in this round of the loop join the group.
        if not self._turn_due and self._idle:
            self._turn_due = True
            self._loop.call_soon(self._take_turn)

    def _take_turn(self) -> None:
        self._turn_due = False
        if self._waiting and self._idle:
            task = self._loop.create_task(self._turn(self._idle.pop()))
            self._turns.add(task)
            task.add_done_callback(self._turns.discard)

    async def _turn(self, writer: _Writer | None) -> None:
        """One writer at work, until nothing waits."""
        try:
            while group := self._next_group():
                if self._waiting:  # for the next writer, if one is free
                    self._take_turn_soon()
                writer = await self._write(writer, group)
        finally:
            self._idle.append(writer)

    def _next_group(self) -> _Group | None:
        callers: list[_GroupCaller] = []
        places: set[tuple[str, str, str]] = set()
        ops = 0
        while self._waiting and len(callers) < GROUP_CALLERS_MAX:
            caller = self._waiting[0]
            if caller.future.cancelled():
                self._waiting.popleft()
                continue
            ops += len(caller.ops)
            if callers and (ops > GROUP_OPS_MAX or not places.isdisjoint(caller.places)):
                break
            callers.append(self._waiting.popleft())
            places.update(caller.places)
        callers.sort(key=lambda caller: caller.guard)
        return _Group(callers) if callers else None

    async def _write(self, writer: _Writer | None, group: _Group) -> _Writer | None:
        """Resolves every caller of the group. Returns the writer to go on with."""
        try:
            return await self._write_until_known(writer, group)
        except StoreError as fault:
            group.refuse(fault)
        except Exception as fault:  # whatever it was, no caller may wait for ever
            group.refuse(StoreError(f"a commit failed: {fault}"))
            raise
        return None

    async def _write_until_known(self, writer: _Writer | None, group: _Group) -> _Writer | None:
        pause = RetryPause(self._address.patience_seconds_max)
        apart = False
        while True:
            sent = False
            try:
                writer = await self._ready(writer)
                await self._create_tables(writer, group)
                sent = True
                refused = await self._send(writer, group, apart=apart)
            except CallFailed as failed:
                if failed.state == CONFLICT_STATE and not apart:
                    if len(group.callers) == 1:
                        group.resolve([int(failed.detail)])
                        return writer
                    apart = True
                    continue
                # What was not sent needs no settling: the row would speak of the commit before.
                if failed.outage is Outage.UNKNOWN and writer is not None and sent:
                    landed, refused = await self._settle(writer, pause, failed)
                    writer = None
                    if landed:
                        # What the row says of refusals is that of the last commit with its callers apart.
                        group.resolve(refused if apart else None)
                        return None
                # A session stays read-only; the next one may meet a server that is not.
                spoilt = failed.state in (FENCED_STATE, READ_ONLY_STATE)
                if writer is not None and (spoilt or writer.connection.closed):
                    writer.connection.abort()
                    writer = None
                if failed.outage is Outage.LASTING and failed.state != FENCED_STATE:
                    return await self._lasting(writer, group, failed)
                if not await pause.wait():
                    if writer is not None:
                        writer.connection.abort()
                    raise StoreUnavailable(failed.reason) from None
                continue
            self.group_sizes[len(group.callers)] += 1
            group.resolve(refused)
            return writer

    async def _lasting(self, writer: _Writer | None, group: _Group, failed: CallFailed) -> _Writer | None:
        """What one caller asked for cannot be written. The others are not to suffer from it."""
        if len(group.callers) == 1:
            raise StoreUnavailable(failed.reason)
        for caller in group.callers:
            writer = await self._write(writer, _Group([caller]))
        return writer

    async def _send(self, writer: _Writer, group: _Group, *, apart: bool) -> Sequence[int] | None:
        columns = group.columns(self._tables, writer.etag_next)
        writer.etag_next += len(group.etags)
        writer.number += 1
        rows = await writer.connection.fetch(COMMIT, writer.id, writer.number, group.ends, apart, *columns)
        refused: Sequence[int] | None = rows[0]["refused"]
        return refused

    async def _create_tables(self, writer: _Writer, group: _Group) -> None:
        wanted = {table for caller in group.callers for table, _, _ in caller.places}
        for table in sorted(wanted):
            if self._tables.get(table) is None:
                await self._tables.create(writer.connection, table)

    async def _ready(self, writer: _Writer | None) -> _Writer:
        now = self._loop.time()
        if writer is not None and not writer.spent(now):
            return writer
        if writer is not None:
            await self._end(writer)
        connection = await Connection.open(self._address)
        try:
            rows = await connection.fetch(BEGIN_WRITER)
            await connection.fetch(PRUNE_WRITERS)
            await connection.fetch(PRUNE_COUNTS)
        except BaseException:
            connection.abort()
            raise
        return _Writer(connection, rows[0]["id"], now + WRITER_SECONDS_MAX)

    async def _settle(
        self, writer: _Writer, pause: RetryPause, failed: CallFailed
    ) -> tuple[bool, Sequence[int] | None]:
        """What became of the commit whose answer was lost. Raises `StoreError` if it cannot be found out."""
        writer.connection.abort()
        while True:
            try:
                connection = await Connection.open(self._address)
                try:
                    rows = await connection.fetch(SETTLE, writer.id)
                finally:
                    connection.abort()
            except CallFailed as again:
                if await pause.wait():
                    continue
                reason = f"{failed.reason}; then {again.reason}"
            else:
                if rows:
                    return rows[0]["number"] == writer.number, rows[0]["refused"]
                reason = f"{failed.reason}; writer {writer.id} is no longer known"
            raise StoreError(f"the answer to a commit was lost, and what became of it is not known: {reason}")

    async def _end(self, writer: _Writer) -> None:
        """An orderly end leaves no row behind."""
        try:
            if not writer.connection.closed:
                await writer.connection.fetch(END_WRITER, writer.id)
        except CallFailed:
            pass  # it is pruned a day later
        await writer.connection.close()

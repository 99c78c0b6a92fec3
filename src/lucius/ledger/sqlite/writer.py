"""Group commit: many callers' commits in one SQLite transaction, one fsync for all of them.

In: the ops of each caller. Out: a future per caller, with its ETags or its refusal, resolved only after the
COMMIT that carried it returned. Knows the write connection, and is its only user.

One turn, all of it in the loop's thread but for the part that blocks:

    BEGIN IMMEDIATE -> the ops of all callers, table by table -> COMMIT (in the thread) -> resolve

Where the ops of a caller do not fit what is there, or two callers name the same row, all of it is undone and
each caller's ops run in a savepoint of its own, so that a conflict fails only its caller.

The connection belongs to the loop's thread, except from the moment COMMIT is handed over until it came back.
While it is away the next group gathers. The statements stay in the loop's thread because a second thread
would have to win the interpreter's lock back after each of them: docs/decisions/002-group-commit.md. BEGIN
IMMEDIATE never waits: when another process holds the lock, the turn is tried again a little later, and the
write lock sees to it that it comes.
"""

import asyncio
import sqlite3
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import SimpleQueue
from zlib import crc32

from lucius.ledger.checksums import partition_sum, sealed
from lucius.ledger.limits import Places
from lucius.ledger.sqlite.file import (
    READ_COUNTER,
    RESERVE_ETAGS,
    FileIdentity,
    Statements,
    is_busy,
    statements,
)
from lucius.ledger.sqlite.write_lock import WriteLock
from lucius.ledger.store import Conflict, Op, StoreUnavailable, Verb

GROUP_CALLERS_MAX = 256
GROUP_OPS_MAX = 1_024  # how long one group may hold the loop: about 10 ms of statements
WAITING_CALLERS_MAX = 20_000
ETAGS_RESERVED = 1_048_576
BUSY_RETRY_MS_FIRST = 0.5
BUSY_RETRY_MS_MAX = 5.0
SWITCH_INTERVAL_MS_MAX = 0.05

DISCARD_VALUES = (
    2  # of the verbs, only DISCARD asks for nothing but a place, and only it may find nothing there
)

# Looked up once: the members of an enum are slow to reach, and every op asks for several.
_INSERT, _REPLACE, _DELETE, _PUT, _DISCARD = Verb

Outcome = list[str] | Exception
Values = tuple[str | bytes, ...]


class _Caller:
    __slots__ = ("future", "ops", "outcome", "places")

    def __init__(self, ops: Sequence[Op], places: Places, future: asyncio.Future[Outcome]) -> None:
        self.ops = ops
        self.places = places
        self.future = future
        self.outcome: Outcome = []

    def resolve(self, outcome: Outcome) -> None:
        if not self.future.done():  # a caller that was cancelled no longer listens
            self.future.set_result(outcome)


class GroupWriter:
    def __init__(
        self,
        connection: sqlite3.Connection,
        *,
        reconnect: Callable[[], sqlite3.Connection],
        write_lock: WriteLock,
        mark: FileIdentity,
        busy_timeout_ms: int,
    ) -> None:
        """Owns the connection from here on. `reconnect` is called if a fault spoils it, and may not wait.
        `mark`: of the file that it was opened on."""
        self._reconnect = reconnect
        self._mark = mark
        self._write_lock = write_lock
        self._busy_timeout_ms = busy_timeout_ms
        self._loop = asyncio.get_running_loop()
        self._connection: sqlite3.Connection | None = connection
        self._waiting: deque[_Caller] = deque()
        self._group: list[_Caller] = []
        self.group_sizes: Counter[int] = Counter()  # groups that were committed, by the number of callers
        self._turn_due = False
        self._at_commit = False  # the thread has the connection
        self._busy_until: float | None = None
        self._busy_delay_ms = BUSY_RETRY_MS_FIRST
        self._tables: dict[str, Statements] = {}  # those that are known to exist
        self._tables_new: dict[str, Statements] = {}  # those that the open transaction creates
        self._etag_next = 0
        self._etag_end = 0
        self._idle: asyncio.Future[None] | None = None
        self._closed = False
        self._commits: SimpleQueue[sqlite3.Connection | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._commit_forever, name="lucius-sqlite-commit", daemon=True)
        self._thread.start()
        # A thread that returns from COMMIT asks for the interpreter's lock, and each time a busy loop lets go
        # of it for a moment the thread's patience starts anew. At Python's 5 ms it can starve for half a
        # second; below the length of a loop's round it cannot.
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_INTERVAL_MS_MAX / 1000))

    def submit(self, ops: Sequence[Op], places: Places) -> asyncio.Future[Outcome]:
        """Queues one caller's ops, already checked against the limits, and the places that they name. No ops
        at all is a question: could something be written now?"""
        if self._closed:
            raise StoreUnavailable("the store is closed")
        if len(self._waiting) >= WAITING_CALLERS_MAX:
            raise StoreUnavailable(f"{WAITING_CALLERS_MAX} commits are waiting already")
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._waiting.append(_Caller(ops, places, future))
        self._take_turn_soon()
        return future

    async def close(self) -> None:
        """Finishes what is queued, then empties the write-ahead log into the file."""
        if self._closed:
            return
        self._closed = True
        while self._waiting or self._at_commit:
            self._idle = self._loop.create_future()
            await self._idle
        self._commits.put(None)
        await asyncio.to_thread(self._thread.join)
        if self._connection is not None:
            await asyncio.to_thread(_checkpoint_and_close, self._connection)
            self._connection = None
        self._write_lock.close()

    # A turn, in the loop's thread.

    def _take_turn_soon(self) -> None:
        # Not at once: other callers that are ready in this round of the loop join the group.
        if not self._turn_due and not self._at_commit:
            self._turn_due = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_due = False
        if not self._mark.holds():
            self._refuse_waiting(StoreUnavailable(self._mark.words))
            return
        try:
            if self._connection is None:
                self._connection = self._reconnect()
            connection = self._connection
            if not self._write_lock.may_go(self._loop.time()):
                self._turn_later()
                return
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as fault:
            if not self._wait_for_lock(fault):
                if not is_busy(fault):
                    self._give_up_connection()
                self._refuse_waiting(unavailable(fault))
            return
        self._stop_waiting()
        try:
            self._fill_group(connection)
        except Exception as fault:  # whatever it was, no caller may wait for ever
            self._end_group(fault)
            return
        self._at_commit = True
        self._commits.put(connection)

    def _fill_group(self, connection: sqlite3.Connection) -> None:
        waiting, group, ops_left = self._waiting, self._group, GROUP_OPS_MAX
        cursor = connection.cursor()
        while waiting and len(group) < GROUP_CALLERS_MAX and ops_left > 0:
            caller = waiting.popleft()
            if caller.future.cancelled():
                continue
            group.append(caller)
            ops_left -= len(caller.ops)
        self._reserve_etags(cursor, 2 * (GROUP_OPS_MAX - ops_left))  # they may have to run a second time
        batches = self._batches(cursor, group)
        if batches is None or not self._run_batches(cursor, batches):
            for caller in group:
                caller.outcome = self._run_caller(cursor, caller.ops)

    def _reserve_etags(self, cursor: sqlite3.Cursor, wanted: int) -> None:
        if self._etag_end - self._etag_next < wanted:
            # A block at a time: the counter's page is then not part of every commit. Two processes have
            # different blocks, so no ETag is ever given twice. What is left of a block at the end is lost.
            cursor.execute(RESERVE_ETAGS, (ETAGS_RESERVED,))
            ((end,),) = cursor.execute(READ_COUNTER).fetchall()
            self._etag_next, self._etag_end = end - ETAGS_RESERVED, end

    def _batches(self, cursor: sqlite3.Cursor, group: Sequence[_Caller]) -> dict[str, list[Values]] | None:
        """The ops of all callers as rows of values by statement, so that each statement runs once for all its
        rows; None if two callers name the same row, because then their order matters."""
        batches: dict[str, list[Values]] = {}
        places: Places = set()
        tables, etag_next, ops_count = self._tables, self._etag_next, 0
        sum_table, sum_partition, place = "", "", 0
        for caller in group:
            caller.outcome = etags = []
            places |= caller.places
            ops_count += len(caller.ops)
            for op in caller.ops:
                table, verb, partition, key = op.table, op.verb, op.partition, op.key
                texts = tables.get(table) or self._created(cursor, table)
                etag = ""
                values: Values
                if verb is _DISCARD:
                    text, values = texts.discard, (partition, key)
                elif verb is _DELETE:
                    text, values = texts.delete, (partition, key, op.etag)
                else:
                    body = op.body
                    if partition != sum_partition or table != sum_table:
                        sum_table, sum_partition = table, partition
                        place = crc32(partition.encode(), texts.table_sum)
                    # As `sealed` does, in place: a job writes some forty rows.
                    etag = f"{etag_next}-{crc32(body, crc32(key.encode(), place) ^ etag_next)}"
                    etag_next += 1
                    if verb is _REPLACE:
                        text, values = texts.replace, (etag, body, partition, key, op.etag)
                    else:
                        text = texts.insert if verb is _INSERT else texts.put
                        values = (etag, body, partition, key)
                batch = batches.get(text)
                if batch is None:
                    batches[text] = [values]
                else:
                    batch.append(values)
                etags.append(etag)
        if len(places) != ops_count:
            return None
        self._etag_next = etag_next
        return batches

    def _run_batches(self, cursor: sqlite3.Cursor, batches: dict[str, list[Values]]) -> bool:
        """All or nothing; False if one of the ops does not fit what is there."""
        cursor.execute("SAVEPOINT whole_group")
        holds = all(self._run_batch(cursor, text, rows) for text, rows in batches.items())
        if not holds:
            cursor.execute("ROLLBACK TO whole_group")
        cursor.execute("RELEASE whole_group")
        return holds

    def _run_batch(self, cursor: sqlite3.Cursor, text: str, rows: list[Values]) -> bool:
        cursor.executemany(text, rows)
        return cursor.rowcount == len(rows) or len(rows[0]) == DISCARD_VALUES

    def _run_caller(self, cursor: sqlite3.Cursor, ops: Sequence[Op]) -> Outcome:
        """All of one caller's ops or none. A fault of SQLite itself is raised: it is the whole group's."""
        if len(ops) < 2:  # a lone op that is refused has changed nothing
            return self._apply(cursor, ops)
        cursor.execute("SAVEPOINT caller")
        outcome = self._apply(cursor, ops)
        if isinstance(outcome, Exception):
            cursor.execute("ROLLBACK TO caller")
        cursor.execute("RELEASE caller")
        return outcome

    def _created(self, cursor: sqlite3.Cursor, table: str) -> Statements:
        """The statements of a table that is not known to exist. Outside of all savepoints: it must not be
        undone with the ops of a caller."""
        texts = self._tables_new.get(table)
        if texts is None:
            texts = self._tables_new[table] = statements(table)
            cursor.execute(texts.create)
        return texts

    def _apply(self, cursor: sqlite3.Cursor, ops: Sequence[Op]) -> Outcome:
        execute, tables, etag_next = cursor.execute, self._tables, self._etag_next
        etags: list[str] = []
        for index, op in enumerate(ops):
            verb = op.verb
            texts = tables.get(op.table) or self._tables_new[op.table]
            etag = ""
            if verb is _DISCARD:
                execute(texts.discard, (op.partition, op.key))
            elif verb is _DELETE:
                if execute(texts.delete, (op.partition, op.key, op.etag)).rowcount != 1:
                    return Conflict(index, op)
            else:
                etag = sealed(etag_next, partition_sum(op.table, op.partition), op.key, op.body)
                etag_next += 1
                if verb is _REPLACE:
                    execute(texts.replace, (etag, op.body, op.partition, op.key, op.etag))
                else:
                    text = texts.insert if verb is _INSERT else texts.put
                    execute(text, (etag, op.body, op.partition, op.key))
                if cursor.rowcount != 1:
                    return Conflict(index, op)
            etags.append(etag)
        self._etag_next = etag_next
        return etags

    # Around COMMIT.

    def _commit_forever(self) -> None:
        """The thread: nothing but COMMIT, which waits for the disk."""
        while (connection := self._commits.get()) is not None:
            fault: sqlite3.Error | None = None
            try:
                connection.execute("COMMIT")
            except sqlite3.Error as caught:
                fault = caught
            try:
                self._loop.call_soon_threadsafe(self._end_group, fault)
            except RuntimeError:  # the loop is gone, and with it every caller
                return

    def _end_group(self, fault: Exception | None) -> None:
        self._at_commit = False
        group, self._group = self._group, []
        if fault is None:
            self.group_sizes[len(group)] += 1
            self._tables |= self._tables_new
        else:
            self._undo()
            # The block of ETags may have been reserved by what was just undone.
            self._etag_next = self._etag_end = 0
        self._tables_new = {}
        for caller in group:
            caller.resolve(caller.outcome if fault is None else unavailable(fault))
        self._go_on()

    def _go_on(self) -> None:
        if self._waiting:
            self._take_turn_soon()
        elif self._idle is not None and not self._idle.done():
            self._idle.set_result(None)

    # Faults.

    def _undo(self) -> None:
        """Leaves no transaction open."""
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            self._give_up_connection()

    def _give_up_connection(self) -> None:
        """The next turn opens another. SQLite drops what this one did not commit."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def _wait_for_lock(self, fault: sqlite3.Error) -> bool:
        """Tries again a little later, unless the others have held the lock for longer than the timeout."""
        if not is_busy(fault):
            return False
        now = self._loop.time()
        if self._busy_until is None:
            self._busy_until = now + self._busy_timeout_ms / 1000
        if now >= self._busy_until:
            return False
        self._write_lock.wait()
        self._turn_later()
        return True

    def _turn_later(self) -> None:
        self._turn_due = True
        self._loop.call_later(self._busy_delay_ms / 1000, self._turn)
        self._busy_delay_ms = min(self._busy_delay_ms * 2, BUSY_RETRY_MS_MAX)

    def _stop_waiting(self) -> None:
        """The lock was had, or given up."""
        self._write_lock.passed()
        self._busy_until = None
        self._busy_delay_ms = BUSY_RETRY_MS_FIRST

    def _refuse_waiting(self, refusal: StoreUnavailable) -> None:
        self._stop_waiting()
        while self._waiting:
            self._waiting.popleft().resolve(refusal)
        self._go_on()


def unavailable(fault: Exception) -> StoreUnavailable:
    name = getattr(fault, "sqlite_errorname", None) or type(fault).__name__
    return StoreUnavailable(f"SQLite: {fault} ({name})")


def _checkpoint_and_close(connection: sqlite3.Connection) -> None:
    try:
        # Where another process still reads or writes, this does what it can and the last one does the rest.
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    except sqlite3.Error:
        # The log stays beside the file and is read at the next opening: nothing is lost.
        return
    finally:
        connection.close()

"""Connections to PostgreSQL, and what its faults mean.

In: an address. Out: connections that are ready to use, and faults by what is known of the outcome. Knows
asyncpg; knows nothing of rows. Nothing said here holds a password.
"""

import asyncio
from collections.abc import Sequence
from enum import Enum
from typing import Any, Final

import asyncpg  # type: ignore[import-untyped]
import msgspec

from lucius.ledger.store import StoreUnavailable

CONNECT_SECONDS_MAX: Final = 5.0
STATEMENT_SECONDS_MAX: Final = 10.0
# Beyond what the server itself allows: it says more than a call that only ended.
ANSWER_SECONDS_MORE: Final = 2.0
LOCK_SECONDS_MAX: Final = 5.0
IDLE_SECONDS_MAX: Final = 60.0
READERS_MAX: Final = 6
WRITERS_MAX: Final = 2
NOTIFIERS_MAX: Final = 1
STATEMENTS_CACHED_MAX: Final = 1_024
PATIENCE_SECONDS_MAX: Final = 10.0
PAUSE_SECONDS_MIN: Final = 0.02
PAUSE_SECONDS_MAX: Final = 1.0
REASON_CHARACTERS_MAX: Final = 300

# Every look-up goes through a key. A plan that was made while a table was small must not scan it later.
_PLANS: Final = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "jit": "off",
}

CONFLICT_STATE: Final = "LU001"
FENCED_STATE: Final = "LU002"
_SCHEMA_STATES: Final = ("3F000", "42883", "42P01", "42501")
READ_ONLY_STATE: Final = "25006"
# Classes of faults that time, another server or another process may cure: resources, intervention by an
# operator, faults of the system, locks, and transactions that were ended for others.
_PASSING_CLASSES: Final = ("53", "57", "58", "55", "40", "25", "08", "XX")


class PostgresAddress(msgspec.Struct, frozen=True, kw_only=True):
    """`password`: where it does not stand in the URL."""

    url: str
    password: str | None = None
    application_name: str = "lucius"
    readers_max: int = READERS_MAX
    writers_max: int = WRITERS_MAX
    connect_seconds_max: float = CONNECT_SECONDS_MAX
    statement_seconds_max: float = STATEMENT_SECONDS_MAX
    patience_seconds_max: float = PATIENCE_SECONDS_MAX

    def __repr__(self) -> str:
        return f"PostgresAddress({self.application_name})"


class Outage(Enum):
    """What is known after a fault."""

    PASSING = "passing"  # nothing was written, and the same may succeed later
    LASTING = "lasting"  # nothing was written, and the same would fail again
    UNKNOWN = "unknown"  # the answer was lost


class CallFailed(Exception):
    """`state`: PostgreSQL's code of the fault, if it was the server that said it."""

    def __init__(self, outage: Outage, reason: str, *, state: str = "", detail: str = "") -> None:
        super().__init__(reason)
        self.outage = outage
        self.reason = reason
        self.state = state
        self.detail = detail


# What a call on a connection may raise. An internal error is that of a call after the server has ended the
# session and before its end of the connection is closed.
FAULTS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
    EOFError,
)


def call_failed(fault: BaseException) -> CallFailed:
    """Of a call that was sent."""
    if isinstance(fault, asyncpg.PostgresError) and fault.sqlstate:
        return _said_by_server(fault)
    return CallFailed(Outage.UNKNOWN, _reason(fault))


def connect_failed(fault: BaseException) -> CallFailed:
    """Of a connection that did not come about: nothing was sent."""
    if isinstance(fault, (asyncpg.ClientConfigurationError, ValueError)):
        return CallFailed(Outage.LASTING, _reason(fault))
    state = str(getattr(fault, "sqlstate", None) or "")
    # Class 28: the password or the certificate; 3D: there is no such database; 42: the role may not.
    lasting = state[:2] in ("28", "3D", "42")
    return CallFailed(Outage.LASTING if lasting else Outage.PASSING, _reason(fault), state=state)


def _said_by_server(fault: Any) -> CallFailed:
    state = str(fault.sqlstate)
    reason, detail = _reason(fault), str(getattr(fault, "detail", None) or "")
    severity = str(getattr(fault, "severity_en", None) or getattr(fault, "severity", None) or "ERROR")
    if severity in ("FATAL", "PANIC") or state.startswith("08"):
        # The session ended: after the commit, perhaps, and before its answer.
        return CallFailed(Outage.UNKNOWN, reason, state=state)
    if state in _SCHEMA_STATES:
        reason = f"{reason}: run `lucius provision postgres --apply` as the schema's owner"
    passing = state[:2] in _PASSING_CLASSES
    return CallFailed(Outage.PASSING if passing else Outage.LASTING, reason, state=state, detail=detail)


def _reason(fault: BaseException) -> str:
    state = getattr(fault, "sqlstate", None)
    text = " ".join(str(fault).split())[:REASON_CHARACTERS_MAX]
    named = f"{type(fault).__name__}: {text}" if text else type(fault).__name__
    return f"PostgreSQL: {text} ({state})" if state else f"PostgreSQL: {named}"


class Connection:
    """One session. Each call is one round trip, and one transaction of its own."""

    def __init__(self, session: Any, address: PostgresAddress) -> None:
        self._session = session
        self._answer_seconds_max = address.statement_seconds_max + ANSWER_SECONDS_MORE

    @classmethod
    async def open(cls, address: PostgresAddress, *, plans: bool = True) -> "Connection":
        """Raises `CallFailed`. `plans`: for look-ups by key; else PostgreSQL plans as it likes."""
        statement_ms = int(address.statement_seconds_max * 1000)
        settings = {
            "application_name": address.application_name,
            "statement_timeout": str(statement_ms),
            "lock_timeout": str(int(min(LOCK_SECONDS_MAX, address.statement_seconds_max) * 1000)),
            **(_PLANS if plans else {}),
        }
        try:
            session = await asyncpg.connect(
                address.url,
                **({} if address.password is None else {"password": address.password}),
                timeout=address.connect_seconds_max,
                server_settings=settings,
                statement_cache_size=STATEMENTS_CACHED_MAX,
                max_cached_statement_lifetime=0,
            )
        except (*FAULTS, ValueError) as fault:
            raise connect_failed(fault) from None
        return cls(session, address)

    @property
    def session(self) -> Any:
        """What asyncpg calls a connection: for what listens."""
        return self._session

    @property
    def closed(self) -> bool:
        return bool(self._session.is_closed())

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        """Raises `CallFailed`. A call that is not seen through ends its connection."""
        try:
            found: Sequence[Any] = await self._session.fetch(text, *values, timeout=self._answer_seconds_max)
        except FAULTS as fault:
            failed = call_failed(fault)
            if failed.outage is Outage.UNKNOWN:
                self.abort()
            raise failed from None
        except BaseException:
            self.abort()
            raise
        return found

    async def run(self, text: str) -> None:
        """Statements without values. Raises `CallFailed`."""
        try:
            await self._session.execute(text, timeout=self._answer_seconds_max)
        except FAULTS as fault:
            self.abort()
            raise call_failed(fault) from None

    def abort(self) -> None:
        self._session.terminate()

    async def close(self) -> None:
        try:
            await self._session.close(timeout=1.0)
        except FAULTS:
            self.abort()
        await asyncio.sleep(0)  # the transport closes its socket in the next round of the loop


class RetryPause:
    """How long to try, and how long to pause in between: twice as long each time."""

    def __init__(self, seconds_max: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds_max
        self._seconds = PAUSE_SECONDS_MIN

    @property
    def over(self) -> bool:
        return self._loop.time() >= self._until

    async def wait(self) -> bool:
        """False if the time is up."""
        if self._loop.time() + self._seconds >= self._until:
            return False
        await asyncio.sleep(self._seconds)
        self._seconds = min(PAUSE_SECONDS_MAX, self._seconds * 2)
        return True


class ReaderPool:
    """Connections for reads, opened when needed, and never more than the bound."""

    def __init__(self, address: PostgresAddress) -> None:
        self._address = address
        self._idle: list[Connection] = []
        self._free = asyncio.Semaphore(address.readers_max)
        self._closed = False

    async def fetch(self, text: str, *values: Any) -> Sequence[Any]:
        """A read, which may be repeated. Raises `StoreUnavailable`, or `CallFailed` for what would fail
        again."""
        pause = RetryPause(self._address.patience_seconds_max)
        while True:
            try:
                return await self._fetch_once(text, values)
            except CallFailed as failed:
                if failed.outage is Outage.LASTING and failed.state:
                    raise
                if failed.outage is Outage.LASTING or not await pause.wait():
                    raise StoreUnavailable(failed.reason) from None

    async def _fetch_once(self, text: str, values: Sequence[Any]) -> Sequence[Any]:
        try:
            async with asyncio.timeout(self._address.patience_seconds_max):
                await self._free.acquire()
        except TimeoutError:
            raise StoreUnavailable("all connections for reads are in use") from None
        try:
            connection = await self._take()
            try:
                return await connection.fetch(text, *values)
            finally:
                self._put_back(connection)
        finally:
            self._free.release()

    async def _take(self) -> Connection:
        if self._closed:
            raise StoreUnavailable("the store is closed")
        while self._idle:
            connection = self._idle.pop()
            if not connection.closed:
                return connection
        return await Connection.open(self._address)

    def _put_back(self, connection: Connection) -> None:
        if self._closed:
            connection.abort()
        elif not connection.closed:
            self._idle.append(connection)

    def forget(self) -> None:
        """After the server moved: connections to the old one are dropped."""
        while self._idle:
            self._idle.pop().abort()

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            await self._idle.pop().close()

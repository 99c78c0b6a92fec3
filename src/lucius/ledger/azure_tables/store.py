"""A table store on Azure Table Storage (and on Azurite, which stands in for it).

In: commits, reads. Out: rows, or the port's own errors. One commit is one request, a read is one, a query
one for each page. A store belongs to the event loop that opened it; several processes may share an account,
and several installations, each under a prefix of its own.

`azure_tables_names` maps tables and keys, `azure_tables_entity` rows, `azure_tables_wire` speaks HTTP, and
`azure_tables_commit` says what becomes of a commit when the wire fails. See
docs/guides/azure.md for how to run it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from lucius.ledger.azure_tables.commit import Commit, RetryBudget
from lucius.ledger.azure_tables.entity import row_of, scanned_of
from lucius.ledger.azure_tables.names import bound_to_azure, check_prefix, key_to_azure, table_to_azure
from lucius.ledger.azure_tables.wire import (
    CONNECTIONS_MAX,
    PAGE_ROWS_MAX,
    Credential,
    Found,
    NoTable,
    TableWire,
    Token,
    Trouble,
    WirePage,
    WireRefused,
)
from lucius.ledger.limits import check_commit, check_limit
from lucius.ledger.names import Tables
from lucius.ledger.store import Op, Row, Scanned, StoreUnavailable, put

PREFIX: Final = "lucius"
PATIENCE_SECONDS_MAX: Final = 20.0
CUT_TRIES_MAX: Final = 10
_PING: Final = ("checks", "ping", b"{}")


class AzureTablesStore:
    def __init__(
        self,
        wire: TableWire,
        *,
        prefix: str,
        new_write_id: Callable[[], str],
        tables: Tables | None = None,
        patience_seconds_max: float = PATIENCE_SECONDS_MAX,
        closed_with: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> None:
        """`new_write_id`: 16 hexadecimal digits, unique among all writers. `closed_with`: what ends with
        it."""
        check_prefix(prefix)
        self._wire = wire
        self._prefix = prefix
        self._new_write_id = new_write_id
        self._tables = tables or Tables()
        self._patience_seconds_max = patience_seconds_max
        self._closed_with = closed_with
        self._closed = False

    @classmethod
    async def open(
        cls,
        *,
        new_write_id: Callable[[], str],
        connection_string: str | None = None,
        account_url: str | None = None,
        credential: Credential | None = None,
        prefix: str = PREFIX,
        tables: Tables | None = None,
        connections_max: int = CONNECTIONS_MAX,
        patience_seconds_max: float = PATIENCE_SECONDS_MAX,
        closed_with: Sequence[Callable[[], Awaitable[None]]] = (),
    ) -> "AzureTablesStore":
        """By a connection string, or by the account's URL and a credential. Nothing is sent yet."""
        check_prefix(prefix)
        if connection_string is not None and account_url is None:
            wire = await TableWire.to_connection_string(connection_string, connections_max=connections_max)
        elif connection_string is None and account_url is not None and credential is not None:
            wire = await TableWire.to_account(account_url, credential, connections_max=connections_max)
        else:
            raise ValueError("a connection string, or an account's URL and a credential")
        return cls(
            wire,
            prefix=prefix,
            new_write_id=new_write_id,
            tables=tables,
            patience_seconds_max=patience_seconds_max,
            closed_with=closed_with,
        )

    @property
    def spans(self) -> bool:
        return False

    async def create_tables(self) -> None:
        """Creates what both layouts use, where it is missing. A commit creates a missing table, too, but a
        credential that may not create tables needs this done by another."""
        self._check_open()
        await asyncio.gather(
            *(
                self._create(table_to_azure(self._prefix, name))
                for name in msgspec.structs.astuple(self._tables)
            )
        )

    async def get(self, table: str, partition: str, key: str) -> Row | None:
        self._check_open()
        name, row_key = self._name(table), key_to_azure(key)
        mapped = key_to_azure(partition)
        retry_budget = self._retry_budget()
        while True:
            found = await self._wire.get(name, mapped, row_key)
            if found is None or isinstance(found, NoTable):
                return None
            if isinstance(found, tuple):
                return row_of(table, partition, *found)
            await _wait(retry_budget, found)

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        """Azure may cut an answer short, and what is read after the cut may be newer than what was read
        before it. The reader of a job counts on its rows belonging together, and JOB, which changes with
        every commit, is the first of them: so after a cut the first row is looked at again, and if it
        changed, all is read again."""
        self._check_open()
        check_limit(limit)
        name, mapped = self._name(table), key_to_azure(partition)
        if limit == 0:
            return []
        text = _filter(mapped, start, end)
        for _ in range(CUT_TRIES_MAX):
            entities, cut = await self._pages(name, text, limit)
            rows = [row_of(table, partition, *found) for found in entities]
            if not cut:
                return rows
            first = await self.get(table, partition, rows[0].key)
            if first is None or first.etag == rows[0].etag:
                return rows
        raise StoreUnavailable(f"{table}/{partition} changed {CUT_TRIES_MAX} times while it was being read")

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        """What is left of the partition first, then those after it: each is a range that Azure finds by
        key."""
        self._check_open()
        check_limit(limit)
        name, found = self._name(table), list[Scanned]()
        for text in _scan_filters(after, key):
            token: Token | None = None
            while len(found) < limit:
                page = await self._page(name, text, limit - len(found), token)
                found += [scanned_of(table, entity, etag) for entity, etag in page.entities]
                token = page.token
                if token is None:
                    break
        return found[:limit]

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        self._check_open()
        check_commit(ops, spans=False)
        if not ops:
            return []
        commit = Commit(
            self._wire,
            self._name(ops[0].table),
            ops,
            write_id=self._new_write_id(),
            seconds_max=self._patience_seconds_max,
        )
        return await commit.run()

    async def ping(self) -> None:
        """Only a write shows whether writes are taken: an account may be read-only."""
        partition, key, body = _PING
        await self.commit([put(self._tables.meta, partition, key, body)])

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            await self._wire.close()
            for close in self._closed_with:
                await close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnavailable("the store is closed")

    def _name(self, table: str) -> str:
        return table_to_azure(self._prefix, table)

    def _retry_budget(self) -> RetryBudget:
        return RetryBudget(self._patience_seconds_max, self._new_write_id())

    async def _create(self, name: str) -> None:
        retry_budget = self._retry_budget()
        while (trouble := await self._wire.create_table(name)) is not None:
            await _wait(retry_budget, trouble)

    async def _pages(self, name: str, text: str, limit: int) -> tuple[list[Found], bool]:
        """The entities, and whether the server cut an answer short that a page could have held."""
        rows: list[Found] = []
        token: Token | None = None
        cut = False
        while True:
            asked = limit - len(rows)
            page = await self._page(name, text, asked, token)
            rows += page.entities
            token = page.token
            if token is None or len(rows) >= limit:
                return rows[:limit], cut and bool(rows)
            cut = cut or len(page.entities) < min(asked, PAGE_ROWS_MAX)

    async def _page(self, name: str, text: str, rows_max: int, token: Token | None) -> WirePage:
        retry_budget = self._retry_budget()
        while True:
            page = await self._wire.page(name, text, rows_max=rows_max, token=token)
            if isinstance(page, WirePage):
                return page
            await _wait(retry_budget, page)


async def _wait(retry_budget: RetryBudget, trouble: Trouble) -> None:
    """Before the next try of what is safe to repeat."""
    reason = getattr(trouble, "reason", "there is no such table")
    if isinstance(trouble, WireRefused) or not await retry_budget.pause():
        raise StoreUnavailable(reason)


def _scan_filters(after: tuple[str, str] | None, key: str | None) -> list[str]:
    only = "" if key is None else f" and RowKey eq '{bound_to_azure(key)}'"
    if after is None:
        return [f"PartitionKey ge ''{only}"]
    partition, last_key = key_to_azure(after[0]), bound_to_azure(after[1])
    rest = f"PartitionKey eq '{partition}' and RowKey gt '{last_key}'{only}"
    return [rest, f"PartitionKey gt '{partition}'{only}"]


def _filter(partition: str, start: str, end: str | None) -> str:
    """Keys in Azure's alphabet hold no quotes and no spaces."""
    parts = [f"PartitionKey eq '{partition}'"]
    if start.endswith("\x00"):
        # Nothing lies between a key and the same with a zero added, and the key alone is never too long.
        parts.append(f"RowKey gt '{bound_to_azure(start[:-1])}'")
    elif start:
        parts.append(f"RowKey ge '{bound_to_azure(start)}'")
    if end is not None:
        parts.append(f"RowKey lt '{bound_to_azure(end)}'")
    return " and ".join(parts)

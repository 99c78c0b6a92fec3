"""Azure Tables over HTTP: each call is sent once, and its answer is classified.

In: entities and ETags in Azure's own words. Out: an `Answer`. Knows Microsoft's client; knows nothing of
rows, and never sends a write twice: whether that is safe is for `azure_tables_commit` to say.

Two layers below would repeat a write on their own, and both are set not to: the retry policy of the client
(`retry_total=0`) and aiohttp, which repeats PUT and DELETE when a connection that was kept open breaks.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

import aiohttp
import msgspec
from azure.core import MatchConditions
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DecodeError,
    HttpResponseError,
    ServiceRequestError,
)
from azure.core.pipeline.transport import AioHttpTransport
from azure.data.tables import TableTransactionError, TransactionOperation, UpdateMode
from azure.data.tables.aio import TableClient, TableServiceClient

from lucius.ledger.store import Verb

CONNECTIONS_MAX: Final = 64
CONNECT_SECONDS_MAX: Final = 5.0
CALL_SECONDS_MAX: Final = 10.0
PAGE_ROWS_MAX: Final = 1_000
REASON_CHARACTERS_MAX: Final = 200

Credential = AzureNamedKeyCredential | AzureSasCredential | AsyncTokenCredential
Token = Mapping[str, str]
Found = tuple[Mapping[str, Any], str]  # an entity and Azure's ETag

_IF_NOT_MODIFIED = MatchConditions.IfNotModified
_NOT_WRITTEN = frozenset({"ServerBusy", "TooManyRequests", "TableBeingDeleted", "AccountBeingCreated"})
_BUSY_STATUSES = frozenset({429})
_LOST_STATUSES = frozenset({408, 500, 502, 503, 504})
_CONFLICT_CODES = frozenset({"EntityAlreadyExists", "UpdateConditionNotSatisfied", "ConditionNotMet"})


class WireOp(msgspec.Struct, frozen=True, kw_only=True):
    verb: Verb
    entity: Mapping[str, Any]
    etag: str = ""  # Azure's


class WireDone(msgspec.Struct, frozen=True):
    etags: tuple[str, ...]  # of each op, "" for a removal


class WireConflict(msgspec.Struct, frozen=True):
    """The op at `index` met another row than it expected, or none. Nothing was written."""

    index: int
    missing: bool


class NoTable(msgspec.Struct, frozen=True):
    """There is no such table. Nothing was written."""


class WireBusy(msgspec.Struct, frozen=True):
    """Nothing was written; it may be later."""

    reason: str


class WireRefused(msgspec.Struct, frozen=True):
    """Nothing was written, and a repetition would be refused again until the settings change."""

    reason: str


class WireLost(msgspec.Struct, frozen=True):
    """It may have been written, or be written yet."""

    reason: str


Trouble = NoTable | WireBusy | WireRefused | WireLost
Answer = WireDone | WireConflict | Trouble


class WirePage(msgspec.Struct, frozen=True):
    entities: Sequence[Found]
    token: Token | None


class TableWire:
    def __init__(self, session: aiohttp.ClientSession, service: TableServiceClient) -> None:
        """Use `to_connection_string` or `to_account`."""
        self._session = session
        self._service = service
        self._clients: dict[str, TableClient] = {}

    @classmethod
    async def to_connection_string(cls, text: str, *, connections_max: int = CONNECTIONS_MAX) -> "TableWire":
        session, options = _transport(connections_max)
        try:
            return cls(session, TableServiceClient.from_connection_string(text, **options))
        except BaseException:
            await session.close()
            raise

    @classmethod
    async def to_account(
        cls, url: str, credential: Credential, *, connections_max: int = CONNECTIONS_MAX
    ) -> "TableWire":
        session, options = _transport(connections_max)
        try:
            return cls(session, TableServiceClient(url, credential=credential, **options))
        except BaseException:
            await session.close()
            raise

    async def close(self) -> None:
        await self._service.close()
        await self._session.close()

    async def create_table(self, table: str) -> Trouble | None:
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                await self._service.create_table(table)
        except (AzureError, TimeoutError) as fault:
            if isinstance(fault, HttpResponseError) and _code(fault) == "TableAlreadyExists":
                return None
            return _trouble(fault)
        return None

    async def list_tables(self) -> frozenset[str] | Trouble:
        """All of the account, in small letters: Azure takes two spellings of a name for one table."""
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                return frozenset([table.name.lower() async for table in self._service.list_tables()])
        except (AzureError, TimeoutError) as fault:
            return _trouble(fault)

    async def get(self, table: str, partition: str, key: str) -> Found | Trouble | None:
        """The entity and its ETag, or None."""
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                entity = await self._client(table).get_entity(partition, key)
        except (AzureError, TimeoutError) as fault:
            if isinstance(fault, HttpResponseError) and fault.status_code == 404:
                return None
            return _trouble(fault)
        return entity, entity.metadata["etag"] or ""

    async def page(self, table: str, text: str, *, rows_max: int, token: Token | None) -> WirePage | Trouble:
        """One answer to a query: maybe fewer rows than asked for, and then a token to go on with."""
        found = self._client(table).query_entities(text, results_per_page=min(rows_max, PAGE_ROWS_MAX))
        pages: Any = found.by_page(dict(token) if token else None)  # type: ignore[arg-type]
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                entities = [entity async for entity in await anext(pages)]
        except StopAsyncIteration:
            return WirePage((), None)
        except (AzureError, TimeoutError) as fault:
            trouble = _trouble(fault)
            return WirePage((), None) if isinstance(trouble, NoTable) else trouble
        rows = [(entity, entity.metadata["etag"] or "") for entity in entities]
        return WirePage(rows, pages.continuation_token or None)

    async def send(self, table: str, ops: Sequence[WireOp]) -> Answer:
        client = self._client(table)
        try:
            async with asyncio.timeout(CALL_SECONDS_MAX):
                if len(ops) > 1:
                    return _done(ops, await client.submit_transaction([_operation(op) for op in ops]))
                return await _send_one(client, ops[0])
        except (AzureError, TimeoutError) as fault:
            return _answer(fault)

    def _client(self, table: str) -> TableClient:
        client = self._clients.get(table)
        if client is None:
            client = self._clients[table] = self._service.get_table_client(table)
        return client


def _transport(connections_max: int) -> tuple[aiohttp.ClientSession, dict[str, Any]]:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections_max),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=True,
    )
    # There is no public way to say it. Without it a replacement that landed may be answered with a conflict.
    session._retry_connection = False
    transport = AioHttpTransport(session=session, session_owner=False)
    return session, {
        "transport": transport,
        "retry_total": 0,
        "connection_timeout": CONNECT_SECONDS_MAX,
        "read_timeout": CALL_SECONDS_MAX,
    }


async def _send_one(client: TableClient, op: WireOp) -> Answer:
    """An op alone needs no transaction, which takes three times the work on this side."""
    if op.verb is Verb.INSERT:
        written = await client.create_entity(op.entity)
    elif op.verb is Verb.PUT:
        written = await client.upsert_entity(op.entity, mode=UpdateMode.REPLACE)
    elif op.verb is Verb.REPLACE:
        written = await client.update_entity(
            op.entity, mode=UpdateMode.REPLACE, etag=op.etag, match_condition=_IF_NOT_MODIFIED
        )
    else:
        return await _delete_one(client, op)
    return WireDone((written["etag"],))


async def _delete_one(client: TableClient, op: WireOp) -> Answer:
    statuses: list[tuple[int, str]] = []

    def look(response: Any) -> None:
        # The client takes a row that is not there for a success.
        found = response.http_response
        statuses.append((found.status_code, found.headers.get("x-ms-error-code", "")))

    guarded = op.verb is Verb.DELETE
    await client.delete_entity(
        op.entity["PartitionKey"],
        op.entity["RowKey"],
        etag=op.etag if guarded else None,
        match_condition=_IF_NOT_MODIFIED if guarded else None,
        raw_response_hook=look,
    )
    if statuses and statuses[-1][0] == 404:
        return NoTable() if statuses[-1][1] == "TableNotFound" else WireConflict(0, True)
    return WireDone(("",))


def _operation(op: WireOp) -> tuple[TransactionOperation, Mapping[str, Any], Mapping[str, Any]]:
    if op.verb is Verb.INSERT:
        return TransactionOperation.CREATE, op.entity, {}
    if op.verb is Verb.PUT:
        return TransactionOperation.UPSERT, op.entity, {"mode": UpdateMode.REPLACE}
    if op.verb is Verb.DISCARD:
        return TransactionOperation.DELETE, op.entity, {}
    guard = {"etag": op.etag, "match_condition": _IF_NOT_MODIFIED}
    if op.verb is Verb.DELETE:
        return TransactionOperation.DELETE, op.entity, guard
    return TransactionOperation.UPDATE, op.entity, {"mode": UpdateMode.REPLACE, **guard}


def _done(ops: Sequence[WireOp], parts: Sequence[Mapping[str, Any]]) -> Answer:
    if len(parts) != len(ops):
        return WireLost(f"{len(parts)} answers to {len(ops)} ops")
    removals = (Verb.DELETE, Verb.DISCARD)
    return WireDone(
        tuple(
            "" if op.verb in removals else part.get("etag", "") for op, part in zip(ops, parts, strict=True)
        )
    )


def _answer(fault: AzureError | TimeoutError) -> Answer:
    if isinstance(fault, HttpResponseError) and not isinstance(fault, DecodeError):
        index = fault.index if isinstance(fault, TableTransactionError) else 0
        code = _code(fault)
        if fault.status_code == 412 or code in _CONFLICT_CODES:
            return WireConflict(index, False)
        if fault.status_code == 404 and code != "TableNotFound":
            return WireConflict(index, True)
    return _trouble(fault)


def _trouble(fault: AzureError | TimeoutError) -> Trouble:
    reason = f"{type(fault).__name__}: {str(fault)[:REASON_CHARACTERS_MAX]}"
    if isinstance(fault, DecodeError):
        return WireLost(reason)
    if isinstance(fault, HttpResponseError) and fault.status_code is not None:
        return _trouble_by_status(fault.status_code, _code(fault))
    if isinstance(fault, ClientAuthenticationError):
        return WireRefused(reason)  # there was no token to send the request with
    if isinstance(fault, ServiceRequestError) and isinstance(
        fault.inner_exception, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError)
    ):
        return WireBusy(reason)  # there was no connection to send the request over
    return WireLost(reason)


def _trouble_by_status(status: int, code: str) -> Trouble:
    reason = f"Azure answered {status} {code}".rstrip()
    if code == "TableNotFound":
        return NoTable()
    if status in _BUSY_STATUSES or code in _NOT_WRITTEN:
        return WireBusy(reason)
    # A gateway's 503 has no code of the table service, and it is unknown how far the request came.
    return WireLost(reason) if status in _LOST_STATUSES or status < 400 else WireRefused(reason)


def _code(fault: HttpResponseError) -> str:
    code = getattr(fault, "error_code", None)
    if code is None:
        headers: Mapping[str, str] = getattr(fault.response, "headers", {})
        code = headers.get("x-ms-error-code")
    return str(getattr(code, "value", code) or "")

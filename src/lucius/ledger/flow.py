"""What services have of their limits, and what operators have paused, kept in one partition.

A row for each service that is governed, replaced under its ETag: whichever process takes a place, the others
see it before they take theirs, on every store. A row for each pause.
"""

from collections.abc import Callable
from enum import StrEnum
from typing import Final

import msgspec

from lucius.core.flow import EMPTY_FLOW, FlowState
from lucius.ledger.quarantine import Quarantine, read_page
from lucius.ledger.rows import RowDecoder, encode
from lucius.ledger.store import (
    Conflict,
    Place,
    Row,
    TableStore,
    Unreadable,
    discard,
    insert,
    put,
    replace,
)

PARTITION: Final = "flow"
ROWS_MAX: Final = 3_000
PAUSES_MAX: Final = 1_000
_SERVICE, _PAUSE = "service#", "pause#"


class PauseKind(StrEnum):
    """What is paused: nothing of it leaves, and what is under way goes on."""

    SERVICE = "service"
    TENANT = "tenant"
    TYPE = "type"


class FlowPause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    kind: PauseKind
    name: str
    since_ms: int
    reason: str | None = None
    by: str | None = None


class StoredFlow(msgspec.Struct, frozen=True):
    state: FlowState
    etag: str | None  # None: there is no row yet


class FlowRows(msgspec.Struct, frozen=True, kw_only=True):
    flows: dict[str, StoredFlow]
    pauses: tuple[FlowPause, ...]


_flow = RowDecoder(FlowState)
_pause = RowDecoder(FlowPause)


def row_decoder(key: str) -> Callable[[Row], object] | None:
    """What reads the row of this key."""
    return _flow if key.startswith(_SERVICE) else _pause if key.startswith(_PAUSE) else None


class FlowLedger:
    def __init__(self, store: TableStore, table: str, quarantine: Quarantine) -> None:
        self._store = store
        self._table = table
        self._quarantine = quarantine

    async def read(self, service: str, *, anew: bool = False) -> StoredFlow:
        """Raises `Unreadable`. `anew`: a row that cannot be read is taken for one that says nothing."""
        row = await self._store.get(self._table, PARTITION, _SERVICE + service)
        if row is None:
            return StoredFlow(EMPTY_FLOW, None)
        try:
            return self._stored(row)
        except Unreadable as fault:
            self._quarantine.note(Place(self._table, PARTITION, row.key), fault)
            if not anew or fault.later:
                raise
            return StoredFlow(EMPTY_FLOW, row.etag)

    async def write(self, service: str, state: FlowState, etag: str | None) -> StoredFlow | None:
        """None if another writer was faster."""
        key, body = _SERVICE + service, encode(state)
        if etag is None:
            op = insert(self._table, PARTITION, key, body)
        else:
            op = replace(self._table, PARTITION, key, body, etag)
        try:
            (written,) = await self._store.commit([op])
        except Conflict:
            return None
        return StoredFlow(state, written)

    async def all(self) -> FlowRows:
        """Both in one query: processes ask for them every second."""
        rows = await self._store.query(self._table, PARTITION, limit=ROWS_MAX)
        flows: dict[str, StoredFlow] = {}
        pauses: list[FlowPause] = []
        for row in rows:
            try:
                if row.key.startswith(_SERVICE):
                    flows[row.key.removeprefix(_SERVICE)] = self._stored(row)
                elif row.key.startswith(_PAUSE):
                    pauses.append(_pause.at(self._table, PARTITION, row))
            except Unreadable as fault:
                self._quarantine.note(Place(self._table, PARTITION, row.key), fault)
        return FlowRows(flows=flows, pauses=tuple(pauses))

    async def pauses(self) -> list[FlowPause]:
        return await read_page(
            self._store,
            self._quarantine,
            self._table,
            PARTITION,
            _pause,
            start=_PAUSE,
            end="pause$",
            limit=ROWS_MAX,
        )

    async def pause(self, pause: FlowPause) -> None:
        """One that is there already stays as it is."""
        key = f"{_PAUSE}{pause.kind.value}#{pause.name}"
        if await self._store.get(self._table, PARTITION, key) is None:
            await self._store.commit([put(self._table, PARTITION, key, encode(pause))])

    async def resume(self, kind: PauseKind, name: str) -> bool:
        """False if it was not paused."""
        key = f"{_PAUSE}{kind.value}#{name}"
        there = await self._store.get(self._table, PARTITION, key)
        if there is None:
            return False
        await self._store.commit([discard(self._table, PARTITION, key)])
        return True

    def _stored(self, row: Row) -> StoredFlow:
        return StoredFlow(_flow.at(self._table, PARTITION, row), row.etag)

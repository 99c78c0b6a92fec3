"""The table store: the port under the ledger.

Rows live in named tables under (partition key, row key) and carry an ETag that changes with every write. A
commit is all or nothing. Whether one commit may span partitions and tables is the one fact a store declares;
a store that may not (Azure Tables) refuses such a commit with `SpanRefused` before anything is written.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol, runtime_checkable

import msgspec

from lucius.ledger.columns import ShownRow

OPS_MAX = 100  # per partition in one commit, the limit of Azure's entity-group transactions
COMMIT_BYTES_MAX = 4_194_304  # on the wire, where a commit cannot span: their limit, too
KEY_LENGTH_MAX = 512


class Row(msgspec.Struct, frozen=True, gc=False):
    """`damage`: what is wrong with a row of which the store knows that it is not what was written; its body
    is then empty, so that it cannot be taken for data."""

    key: str
    etag: str
    body: bytes  # JSON; the store never looks inside unless its backend wants columns
    damage: str = ""


class Scanned(msgspec.Struct, frozen=True, gc=False):
    """A row of a whole table. One that the store cannot trust says so in `damage`, and has no body."""

    partition: str
    key: str
    etag: str
    body: bytes
    damage: str = ""

    @property
    def place(self) -> tuple[str, str]:
        return self.partition, self.key

    def as_row(self) -> "Row":
        return Row(self.key, self.etag, self.body, self.damage)


class Verb(Enum):
    INSERT = "insert"  # fails if the row is there
    REPLACE = "replace"  # fails unless the row is there with this ETag
    DELETE = "delete"  # fails unless the row is there with this ETag
    PUT = "put"  # inserts or replaces, whatever is there: for rows guarded by another, or that can be rebuilt
    DISCARD = "discard"  # deletes if it is there: likewise


# Looked up once: the members of an enum are slow to reach, and every op asks for one.
_INSERT, _REPLACE, _DELETE, _PUT, _DISCARD = Verb


class RowScope(Enum):
    """Which rows of an op's table are counted."""

    PARTITION = 1  # those of its partition
    TABLE = 2
    BODY = 3  # those with the same body


class Bound(msgspec.Struct, frozen=True, gc=False):
    """How many rows there may be, with the one that an op writes."""

    scope: RowScope
    rows_max: int


class Op(msgspec.Struct, frozen=True, gc=False):
    """`shown`: what a store that has columns for people shows beside the body. `bounds`: kept by a store that
    counts rows in its commits; with another the caller has to see to it that there are not too many."""

    verb: Verb
    table: str
    partition: str
    key: str
    body: bytes = b""
    etag: str = ""
    shown: ShownRow | None = None
    bounds: tuple[Bound, ...] = ()


class StoreError(Exception):
    """The store failed. Nothing can be said about the outcome unless a subclass says so."""


class Conflict(StoreError):
    """Another writer was faster: the op at `index` found another row than it expected. Nothing was
    written."""

    def __init__(self, index: int, op: Op) -> None:
        super().__init__(f"{op.verb.value} {op.table}/{op.partition}/{op.key} met another version")
        self.index = index
        self.op = op


class BoundReached(StoreError):
    """The commit would have made more rows than there may be. Nothing was written."""

    def __init__(self, bound: Bound) -> None:
        super().__init__(f"there are {bound.rows_max} rows, as many as there may be")
        self.bound = bound


class SpanRefused(StoreError):
    """The commit spans partitions or tables and this store cannot do that. Nothing was written."""


class StoreUnavailable(StoreError):
    """The store cannot take writes now (disk full, locked, out of reach). Nothing was written."""


class Place(msgspec.Struct, frozen=True):
    """Where a row stands."""

    table: str
    partition: str
    key: str

    def __str__(self) -> str:
        return f"{self.table}/{self.partition}/{self.key}"


class Unreadable(StoreError):
    """A row that is there cannot be read: it is damaged, or a later version of Lucius wrote it. Everything
    else in the store is as good as before, so this is no outage."""

    def __init__(self, reason: str, *, later: bool = False, place: Place | None = None) -> None:
        super().__init__(reason if place is None else f"{place}: {reason}")
        self.reason = reason
        self.later = later
        self.place = place

    def at(self, place: Place) -> "Unreadable":
        return Unreadable(self.reason, later=self.later, place=place)


class TableStore(Protocol):
    @property
    def spans(self) -> bool:
        """Whether one commit may touch several partitions and tables."""
        ...

    async def get(self, table: str, partition: str, key: str) -> Row | None: ...

    async def query(
        self, table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        """Rows with start <= key < end, in key order (by code point), at most `limit`."""
        ...

    async def scan(
        self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
    ) -> list[Scanned]:
        """Rows of a whole table that come after this place, in the order of partition and key (by code
        point), at most `limit`; fewer mean that no more follow. `key`: only the rows of this key, of each
        partition.

        For the audit and for `lucius doctor` alone: no decision is found by a scan.
        """
        ...

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        """Applies all or none; returns each op's new ETag ("" for a removal). Durable on return."""
        ...

    async def ping(self) -> None:
        """Raises `StoreUnavailable` if writes cannot be taken now."""
        ...

    async def close(self) -> None: ...


@runtime_checkable
class BoundsStore(Protocol):
    """A store that keeps the `bounds` of ops, whatever other processes commit."""

    @property
    def keeps_bounds(self) -> bool: ...


def insert(table: str, partition: str, key: str, body: bytes, shown: ShownRow | None = None) -> Op:
    return Op(_INSERT, table, partition, key, body, "", shown)


def replace(
    table: str, partition: str, key: str, body: bytes, etag: str, shown: ShownRow | None = None
) -> Op:
    return Op(_REPLACE, table, partition, key, body, etag, shown)


def delete(table: str, partition: str, key: str, etag: str) -> Op:
    return Op(_DELETE, table, partition, key, b"", etag)


def put(table: str, partition: str, key: str, body: bytes, shown: ShownRow | None = None) -> Op:
    return Op(_PUT, table, partition, key, body, "", shown)


def discard(table: str, partition: str, key: str) -> Op:
    return Op(_DISCARD, table, partition, key)

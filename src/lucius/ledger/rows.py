"""Rows and their JSON. Every row carries the schema version it was written with; readers ignore what they do
not know, so that versions mix during a rollout. A row of a later version is not read at all: its members may
mean something else by then.

Whatever reads a row uses a `RowDecoder`, which raises `Unreadable` for a row that cannot be read, and nothing
else. What becomes of such a row is `quarantine`'s business.
"""

from typing import Final, Generic, TypeVar

import msgspec

from lucius.core.model import Event, Job, JobRecord, Outbox, Step
from lucius.ledger.store import Place, Row, Unreadable

ROW_SCHEMA = 1
_PREFIX = b'{"v":%d,' % ROW_SCHEMA

_encode = msgspec.json.Encoder().encode

T = TypeVar("T")


class _Versioned(msgspec.Struct, frozen=True, gc=False):
    v: int = 0


_versioned = msgspec.json.Decoder(_Versioned).decode


class RowDecoder(Generic[T]):
    """Reads rows of one kind: bytes in, their value out."""

    __slots__ = ("of_bytes",)

    def __init__(self, kind: type[T]) -> None:
        self.of_bytes = msgspec.json.Decoder(kind).decode

    def __call__(self, row: Row) -> T:
        """Raises `Unreadable`."""
        body = row.body
        if row.damage:
            raise Unreadable(row.damage)
        if not body.startswith(_PREFIX):
            _check_version(body)
        try:
            return self.of_bytes(body)
        except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
            raise Unreadable(f"it does not decode: {fault}") from None

    def at(self, table: str, partition: str, row: Row) -> T:
        """The same; the fault says where the row stands."""
        try:
            return self(row)
        except Unreadable as fault:
            raise fault.at(Place(table, partition, row.key)) from None


def _check_version(body: bytes) -> None:
    try:
        version = _versioned(body).v
    except (msgspec.MsgspecError, ValueError, RecursionError) as fault:
        raise Unreadable(f"it does not decode: {fault}") from None
    if version > ROW_SCHEMA:
        raise Unreadable(f"it was written by a later version of Lucius (v {version})", later=True)


class DueRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Why a due row is there: the job version it announces, and the rows to clear if that never comes.
    `service` and `dispatch_at_ms` name the dispatch row that was announced with it, the latter by the time in
    its key. `passed_ms`: the deadline
    that is over when this row is due, though it lies further ahead: it was set by a clock that ran ahead."""

    version: int
    written_at_ms: int
    tenant_norm: str
    created_at_ms: int
    service: str | None = None
    dispatch_at_ms: int | None = None
    passed_ms: int | None = None


class DispatchRow(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """`due_at_ms`: when the directive may leave, where that is another time than the one in the key.
    `request_type`: of its job; rows of earlier versions do not have it."""

    version: int
    written_at_ms: int
    step_id: str
    attempt_no: int
    lease_id: str
    due_at_ms: int | None = None
    request_type: str | None = None


class _Announced(msgspec.Struct, frozen=True, gc=False):
    version: int = 0


_announced = RowDecoder(_Announced)
_announced_body = msgspec.json.Decoder(_Announced)


class IdempotencyRow(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """`adoptions`: late successes by step and number, and the job that began with each; on the row that the
    reruns of a job share, where the job that holds it gives way to the next."""

    job_id: str
    fingerprint: str
    created_at_ms: int
    adoptions: dict[str, str] = {}


class ListRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A job in a list. `state` is kept once it is terminal; until then the job's own row is asked."""

    job_id: str
    tenant_norm: str
    request_type: str
    created_at_ms: int
    lane: int
    state: str | None = None
    error_code: str | msgspec.UnsetType | None = msgspec.UNSET
    """Of the finally failed. Unset: the row is of an earlier version, and the job's own is asked."""


class SlotRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    mode: str


class RetentionRow(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """What it takes to delete a job whose own rows may already be gone. `ended`: in which of the states that
    have lists of their own. `names`: by which it is searched."""

    tenant_norm: str
    idempotency_hash: str
    created_at_ms: int
    ended: str | None = None
    names: tuple[str, ...] = ()


class PointerRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    partition: str


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """Stands where a job was announced but never created, so that a slow writer fails instead of succeeding
    after all processes gave up. It counts as no job."""

    tombstone: bool
    at_ms: int


class Loaded(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A record and the ETag under which it may be replaced."""

    record: JobRecord
    etag: str
    cached: bool = False


def encode(value: msgspec.Struct) -> bytes:
    body = _encode(value)
    return _PREFIX + body[1:] if len(body) > 2 else _PREFIX[:-1] + b"}"


def version_in(body: bytes) -> int:
    """The job version that a due or dispatch row announces, or that a copy shows, as it is to be written."""
    return _announced_body.decode(body).version


def version_of(row: Row) -> int:
    """The same, of a row that is there. A damaged one announces nothing, and may be written anew; one of a
    later version is not ours to replace: `Unreadable`."""
    try:
        return _announced(row).version
    except Unreadable as fault:
        if fault.later:
            raise
        return 0


def is_tombstone(body: bytes) -> bool:
    return body.find(b'"tombstone":true', 0, 40) >= 0


# Each reads a row: its value, or `Unreadable`.
decode_job: Final = RowDecoder(Job)
decode_step: Final = RowDecoder(Step)
decode_outbox: Final = RowDecoder(Outbox)
decode_event: Final = RowDecoder(Event)
decode_pointer: Final = RowDecoder(PointerRow)
decode_idempotency: Final = RowDecoder(IdempotencyRow)
decode_list: Final = RowDecoder(ListRow)
decode_slot: Final = RowDecoder(SlotRow)
decode_due: Final = RowDecoder(DueRow)
decode_dispatch: Final = RowDecoder(DispatchRow)
decode_retention: Final = RowDecoder(RetentionRow)

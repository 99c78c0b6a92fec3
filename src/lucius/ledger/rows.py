"""Rows and their JSON. Every row carries the schema version it was written with; readers ignore what they do
not know, so that versions mix during a rollout."""

from typing import Final

import msgspec

from lucius.core.model import Event, Job, JobRecord, Outbox, Step

ROW_SCHEMA = 1
_PREFIX = b'{"v":%d,' % ROW_SCHEMA

_encode = msgspec.json.Encoder().encode


class DueRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """Why a due row is there: the job version it announces, and the rows to clear if that never comes.
    `service` and `dispatch_at_ms` name the dispatch row that was announced with it. `passed_ms`: the deadline
    that is over when this row is due, though it lies further ahead: it was set by a clock that ran ahead."""

    version: int
    written_at_ms: int
    tenant_norm: str
    created_at_ms: int
    service: str | None = None
    dispatch_at_ms: int | None = None
    passed_ms: int | None = None


class DispatchRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    version: int
    written_at_ms: int
    step_id: str
    attempt_no: int
    lease_id: str


class _Announced(msgspec.Struct, frozen=True, gc=False):
    version: int = 0


_announced = msgspec.json.Decoder(_Announced)


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


class SlotRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    mode: str


class RetentionRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What it takes to forget a job whose own rows may already be gone."""

    tenant_norm: str
    idempotency_hash: str
    created_at_ms: int


class PointerRow(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    partition: str


class Tombstone(msgspec.Struct, frozen=True, kw_only=True):
    """Stands where a job was announced but never created, so that a slow writer fails instead of succeeding
    after everybody gave up. It counts as no job."""

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


def version_of(body: bytes) -> int:
    """The job version that a due or dispatch row announces, or that a copy shows."""
    return _announced.decode(body).version


def is_tombstone(body: bytes) -> bool:
    return body.find(b'"tombstone":true', 0, 40) >= 0


# Each reads a row: bytes in, its value out.
decode_job: Final = msgspec.json.Decoder(Job).decode
decode_step: Final = msgspec.json.Decoder(Step).decode
decode_outbox: Final = msgspec.json.Decoder(Outbox).decode
decode_event: Final = msgspec.json.Decoder(Event).decode

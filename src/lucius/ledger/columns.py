"""What people read in the ledger: the columns of each kind of row, stated once.

In: nothing, or the values that a row is made of. Out: names, types, and how each column is computed. A store
that has columns writes them beside the body (`azure_tables`), one that has SQL computes them in views
(`sql_views`); both follow `KINDS`, and so does docs/reference/ledger.md. Lucius never reads a column: every
decision is made from bodies alone.

A column is a `Value`: mostly a member of the row's body by its path. `python_of` turns it into a function of
`ShownRow`, `sql_views` into SQL.
"""

import datetime
from collections.abc import Callable, Iterator
from enum import Enum, StrEnum
from typing import Any, Final

import msgspec

from lucius.contracts.times import rfc3339
from lucius.core.model import Job, JobRecord, Step
from lucius.ledger.names import month_of

EVENT_ID_DIGITS: Final = 8


class RowKind(StrEnum):
    """A kind of row, by the name of its view."""

    JOBS = "jobs"
    STEPS = "steps"
    OUTBOX = "outbox"
    EVENTS = "events"
    IDEMPOTENCY = "idempotency"


class ColumnType(StrEnum):
    TEXT = "text"
    INTEGER = "integer"
    TIME = "time"
    JSON = "JSON text"


class Of(Enum):
    """Whose body a member is taken from."""

    ROW = "row"
    JOB = "job"  # the JOB row that the row belongs to
    STEP = "step"  # the STEP row that the row belongs to


class Member(msgspec.Struct, frozen=True):
    """A member of a body. `absent`: what a body means that leaves it out."""

    path: str
    of: Of = Of.ROW
    absent: str | int | None = None


class JobId(msgspec.Struct, frozen=True):
    """By the row's key, so that it is there where the body cannot be read."""


class Key(Enum):
    """One of the two keys of the row."""

    PARTITION = "pk"
    ROW = "rk"


class Text(msgspec.Struct, frozen=True):
    text: str


class Month(msgspec.Struct, frozen=True):
    """`YYYYMM` of a time."""

    at_ms: Member


class Moment(msgspec.Struct, frozen=True):
    """A time as RFC 3339 text."""

    at_ms: Member


class Digits(msgspec.Struct, frozen=True):
    """A number of a fixed width."""

    number: Member
    width: int


class Joined(msgspec.Struct, frozen=True):
    """Texts one after the other."""

    parts: "tuple[Value, ...]"


class Seconds(msgspec.Struct, frozen=True):
    span_ms: Member


class LeaseExpires(msgspec.Struct, frozen=True):
    """The deadline of a step; see `Step.lease_expires_shown_ms`."""


class UpstreamResults(msgspec.Struct, frozen=True):
    """What the steps before this one made, as its directive says."""


class Document(msgspec.Struct, frozen=True):
    """A JSON object."""

    members: "tuple[tuple[str, Value, ColumnType], ...]"


Value = (
    Member
    | JobId
    | Key
    | Text
    | Month
    | Moment
    | Digits
    | Joined
    | Seconds
    | LeaseExpires
    | UpstreamResults
    | Document
)


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """`seed`: the paragraph of the specification that asks for it; empty for one that was added."""

    name: str
    type: ColumnType
    value: Value
    seed: str
    says: str


_TEXT, _INTEGER, _TIME, _JSON = ColumnType
_ADDED: Final = ""


def _text(name: str, value: Value, seed: str, says: str) -> Column:
    return Column(name=name, type=_TEXT, value=value, seed=seed, says=says)


def _integer(name: str, value: Value, seed: str, says: str) -> Column:
    return Column(name=name, type=_INTEGER, value=value, seed=seed, says=says)


def _time(name: str, at_ms: str | Value, seed: str, says: str) -> Column:
    value = Member(at_ms) if isinstance(at_ms, str) else at_ms
    return Column(name=name, type=_TIME, value=value, seed=seed, says=says)


def _json(name: str, value: Value, seed: str, says: str) -> Column:
    return Column(name=name, type=_JSON, value=value, seed=seed, says=says)


_BUCKET = Joined((Member("tenant_norm"), Text("#"), Month(Member("created_at_ms"))))

_JOB = (
    _text("job_id", JobId(), "001, 12.2", "the job"),
    _text("tenant_id", Member("tenant_id"), "001, 12.2", "the tenant, as it was sent"),
    _text("tenant_bucket", _BUCKET, "001, 12.2", "the tenant and the month in which the job was created"),
    _text("request_type", Member("request_type"), "001, 12.2", "as it was sent"),
    _text("protocol_id", Member("protocol_id"), "001, 12.2", "the protocol that the job follows"),
    _text("engine", Member("engine"), _ADDED, "`outbox` or `temporal`"),
    _text("doc_id", Member("doc_id"), "001, 12.2", "the document, where the command named one"),
    _text("mode", Member("mode"), "001, 12.2", "`DEFAULT` or `BURST`"),
    _integer("lane", Member("lane"), "001, 7", "0 to 15"),
    _text("state", Member("state", absent="QUEUED"), "001, 12.2 and 12.6", "the job's state"),
    _text("current_step_id", Member("current_step_id"), "001, 12.2", "the step that was begun last"),
    _integer("current_step_index", Member("current_step_index"), "001, 12.2", "its place, from 0"),
    _integer("attempts_total", Member("attempts_total", absent=0), "001, 12.2", "attempts of all steps"),
    _time("created_at", "created_at_ms", "001, 12.2", "when the job was created"),
    _time("updated_at", "updated_at_ms", "001, 12.2", "when it last changed"),
    _time("completed_at", "completed_at_ms", "001, 12.2", "when it ended"),
    _text("error_code", Member("error_code"), "001, 12.2", "why it failed for good"),
    _text("error_message", Member("error_message"), "001, 12.2", "the same in words"),
    _text("correlation_id", Member("correlation_id"), "001, 12.2", "the client's, or the job's own"),
    _text("traceparent", Member("traceparent"), "001, 12.2", "the trace that the job is part of"),
    _text("idempotency_key", Member("idempotency_key"), "003, Jobs table", "the client's, if it sent one"),
    _text(
        "idempotency_hash", Member("idempotency_hash"), "003, Jobs table", "the key of its idempotency row"
    ),
    _text("final_output", Member("final_output"), "001, 12.2", "where the result lies, once it succeeded"),
    _text("rerun_of", Member("rerun_of"), _ADDED, "the job that this one repeats"),
)


def _routing(of: Of, seed: str) -> tuple[Column, ...]:
    return (
        _integer("lane", Member("routing.lane", of), seed, "0 to 15"),
        _text("routing_key_used", Member("routing.routing_key_used", of), seed, "what the lane follows from"),
        _text("resolved_mode", Member("routing.resolved_mode", of), seed, "`DEFAULT` or `BURST`"),
        _text("decision_source", Member("routing.decision_source", of), seed, "what decided the mode"),
        _text("decision_reason", Member("routing.decision_reason", of), seed, "a short code"),
    )


_STEP = (
    _text("job_id", JobId(), "001, 12.1", "the job"),
    _text("step_id", Member("step_id"), "001, 12.3", "`step_01`, `step_02`…"),
    _integer("step_index", Member("step_index"), "001, 12.3", "its place in the job, from 0"),
    _text("step_type", Member("step_type"), "001, 12.3", "as its protocol says"),
    _text("service", Member("service"), "001, 12.3", "the platform service that runs it"),
    _text("state", Member("state", absent="PENDING"), "001, 12.3 and 12.6", "the step's state"),
    _integer("attempt_no", Member("attempt_no", absent=0), "001, 12.3", "0 before the first attempt"),
    _text("lease_id", Member("lease_id"), "001, 12.3", "the lease of the latest attempt"),
    _time("lease_expires_at", LeaseExpires(), "001, 12.3 and 13.2", "of the ACK, then of the RESULT"),
    _time("next_attempt_at", "next_attempt_at_ms", _ADDED, "when it is tried again"),
    *_routing(Of.ROW, "001, 12.3"),
    _json("input_ref", Member("input_ref"), "001, 12.3", "what it reads"),
    _json("workspace_ref", Member("workspace_ref"), "001, 12.3", "where it writes"),
    _json("output_ref", Member("output_ref"), "001, 12.3", "where the final result belongs"),
    _json("payload", Member("payload"), "001, 12.3", "its part of the command's payload"),
    _json("result_ref", Member("result_ref"), "001, 12.3", "what it made"),
    _integer("progress", Member("progress"), _ADDED, "0 to 100, where the service reports it"),
    _text("last_error_code", Member("last_error_code"), "001, 12.3", "of the latest attempt that failed"),
    _text("last_error_message", Member("last_error_message"), "001, 12.3", "the same in words"),
    _time("created_at", "created_at_ms", "001, 12.3", "when the job was created"),
    _time("updated_at", "updated_at_ms", "001, 12.3", "when the step last changed"),
    _time("completed_at", "completed_at_ms", "001, 12.3", "when it ended"),
)

_JOB_TENANT, _STEP_TYPE = Member("tenant_id", Of.JOB), Member("step_type", Of.STEP)
_LANE = Member("routing.lane", Of.STEP)

# What is pinned of a directive. What its sender adds when it leaves is not in the ledger: the callback token,
# the addresses of callbacks and the deadline of the ACK.
DIRECTIVE: Final = Document(
    (
        ("type", Text("DIRECTIVE"), _TEXT),
        ("jobId", JobId(), _TEXT),
        ("tenant_id", _JOB_TENANT, _TEXT),
        ("stepId", Member("step_id"), _TEXT),
        ("protocol_id", Member("protocol_id", Of.JOB), _TEXT),
        ("step_type", _STEP_TYPE, _TEXT),
        ("service", Member("service"), _TEXT),
        ("attempt_no", Member("attempt_no"), _INTEGER),
        ("lease_id", Member("lease_id"), _TEXT),
        ("input_ref", Member("input_ref", Of.STEP), _JSON),
        ("workspace_ref", Member("workspace_ref", Of.STEP), _JSON),
        ("output_ref", Member("output_ref", Of.STEP), _JSON),
        ("payload", Member("payload", Of.STEP), _JSON),
        ("mode", Member("routing.resolved_mode", Of.STEP), _TEXT),
        ("lane", _LANE, _INTEGER),
        ("routing_key_used", Member("routing.routing_key_used", Of.STEP), _TEXT),
        ("correlation_id", Member("correlation_id", Of.JOB), _TEXT),
        ("traceparent", Member("traceparent", Of.JOB), _TEXT),
        ("upstream", UpstreamResults(), _JSON),
        ("reply_topic", Joined((Text("global-bus-replies-p"), _LANE)), _TEXT),
        ("lease_seconds", Seconds(Member("policy.lease_ms", Of.STEP)), _JSON),
    )
)

_OUTBOX = (
    _text("outbox_id", Member("outbox_id"), "003, Outbox table", "the row key in the layout `table`"),
    _text("jobId", JobId(), "003, Outbox table", "the job"),
    _text("stepId", Member("step_id"), "003, Outbox table", "the step"),
    _integer("attempt_no", Member("attempt_no"), "003, Outbox table", "the attempt"),
    _text("lease_id", Member("lease_id"), "003, Outbox table", "its lease"),
    _text("state", Member("state", absent="PENDING"), "003, Outbox table", "the outbox row's state"),
    _text("service", Member("service"), _ADDED, "the platform service that the directive is for"),
    _text("topic", Joined((Text("global-bus-p"), Member("lane"))), "003, Outbox table", "the lane's topic"),
    _integer(
        "partition", Member("lane"), "003, Outbox table", "the lane: 16 topics are the bus's partitions"
    ),
    *_routing(Of.STEP, "003, Outbox table"),
    _json(
        "payload",
        DIRECTIVE,
        "003, Outbox table; 000, Partition + Routing",
        "the directive, as far as it is pinned: no token",
    ),
    _integer(
        "failures", Member("failures", absent=0), "003, Timeouts and retries", "how often publishing failed"
    ),
    _time("created_at", "created_at_ms", "003, Outbox table", "when the attempt began"),
    _time("sent_at", "sent_at_ms", "003, Outbox table", "when its directive left"),
    _time("updated_at", "updated_at_ms", "003, Outbox table", "when the row last changed"),
)

_EVENT_ID = Digits(Member("seq"), EVENT_ID_DIGITS)

_EVENT = (
    _text("job_id", JobId(), "003, Events table", "the job"),
    _text(
        "event_key",
        Joined((Moment(Member("at_ms")), Text("#"), _EVENT_ID)),
        "003, Events table",
        "`timestamp#event_id`",
    ),
    _text("event_id", _EVENT_ID, "003, Events table", "`seq` in eight digits, as in the row's key"),
    _integer("seq", Member("seq"), _ADDED, "1, 2, 3… without gaps"),
    _text("event_type", Member("type"), "003, Events table", "what happened"),
    _text("step_id", Member("step_id"), _ADDED, "to which step"),
    _integer("attempt_no", Member("attempt_no"), _ADDED, "in which attempt"),
    _json("payload", Member("data", absent="{}"), "003, Events table", "what is known of it"),
    _time("created_at", "at_ms", "003, Events table", "when"),
)

_IDEMPOTENCY = (
    _text("tenant_id", Key.PARTITION, "001, 12.4", "the tenant's identity: trimmed, in small letters"),
    _text("idempotency_hash", Key.ROW, "001, 12.4", "of the key or of the command; `rerun#` and a job"),
    _text("job_id", Member("job_id"), "001, 12.4", "the job that holds it"),
    _text("fingerprint", Member("fingerprint"), _ADDED, "of the command"),
    _time("created_at", "created_at_ms", "001, 12.4", "when the job took it"),
)

COLUMNS: Final[dict[RowKind, tuple[Column, ...]]] = {
    RowKind.JOBS: _JOB,
    RowKind.STEPS: _STEP,
    RowKind.OUTBOX: _OUTBOX,
    RowKind.EVENTS: _EVENT,
    RowKind.IDEMPOTENCY: _IDEMPOTENCY,
}


class ShownRow(msgspec.Struct, frozen=True, gc=False):
    """What the columns of a row are computed from, beside its keys. `job` and `step`: those that it belongs
    to; `before`: the steps before that one."""

    kind: RowKind
    row: msgspec.Struct
    job: Job | None = None
    step: Step | None = None
    before: tuple[Step, ...] = ()


_JOBS, _STEPS, _OUTBOXES, _EVENTS, _KEYS = RowKind


def shown_job(job: Job) -> ShownRow:
    return ShownRow(_JOBS, job, job)


def shown_step(job: Job, step: Step) -> ShownRow:
    return ShownRow(_STEPS, step, job)


def shown_outbox(record: JobRecord, outbox: Any) -> ShownRow:
    index = outbox.step_index
    return ShownRow(_OUTBOXES, outbox, record.job, record.steps[index], record.steps[:index])


def shown_event(job: Job, event: msgspec.Struct) -> ShownRow:
    return ShownRow(_EVENTS, event, job)


def shown_key(row: msgspec.Struct) -> ShownRow:
    return ShownRow(_KEYS, row)


_Read = Callable[[ShownRow, str, str], Any]
_encode_json = msgspec.json.Encoder().encode


def shown_columns(shown: ShownRow, partition: str, key: str) -> Iterator[tuple[Column, Any]]:
    """Each column that is not null, and its value: text, a number, or a time; JSON as text."""
    for column, read in _READERS[shown.kind]:
        value = read(shown, partition, key)
        if value is not None:
            yield column, value


def _python_of(value: Value) -> _Read:
    match value:
        case Member(path=path, of=of, absent=absent):
            return _member(path, of, absent)
        case JobId():
            return lambda shown, _, __: None if shown.job is None else shown.job.job_id
        case Key():
            return _key(value)
        case Text(text=text):
            return lambda _, __, ___: text
        case Month(at_ms=at_ms):
            return _with(at_ms, month_of)
        case Moment(at_ms=at_ms):
            return _with(at_ms, rfc3339)
        case Digits(number=number, width=width):
            return _with(number, lambda found: f"{found:0{width}d}")
        case Seconds(span_ms=span_ms):
            return _with(span_ms, lambda found: found / 1000)
        case Joined(parts=parts):
            return _joined(parts)
        case LeaseExpires():
            return _member("lease_expires_shown_ms", Of.ROW, None)
        case UpstreamResults() | Document():
            return _document(value)


def _key(value: Key) -> _Read:
    if value is Key.PARTITION:
        return lambda _, partition, __: partition
    return lambda _, __, key: key


def _member(path: str, of: Of, absent: str | int | None) -> _Read:
    names = path.split(".")

    def read(shown: ShownRow, partition: str, key: str) -> Any:
        found: Any = shown.row if of is Of.ROW else shown.job if of is Of.JOB else shown.step
        for name in names:
            if found is None:
                break
            found = getattr(found, name)
        return absent if found is None else found

    return read


def _document(value: UpstreamResults | Document) -> _Read:
    if isinstance(value, UpstreamResults):
        return lambda shown, _, __: [
            {"stepId": step.step_id, "step_type": step.step_type, "result_ref": step.result_ref}
            for step in shown.before
        ]
    readers = [(name, _python_of(member)) for name, member, _ in value.members]
    return lambda shown, partition, key: {name: read(shown, partition, key) for name, read in readers}


def _with(member: Member, change: Callable[[Any], Any]) -> _Read:
    read = _python_of(member)

    def changed(shown: ShownRow, partition: str, key: str) -> Any:
        found = read(shown, partition, key)
        return None if found is None else change(found)

    return changed


def _joined(parts: tuple[Value, ...]) -> _Read:
    readers = [_python_of(part) for part in parts]

    def read(shown: ShownRow, partition: str, key: str) -> Any:
        found = [reader(shown, partition, key) for reader in readers]
        return None if None in found else "".join(map(str, found))

    return read


def _shown(column: Column) -> _Read:
    """The value as the column's type has it."""
    read = _python_of(column.value)
    if column.type is _TEXT:
        return lambda shown, partition, key: _as_text(read(shown, partition, key))
    change = {_TIME: _as_time, _JSON: _as_json}.get(column.type)
    if change is None:
        return read
    return lambda shown, partition, key: (
        None if (found := read(shown, partition, key)) is None else change(found)
    )


def _as_text(found: Any) -> Any:
    return found.value if isinstance(found, Enum) else found


def _as_time(at_ms: int) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(at_ms / 1000, datetime.UTC)


def _as_json(found: Any) -> str:
    return _encode_json(found).decode()


_READERS: Final = {
    kind: tuple((column, _shown(column)) for column in columns) for kind, columns in COLUMNS.items()
}

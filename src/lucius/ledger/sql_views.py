"""The columns that people read, as views over the bodies of an SQL store.

In: a dialect, which knows how its database takes JSON apart. Out: the text of each view's query. A view is
computed when it is read, so that writing costs nothing, and it shows rows of every version and of both
layouts. A row whose body is no JSON shows its keys and nothing else.
"""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from lucius.ledger.columns import (
    COLUMNS,
    Column,
    ColumnType,
    Digits,
    Document,
    JobId,
    Joined,
    Key,
    LeaseExpires,
    Member,
    Moment,
    Month,
    Of,
    RowKind,
    Seconds,
    Text,
    UpstreamResults,
    Value,
)
from lucius.ledger.names import Tables


class SqlDialect(Protocol):
    """Each method returns SQL. `json` is an expression as `document` returns it; `ms` one of a number."""

    def table(self, logical: str) -> str:
        """The table that has the rows, with columns `pk`, `rk` and `body`."""
        ...

    def document(self, alias: str) -> str:
        """The body of a row as JSON; NULL where it is none, or there is no row."""
        ...

    def member(self, json: str, path: Sequence[str], kind: ColumnType) -> str:
        """A member by its path: text, a number, or, where it is JSON, in the database's own type for it. NULL
        where it is null or absent."""
        ...

    def json_text(self, json: str) -> str: ...

    def time(self, ms: str) -> str:
        """In the type of a column."""
        ...

    def moment(self, ms: str) -> str:
        """RFC 3339 in UTC, with milliseconds."""
        ...

    def month(self, ms: str) -> str: ...

    def seconds(self, ms: str) -> str: ...

    def digits(self, number: str, width: int) -> str: ...

    def json_object(self, members: Sequence[tuple[str, str, ColumnType]]) -> str: ...

    def json_array(self, item: str, rest: str, order: str) -> str:
        """Of `item`, a JSON object, of each row that `rest` (FROM and WHERE) finds; empty where there is
        none."""
        ...

    def before(self, text: str, sign: str) -> str:
        """What of a text stands before a sign."""
        ...


class _Branch(msgspec.Struct, frozen=True, kw_only=True):
    """Where one layout has the rows of a kind. The row is `r`, its JOB row `j`, its STEP row `s`; the steps
    of its job are found by `steps` under the alias `e`."""

    rest: str  # FROM and WHERE
    job_id: str
    steps: str = ""


def view_query(kind: RowKind, dialect: SqlDialect, tables: Tables) -> str:
    """The query of the view of a kind: the rows of both layouts."""
    branches = _branches(kind, dialect, tables)
    return "\nUNION ALL\n".join(_select(COLUMNS[kind], branch, dialect) for branch in branches)


def tables_of_views(tables: Tables) -> tuple[str, ...]:
    """The tables, by their logical names, that must be there before a view can be read."""
    return (tables.ledger, tables.jobs, tables.steps, tables.outbox, tables.events, tables.idempotency)


def _branches(kind: RowKind, dialect: SqlDialect, tables: Tables) -> tuple[_Branch, ...]:
    ledger, steps, jobs = (
        dialect.table(tables.ledger),
        dialect.table(tables.steps),
        dialect.table(tables.jobs),
    )

    def in_ledger(start: str) -> str:
        return f"FROM {ledger} AS r WHERE r.rk >= '{start}#' AND r.rk < '{start}$'"

    match kind:
        case RowKind.JOBS:
            return (
                _Branch(rest=f"FROM {ledger} AS r WHERE r.rk = 'JOB'", job_id="r.pk"),
                _Branch(rest=f"FROM {jobs} AS r", job_id="r.rk"),
            )
        case RowKind.STEPS:
            return (
                _Branch(rest=in_ledger("STEP"), job_id="r.pk"),
                _Branch(rest=f"FROM {steps} AS r", job_id="r.pk"),
            )
        case RowKind.EVENTS:
            return (
                _Branch(rest=in_ledger("EVENT"), job_id="r.pk"),
                _Branch(rest=f"FROM {dialect.table(tables.events)} AS r", job_id="r.pk"),
            )
        case RowKind.IDEMPOTENCY:
            return (_Branch(rest=f"FROM {dialect.table(tables.idempotency)} AS r", job_id="NULL"),)
        case RowKind.OUTBOX:
            return _outbox_branches(dialect, tables)


def _outbox_branches(dialect: SqlDialect, tables: Tables) -> tuple[_Branch, _Branch]:
    ledger, steps, jobs = (
        dialect.table(tables.ledger),
        dialect.table(tables.steps),
        dialect.table(tables.jobs),
    )
    own, earlier = dialect.document("r"), dialect.document("e")

    def text(name: str) -> str:
        return dialect.member(own, [name], ColumnType.TEXT)

    def index(json: str) -> str:
        return dialect.member(json, ["step_index"], ColumnType.INTEGER)

    step_key = f"{text('step_index')} || '#' || {text('step_id')}"
    job_id = dialect.before("r.rk", ".")
    is_earlier = f"{index(earlier)} < {index(own)}"
    return (
        _Branch(
            rest=(
                f"FROM {ledger} AS r LEFT JOIN {ledger} AS j ON j.pk = r.pk AND j.rk = 'JOB'"
                f" LEFT JOIN {ledger} AS s ON s.pk = r.pk AND s.rk = 'STEP#' || {step_key}"
                " WHERE r.rk >= 'OUTBOX#' AND r.rk < 'OUTBOX$'"
            ),
            job_id="r.pk",
            steps=(
                f"FROM {ledger} AS e WHERE e.pk = r.pk AND e.rk >= 'STEP#' AND e.rk < 'STEP$'"
                f" AND {is_earlier}"
            ),
        ),
        _Branch(
            rest=(
                f"FROM {dialect.table(tables.outbox)} AS r"
                f" LEFT JOIN {jobs} AS j ON j.pk = r.pk AND j.rk = {job_id}"
                f" LEFT JOIN {steps} AS s ON s.pk = {job_id} AND s.rk = {step_key}"
            ),
            job_id=job_id,
            steps=f"FROM {steps} AS e WHERE e.pk = {job_id} AND {is_earlier}",
        ),
    )


def _select(columns: Sequence[Column], branch: _Branch, dialect: SqlDialect) -> str:
    compiler = _Compiler(branch, dialect)
    shown = ",\n  ".join(f'{compiler.column(column)} AS "{column.name}"' for column in columns)
    return f"SELECT\n  {shown}\n{branch.rest}"


_ALIASES = {Of.ROW: "r", Of.JOB: "j", Of.STEP: "s"}


class _Compiler:
    def __init__(self, branch: _Branch, dialect: SqlDialect) -> None:
        self._branch = branch
        self._sql = dialect

    def column(self, column: Column) -> str:
        found = self._of(column.value, column.type)
        if column.type is ColumnType.TIME:
            return self._sql.time(found)
        return self._sql.json_text(found) if column.type is ColumnType.JSON else found

    def _of(self, value: Value, kind: ColumnType) -> str:
        sql = self._sql
        match value:
            case Member():
                return self._member(value, kind)
            case JobId():
                return self._branch.job_id
            case Key():
                return f"r.{value.value}"
            case Text(text=text):
                return _quoted(text)
            case Month(at_ms=at_ms):
                return sql.month(self._number(at_ms))
            case Moment(at_ms=at_ms):
                return sql.moment(self._number(at_ms))
            case Digits(number=number, width=width):
                return sql.digits(self._number(number), width)
            case Seconds(span_ms=span_ms):
                return sql.seconds(self._number(span_ms))
            case Joined(parts=parts):
                return "(" + " || ".join(self._of(part, ColumnType.TEXT) for part in parts) + ")"
            case LeaseExpires():
                return self._lease_expires()
            case UpstreamResults() | Document():
                return self._document(value)

    def _number(self, member: Member) -> str:
        return self._member(member, ColumnType.INTEGER)

    def _member(self, member: Member, kind: ColumnType) -> str:
        sql, json = self._sql, self._sql.document(_ALIASES[member.of])
        if kind is ColumnType.TIME:
            kind = ColumnType.INTEGER
        found = sql.member(json, member.path.split("."), kind)
        if member.absent is None:
            return found
        absent = _quoted(member.absent) if isinstance(member.absent, str) else str(member.absent)
        if kind is ColumnType.JSON:
            absent = sql.json_object([])
        return f"COALESCE({found}, CASE WHEN {json} IS NOT NULL THEN {absent} END)"

    def _lease_expires(self) -> str:
        own, expected = (
            self._number(Member(name)) for name in ("lease_expires_at_ms", "lease_expected_at_ms")
        )
        began = self._number(Member("attempt_began_at_ms"))
        timeout = self._number(Member("policy.ack_timeout_ms"))
        state = self._member(Member("state"), ColumnType.TEXT)
        provisional = f"COALESCE({expected}, {began} + {timeout})"
        return f"COALESCE({own}, CASE WHEN {state} = 'INITIATED' THEN {provisional} END)"

    def _document(self, value: UpstreamResults | Document) -> str:
        sql = self._sql
        if isinstance(value, UpstreamResults):
            return self._upstream()
        found = sql.json_object([(name, self._of(each, kind), kind) for name, each, kind in value.members])
        return f"CASE WHEN {sql.document('r')} IS NOT NULL THEN {found} END"

    def _upstream(self) -> str:
        sql, json = self._sql, self._sql.document("e")
        item = sql.json_object(
            [
                ("stepId", sql.member(json, ["step_id"], ColumnType.TEXT), ColumnType.TEXT),
                ("step_type", sql.member(json, ["step_type"], ColumnType.TEXT), ColumnType.TEXT),
                ("result_ref", sql.member(json, ["result_ref"], ColumnType.JSON), ColumnType.JSON),
            ]
        )
        order = sql.member(json, ["step_index"], ColumnType.INTEGER)
        return sql.json_array(item, self._branch.steps, order)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"

"""The views of a PostgreSQL ledger, for people and for tools that draw charts.

In: the names of the tables. Out: statements that make the schema `lucius` with the views `jobs`, `steps`,
`outbox`, `events` and `idempotency`. Times are `timestamptz`, JSON is `jsonb`. A reader needs no right to the
tables behind them.
"""

from collections.abc import Sequence

from lucius.ledger.columns import ColumnType, RowKind
from lucius.ledger.names import Tables
from lucius.ledger.sql_views import view_query

# PostgreSQL refuses NUL in JSON: it is shown as U+FFFD. A body that is no JSON is none to the views.
_DOCUMENT = r"""
CREATE SCHEMA IF NOT EXISTS lucius;
CREATE OR REPLACE FUNCTION lucius.document(body bytea) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE AS $$
DECLARE shown text;
BEGIN
    shown := convert_from(body, 'UTF8');
    IF position('\u0000' IN shown) > 0 THEN
        shown := regexp_replace(shown, '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g');
    END IF;
    RETURN shown::jsonb;
EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
    RETURN NULL;
END $$;
"""


class PostgresDialect:
    def table(self, logical: str) -> str:
        # Each body is taken apart once a row, however many columns ask for it.
        return (
            "(SELECT t.pk, t.rk, d.document AS body"  # noqa: S608 - names of our own
            f' FROM lucius_store."{logical}" AS t, LATERAL lucius.document(t.body) AS d (document))'
        )

    def document(self, alias: str) -> str:
        return f"{alias}.body"

    def member(self, json: str, path: Sequence[str], kind: ColumnType) -> str:
        place = "'{" + ",".join(path) + "}'"
        if kind is ColumnType.JSON:
            return f"nullif({json} #> {place}, 'null'::jsonb)"
        if kind is ColumnType.TEXT:
            return f"({json} #>> {place})"
        number = f"jsonb_typeof({json} #> {place}) = 'number'"
        return f"(CASE WHEN {number} THEN ({json} #>> {place})::numeric::bigint END)"

    def json_text(self, json: str) -> str:
        return json

    def time(self, ms: str) -> str:
        return f"to_timestamp({ms} / 1000.0)"

    def moment(self, ms: str) -> str:
        return f"to_char({self.time(ms)} AT TIME ZONE 'UTC', 'YYYY-MM-DD\"T\"HH24:MI:SS.MS\"Z\"')"

    def month(self, ms: str) -> str:
        return f"to_char({self.time(ms)} AT TIME ZONE 'UTC', 'YYYYMM')"

    def seconds(self, ms: str) -> str:
        return f"({ms} / 1000.0)"

    def digits(self, number: str, width: int) -> str:
        return f"lpad({number}::text, {width}, '0')"

    def json_object(self, members: Sequence[tuple[str, str, ColumnType]]) -> str:
        # A text alone has no type that PostgreSQL could tell.
        shown = (f"'{name}', {value}{'::text' if value[0] == chr(39) else ''}" for name, value, _ in members)
        return f"jsonb_build_object({', '.join(shown)})"

    def json_array(self, item: str, rest: str, order: str) -> str:
        items = f"jsonb_agg({item} ORDER BY {order})"
        return f"(SELECT coalesce({items}, '[]'::jsonb) {rest})"

    def before(self, text: str, sign: str) -> str:
        return f"split_part({text}, '{sign}', 1)"


def view_statements(tables: Tables) -> str:
    dialect = PostgresDialect()
    views = (
        f'DROP VIEW IF EXISTS lucius."{kind}"; CREATE VIEW lucius."{kind}" AS\n'
        f"{view_query(kind, dialect, tables)};\n"
        for kind in RowKind
    )
    return _DOCUMENT + "".join(views)

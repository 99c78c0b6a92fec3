"""The views of a SQLite ledger, which the plain `sqlite3` program reads, also while Lucius writes.

In: the write connection, before its first commit. Out: the views `jobs`, `steps`, `outbox`, `events` and
`idempotency`, made anew where they are not as this version has them. Only functions that SQLite has had for
long are in them: a view that a SQLite cannot parse would spoil the file for it.
"""

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Final

from lucius.ledger.columns import ColumnType, RowKind
from lucius.ledger.names import Tables
from lucius.ledger.sql_views import tables_of_views, view_query
from lucius.ledger.sqlite.file import is_busy, statements

_FIND_VIEWS: Final = "SELECT name, sql FROM sqlite_master WHERE type = 'view'"


class SqliteDialect:
    """Time is text, which sorts as time does and which SQLite's own functions of time understand."""

    def table(self, logical: str) -> str:
        return f'"{statements(logical).name}"'

    def document(self, alias: str) -> str:
        # The body is a blob; json_valid, since one damaged row would end the query for all.
        text = f"CAST({alias}.body AS TEXT)"
        return f"CASE WHEN json_valid({text}) THEN {text} END"

    def member(self, json: str, path: Sequence[str], kind: ColumnType) -> str:
        found = f"json_extract({json}, '$.{'.'.join(path)}')"
        if kind is ColumnType.JSON:
            return f"json(nullif(json_quote({found}), 'null'))"
        return found

    def json_text(self, json: str) -> str:
        return json

    def time(self, ms: str) -> str:
        return self.moment(ms)

    def moment(self, ms: str) -> str:
        return f"strftime('%Y-%m-%dT%H:%M:%fZ', {ms} / 1000.0, 'unixepoch')"

    def month(self, ms: str) -> str:
        return f"strftime('%Y%m', {ms} / 1000.0, 'unixepoch')"

    def seconds(self, ms: str) -> str:
        return f"({ms} / 1000.0)"

    def digits(self, number: str, width: int) -> str:
        return f"printf('%0{width}d', {number})"

    def json_object(self, members: Sequence[tuple[str, str, ColumnType]]) -> str:
        return "json_object(" + ", ".join(f"'{name}', {value}" for name, value, _ in members) + ")"

    def json_array(self, item: str, rest: str, order: str) -> str:
        items = f"SELECT {item} AS item {rest} ORDER BY {order}"
        return f"json((SELECT json_group_array(json(item)) FROM ({items})))"  # noqa: S608 - names of our own

    def before(self, text: str, sign: str) -> str:
        return f"substr({text}, 1, instr({text}, '{sign}') - 1)"


@lru_cache(maxsize=1)
def view_texts() -> dict[str, str]:
    """How each view is made."""
    dialect, tables = SqliteDialect(), Tables()
    return {kind.value: f'CREATE VIEW "{kind}" AS\n{view_query(kind, dialect, tables)}' for kind in RowKind}


def _are_there(connection: sqlite3.Connection, wanted: Mapping[str, str]) -> bool:
    try:
        found = dict(connection.execute(_FIND_VIEWS).fetchall())
    except sqlite3.OperationalError as fault:
        if "Could not decode" in str(fault):  # damage made the text of one no text
            return False
        raise
    return all(found.get(name) == text for name, text in wanted.items())


def refresh_views(connection: sqlite3.Connection) -> None:
    """Makes the views that are not there, or are of another version. Where that cannot be done now (the disk
    is full), Lucius goes on without: the next opening tries again."""
    wanted = view_texts()
    try:
        if _are_there(connection, wanted):
            return
        connection.execute("BEGIN IMMEDIATE")
        for table in tables_of_views(Tables()):
            connection.execute(statements(table).create)
        for name, text in wanted.items():
            connection.execute(f'DROP VIEW IF EXISTS "{name}"')
            connection.execute(text)
        connection.execute("COMMIT")
    except sqlite3.Error as fault:
        if connection.in_transaction:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        if is_busy(fault):
            raise

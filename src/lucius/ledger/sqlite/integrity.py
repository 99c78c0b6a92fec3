"""Whether a SQLite file, and every row in it, is what was written.

In: a file's path, or rows as SQLite gives them. Out: rows whose checksum was looked at, and findings for
people. SQLite itself looks only at the structure of its pages: a flipped bit in a row is found by the row's
checksum, which stands in its ETag.
"""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from lucius.ledger.checksums import DAMAGED, is_sound, partition_sum
from lucius.ledger.sqlite.file import READ_COUNTER, logical_name
from lucius.ledger.store import Row

FINDINGS_MAX = 1_000
ROWS_PER_LOOK = 500
# Rows are looked at in Python, whose lock the server needs: it rests between two looks.
REST_SECONDS = 0.005
MAGIC = b"SQLite format 3\0"
HEADER_BYTES = 100

# What reading a damaged file may raise; sqlite3 decodes names of columns by itself.
DAMAGE = (sqlite3.Error, UnicodeDecodeError, OverflowError)

_CHECK_ROWS_MAX = 100
_LIST_TABLES = "SELECT name FROM sqlite_master WHERE type = 'table' AND name != '_store' ORDER BY name"
_COLUMNS = 'SELECT pk, rk, etag, body FROM "{table}"'


def read_row(partition: int, key: Any, etag: Any, body: Any) -> Row:
    """A row as SQLite gave it, which in a damaged file may be anything. `partition`: its sum."""
    if type(body) is bytes and type(etag) is str and type(key) is str:
        try:
            if is_sound(etag, partition, key, body):
                return Row(key, etag, body)
        except UnicodeEncodeError:
            pass  # a key that is no text
    return Row(text_of(key), text_of(etag), b"", DAMAGED)


def read_damaged_text(connection: sqlite3.Connection, text: str, values: tuple[str | int, ...]) -> list[Any]:
    """The rows of a query among which is text that is no UTF-8, for which sqlite3 refuses them all."""
    usual, connection.text_factory = connection.text_factory, _decoded
    try:
        return connection.execute(text, values).fetchall()
    finally:
        connection.text_factory = usual


def _decoded(raw: bytes) -> str:
    return raw.decode(errors="replace")


def text_of(value: Any) -> str:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def header_fault(path: Path) -> str | None:
    """Why a file that is there cannot be a ledger; None if it may be one. Not for a file that this process
    has open in SQLite: to close it here would end the locks that SQLite holds on it, and the next program
    that reads it would take itself for its last user and remove the log, with what is committed to it
    later."""
    with path.open("rb") as file:
        header = file.read(HEADER_BYTES)
    if not header:
        return "is empty"
    if len(header) < HEADER_BYTES or not header.startswith(MAGIC):
        return "is no SQLite file, or its first page is damaged"
    return None


def file_findings(path: Path, *, rest_seconds: float = REST_SECONDS, in_use: bool = False) -> list[str]:
    """What is wrong with the file, page by page and row by row; empty if nothing is. `in_use`: this process
    has it open, so that only SQLite may look at it."""
    if not in_use and (unusable := header_fault(path)) is not None:
        return [f"{path.name} {unusable}"]
    with closing(sqlite3.connect(f"file:{path.absolute()}?mode=ro", uri=True, timeout=5.0)) as connection:
        connection.text_factory = _decoded
        connection.execute("PRAGMA query_only = ON")
        try:
            found = _page_findings(connection)
            found += _counter_findings(connection)
            tables = [str(name) for (name,) in connection.execute(_LIST_TABLES).fetchall()]
        except DAMAGE as fault:
            return [f"SQLite cannot read {path.name}: {fault}"]
        for table in tables:
            for finding in _table_findings(connection, table, rest_seconds):
                if len(found) >= FINDINGS_MAX:
                    return [*found, f"and more: the first {FINDINGS_MAX} are shown"]
                found.append(finding)
    return found


def _page_findings(connection: sqlite3.Connection) -> list[str]:
    try:
        lines = connection.execute(f"PRAGMA quick_check({_CHECK_ROWS_MAX})").fetchall()
    except DAMAGE as fault:
        return [f"PRAGMA quick_check: {fault}"]
    return [f"PRAGMA quick_check: {text_of(line)}" for (line,) in lines if line != "ok"]


def _counter_findings(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute(READ_COUNTER).fetchall()
    if len(rows) == 1 and isinstance(rows[0][0], int) and rows[0][0] > 0:
        return []
    return ["the counter of ETags is lost or damaged"]


def _table_findings(connection: sqlite3.Connection, table: str, rest_seconds: float) -> Iterator[str]:
    logical = logical_name(table)
    try:
        cursor = connection.execute(_COLUMNS.format(table=table.replace('"', '""')))
        while rows := cursor.fetchmany(ROWS_PER_LOOK):
            for pk, rk, etag, body in rows:
                if read_row(partition_sum(logical, text_of(pk)), rk, etag, body).damage:
                    yield f"{logical}/{text_of(pk)}/{text_of(rk)}: {DAMAGED}"
            time.sleep(rest_seconds)
    except DAMAGE as fault:
        yield f"{logical}: rows cannot be read: {fault}"

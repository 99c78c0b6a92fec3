"""The views of a SQLite ledger: made at the opening, on files of every age, and readable beside a writer."""

import json
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from lucius.ledger.columns import RowKind
from lucius.ledger.names import Tables
from lucius.ledger.sqlite.file import connect_writer
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.sqlite.views import refresh_views
from lucius.ledger.store import insert

T = Tables()
# Rows as the first versions wrote them: a state that a row begins with was left out.
OLD_JOB = {
    "v": 1,
    "job_id": "job_1",
    "tenant_id": "Zürich",
    "tenant_norm": "zürich",
    "request_type": "OCR→EMBEDDING",
    "created_at_ms": 1_800_000_000_123,
}
OLD_STEP = {"v": 1, "step_id": "step_01", "step_index": 0, "payload": {"a": [1.50, "ä", None]}}
OLD_OUTBOX = {"v": 1, "outbox_id": "job_1.00.001", "step_id": "step_01", "step_index": 0, "lane": 3}


def _bytes(value: dict[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def _forget_views(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for kind in RowKind:
            connection.execute(f'DROP VIEW IF EXISTS "{kind}"')


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


async def test_a_ledger_from_before_reads_well(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.commit(
        [
            insert(T.ledger, "job_1", "JOB", _bytes(OLD_JOB)),
            insert(T.ledger, "job_1", "STEP#0#step_01", _bytes(OLD_STEP)),
            insert(T.ledger, "job_1", "OUTBOX#00#001", _bytes(OLD_OUTBOX)),
        ]
    )
    await store.close()
    _forget_views(path)
    store = await SqliteStore.open(path)
    job = _rows(
        path, "SELECT job_id, tenant_bucket, request_type, state, attempts_total, created_at FROM jobs"
    )
    moment = "2027-01-15T08:00:00.123Z"
    assert job == [("job_1", "zürich#202701", "OCR→EMBEDDING", "QUEUED", 0, moment)]
    steps = _rows(path, "SELECT state, attempt_no, payload, json_extract(payload, '$.a[1]') FROM steps")
    assert steps == [("PENDING", 0, '{"a":[1.5,"ä",null]}', "ä")]
    outbox = _rows(path, "SELECT state, topic, partition, payload FROM outbox")
    assert outbox[0][:3] == ("PENDING", "global-bus-p3", 3)
    assert json.loads(outbox[0][3])["tenant_id"] == "Zürich"
    await store.close()


async def test_a_damaged_row_shows_its_key_and_does_not_end_the_query(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.commit(
        [
            insert(T.ledger, "job_1", "JOB", _bytes(OLD_JOB)),
            insert(T.ledger, "job_2", "JOB", b'{"v":1,"job_id":"job_2","sta\xff'),
            insert(T.ledger, "job_2", "OUTBOX#00#001", b"\x00"),
        ]
    )
    assert _rows(path, "SELECT job_id, state, tenant_bucket, created_at FROM jobs ORDER BY 1") == [
        ("job_1", "QUEUED", "zürich#202701", "2027-01-15T08:00:00.123Z"),
        ("job_2", None, None, None),
    ]
    assert _rows(path, "SELECT count(*) FROM jobs WHERE state = 'QUEUED'") == [(1,)]
    assert _rows(path, "SELECT jobId, state, payload FROM outbox") == [("job_2", None, None)]
    await store.close()


async def test_views_are_read_while_another_program_writes(path: Path) -> None:
    store = await SqliteStore.open(path)
    await store.commit([insert(T.ledger, "job_1", "JOB", _bytes(OLD_JOB))])
    writer = connect_writer(path, busy_timeout_ms=0)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("DELETE FROM lucius_ledger")
    assert _rows(path, "SELECT state, count(*) FROM jobs GROUP BY 1") == [("QUEUED", 1)]
    writer.execute("ROLLBACK")
    writer.close()
    await store.close()


async def test_views_of_another_version_are_made_anew_and_those_of_users_are_left(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP VIEW jobs")
        connection.execute("CREATE VIEW jobs AS SELECT 1 AS job_id")
        connection.execute("CREATE VIEW mine AS SELECT count(*) AS jobs FROM jobs")
    before = _rows(path, "PRAGMA schema_version")
    await (await SqliteStore.open(path)).close()
    assert _rows(path, "SELECT * FROM jobs") == [] and _rows(path, "SELECT * FROM mine") == [(0,)]
    after = _rows(path, "PRAGMA schema_version")
    await (await SqliteStore.open(path)).close()
    assert _rows(path, "PRAGMA schema_version") == after != before


async def test_a_ledger_that_takes_no_views_now_is_opened_all_the_same(path: Path) -> None:
    await (await SqliteStore.open(path)).close()
    _forget_views(path)
    connection = connect_writer(path, busy_timeout_ms=0)
    connection.execute("PRAGMA query_only = ON")
    refresh_views(connection)
    assert not connection.in_transaction
    connection.execute("PRAGMA query_only = OFF")
    other = connect_writer(path, busy_timeout_ms=0)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):  # which is tried again
        refresh_views(connection)
    assert not connection.in_transaction
    other.execute("ROLLBACK")
    refresh_views(connection)
    assert _rows(path, "SELECT count(*) FROM jobs") == [(0,)]
    connection.close()
    other.close()


async def test_another_program_that_reads_takes_nothing_away_after_the_file_was_checked(path: Path) -> None:
    """A program that believes to be the last user of the file removes the log, with what is written to it
    later. It believes so where this process has lost its locks."""
    store = await SqliteStore.open(path)
    await store.commit([insert(T.ledger, "job_1", "JOB", _bytes(OLD_JOB))])
    assert await store.integrity() == []
    count = "SELECT count(*) FROM jobs"
    assert _in_another_process(path, count) == "1"
    await store.commit([insert(T.ledger, "job_2", "JOB", _bytes(OLD_JOB))])
    assert _in_another_process(path, count) == "2"
    await store.close()
    assert _rows(path, count) == [(2,)]


def _in_another_process(path: Path, query: str) -> str:
    code = (
        "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]);"
        " print(*c.execute(sys.argv[2]).fetchone()); c.close()"
    )
    asked = [sys.executable, "-I", "-c", code, str(path), query]
    return subprocess.run(asked, capture_output=True, check=True, timeout=60, text=True).stdout.strip()

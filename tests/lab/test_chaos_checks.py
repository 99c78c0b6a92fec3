"""The checks after chaos see what they are there for."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.conformance.postgres_setup import drop_database, new_database, run_in

from lucius_lab.chaos.checks import check
from lucius_lab.chaos.work import DoneWork

JOB = "job_1"
DONE = DoneWork(job_id=JOB, step_id="step_01", attempt_no=2, lease_id="lease", pid=7)
STEP = {
    "step_id": "step_01",
    "state": "SUCCEEDED",
    "attempt_no": 2,
    "lease_id": "lease",
    "result_ref": {"uri": DONE.uri},
}
EVENTS = ("JOB_CREATED", "STEP_SUCCEEDED", "JOB_SUCCEEDED")

Rows = dict[str, dict[str, Any]]


def good_rows() -> Rows:
    rows: Rows = {
        "JOB": {"state": "SUCCEEDED"},
        "STEP#0#step_01": dict(STEP),
        "OUTBOX#00#002": {"state": "SENT"},
    }
    for seq, kind in enumerate(EVENTS, start=1):
        rows[f"EVENT#{seq:06d}"] = {"seq": seq, "type": kind, "step_id": None}
    return rows


def findings(folder: Path, rows: Rows, *, done: int = 1, left: str = "", accepted: str = JOB) -> list[str]:
    connection = sqlite3.connect(folder / "lucius.db", isolation_level=None)
    for table in ("lucius_ledger", "lucius_inflight", "lucius_due", "lucius_dispatch"):
        connection.execute(f"CREATE TABLE {table} (pk, rk, etag, body)")
    for key, body in rows.items():
        row = (JOB, key, "1", msgspec.json.encode(body))
        connection.execute("INSERT INTO lucius_ledger VALUES (?, ?, ?, ?)", row)
    if left:
        connection.execute(f"INSERT INTO {left} VALUES ('p', 'k', '1', '{{}}')")
    connection.close()
    effects = folder / "effects"
    effects.write_bytes((msgspec.json.encode(DONE) + b"\n") * done)
    return check(folder, {accepted: "SUCCEEDED"}, effects, 1)


def test_a_ledger_that_is_well_has_no_findings(tmp_path: Path) -> None:
    assert findings(tmp_path, good_rows()) == []


@pytest.mark.parametrize("table", ["lucius_inflight", "lucius_due", "lucius_dispatch"])
def test_what_is_left_over_is_found(tmp_path: Path, table: str) -> None:
    assert any("are left" in found for found in findings(tmp_path, good_rows(), left=table))


def test_a_job_that_is_lost_and_one_that_nobody_knows_are_found(tmp_path: Path) -> None:
    found = findings(tmp_path, good_rows(), accepted="job_2")
    assert any("is lost" in one for one in found)
    assert any("no client was told" in one for one in found)


@pytest.mark.parametrize(
    ("key", "body", "words"),
    [
        ("JOB", {"state": "IN_PROGRESS"}, "is IN_PROGRESS"),
        ("OUTBOX#00#002", {"state": "PENDING"}, "still waits"),
        ("EVENT#000003", {"seq": 4, "type": "JOB_SUCCEEDED"}, "gaps"),
        ("EVENT#000004", {"seq": 4, "type": "JOB_SUCCEEDED"}, "ended 2 times"),
        ("EVENT#000004", {"seq": 4, "type": "STEP_SUCCEEDED", "step_id": None}, "2 times STEP_SUCCEEDED"),
        ("STEP#0#step_01", {**STEP, "state": "PROCESSING"}, "with 0 of 1 steps"),
        ("STEP#0#step_01", {**STEP, "attempt_no": 3}, "no worker worked on"),
        ("STEP#0#step_01", {**STEP, "result_ref": {"uri": "s3://other"}}, "result of another attempt"),
    ],
)
def test_what_is_wrong_with_a_job_is_found(
    tmp_path: Path, key: str, body: dict[str, Any], words: str
) -> None:
    found = findings(tmp_path, {**good_rows(), key: body})
    assert any(words in one for one in found), found


def test_work_that_was_done_twice_is_found(tmp_path: Path) -> None:
    assert any("was done 2 times" in found for found in findings(tmp_path, good_rows(), done=2))


@pytest.mark.xdist_group("postgres")
async def test_a_ledger_in_postgresql_is_read_too(tmp_path: Path) -> None:
    url, effects = await new_database(), tmp_path / "effects"
    effects.write_bytes(msgspec.json.encode(DONE) + b"\n")

    async def put(table: str, key: str, body: dict[str, Any]) -> None:
        place, text = f'lucius_store."{table}" (etag, sum, pk, rk, body)', msgspec.json.encode(body).decode()
        await run_in(url, f"INSERT INTO {place} VALUES (1, 1, '{JOB}', '{key}', '{text}')")

    for key, body in good_rows().items():
        await put("lucius_ledger", key, body)
    assert await asyncio.to_thread(check, url, {JOB: "SUCCEEDED"}, effects, 1) == []
    await put("lucius_inflight", "slot", {})
    await put("lucius_ledger", "OUTBOX#00#003", {})
    found = await asyncio.to_thread(check, url, {JOB: "SUCCEEDED"}, effects, 1)
    assert found == ["1 in-flight slots are left", f"{JOB} has an outbox row that still waits"]
    await drop_database(url)

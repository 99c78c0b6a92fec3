"""A data folder that is damaged, backed up and restored, with real processes."""

import json
import os
import shutil
import sqlite3
import stat
import tarfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.journeys.conftest import Launch
from tests.journeys.harness import Lucius
from tests.support.api_setup import Caller, check_problem, until

from lucius_lab import forks

BUSY_JOBS = 40


def hurt(data: Path, statement: str, *values: Any) -> None:
    with closing(sqlite3.connect(data / "lucius.db", isolation_level=None, timeout=10)) as file:
        assert file.execute(statement, values).rowcount == 1


async def test_a_damaged_job_stops_nobody_else(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch()
    caller = caller_at(lucius)
    damaged, later, well = [await caller.submit() for _ in range(3)]
    lucius.kill()
    body = "UPDATE lucius_ledger SET body = ? WHERE pk = ? AND rk = 'JOB'"
    with closing(sqlite3.connect(lucius.data / "lucius.db")) as file:
        ((whole,),) = file.execute("SELECT body FROM lucius_ledger WHERE pk = ? AND rk = 'JOB'", (damaged,))
    flipped = bytes([*whole[:60], whole[60] ^ 1, *whole[61:]])
    hurt(lucius.data, body, flipped, damaged)
    # As a process of a later version writes it, or one of a time when rows had no checksum.
    unsealed = "UPDATE lucius_ledger SET body = ?, etag = '7' WHERE pk = ? AND rk = 'JOB'"
    hurt(lucius.data, unsealed, b'{"v":2,"state":"FROZEN"}', later)
    lucius.start()
    caller = caller_at(lucius)
    for job_id, words in ((damaged, "is damaged"), (later, "a later version")):
        problem = check_problem(await caller.http.get(f"/v1/jobs/{job_id}"), 500, "JOB_UNREADABLE")
        assert words in problem["detail"]
    assert [one["jobId"] for one in await caller.lease("ocr", wait=5)] == [well]
    listed = (await caller.http.get("/v1/jobs?tenant_id=acme")).json()["items"]
    assert [job["jobId"] for job in listed] in ([well], [])
    ready = await caller.http.get("/readyz")
    assert ready.status_code == 200 and ready.json()["status"] == "degraded"
    assert ready.json()["checks"]["ledger_rows"].startswith("degraded: 1 row cannot be read")
    assert "1 row of a later version of Lucius is left alone" in ready.json()["checks"]["ledger_rows"]
    metrics = (await caller.http.get("/metrics")).text
    assert "lucius_quarantine_rows 2.0" in metrics
    assert lucius.stderr.count("row_quarantined") == 1 and "Traceback" not in lucius.stderr
    again = await caller.submit()
    assert [one["jobId"] for one in await caller.lease("ocr", wait=5)] == [again]
    assert lucius.stop() == 0
    with closing(sqlite3.connect(lucius.data / "lucius.db")) as file:
        kept = file.execute("SELECT body FROM lucius_ledger WHERE pk = ? AND rk = 'JOB'", (later,)).fetchall()
    assert kept == [(b'{"v":2,"state":"FROZEN"}',)]


async def test_damage_that_nobody_has_met_is_found_after_the_start(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]"
) -> None:
    lucius = launch()
    job_id = await caller_at(lucius).submit()
    assert lucius.stop() == 0
    moved = "UPDATE lucius_ledger SET rk = 'EVENT#00000009' WHERE pk = ? AND rk = 'EVENT#00000001'"
    hurt(lucius.data, moved, job_id)
    lucius.start()
    caller = caller_at(lucius)

    async def look() -> str | None:
        line: str = (await caller.http.get("/readyz")).json()["checks"]["ledger_rows"]
        return line if "the check of the whole store found 1 problem" in line else None

    assert f"lucius_ledger/{job_id}/EVENT#00000009" in await until(look)
    check_problem(await caller.http.get(f"/v1/jobs/{job_id}/events"), 500, "JOB_UNREADABLE")


@pytest.mark.parametrize("loss", ["removed", "emptied", "overwritten", "zeroed header"])
def test_a_ledger_that_is_gone_is_not_silently_a_new_one(loss: str, launch: "Launch") -> None:
    lucius = launch()
    assert lucius.stop() == 0
    path = lucius.data / "lucius.db"
    if loss == "removed":
        path.unlink()
    elif loss == "zeroed header":
        path.write_bytes(bytes(100) + path.read_bytes()[100:])
    else:
        path.write_bytes(b"" if loss == "emptied" else b"not a database" * 100)
    for command in ("dev", "api", "reconciler"):
        port = () if command == "reconciler" else ("--port", "0")
        done = forks.run(command, "--data", str(lucius.data), *port)
        assert done.returncode == 1, done.stderr
        (line,) = done.stderr.splitlines()[-1:]
        assert line.startswith(f"Cannot open the ledger in {lucius.data}: {path} is ")
        assert f"`lucius restore FILE --data {lucius.data} --force`" in line
        assert "ledger-made" in line and "Traceback" not in done.stderr
    # What the line says begins anew.
    for left in (lucius.data / "ledger-made", *lucius.data.glob("lucius.db*")):
        left.unlink()
    lucius.start()


async def test_a_backup_of_a_busy_folder_is_whole_and_comes_back(
    launch: "Launch", caller_at: "Callable[[Lucius], Caller]", tmp_path: Path
) -> None:
    lucius = launch()
    caller = caller_at(lucius)
    jobs = [await caller.submit() for _ in range(BUSY_JOBS)]
    file = tmp_path / "ledger.backup"
    done = forks.run("backup", str(file), "--data", str(lucius.data), "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {one["name"] for one in told["manifest"]["files"]} >= {
        "lucius.db",
        "storage",
        "keys/callback-keys.json",
    }
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert forks.run("backup", str(file), "--data", str(lucius.data)).returncode == 2
    later = await caller.submit()
    assert forks.run("restore", str(file), "--check").returncode == 0
    # A folder in use, and one that is not empty, stay as they are.
    for options in ((), ("--force",)):
        refused = forks.run("restore", str(file), "--data", str(lucius.data), *options)
        assert refused.returncode == 1 and "Lucius is using" in refused.stderr
    keys = (lucius.data / "keys" / "callback-keys.json").read_bytes()
    lucius.kill()
    refused = forks.run("restore", str(file), "--data", str(lucius.data))
    assert refused.returncode == 1 and "is not empty" in refused.stderr
    (lucius.data / "lucius.db").write_bytes(b"")
    done = forks.run("restore", str(file), "--data", str(lucius.data), "--force")
    assert done.returncode == 0, done.stderr
    assert (lucius.data / "keys" / "callback-keys.json").read_bytes() == keys
    for path in lucius.data.rglob("*"):
        if path.is_file() and "before-restore" not in str(path) and path.name != "lucius.lock":
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert len(list(lucius.data.glob("before-restore-*/lucius.db"))) == 1
    lucius.start()
    caller = caller_at(lucius)
    assert {(await caller.job(job_id))["state"] for job_id in jobs} == {"DISPATCHING"}
    assert (await caller.http.get(f"/v1/jobs/{later}")).status_code == 404
    assert len(await caller.lease("ocr", wait=5)) == BUSY_JOBS


def test_a_damaged_ledger_makes_no_backup_and_a_damaged_backup_no_ledger(
    launch: "Launch", tmp_path: Path
) -> None:
    lucius = launch("--sample", "--services", "all", env={"LUCIUS_AUTH": "open"})
    assert lucius.stop() == 0
    good = tmp_path / "good.backup"
    assert forks.run("backup", str(good), "--data", str(lucius.data)).returncode == 0
    content = good.read_bytes()
    bad, target = tmp_path / "bad.backup", tmp_path / "target"
    for at in range(12, len(content), max(1, len(content) // 12)):
        bad.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        done = forks.run("restore", str(bad), "--data", str(target))
        if done.returncode == 0:  # the bit was one of the padding at the end of the archive
            shutil.rmtree(target)
            continue
        assert done.returncode == 1 and done.stderr.startswith("error: "), done.stderr
        assert sorted(os.listdir(target)) == ["lucius.lock"]
    bad.write_bytes(content[: len(content) // 2])
    assert forks.run("restore", str(bad), "--data", str(target)).returncode == 1
    hurt(lucius.data, "UPDATE lucius_meta SET body = x'00' WHERE pk = 'birth'")
    refused = forks.run("backup", str(tmp_path / "no.backup"), "--data", str(lucius.data))
    assert refused.returncode == 1 and "lucius_meta/birth/birth" in refused.stderr
    assert not (tmp_path / "no.backup").exists()
    taken = forks.run("backup", str(tmp_path / "hurt.backup"), "--data", str(lucius.data), "--accept-damage")
    assert taken.returncode == 0, taken.stderr
    hurt_backup = str(tmp_path / "hurt.backup")
    assert forks.run("restore", hurt_backup, "--data", str(target)).returncode == 1
    assert forks.run("restore", hurt_backup, "--data", str(target), "--accept-damage").returncode == 0


def test_a_backup_names_nothing_outside_its_folder(tmp_path: Path) -> None:
    evil = tmp_path / "evil.backup"
    manifest = {
        "format": "lucius-backup",
        "format_version": 1,
        "lucius": "0",
        "made_at": "now",
        "storage": "ledger",
        "artifacts": False,
        "files": [{"name": name, "bytes": 0, "sha256": "0" * 64} for name in ("lucius.db", "../out")],
    }
    encoded = json.dumps(manifest).encode()
    (tmp_path / "manifest.json").write_bytes(encoded)
    (tmp_path / "empty").write_bytes(b"")
    with tarfile.open(evil, "w:gz") as tar:
        tar.add(tmp_path / "manifest.json", "manifest.json")
        tar.add(tmp_path / "empty", "../out")
    done = forks.run("restore", str(evil), "--data", str(tmp_path / "target"))
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()

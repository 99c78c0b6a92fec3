"""`lucius doctor`: what it finds, mends and says; beside a server, and on a stopped folder."""

import asyncio
import os
import sqlite3
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from tests.conformance.azurite_setup import azurite
from tests.conformance.postgres_setup import POSTGRES, drop_database, new_database, run_in

from lucius.assembly import Embedded
from lucius.assembly.clock_and_ids import new_hex, now_ms
from lucius.assembly.doctor import (
    CannotOpen,
    Examination,
    Finding,
    Installation,
    examine,
    open_installation,
    repair,
)
from lucius.assembly.embedded import open_embedded
from lucius.cli.context import Output
from lucius.cli.main import run_cli
from lucius.cli.render import TextLayout
from lucius.contracts.envelope import parse_envelope
from lucius.core.refusal import Refused
from lucius.jobs.submit import Submitted
from lucius.ledger.names import Tables
from lucius.ledger.store import TableStore, discard, insert, put
from lucius.settings import read_settings

T = Tables()
LAYOUTS = ("ledger", "table")
DAY_MS = 86_400_000


def silent(text: str) -> None:
    """Says nothing of how far it is."""


@asynccontextmanager
async def lucius_in(
    data: Path, storage: str = "ledger", env: dict[str, str] | None = None
) -> AsyncIterator[Embedded]:
    settings = read_settings(env or {})
    lucius = await open_embedded(settings, storage=storage, data=data, base_url="http://l", protocols=None)
    await lucius.start({})
    try:
        yield lucius
    finally:
        await lucius.stop()


def ledger_of(lucius: Embedded) -> TableStore:
    return lucius.deployment.ledger.store


async def submitted(lucius: Embedded, number: int = 1) -> str:
    command = {
        "tenant_id": "acme",
        "request_type": "OCR",
        "input_ref": {"uri": f"s3://in/{number}"},
        "output_ref": {"uri": f"s3://out/{number}"},
        "payload": {},
        "schema_version": "1",
    }
    parsed = parse_envelope(command)
    assert not isinstance(parsed, Refused)
    accepted = await lucius.deployment.submitter.submit(parsed)
    assert isinstance(accepted, Submitted)
    return accepted.job_id


async def lose(store: TableStore, *tables: str) -> None:
    for table in tables:
        for row in await store.scan(table, limit=1_000):
            await store.commit([discard(table, row.partition, row.key)])


async def looked_at(data: Path, env: dict[str, str] | None = None, **more: Any) -> Examination:
    installation = await open_installation(
        env or {}, data, "", now_ms=more.pop("now_ms", now_ms), report=silent
    )
    try:
        return await examine(installation)
    finally:
        await installation.store.close()


async def mended(data: Path, env: dict[str, str] | None = None) -> int:
    """How many rows a repair put right."""
    installation = await open_installation(env or {}, data, "", now_ms=now_ms, report=silent)
    try:
        done, left = await repair(installation, await examine(installation))
        assert left == 0
        return done.total()
    finally:
        await installation.store.close()


def kinds(examination: Examination) -> set[str]:
    return {finding.check for finding in examination.findings}


def only(examination: Examination, check: str) -> Finding:
    (finding,) = [finding for finding in examination.findings if finding.check == check]
    return finding


@pytest.mark.parametrize("storage", LAYOUTS)
async def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path, storage: str) -> None:
    data = tmp_path / "data"
    async with lucius_in(data, storage) as lucius:
        await submitted(lucius)
        await lucius.dispatcher.take("ocr", directives_max=1, wait_ms=0)
        examination = await looked_at(data)
        assert examination.findings == []
    assert (await looked_at(data)).findings == []
    assert sorted(path.name for path in data.glob("lucius.db*")) == ["lucius.db", "lucius.db-turn"]


@pytest.mark.parametrize("storage", LAYOUTS)
@pytest.mark.parametrize("online", [True, False], ids=["online", "stopped"])
async def test_lost_rows_are_named_and_put_back(tmp_path: Path, storage: str, online: bool) -> None:
    data = tmp_path / "data"
    async with lucius_in(data, storage) as lucius:
        job_ids = {await submitted(lucius, number) for number in range(3)}
        await lose(ledger_of(lucius), T.due, T.dispatch, T.inflight, T.job_index)
        if online:
            await _put_back(data, storage, job_ids)
            taken = await lucius.dispatcher.take("ocr", directives_max=10, wait_ms=5_000)
            assert {each.record.job.job_id for each in taken} == job_ids
    if not online:
        await _put_back(data, storage, job_ids)
        async with lucius_in(data, storage) as lucius:
            taken = await lucius.dispatcher.take("ocr", directives_max=10, wait_ms=5_000)
            assert {each.record.job.job_id for each in taken} == job_ids


async def _put_back(data: Path, storage: str, job_ids: set[str]) -> None:
    examination = await looked_at(data)
    hidden = storage == "table"  # without the row that leads from its id to a job, the rest is not seen
    assert kinds(examination) == ({"indexes"} if hidden else {"indexes", "slots"})
    for finding in examination.findings:
        assert finding.repairable and set(finding.examples) == job_ids, finding
        assert "doctor --repair" in finding.mend and str(data) in finding.mend
    assert await mended(data) == 3 * (6 if hidden else 5)
    assert (await looked_at(data)).findings == []


async def test_slots_that_no_job_holds_are_removed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with lucius_in(data) as lucius:
        await ledger_of(lucius).commit([insert(T.inflight, "acme", "job_ghost", b'{"v":1,"mode":"DEFAULT"}')])
        examination = await looked_at(data)
        assert (
            only(examination, "slots").text
            == "1 row of the in-flight slots is held by no open job: limits bite early"
        )
        assert await mended(data) == 1
        assert (await looked_at(data)).findings == []


async def test_a_repair_believes_only_what_is_still_so(tmp_path: Path) -> None:
    """The server put the rows back, and the job went on, between the look and the repair."""
    data = tmp_path / "data"
    async with lucius_in(data) as lucius:
        await submitted(lucius)
        await lose(ledger_of(lucius), T.due, T.dispatch)
        installation = await open_installation({}, data, "", now_ms=now_ms, report=silent)
        examination = await examine(installation)
        assert await lucius.audit.look() == 2
        assert len(await lucius.dispatcher.take("ocr", directives_max=1, wait_ms=0)) == 1
        done, left = await repair(installation, examination)
        await installation.store.close()
        assert (done.total(), left) == (0, 0)
        assert (await looked_at(data)).findings == []


async def test_rows_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with lucius_in(data) as lucius:
        job_id = await submitted(lucius)
        await submitted(lucius, 2)
        store = ledger_of(lucius)
        await store.commit([put(T.ledger, job_id, "STEP#0#step_01", b'{"v":1,"step_id":7}')])
        examination = await looked_at(data)
        finding = only(examination, "rows")
        assert finding.count == 1 and finding.examples[0].startswith(
            f"{T.ledger}/{job_id}/STEP#0#step_01: it does"
        )
        assert "lucius restore" in finding.mend
        await store.commit([put(T.ledger, job_id, "STEP#0#step_01", b'{"v":2,"state":"FROZEN"}')])
        assert "later version" in only(await looked_at(data), "rows").text


@pytest.mark.parametrize(
    ("partition", "key"),
    [
        ("schedules", "s#nightly"),
        ("schedules", "d#not-a-time"),
        ("usage#acme", "s#20260101#ocr"),
        ("usage#acme", "r#1"),
        ("flow", "service#ocr"),
        ("flow", "pause#tenant#acme"),
        ("api-keys", "key"),
    ],
)
async def test_rows_beside_the_jobs_that_cannot_be_read_are_named(
    tmp_path: Path, partition: str, key: str
) -> None:
    """Their readers pass over them: a schedule would never run, and nothing said so."""
    data = tmp_path / "data"
    async with lucius_in(data) as lucius:
        await ledger_of(lucius).commit([put(T.meta, partition, key, b'{"v":1,"usage":7,"slots":7}')])
        finding = only(await looked_at(data), "rows")
        assert finding.count == 1 and finding.examples[0].startswith(f"{T.meta}/{partition}/{key}: ")


async def test_index_rows_that_cannot_be_read_are_written_anew(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with lucius_in(data) as lucius:
        await submitted(lucius)
        store = ledger_of(lucius)
        for table in (T.due, T.dispatch, T.inflight, T.job_index):
            for row in await store.scan(table, limit=10):
                await store.commit([put(table, row.partition, row.key, b"\xff{")])
        assert only(await looked_at(data), "rows").count == 5
        assert await mended(data) == 5
        assert (await looked_at(data)).findings == []


async def test_a_clock_that_was_ahead_is_noticed(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with lucius_in(data) as lucius:
        await submitted(lucius)
    examination = await looked_at(data, now_ms=lambda: now_ms() - 3_600_000)
    texts = [finding.text for finding in examination.findings if finding.check == "clock"]
    assert len(texts) == 2 and all("minutes from now" in text for text in texts)


async def test_jobs_that_nobody_looks_after_are_stuck_where_a_server_runs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with lucius_in(data) as lucius:
        job_id = await submitted(lucius)
        finding = only(await looked_at_running(data, later_ms=30 * DAY_MS), "stuck")
        assert finding.examples == (job_id,)
    assert "stuck" not in kinds(await looked_at(data, now_ms=lambda: now_ms() + 30 * DAY_MS))


async def looked_at_running(data: Path, *, later_ms: int) -> Examination:
    """As while a process of Lucius holds the folder."""
    from lucius.cli.folder import claim_folder

    lock = claim_folder(data, "ledger")
    assert not isinstance(lock, str)
    with lock:
        return await looked_at(data, now_ms=lambda: now_ms() + later_ms)


async def test_files_that_others_may_read_are_named(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with lucius_in(data):
        pass
    data.chmod(0o755)
    finding = only(await looked_at(data), "files")
    assert str(data) in finding.examples and finding.mend.startswith("chmod -R go= ")
    data.chmod(0o700)
    assert (await looked_at(data)).findings == []


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ({"LUCIUS_MAX_INFLIHGT": "5"}, "Nothing reads LUCIUS_MAX_INFLIHGT"),
        ({"LUCIUS_COFFEE": "black"}, "Nothing reads LUCIUS_COFFEE"),
        ({"LUCIUS_JOB_SLA": "soon"}, "LUCIUS_JOB_SLA must be"),
        ({"LUCIUS_MAX_INFLIGHT": "10"}, "A tenant may have 1,000 jobs in flight"),
        ({"LUCIUS_JOB_SLA": "1h"}, "longer than a whole job by its SLA"),
        ({"LUCIUS_AUDIT_ROWS_PER_SECOND": "0"}, "The audit is off"),
        ({"LUCIUS_STORAGE_BACKEND": "table"}, "was made with --storage ledger"),
    ],
)
async def test_settings_that_work_against_each_other_are_named(
    tmp_path: Path, env: dict[str, str], said: str
) -> None:
    data = tmp_path / "data"
    async with lucius_in(data):
        pass
    texts = [finding.text for finding in (await looked_at(data, env)).findings]
    assert any(said in text for text in texts), texts
    assert (await looked_at(data, {"LUCIUS_PORT": "tcp://10.0.0.1:80"})).findings == []


async def test_a_damaged_file_is_told_apart_from_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match=r"^There is no folder"):
        await looked_at(tmp_path / "nowhere")
    with pytest.raises(CannotOpen, match=r"^LUCIUS_STORE must be .*memory:\. There is no folder"):
        await looked_at(tmp_path / "nowhere", {"LUCIUS_STORE": "mysql://db/lucius"})
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    with pytest.raises(CannotOpen, match=r"holds no lucius\.db"):
        await looked_at(data)
    (data / "lucius.db").write_bytes(b"not a database at all " * 1_000)
    with pytest.raises(CannotOpen, match=r"not a database.*lucius restore"):
        await looked_at(data)
    with pytest.raises(CannotOpen, match="in memory"):
        await open_installation({}, data, "memory", now_ms=now_ms, report=silent)


async def test_damage_that_sqlite_finds_is_told(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with lucius_in(data) as lucius:
        for number in range(60):
            await submitted(lucius, number)
    path = data / "lucius.db"
    pages = bytearray(path.read_bytes())
    last = len(pages) // 8192
    for page in range(last // 2, last, 3):  # behind the schema
        pages[page * 8192 : page * 8192 + 64] = os.urandom(64)
    path.write_bytes(pages)
    finding = only(await looked_at(data), "integrity")
    assert finding.severity.value == "error" and finding.examples


@pytest.mark.parametrize("storage", LAYOUTS)
async def test_tables_of_azure_are_examined_and_mended(tmp_path: Path, storage: str) -> None:
    env = {"LUCIUS_TABLE_CONNECTION": azurite().connection_string, "LUCIUS_TABLE_PREFIX": f"d{new_hex(5)}"}
    data = tmp_path / "data"
    async with lucius_in(data, storage, env) as lucius:
        job_id = await submitted(lucius)
        await lose(ledger_of(lucius), T.due, T.dispatch, T.inflight, T.job_index)
        examination = await looked_at(data, env)
        assert kinds(examination) == {"indexes", "slots"}
        assert await mended(data, env) == 5
        assert (await looked_at(data, env)).findings == []
        (taken,) = await lucius.dispatcher.take("ocr", directives_max=10, wait_ms=10_000)
        assert taken.record.job.job_id == job_id


@pytest.mark.parametrize("storage", LAYOUTS)
@pytest.mark.parametrize("store", [POSTGRES])
async def test_a_ledger_in_postgresql_is_examined_and_mended(
    tmp_path: Path, storage: str, store: str
) -> None:
    url = await new_database()
    env = {"LUCIUS_STORE": url}
    data = tmp_path / "data"
    async with lucius_in(data, storage, env) as lucius:
        job_id = await submitted(lucius)
        assert (await looked_at(data, env)).findings == []
        await lose(ledger_of(lucius), T.due, T.dispatch, T.inflight, T.job_index)
        hidden = storage == "table"  # as in a file
        assert kinds(await looked_at(data, env)) == ({"indexes"} if hidden else {"indexes", "slots"})
        assert await mended(data, env) == (6 if hidden else 5)
        assert (await looked_at(data, env)).findings == []
        (taken,) = await lucius.dispatcher.take("ocr", directives_max=10, wait_ms=10_000)
        assert taken.record.job.job_id == job_id
    truth = T.ledger if storage == "ledger" else T.jobs
    flip = "body = set_byte(body, 20, get_byte(body, 20) # 1)"
    await run_in(url, f"UPDATE lucius_store.\"{truth}\" SET {flip} WHERE rk IN ('JOB', '{job_id}')")
    finding = only(await looked_at(data, env), "rows")
    assert finding.count == 1 and job_id in finding.examples[0]
    assert "pg_restore" in finding.mend and "lucius restore" not in finding.mend
    await drop_database(url)


def shifted_ms(minutes: int) -> int:
    return now_ms() + minutes * 60_000


@pytest.mark.parametrize("store", [POSTGRES])
async def test_a_clock_that_differs_from_the_servers_is_told(tmp_path: Path, store: str) -> None:
    url = await new_database()
    env, data = {"LUCIUS_STORE": url}, tmp_path / "data"
    async with lucius_in(data, env=env):
        pass
    for minutes, said in ((10, "10 minutes ahead of"), (-180, "3 hours behind")):
        examination = await looked_at(data, env, now_ms=partial(shifted_ms, minutes))
        assert any(said in finding.text for finding in examination.findings if finding.check == "clock")
    await drop_database(url)


@pytest.mark.parametrize("store", [POSTGRES])
async def test_a_database_without_a_ledger_is_told_and_stays_empty(tmp_path: Path, store: str) -> None:
    url = await new_database(empty=True)
    for _ in range(2):  # an examination that made the schema would find a sound one the second time
        with pytest.raises(CannotOpen, match="no schema of Lucius"):
            await looked_at(tmp_path, {"LUCIUS_STORE": url})
    await drop_database(url)


async def test_an_account_without_a_ledger_is_not_taken_for_a_sound_one(tmp_path: Path) -> None:
    env = {"LUCIUS_TABLE_CONNECTION": azurite().connection_string, "LUCIUS_TABLE_PREFIX": f"d{new_hex(5)}"}
    with pytest.raises(CannotOpen, match=r"no ledger with the prefix"):
        await looked_at(tmp_path, env)


# What is said


def prepared(data: Path, *losing: str) -> str:
    """A stopped folder with one job that lost rows."""

    async def prepare() -> str:
        async with lucius_in(data) as lucius:
            job_id = await submitted(lucius)
            await lose(ledger_of(lucius), *losing)
        return job_id

    return asyncio.run(prepare())


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("LUCIUS_")]:
        monkeypatch.delenv(name)


def run_doctor(data: Path, *words: str) -> int:
    return run_cli(["doctor", "--data", str(data), *words])


@pytest.mark.usefixtures("bare")
def test_exit_codes_and_what_is_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    job_id = prepared(data, T.due)
    assert run_doctor(data) == 1
    told = capfd.readouterr()
    assert (
        f"1. error: 1 row is lost from the due index: no deadline or retry of their jobs comes\n     {job_id}"
        in told.out
    )
    assert f"   mend: lucius doctor --repair --data {data}\n" in told.out
    assert told.out.endswith("\n1 error; --repair mends 1.\n") and told.err == ""
    assert run_doctor(data, "--repair") == 2
    assert "add --yes" in capfd.readouterr().err
    assert run_doctor(data, "--yes") == 2
    assert run_doctor(data, "--repair", "--yes") == 0
    assert capfd.readouterr().out.endswith("Repaired 1 row.\n  1 due (lost)\n")
    assert run_doctor(data) == 0
    assert capfd.readouterr().out.endswith("\nNothing found.\n")
    assert run_doctor(tmp_path / "nowhere") == 4
    told = capfd.readouterr()
    assert told.out == "" and told.err.startswith("error: There is no folder")


@pytest.mark.usefixtures("bare")
def test_as_json(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "data"
    job_id = prepared(data, T.dispatch)
    capfd.readouterr()
    assert run_doctor(data, "--json") == 1
    said = msgspec.json.decode(capfd.readouterr().out)
    assert (said["layout"], said["server"], said["repaired"]) == ("ledger", "stopped", None)
    (finding,) = said["findings"]
    assert (finding["check"], finding["count"], finding["examples"]) == ("indexes", 1, [job_id])
    assert run_doctor(data, "--json", "--repair") == 2
    capfd.readouterr()
    assert run_doctor(data, "--json", "--repair", "--yes") == 0
    said = msgspec.json.decode(capfd.readouterr().out)
    assert said["repaired"] == [{"index": "dispatch", "fault": "lost", "count": 1}]


@pytest.mark.usefixtures("bare")
def test_a_repair_is_shown_and_asked_for(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    prepared(data, T.due, T.inflight)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    for answer, code in ((False, 1), (True, 0)):
        monkeypatch.setattr(typer, "confirm", lambda *_, answer=answer, **__: answer)
        assert run_doctor(data, "--repair") == code
        told = capfd.readouterr()
        assert "A repair would\n  put back 1 row (due)\n  put back 1 row (slot)\n" in told.err
        assert ("Repaired 2 rows." in told.out) is answer


@pytest.mark.usefixtures("bare")
def test_it_fits_a_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    prepared(data, T.due, T.inflight, T.dispatch, T.job_index)
    capfd.readouterr()
    data.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUCIUS_MAX_INFLIGHT", "10")
    monkeypatch.setattr(Output, "layout", lambda _: TextLayout(columns=80))
    assert run_doctor(Path("data")) == 1
    assert max(map(len, capfd.readouterr().out.splitlines())) <= 80


async def test_nothing_of_a_running_server_is_touched(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with lucius_in(data) as lucius:
        await submitted(lucius)
        before = sqlite3.connect(data / "lucius.db").execute("PRAGMA data_version").fetchall()
        installation: Installation = await open_installation({}, data, "", now_ms=now_ms, report=silent)
        await examine(installation)
        await installation.store.close()
        after = sqlite3.connect(data / "lucius.db").execute("PRAGMA data_version").fetchall()
        assert before == after

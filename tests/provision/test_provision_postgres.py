"""`lucius provision postgres`, and the roles that it makes."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator

import pytest
from tests.conformance.postgres_setup import drop_database, new_database, postgres

from lucius.ledger.postgres.connection import CallFailed, Connection, PostgresAddress
from lucius.ledger.postgres.schema import SCHEMA_VERSION
from lucius.ledger.postgres.store import PostgresStore
from lucius.ledger.store import StoreUnavailable, insert

pytestmark = pytest.mark.xdist_group("postgres")
T, P = "lucius_ledger", "job_1"


@pytest.fixture
async def url() -> AsyncIterator[str]:
    made = await new_database(empty=True)
    yield made
    await drop_database(made)


def _provision(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LUCIUS_STORE": url}
    command = [sys.executable, "-m", "lucius", "provision", "postgres", *options]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


async def _run(url: str, text: str) -> None:
    connection = await Connection.open(PostgresAddress(url=url), plans=False)
    try:
        await connection.run(text)
    finally:
        await connection.close()


async def test_a_database_is_checked_and_set_up(url: str) -> None:
    before = _provision(url, "--check")
    assert before.returncode == 1
    assert "no schema of Lucius: run `lucius provision postgres --apply`" in before.stderr + before.stdout
    made = _provision(url, "--apply", "--json")
    assert made.returncode == 0, made.stderr
    report = json.loads(made.stdout)
    assert (report["version_before"], report["version"], report["findings"]) == (None, SCHEMA_VERSION, [])
    again = _provision(url, "--apply", "--json")
    assert (again.returncode, json.loads(again.stdout)["done"]) == (0, [])
    assert _provision(url, "--check").returncode == 0
    await _run(url, "DELETE FROM lucius_store.tables WHERE name = 'Events'")
    lost = _provision(url, "--check")
    assert lost.returncode == 1
    assert "the table Events is not there" in lost.stderr + lost.stdout
    assert _provision(url, "--apply").returncode == 0


def test_what_cannot_be_reached_is_said_without_the_password() -> None:
    said = _provision("postgresql://u:sesame@127.0.0.1:1/none", "--check")
    assert said.returncode == 4
    assert "sesame" not in said.stdout + said.stderr


async def test_each_role_may_do_its_work_and_no_more(url: str) -> None:
    assert _provision(url, "--apply").returncode == 0
    await _run(
        url,
        "CREATE ROLE an_app LOGIN; GRANT lucius_app TO an_app;"
        "CREATE ROLE a_reader LOGIN; GRANT lucius_reader TO a_reader; CREATE ROLE a_stranger LOGIN",
    )
    try:
        store = await PostgresStore.open(PostgresAddress(url=url.replace("lucius@", "an_app@")))
        await store.commit([insert(T, P, "JOB", b'{"v":1,"tenant_id":"a\\u0000b"}')])
        assert await store.get(T, P, "JOB") is not None
        with pytest.raises(StoreUnavailable, match="permission denied"):
            await store.commit([insert("a_table_of_its_own", P, "K", b"")])
        await store.close()
        reader = await Connection.open(PostgresAddress(url=url.replace("lucius@", "a_reader@")), plans=False)
        rows = await reader.fetch("SELECT job_id, tenant_id FROM lucius.jobs")
        assert [tuple(row) for row in rows] == [(P, "a\ufffdb")]
        with pytest.raises(CallFailed, match="permission denied"):
            await reader.fetch("SELECT * FROM lucius_store.lucius_ledger")
        await reader.close()
        with pytest.raises(StoreUnavailable, match="permission denied"):
            await PostgresStore.open(PostgresAddress(url=url.replace("lucius@", "a_stranger@")))
    finally:
        await _run(
            url,
            "DROP OWNED BY an_app, a_reader, a_stranger; DROP ROLE an_app; DROP ROLE a_reader;"
            "DROP ROLE a_stranger",
        )
    assert postgres().pid is not None

"""One PostgreSQL for all tests of a process, started by the first that asks; each store has a database of its
own, which is emptied and used again once that store is closed."""

import asyncio
import atexit
import shutil
import tempfile
import threading
from itertools import count
from pathlib import Path

import pytest

from lucius.ledger.names import Tables
from lucius.ledger.postgres.connection import Connection, PostgresAddress
from lucius.ledger.postgres.schema import migrate
from lucius.ledger.postgres.store import PostgresStore
from lucius_lab.emulators.postgres import PostgresServer

POSTGRES = pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))
TEMPLATE = "lucius_template"
EMPTIED = """
DO $$
DECLARE each record;
BEGIN
    FOR each IN SELECT name, planned FROM lucius_store.tables LOOP
        IF each.planned THEN EXECUTE format('DELETE FROM lucius_store.%I', each.name);
        ELSE EXECUTE format('DROP TABLE lucius_store.%I', each.name); END IF;
    END LOOP;
    DELETE FROM lucius_store.tables WHERE NOT planned;
    DELETE FROM lucius_store.writers;
    DELETE FROM lucius_store.counts;
END $$
"""

_running: list[PostgresServer] = []
_folders: list[Path] = []
_numbers = count(1)
_template_made = threading.Event()
_free: list[str] = []
_used: list[tuple[str, PostgresStore]] = []


def postgres() -> PostgresServer:
    if not _running:
        folder = Path(tempfile.mkdtemp(prefix="lucius-pg-"))
        _folders.append(folder)
        # What is written survives the end of every process; these tests cut no power.
        server = PostgresServer(folder, settings={"fsync": "off", "max_connections": "200"})
        server.start()
        _running.append(server)
        atexit.register(stop)
    return _running[0]


def stop() -> None:
    while _running:
        _running.pop().kill()
    while _folders:
        shutil.rmtree(_folders.pop(), ignore_errors=True)


async def new_database(*, empty: bool = False) -> str:
    """The URL of a database of its own, with the schema unless it shall be empty."""
    server, name = postgres(), f"t{next(_numbers)}"
    if name == "t1":
        await run_in(server.url(), f"CREATE DATABASE {TEMPLATE}")
        connection = await Connection.open(PostgresAddress(url=server.url(TEMPLATE)), plans=False)
        await migrate(connection, Tables())
        await connection.close()
        _template_made.set()
    await asyncio.to_thread(_template_made.wait)
    template = "template0" if empty else TEMPLATE
    await run_in(server.url(), f"CREATE DATABASE {name} TEMPLATE {template}")
    return server.url(name)


async def drop_database(url: str) -> None:
    await run_in(postgres().url(), f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


async def borrow_database() -> str:
    """The URL of an empty one that nothing else uses until it is given back."""
    if not _free:
        return await new_database()
    url = _free.pop()
    await run_in(url, EMPTIED)
    return url


def give_back_database(url: str) -> None:
    _free.append(url)


async def open_store(url: str | None = None, *, patience_seconds_max: float = 30.0) -> PostgresStore:
    address = PostgresAddress(
        url=url or await _emptied() or await new_database(), patience_seconds_max=patience_seconds_max
    )
    store = await PostgresStore.open(address)
    if url is None:
        _used.append((address.url, store))
    return store


async def _emptied() -> str | None:
    for number, (url, store) in enumerate(_used):
        if store.closed:
            del _used[number]
            await run_in(url, EMPTIED)
            return url
    return None


async def run_in(url: str, text: str) -> None:
    connection = await Connection.open(PostgresAddress(url=url, statement_seconds_max=60.0), plans=False)
    try:
        await connection.run(text)
    finally:
        await connection.close()

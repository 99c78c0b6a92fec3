"""PostgreSQL as the store that a simulation shares: the adapter of a deployment, on a real server.

In: a server. Out: a store in a database of its own for each simulation, gone when that is over.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Final

from lucius.ledger.names import Tables
from lucius.ledger.postgres.connection import Connection, PostgresAddress
from lucius.ledger.postgres.schema import migrate
from lucius.ledger.postgres.store import PostgresStore
from lucius_lab.emulators.postgres import PostgresServer
from lucius_lab.sim.store_server import ServerThread, SharedServerStore

PATIENCE_SECONDS_MAX: Final = 60.0
TEMPLATE: Final = "schedules_template"


class SharedPostgresStore(SharedServerStore):
    """In a database of its own."""

    @property
    def keeps_bounds(self) -> bool:
        return True


class PostgresDatabases:
    """A server, and the thread that talks to it."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._thread = ServerThread("postgresql")
        self._numbers = count(1)
        self._run("postgres", f"CREATE DATABASE {TEMPLATE}")
        self._thread.now(self._make_schema())

    def close(self) -> None:
        self._run("postgres", f"DROP DATABASE {TEMPLATE}")
        self._thread.end()

    @contextmanager
    def store(self) -> Iterator[SharedPostgresStore]:
        name = f"schedule_{next(self._numbers)}"
        self._run("postgres", f"CREATE DATABASE {name} TEMPLATE {TEMPLATE}")
        try:
            address = PostgresAddress(url=self._server.url(name), patience_seconds_max=PATIENCE_SECONDS_MAX)
            store = self._thread.now(PostgresStore.open(address, creates=False))
            try:
                yield SharedPostgresStore(self._thread, store)
            finally:
                self._thread.now(store.close())
        finally:
            self._run("postgres", f"DROP DATABASE {name} WITH (FORCE)")

    async def _make_schema(self) -> None:
        connection = await Connection.open(PostgresAddress(url=self._server.url(TEMPLATE)), plans=False)
        await migrate(connection, Tables())
        await connection.close()

    def _run(self, database: str, text: str) -> None:
        self._thread.now(_run(self._server.url(database), text))


async def _run(url: str, text: str) -> None:
    connection = await Connection.open(PostgresAddress(url=url, statement_seconds_max=60.0), plans=False)
    try:
        await connection.run(text)
    finally:
        await connection.close()


@contextmanager
def postgres_databases(server: PostgresServer) -> Iterator[PostgresDatabases]:
    """`server`: one that runs."""
    databases = PostgresDatabases(server)
    try:
        yield databases
    finally:
        databases.close()

"""What must exist in a PostgreSQL database: the schema of this version, its tables, and the roles.

In: settings that name the database. Out: what is missing or differs, and, where it may be changed, what was
done about it. Nothing is ever deleted.
"""

import msgspec

from lucius.assembly.stores import postgres_address
from lucius.ledger.postgres.connection import CallFailed, Connection
from lucius.ledger.postgres.schema import (
    SCHEMA_VERSION,
    UnusableDatabase,
    create_roles,
    migrate,
    missing_roles,
    missing_tables,
    read_state,
)
from lucius.ledger.store import StoreUnavailable
from lucius.settings import Settings


class SchemaReport(msgspec.Struct, frozen=True, kw_only=True):
    place: str
    version_before: int | None
    version: int | None
    """None: there is no schema."""
    findings: tuple[str, ...]
    """What is still missing, or differs."""
    done: tuple[str, ...] = ()


async def provision_postgres(settings: Settings, *, change: bool) -> SchemaReport:
    """Raises `StoreUnavailable` where the database cannot be reached, or the role may not."""
    place = "" if settings.store_url is None else settings.store_url.place
    try:
        connection = await Connection.open(postgres_address(settings), plans=False)
        try:
            before = await read_state(connection)
            done = await _apply(connection, settings, before.version) if change else ()
            state = await read_state(connection)
            findings = [] if state.fault is None else [state.fault]
            if state.version is not None:
                lost = await missing_tables(connection, settings.tables)
                findings += [f"the table {name} is not there" for name in lost]
            findings += [f"the role {role} is not there" for role in await missing_roles(connection)]
        finally:
            await connection.close()
    except CallFailed as failed:
        raise StoreUnavailable(failed.reason) from None
    return SchemaReport(
        place=place,
        version_before=before.version,
        version=state.version,
        findings=tuple(findings),
        done=done,
    )


async def _apply(connection: Connection, settings: Settings, before: int | None) -> tuple[str, ...]:
    done = []
    lost = await missing_roles(connection)
    if lost:
        try:
            await create_roles(connection)
            done += [f"created the role {role}" for role in lost]
        except CallFailed:
            connection = await Connection.open(postgres_address(settings), plans=False)
    try:
        await migrate(connection, settings.tables)
    except UnusableDatabase:
        return tuple(done)
    if before is None:
        done.append(f"created the schema, version {SCHEMA_VERSION}")
    elif before < SCHEMA_VERSION:
        done.append(f"brought the schema from version {before} to {SCHEMA_VERSION}")
    return tuple(done)

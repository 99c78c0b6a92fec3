"""What must exist in the database: tables, and the functions that commit.

In: the names of the ledger's tables. Out: statements that may be repeated, and the version that they make.

A logical table is one table of the same name in the schema `lucius_store`, keyed (pk, rk). One call of
`lucius_store.commit` is one transaction: it applies the ops of one caller or of many. The rows of `writers`
settle what became of a commit whose answer was lost, see docs/decisions/090-postgresql.md.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from lucius.ledger.limits import check_table
from lucius.ledger.names import Tables
from lucius.ledger.postgres.connection import CONFLICT_STATE, FENCED_STATE, CallFailed, Connection, Outage
from lucius.ledger.postgres.views import view_statements
from lucius.ledger.store import StoreUnavailable

SCHEMA_VERSION: Final = 2
# Programs from this version on work with the schema that this one makes.
SERVES_FROM: Final = 1
LOCK_KEY: Final = 0x4C75_6369_7573  # of the advisory lock that only one migration holds
SERVER_VERSION_MIN: Final = 140_000

VERB_NUMBERS: Final = {"insert": 1, "replace": 2, "delete": 3, "put": 4, "discard": 5}

_BASE = """
CREATE SCHEMA IF NOT EXISTS lucius_store;
CREATE TABLE IF NOT EXISTS lucius_store.schema_version (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    version integer NOT NULL,
    serves_from integer NOT NULL
);
CREATE TABLE IF NOT EXISTS lucius_store.tables (
    id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    planned boolean NOT NULL DEFAULT false
);
CREATE TABLE IF NOT EXISTS lucius_store.writers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    number bigint NOT NULL DEFAULT 0,
    fenced boolean NOT NULL DEFAULT false,
    began_at timestamptz NOT NULL DEFAULT now(),
    refused integer[]
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
CREATE TABLE IF NOT EXISTS lucius_store.counts (
    name text COLLATE "C" PRIMARY KEY,
    rows_known integer,
    used_at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);
"""

# Rows are replaced in place where their page has room (HOT): no index is touched, and what is overtaken is
# cleared by the next look at the page. The tables of the indexes live from insertions and removals, so they
# are vacuumed often, and at full speed.
_TABLE = """
CREATE TABLE IF NOT EXISTS lucius_store."{name}" (
    etag bigint NOT NULL,
    sum integer NOT NULL,
    pk text COLLATE "C" NOT NULL,
    rk text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (pk, rk)
) WITH (
    fillfactor = 75,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.1, autovacuum_analyze_threshold = 2000
);
"""

_CREATE_TABLE = """
CREATE OR REPLACE FUNCTION lucius_store.create_table(wanted text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE found integer;
BEGIN
    PERFORM pg_advisory_xact_lock({lock});
    EXECUTE replace($t${table}$t$, '{{name}}', wanted);
    INSERT INTO lucius_store.tables (name) VALUES (wanted) ON CONFLICT DO NOTHING;
    SELECT id INTO found FROM lucius_store.tables WHERE name = wanted;
    RETURN found;
END $$;
"""

_ARM = """
WHEN {id} THEN CASE verbs[i]
    WHEN 1 THEN
        INSERT INTO {t} (etag, sum, pk, rk, body) VALUES (etags[i], sums[i], pks[i], rks[i], bodies[i])
        ON CONFLICT DO NOTHING;
    WHEN 2 THEN
        UPDATE {t} SET etag = etags[i], sum = sums[i], body = bodies[i]
        WHERE pk = pks[i] AND rk = rks[i] AND etag = olds[i];
    WHEN 3 THEN DELETE FROM {t} WHERE pk = pks[i] AND rk = rks[i] AND etag = olds[i];
    WHEN 4 THEN
        INSERT INTO {t} (etag, sum, pk, rk, body) VALUES (etags[i], sums[i], pks[i], rks[i], bodies[i])
        ON CONFLICT (pk, rk) DO UPDATE SET etag = excluded.etag, sum = excluded.sum, body = excluded.body;
    ELSE DELETE FROM {t} WHERE pk = pks[i] AND rk = rks[i];
    END CASE;"""

# A table that came later than the last migration: planned anew each time.
_ARM_UNPLANNED = """
ELSE
    SELECT 'lucius_store.' || quote_ident(name) INTO place FROM lucius_store.tables WHERE id = numbers[i];
    IF place IS NULL THEN RAISE EXCEPTION 'there is no table %', numbers[i] USING ERRCODE = '42P01'; END IF;
    CASE verbs[i]
    WHEN 1 THEN
        EXECUTE 'INSERT INTO ' || place || ' VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING'
        USING etags[i], sums[i], pks[i], rks[i], bodies[i];
    WHEN 2 THEN
        EXECUTE 'UPDATE ' || place || ' SET etag = $1, sum = $2, body = $5'
            ' WHERE pk = $3 AND rk = $4 AND etag = $6'
        USING etags[i], sums[i], pks[i], rks[i], bodies[i], olds[i];
    WHEN 3 THEN
        EXECUTE 'DELETE FROM ' || place || ' WHERE pk = $1 AND rk = $2 AND etag = $3'
        USING pks[i], rks[i], olds[i];
    WHEN 4 THEN
        EXECUTE 'INSERT INTO ' || place || ' VALUES ($1, $2, $3, $4, $5) ON CONFLICT (pk, rk) DO UPDATE'
            ' SET etag = excluded.etag, sum = excluded.sum, body = excluded.body'
        USING etags[i], sums[i], pks[i], rks[i], bodies[i];
    ELSE EXECUTE 'DELETE FROM ' || place || ' WHERE pk = $1 AND rk = $2' USING pks[i], rks[i];
    END CASE;
    GET DIAGNOSTICS changed = ROW_COUNT;
    met := changed > 0;"""

_ARRAYS = (
    "numbers integer[], verbs integer[], pks text[], rks text[], etags bigint[], sums integer[],"
    " olds bigint[], bodies bytea[]"
)
_ARRAY_NAMES = "numbers, verbs, pks, rks, etags, sums, olds, bodies"
_BOUND_NAMES = "bound_ops, kinds, bound_names, maxima"
# A refusal is the number of an op; of a bound that was reached, with the kind of the bound before it.
KIND_STEP: Final = 1_000_000

_APPLY = """
CREATE OR REPLACE FUNCTION lucius_store.apply(first integer, last integer, {arrays})
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    place text;
    changed integer;
    met boolean;
BEGIN
    FOR i IN first..last LOOP
        met := NULL;
        CASE numbers[i]{arms}{unplanned}
        END CASE;
        IF NOT coalesce(met, FOUND) AND verbs[i] < 5 THEN
            RAISE EXCEPTION 'op % met another version', i USING ERRCODE = '{conflict}', DETAIL = i;
        END IF;
    END LOOP;
END $$;
"""

# A count is never smaller than what there is: rows that go are not heard of, and once it has come to the
# bound it is taken anew from the rows. Its row is locked until the end of the transaction, so that no other
# adds to what was counted; that is why counts come last, in the order of their names. `kinds`: `RowScope`.
_CHECK_BOUNDS = """
CREATE OR REPLACE FUNCTION lucius_store.check_bounds(
    first integer, last integer, {arrays},
    bound_ops integer[], kinds integer[], names text[], maxima integer[])
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    bound record;
    known integer;
    place text;
BEGIN
    FOR bound IN
        SELECT b.name, b.kind, count(*)::integer AS more, min(b.rows_max) AS rows_max, max(b.op) AS op
        FROM unnest(bound_ops, kinds, names, maxima) AS b (op, kind, name, rows_max)
        WHERE b.op BETWEEN first AND last GROUP BY b.name, b.kind ORDER BY b.name
    LOOP
        LOOP
            SELECT rows_known INTO known FROM lucius_store.counts WHERE name = bound.name FOR UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO lucius_store.counts (name) VALUES (bound.name) ON CONFLICT DO NOTHING;
        END LOOP;
        known := known + bound.more;
        IF known IS NULL OR known > bound.rows_max THEN
            SELECT 'SELECT count(*) FROM lucius_store.' || quote_ident(name) INTO place
            FROM lucius_store.tables WHERE id = numbers[bound.op];
            CASE bound.kind
            WHEN 1 THEN EXECUTE place || ' WHERE pk = $1' INTO known USING pks[bound.op];
            WHEN 2 THEN EXECUTE place INTO known;
            ELSE EXECUTE place || ' WHERE body = $1' INTO known USING bodies[bound.op];
            END CASE;
        END IF;
        IF known > bound.rows_max THEN
            RAISE EXCEPTION 'op % would make one row too many', bound.op
            USING ERRCODE = '{conflict}', DETAIL = bound.kind * {kind_step} + bound.op;
        END IF;
        UPDATE lucius_store.counts SET rows_known = known, used_at = now() WHERE name = bound.name;
    END LOOP;
END $$;
"""

# `ends`: the last op of each caller. `apart`: a caller whose ops are refused leaves those of the others as
# they are. Returns the op at which each caller was refused, or 0; nothing if all were applied.
_COMMIT = """
CREATE OR REPLACE FUNCTION lucius_store.commit(
    writer bigint, this_number bigint, ends integer[], apart boolean, {arrays},
    bound_ops integer[], kinds integer[], bound_names text[], maxima integer[])
RETURNS integer[] LANGUAGE plpgsql AS $$
DECLARE
    first integer := 1;
    at_op text;
    refusals integer[] := '{{}}';
BEGIN
    UPDATE lucius_store.writers SET number = this_number WHERE id = writer AND NOT fenced;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'writer % is unknown or was given up', writer USING ERRCODE = '{fenced}';
    END IF;
    IF NOT apart THEN
        PERFORM lucius_store.apply(1, cardinality(numbers), {names});
        IF cardinality(bound_ops) > 0 THEN
            PERFORM lucius_store.check_bounds(1, cardinality(numbers), {names}, {bounds});
        END IF;
        RETURN NULL;
    END IF;
    PERFORM FROM lucius_store.counts WHERE name = ANY (bound_names) ORDER BY name FOR UPDATE;
    FOR caller IN 1..cardinality(ends) LOOP
        BEGIN
            PERFORM lucius_store.apply(first, ends[caller], {names});
            PERFORM lucius_store.check_bounds(first, ends[caller], {names}, {bounds});
            refusals := refusals || 0;
        EXCEPTION WHEN SQLSTATE '{conflict}' THEN
            GET STACKED DIAGNOSTICS at_op = PG_EXCEPTION_DETAIL;
            refusals := refusals || at_op::integer;
        END;
        first := ends[caller] + 1;
    END LOOP;
    UPDATE lucius_store.writers SET refused = refusals WHERE id = writer;
    RETURN refusals;
END $$;
"""

# For programs of version 1, which know of no bounds.
_COMMIT_1 = """
CREATE OR REPLACE FUNCTION lucius_store.commit(
    writer bigint, this_number bigint, ends integer[], apart boolean, {arrays})
RETURNS integer[] LANGUAGE sql AS $$
    SELECT lucius_store.commit(writer, this_number, ends, apart, {names}, '{{}}', '{{}}', '{{}}', '{{}}')
$$;
"""

# Roles without a login, which an administrator grants to those of processes and people. Where they are not
# there, only the owner may do anything.
ROLES: Final = ("lucius_app", "lucius_reader")
_GRANTS = """
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA lucius_store FROM PUBLIC;
DO $$ BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'lucius_app') THEN
        GRANT USAGE ON SCHEMA lucius_store, lucius TO lucius_app;
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA lucius_store TO lucius_app;
        REVOKE INSERT, UPDATE, DELETE ON lucius_store.schema_version, lucius_store.tables FROM lucius_app;
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA lucius_store TO lucius_app;
        GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA lucius_store TO lucius_app;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'lucius_reader') THEN
        GRANT USAGE ON SCHEMA lucius TO lucius_reader;
        GRANT SELECT ON ALL TABLES IN SCHEMA lucius TO lucius_reader;
    END IF;
END $$;
"""
_CREATE_ROLES = """
DO $$ BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = '{role}') THEN CREATE ROLE {role} NOLOGIN; END IF;
END $$;
"""

BEGIN_WRITER = "INSERT INTO lucius_store.writers DEFAULT VALUES RETURNING id"
PRUNE_WRITERS = "DELETE FROM lucius_store.writers WHERE began_at < now() - interval '1 day'"
# One that is missing is counted anew.
PRUNE_COUNTS = "DELETE FROM lucius_store.counts WHERE used_at < now() - interval '7 days'"
END_WRITER = "DELETE FROM lucius_store.writers WHERE id = $1"
# Waits for a transaction of this writer that is under way; one that comes later is refused.
SETTLE = "UPDATE lucius_store.writers SET fenced = true WHERE id = $1 RETURNING number, refused"
COMMIT = f"SELECT lucius_store.commit({', '.join(f'${n}' for n in range(1, 17))}) AS refused"
CREATE_TABLE = "SELECT lucius_store.create_table($1) AS id"
READ_TABLES = "SELECT id, name FROM lucius_store.tables"
READ_VERSION = "SELECT version, serves_from FROM lucius_store.schema_version"
HAS_SCHEMA = "SELECT to_regclass('lucius_store.schema_version') IS NOT NULL AS found"
READ_SERVER = "SELECT current_setting('server_version_num')::integer AS version"


_NO_SCHEMA: Final = "the database has no schema of Lucius"
_APPLY_COMMAND: Final = "`lucius provision postgres --apply`"


class UnusableDatabase(StoreUnavailable):
    """The schema is missing, too old or too new. The text says what to do."""


class SchemaState(msgspec.Struct, frozen=True, kw_only=True):
    """`version`: None where there is none."""

    version: int | None
    serves_from: int = 0

    @property
    def later(self) -> bool:
        return self.version is not None and self.version > SCHEMA_VERSION

    @property
    def fault(self) -> str | None:
        if self.version is None:
            return f"{_NO_SCHEMA}: run {_APPLY_COMMAND}"
        if self.version < SCHEMA_VERSION:
            return (
                f"the schema of the database is too old (version {self.version}, this Lucius needs "
                f"{SCHEMA_VERSION}): run {_APPLY_COMMAND}"
            )
        if self.serves_from > SCHEMA_VERSION:
            return (
                f"the schema of the database is too new (version {self.version}, which serves Lucius from "
                f"version {self.serves_from} on; this one has {SCHEMA_VERSION}): update Lucius"
            )
        return None


async def read_state(connection: Connection) -> SchemaState:
    """Raises `CallFailed`, and `UnusableDatabase` for a server that is too old."""
    ((server,),) = await connection.fetch(READ_SERVER)
    if server < SERVER_VERSION_MIN:
        raise UnusableDatabase(f"PostgreSQL 14 or later is needed, this is {server // 10_000}")
    ((found,),) = await connection.fetch(HAS_SCHEMA)
    rows = await connection.fetch(READ_VERSION) if found else ()
    if not rows:
        return SchemaState(version=None)
    return SchemaState(version=rows[0]["version"], serves_from=rows[0]["serves_from"])


def table_statement(name: str) -> str:
    check_table(name)  # the name goes into the text: nothing but letters, digits, '-' and '_' may
    return _TABLE.format(name=name)


def function_statements(tables: Sequence[tuple[int, str]]) -> str:
    """Tables by their numbers. Those named here are planned once in each session."""
    arms = "".join(_ARM.format(id=number, t=f'lucius_store."{name}"') for number, name in tables)
    apply = _APPLY.format(arms=arms, unplanned=_ARM_UNPLANNED, arrays=_ARRAYS, conflict=CONFLICT_STATE)
    bounds = _CHECK_BOUNDS.format(arrays=_ARRAYS, conflict=CONFLICT_STATE, kind_step=KIND_STEP)
    names = {"arrays": _ARRAYS, "names": _ARRAY_NAMES, "bounds": _BOUND_NAMES}
    commit = _COMMIT.format(**names, fenced=FENCED_STATE, conflict=CONFLICT_STATE)
    return (
        apply
        + bounds
        + commit
        + _COMMIT_1.format(**names)
        + _CREATE_TABLE.format(lock=LOCK_KEY, table=_TABLE)
    )


async def migrate(connection: Connection, tables: Tables) -> None:
    """Brings the database to this version, whatever it has. May be repeated; of several processes that come
    at once one does it. Raises `CallFailed`, and `UnusableDatabase` for a schema that is too new."""
    await connection.run("BEGIN")
    await connection.fetch("SELECT pg_advisory_xact_lock($1)", LOCK_KEY)
    state = await read_state(connection)
    if state.later:
        await connection.run("ROLLBACK")
        if state.fault is not None:
            raise UnusableDatabase(state.fault)
        return
    await connection.run(_BASE)
    names: list[str] = list(msgspec.structs.astuple(tables))
    for name in names:
        await connection.run(table_statement(name))
        await connection.fetch(
            "INSERT INTO lucius_store.tables (name, planned) VALUES ($1, true)"
            " ON CONFLICT (name) DO UPDATE SET planned = true",
            name,
        )
    planned = await connection.fetch("SELECT id, name FROM lucius_store.tables WHERE planned ORDER BY id")
    await connection.run(function_statements([(row["id"], row["name"]) for row in planned]))
    await connection.run(view_statements(tables))
    await connection.run(_GRANTS)
    await connection.fetch(
        "INSERT INTO lucius_store.schema_version (version, serves_from) VALUES ($1, $2)"
        " ON CONFLICT (one) DO UPDATE SET version = excluded.version, serves_from = excluded.serves_from",
        SCHEMA_VERSION,
        SERVES_FROM,
    )
    await connection.run("COMMIT")


async def create_roles(connection: Connection) -> None:
    """Those that are not there. Raises `CallFailed` where the role may not create roles."""
    for role in ROLES:
        await connection.run(_CREATE_ROLES.format(role=role))


async def missing_roles(connection: Connection) -> list[str]:
    rows = await connection.fetch("SELECT rolname FROM pg_roles WHERE rolname = ANY($1)", list(ROLES))
    there = {row["rolname"] for row in rows}
    return [role for role in ROLES if role not in there]


async def missing_tables(connection: Connection, tables: Tables) -> list[str]:
    """Those that are named and that the functions do not know."""
    rows = await connection.fetch("SELECT name FROM lucius_store.tables WHERE planned")
    there = {row["name"] for row in rows}
    return [name for name in msgspec.structs.astuple(tables) if name not in there]


async def check_schema(connection: Connection, tables: Tables, *, creates: bool) -> None:
    """Raises `UnusableDatabase` or `CallFailed`. `creates`: a schema that is missing is made. One that is too
    old is left as it is: which versions of Lucius go on beside the next schema is for an operator to know."""
    state = await read_state(connection)
    if state.fault is None:
        return
    if not creates or state.version is not None:
        raise UnusableDatabase(state.fault)
    try:
        await migrate(connection, tables)
    except CallFailed as failed:
        if failed.outage is not Outage.LASTING:
            raise
        fault = _NO_SCHEMA if _APPLY_COMMAND in failed.reason else state.fault
        raise UnusableDatabase(f"{fault} ({failed.reason})") from None

"""A ledger in PostgreSQL with very many jobs, within minutes: copies of the jobs that are there.

In: a database in which no process of Lucius is at work. Out: the same with so many jobs in all. A copy has
the rows that its model has, in every table, under an id and an idempotency key of its own, with their
checksums. Where the database counts rows, it counts them anew.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from lucius.ledger.checksums import partition_sum
from lucius.ledger.postgres.connection import Connection, PostgresAddress
from lucius.ledger.postgres.keys import key_from_text
from lucius.ledger.postgres.writer import sum_of

SCHEMA: Final = "lucius_store"
COLUMNS: Final = ("etag", "sum", "pk", "rk", "body")
# Copied in one statement: with what belongs to them, some tens of megabytes.
COPIES_AT_ONCE: Final = 10_000
_JOB_ID: Final = re.compile(rb"job_([0-9a-z]{26})")
_HASH: Final = re.compile(rb'"idempotency_hash":"([0-9a-f]{64})"')
_ALPHABET: Final = b"0123456789abcdefghjkmnpqrstvwxyz"
_NUMBER_DIGITS: Final = 8

_Model = tuple[int, bytes, bytes, bytes]
"""A row: its ETag, partition, key and body."""
_Record = tuple[int, int, str, str, bytes]


async def fill(url: str, jobs: int) -> None:
    """`jobs`: with those that are there, of which there must be some."""
    address = PostgresAddress(url=url, statement_seconds_max=600.0)
    connection = await Connection.open(address, plans=False)
    try:
        models, hashes = await _models(connection)
        ids = sorted(hashes)
        for first in range(len(ids), jobs, COPIES_AT_ONCE):
            numbers = range(first, min(jobs, first + COPIES_AT_ONCE))
            for table, of_jobs in models.items():
                records = _copies(table, of_jobs, ids, hashes, numbers)
                await connection.session.copy_records_to_table(
                    table, records=records, columns=COLUMNS, schema_name=SCHEMA
                )
        await connection.run("DELETE FROM lucius_store.counts")
    finally:
        await connection.close()


async def _models(connection: Connection) -> tuple[dict[str, dict[bytes, list[_Model]]], dict[bytes, bytes]]:
    """The rows of each job by table and id, and the hash of each job's idempotency key."""
    models: dict[str, dict[bytes, list[_Model]]] = {}
    hashes: dict[bytes, bytes] = {}
    for (table,) in await connection.fetch("SELECT name FROM lucius_store.tables"):
        for etag, pk, rk, body in await connection.fetch(
            f'SELECT etag, pk, rk, body FROM lucius_store."{table}"'  # noqa: S608 - names are ours
        ):
            model = etag, pk.encode(), rk.encode(), body
            found = next(filter(None, map(_JOB_ID.search, model[1:])), None)
            if found is None:
                continue
            models.setdefault(table, {}).setdefault(found[1], []).append(model)
            if (named := _HASH.search(body)) is not None:
                hashes[found[1]] = named[1]
    return models, hashes


def _copies(
    table: str,
    models: dict[bytes, list[_Model]],
    ids: Sequence[bytes],
    hashes: dict[bytes, bytes],
    numbers: Sequence[int],
) -> Iterator[_Record]:
    """Of all jobs by turns. A copy's id lies behind that of its model and before that of any later job."""
    for number in numbers:
        job_id = ids[number % len(ids)]
        kept = hashes[job_id]
        new_id = job_id[:-_NUMBER_DIGITS] + _digits(number)
        new_hash = kept[:-_NUMBER_DIGITS] + b"%0*x" % (_NUMBER_DIGITS, number)
        for etag, pk, rk, body in models.get(job_id, ()):
            partition = pk.replace(job_id, new_id).decode()
            key = rk.replace(job_id, new_id).replace(kept, new_hash).decode()
            copied = body.replace(job_id, new_id).replace(kept, new_hash)
            place = partition_sum(table, key_from_text(partition))
            yield etag, sum_of(etag, place, key_from_text(key), copied), partition, key, copied


def _digits(number: int) -> bytes:
    digits = bytearray(_NUMBER_DIGITS)
    for place in range(_NUMBER_DIGITS - 1, -1, -1):
        number, digit = divmod(number, len(_ALPHABET))
        digits[place] = _ALPHABET[digit]
    return bytes(digits)

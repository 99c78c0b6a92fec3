"""What no commit may ask of any table store, checked before anything is written.

In: the ops of one commit. Out: the places of its rows, or the fault: `ValueError` for what is wrong on every
store (a programming fault, never a race), `SpanRefused` where the commit is fine but this store cannot span.
Knows the port only.
"""

import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from lucius.ledger.store import KEY_LENGTH_MAX, OPS_MAX, Op, SpanRefused

Places = set[tuple[str, str, str]]
"""Table, partition and key of each row."""

TABLE_LENGTH_MAX = 63
_TABLE_NAME = re.compile(r"(?!sqlite_)[a-z][a-z0-9_-]*", re.IGNORECASE | re.ASCII)


@lru_cache(maxsize=1024)
def check_table(table: str) -> None:
    if len(table) > TABLE_LENGTH_MAX or _TABLE_NAME.fullmatch(table) is None:
        raise ValueError(f"not a table name: {table!r}")


def check_key(key: str) -> None:
    if len(key) > KEY_LENGTH_MAX:
        raise ValueError(f"a key of {len(key)} characters is longer than {KEY_LENGTH_MAX}: {key[:40]!r}…")
    if not key.isascii():
        key.encode()  # a lone surrogate is no text; UnicodeEncodeError is a ValueError


def check_limit(limit: int) -> None:
    if limit < 0:
        raise ValueError(f"a query cannot return {limit} rows")


def check_commit(ops: Sequence[Op], *, spans: bool) -> Places:
    """The places of the rows that the ops name."""
    places = {(op.table, op.partition, op.key) for op in ops}
    if len(places) != len(ops):
        raise ValueError("the same row is named twice in one commit")
    if not places:
        return places
    tables, partitions, keys = map(set, zip(*places, strict=True))
    for table in tables:
        check_table(table)
    keys |= partitions
    joined = "".join(keys)
    if len(joined) > KEY_LENGTH_MAX or not joined.isascii():  # else each of them is sound, too
        for key in keys:
            check_key(key)
    for op in ops:
        if type(op.body) is not bytes:
            raise TypeError(f"a body is bytes, not {type(op.body).__name__}")
    if len(ops) > OPS_MAX:
        _check_counts(ops)
    if not spans and (len(tables) > 1 or len(partitions) > 1):
        raise SpanRefused("this store commits within one table and one partition")
    return places


def _check_counts(ops: Sequence[Op]) -> None:
    for (table, partition), count in Counter((op.table, op.partition) for op in ops).items():
        if count > OPS_MAX:
            raise ValueError(f"{count} ops on {table}/{partition} in one commit, at most {OPS_MAX}")

"""The page of all columns, docs/reference/ledger.md, written from their declaration.

In: the declaration. Out: Markdown. `python -m lucius.ledger.reference` prints it; a test keeps the file
current.
"""

import sys
from collections.abc import Iterator
from typing import Final

from lucius.ledger.columns import COLUMNS, Column, ColumnType, RowKind

INTRODUCTION: Final = """\
# The ledger, for people

*Written from the declarations in `src/lucius/ledger/columns.py` by `python -m lucius.ledger.reference > \\
docs/reference/ledger.md`.*

Every job, step, outbox row, event and idempotency key can be read without Lucius. The columns below are
computed from a row's body. Lucius never reads them: to change one changes nothing, and the
[HTTP API](../openapi.json) says the same for programs.

On SQLite the five kinds are **views**. They can be read while Lucius runs, by any SQLite from 3.38 on:

```
sqlite3 .lucius/lucius.db "select state, count(*) from jobs group by 1"
sqlite3 .lucius/lucius.db "select o.topic, o.sent_at, o.payload from outbox o \\
  join jobs j on j.job_id = o.jobId where j.tenant_id = 'acme' order by o.created_at desc limit 5"
```

A view shows rows of every version and of both layouts (`LUCIUS_STORAGE_BACKEND`). It is computed when it is
read: a query over 100,000 jobs takes some seconds, one for a single `job_id` none. A row that is damaged
shows its key, and null in every other column. A ledger from before has its views once Lucius has opened it.

On Azure's tables they are **columns of the entity** beside its body, written in the same operation; see
[Lucius on Azure](../guides/azure.md#looking-at-rows) for the tables and for a query. A column is left out
where it is null. A row that an older version wrote gets its columns when it is written next.

| type | SQLite | Azure |
|---|---|---|
"""

TYPES: Final = {
    ColumnType.TEXT: ("text", "`Edm.String`"),
    ColumnType.INTEGER: ("integer", "`Edm.Int64`"),
    ColumnType.TIME: (
        "text, `2026-01-27T10:02:30.123Z`, which sorts as time does and which `datetime()` takes",
        "`Edm.DateTime`",
    ),
    ColumnType.JSON: ("text for `json_extract()`", "`Edm.String`"),
}

AFTER_TYPES: Final = """
*Asked for by* is the paragraph of the specification that names the field; – marks what was added.
"""

KINDS: Final = {
    RowKind.JOBS: "One row for each job: its JOB row.",
    RowKind.STEPS: (
        "One row for each step of a job: its STEP rows. On the temporal engine a step is `INITIATED` once its"
        " attempt is recorded. Until its directive leaves, `lease_expires_at` is provisional: the deadline of"
        " the ACK, had it left at once."
    ),
    RowKind.OUTBOX: (
        "One row for each attempt, the intention to send its directive. `state` is `PENDING`, `SENT`,"
        " `FAILED_FINAL`, or `CANCELLED`: the job was cancelled before the directive left. The directive in"
        " `payload` is as far as it is pinned when the attempt begins; its sender adds the callback token,"
        " the addresses of callbacks and the deadline of the ACK."
    ),
    RowKind.EVENTS: (
        "One row for each event of a job. The row's key is the event's number, by which writers that come at"
        " once are told apart; `event_key` is the key that sorts by time"
        " ([decision 070](../decisions/070-columns-for-people.md))."
    ),
    RowKind.IDEMPOTENCY: (
        "One row for each idempotency key in use, in the partition of its tenant. The partition key is the"
        " tenant's identity, the row key the hash."
    ),
}


def page() -> str:
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield INTRODUCTION + "\n".join(
        f"| {kind.value} | {sqlite} | {azure} |" for kind, (sqlite, azure) in TYPES.items()
    )
    yield AFTER_TYPES
    for kind, columns in COLUMNS.items():
        yield f"## {kind.value}\n"
        yield f"{KINDS[kind]}\n"
        yield "| column | type | what | asked for by |"
        yield "|---|---|---|---|"
        yield from map(_line, columns)
        yield ""


def _line(column: Column) -> str:
    return f"| `{column.name}` | {column.type.value} | {column.says} | {column.seed or '–'} |"


if __name__ == "__main__":
    sys.stdout.write(page())

"""Every row of every table: whether the file is sound, and whether each row can be read."""

from collections.abc import Awaitable
from typing import Any, Protocol, runtime_checkable

import msgspec

from lucius.assembly.doctor.findings import EXAMPLES_MAX, Checked, Finding, Severity, error, number_of
from lucius.assembly.doctor.installation import Installation
from lucius.ledger.index_audit import is_later
from lucius.ledger.names import Tables
from lucius.ledger.row_check import check_row
from lucius.ledger.rows import is_tombstone
from lucius.ledger.store import Scanned
from lucius.settings import StoreKind

PAGE_ROWS_MAX = 500
REPORT_EVERY_ROWS = 20_000
CLOCK_AHEAD_MS_MAX = 120_000


@runtime_checkable
class Sound(Protocol):
    """A store that can tell whether its file is sound."""

    def integrity(self) -> Awaitable[list[str]]: ...


async def check_integrity(installation: Installation) -> tuple[Checked, list[Finding]]:
    if not isinstance(installation.store, Sound):
        return Checked(check="integrity", looked="the service answers for it", findings=0), []
    installation.report("integrity: SQLite reads the whole file")
    faults = await installation.store.integrity()
    found: list[Finding] = []
    if faults:
        found.append(
            Finding(
                check="integrity",
                severity=Severity.ERROR,
                text="SQLite finds the file damaged",
                mend=f"Stop Lucius, keep {installation.place}, and put a copy back with `lucius restore`.",
                count=len(faults),
                examples=tuple(faults[:EXAMPLES_MAX]),
            )
        )
    return Checked(check="integrity", looked="the whole file", findings=len(found)), found


class _Findings:
    """What was met on the way through all rows."""

    def __init__(self) -> None:
        self.rows = 0
        self.bad: list[str] = []
        self.later: list[str] = []
        self.ahead: list[str] = []
        self.ahead_ms = 0


async def check_rows(installation: Installation) -> tuple[Checked, list[Finding]]:
    seen, tables = _Findings(), installation.settings.tables
    for table in msgspec.structs.astuple(tables):
        after: tuple[str, str] | None = None
        while rows := await installation.store.scan(table, after=after, limit=PAGE_ROWS_MAX):
            for row in rows:
                _look_at(installation, tables, table, row, seen)
            if len(rows) < PAGE_ROWS_MAX:
                break
            after = rows[-1].place
    found = _findings(installation, seen)
    return Checked(check="rows", looked=number_of(seen.rows, "row"), findings=len(found)), found


def _look_at(installation: Installation, tables: Tables, table: str, row: Scanned, seen: _Findings) -> None:
    seen.rows += 1
    if seen.rows % REPORT_EVERY_ROWS == 0:
        installation.report(f"rows: {seen.rows:,} read")
    place = f"{table}/{row.partition}/{row.key}"
    if not row.damage and is_later(row.body):
        seen.later.append(place)
    elif (fault := row_fault(tables, table, row)) is not None:
        seen.bad.append(f"{place}: {fault}")
    elif row.key == "JOB" or table == tables.jobs:
        ahead_ms = _made_at_ms(row) - installation.now_ms()
        if ahead_ms > CLOCK_AHEAD_MS_MAX:
            seen.ahead.append(place)
            seen.ahead_ms = max(seen.ahead_ms, ahead_ms)


def _findings(installation: Installation, seen: _Findings) -> list[Finding]:
    found: list[Finding] = []
    if seen.bad:
        text = f"{number_of(len(seen.bad), 'row')} cannot be read: only their jobs suffer"
        mend = (
            f"`{installation.command('doctor --repair')}` writes index rows anew. "
            f"A job's own rows come back from a copy only: {_restoring(installation)}"
        )
        found.append(_sampled(error("rows", text, mend), seen.bad))
    if seen.later:
        text = f"{number_of(len(seen.later), 'row')} were written by a later version of Lucius"
        mend = "Run that version here, too: this one leaves them alone."
        found.append(_sampled(error("rows", text, mend), seen.later))
    if seen.ahead:
        minutes = seen.ahead_ms // 60_000
        text = (
            f"{number_of(len(seen.ahead), 'job')} were written up to {minutes:,} minutes from now: "
            "the clock was ahead"
        )
        mend = "Set the clock, and keep it right: timedatectl set-ntp true"
        found.append(_sampled(error("clock", text, mend), seen.ahead))
    return found


def _restoring(installation: Installation) -> str:
    if installation.is_file:
        return "`lucius restore`"
    if installation.settings.store is StoreKind.POSTGRESQL:
        return "`pg_restore` into an empty database"
    return "of the tables, or of an export by `lucius import`"


def _sampled(finding: Finding, places: list[str]) -> Finding:
    return msgspec.structs.replace(finding, count=len(places), examples=tuple(places[:EXAMPLES_MAX]))


_job_times = msgspec.json.Decoder(dict[str, Any])


def _made_at_ms(row: Scanned) -> int:
    if is_tombstone(row.body):
        return 0
    at_ms = _job_times.decode(row.body).get("created_at_ms", 0)
    return at_ms if isinstance(at_ms, int) else 0


def row_fault(tables: Tables, table: str, row: Scanned) -> str | None:
    """Why a row cannot be read; None if it can."""
    return check_row(tables, table, row.partition, row.as_row())

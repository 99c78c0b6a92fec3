"""Rows that cannot be read: known by name, counted, logged once, and left where they are.

In: what was wrong with a row when it was met. Out: the rows that are in quarantine now, and whether a job
is. A row gets in when a read meets it and out when it can be read again, which `review` looks at: it was
restored, repaired or removed. Nothing here writes to the store.

A job is in quarantine if its JOB, STEP or latest OUTBOX row cannot be read. Its index rows are then passed
over, so that nothing tries it again and again in front of the others.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import structlog

from lucius.ledger.store import Place, Row, StoreError, TableStore, Unreadable

ROWS_MAX = 10_000  # that are known by name; more are only counted
REVIEW_ROWS_MAX = 200
PAGES_MAX = 1_000
LATER = "later_version"
DAMAGED = "damaged"

T = TypeVar("T")

log = structlog.get_logger("lucius.quarantine")


class QuarantinedRow(msgspec.Struct, frozen=True, kw_only=True):
    """`job_id`: of the job that stands still for it; None where the row alone is missed."""

    table: str
    partition: str
    key: str
    reason: str
    later_version: bool
    job_id: str | None = None


class Quarantine:
    def __init__(self) -> None:
        self._rows: dict[Place, QuarantinedRow] = {}
        self._jobs: Counter[str] = Counter()
        self._reviewed = 0
        self.findings: tuple[str, ...] = ()
        """What the last look at the whole store found; kept until the next."""
        self.noted: Counter[str] = Counter()
        """How many rows were ever put here, by kind."""

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def total(self) -> int:
        return len(self._rows)

    def rows(self) -> list[QuarantinedRow]:
        return list(self._rows.values())

    def holds_job(self, job_id: str) -> bool:
        return job_id in self._jobs

    def note(self, place: Place, fault: Unreadable, *, job_id: str | None = None) -> None:
        """`job_id`: of the job that cannot go on without the row."""
        there = self._rows.get(place)
        if there is not None and (job_id is None or there.job_id is not None):
            return
        if there is None and len(self._rows) >= ROWS_MAX:
            return
        self._rows[place] = QuarantinedRow(
            table=place.table,
            partition=place.partition,
            key=place.key,
            reason=fault.reason,
            later_version=fault.later,
            job_id=job_id,
        )
        if job_id is not None:
            self._jobs[job_id] += 1
        if there is None:
            self.noted[LATER if fault.later else DAMAGED] += 1
            words = log.bind(table=place.table, partition=place.partition, key=place.key, jobId=job_id)
            event = "row_of_later_version_left_alone" if fault.later else "row_quarantined"
            words.warning(event, reason=fault.reason)

    def let_go(self, place: Place) -> None:
        row = self._rows.pop(place, None)
        if row is None:
            return
        if row.job_id is not None:
            self._jobs[row.job_id] -= 1
            self._jobs += Counter()  # drops what is at zero
        log.info("row_left_quarantine", table=place.table, partition=place.partition, key=place.key)

    def let_job_go(self, job_id: str) -> None:
        """All its rows were read just now."""
        if job_id in self._jobs:
            for place in [place for place, row in self._rows.items() if row.job_id == job_id]:
                self.let_go(place)

    async def review(self, store: TableStore, problem: Callable[[str, str, Row], str | None]) -> None:
        """Looks at some of the rows again, and lets go of those that are gone or can be read by now.
        `problem`: why a row cannot be read."""
        places = list(self._rows)
        start = self._reviewed if self._reviewed < len(places) else 0
        for place in places[start : start + REVIEW_ROWS_MAX]:
            try:
                row = await store.get(place.table, place.partition, place.key)
            except StoreError:
                return
            if row is None or problem(place.table, place.partition, row) is None:
                self.let_go(place)
        self._reviewed = start + REVIEW_ROWS_MAX

    def words(self) -> str | None:
        """One line for readiness; None if nothing is here."""
        found: list[str] = []
        later = sum(row.later_version for row in self._rows.values())
        if damaged := len(self._rows) - later:
            found.append(f"{_rows(damaged)} cannot be read and {_are(damaged)} in quarantine")
        if later:
            found.append(f"{_rows(later)} of a later version of Lucius {_are(later)} left alone")
        if self._jobs:
            jobs = len(self._jobs)
            found.append(f"{jobs} {'job stands' if jobs == 1 else 'jobs stand'} still for it")
        if self.findings:
            count = len(self.findings)
            problems = "1 problem" if count == 1 else f"{count} problems"
            found.append(f"the check of the whole store found {problems}, first: {self.findings[0]}")
        return "; ".join(found) + "; `lucius doctor` names each" if found else None


def _rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count} rows"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


async def read_page(
    store: TableStore,
    quarantine: Quarantine,
    table: str,
    partition: str,
    decode: Callable[[Row], T | None],
    *,
    start: str = "",
    end: str | None = None,
    limit: int,
) -> list[T]:
    """The next `limit` rows of a range that can be read, in key order; fewer only at its end. `decode` gives
    None for a row to pass over."""
    found: list[T] = []
    for _ in range(PAGES_MAX):
        asked = limit - len(found)
        rows = await store.query(table, partition, start=start, end=end, limit=asked)
        _decode_into(found, rows, quarantine, table, partition, decode)
        if len(rows) < asked or len(found) >= limit:
            break
        after = f"{rows[-1].key}\x00"
        if after <= start:
            break  # a damaged key, beyond which the store does not go on
        start = after
    return found


def _decode_into(
    found: list[T],
    rows: Sequence[Row],
    quarantine: Quarantine,
    table: str,
    partition: str,
    decode: Callable[[Row], T | None],
) -> None:
    for row in rows:
        try:
            value = decode(row)
        except Unreadable as fault:
            quarantine.note(Place(table, partition, row.key), fault)
        else:
            if value is not None:
                found.append(value)

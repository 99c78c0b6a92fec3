"""What must hold once everything is quiet again, read from the ledger itself and from what was done.

In: where the ledger is, the jobs that were accepted, the work that was done. Out: what is wrong, in words;
nothing if all is well. Reads the SQLite file or PostgreSQL's tables without the code that it checks.
"""

import sqlite3
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from lucius_lab.chaos.work import DoneWork
from lucius_lab.emulators.postgres import find_programs

FINDINGS_MAX = 20
ENDS = {"JOB_SUCCEEDED": "SUCCEEDED", "JOB_CANCELLED": "CANCELLED", "JOB_FAILED": "FAILED_FINAL"}
# Rows that stand around open jobs only, each with the table that holds them.
LEFT_OVER = {
    "in-flight slots": "lucius_inflight",
    "due rows": "lucius_due",
    "dispatch rows": "lucius_dispatch",
}

Row = tuple[str, dict[str, Any]]
# The data folder that holds the file of the ledger, or the URL of its database.
LedgerPlace = Path | str


class LedgerRows(Protocol):
    def count(self, table: str) -> int:
        """Of a table without any write so far: none."""
        ...

    def rows(self, keys: str) -> Iterator[Row]:
        """Rows of all jobs whose key is like this, in the order of their keys."""
        ...

    def close(self) -> None: ...


def ledger_rows(place: LedgerPlace) -> LedgerRows:
    return LedgerFile(place) if isinstance(place, Path) else LedgerDatabase(place)


class LedgerFile:
    """The ledger as it lies in the file."""

    def __init__(self, data: Path) -> None:
        self._connection = sqlite3.connect(f"file:{data / 'lucius.db'}?mode=ro", uri=True)

    def close(self) -> None:
        self._connection.close()

    def count(self, table: str) -> int:
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            return 0
        found = self._connection.execute(f'SELECT count(*) FROM "{table}"')  # noqa: S608 - names are ours
        return int(found.fetchone()[0])

    def rows(self, keys: str) -> Iterator[Row]:
        text = "SELECT pk, body FROM lucius_ledger WHERE rk LIKE ? ORDER BY pk, rk"
        for partition, body in self._connection.execute(text, (keys,)):
            yield partition, msgspec.json.decode(body)


class LedgerDatabase:
    """The ledger as PostgreSQL's own client shows it."""

    def __init__(self, url: str) -> None:
        options = ("--no-psqlrc", "--quiet", "--tuples-only", "--no-align")
        self._command = [str(find_programs() / "psql"), *options, url]

    def close(self) -> None:
        pass

    def count(self, table: str) -> int:
        return int(self._lines(f'SELECT count(*) FROM lucius_store."{table}"')[0])  # noqa: S608 - names are ours

    def rows(self, keys: str) -> Iterator[Row]:
        body = "json_build_array(pk, convert_from(body, 'UTF8')::json)"
        text = f"SELECT {body} FROM lucius_store.lucius_ledger WHERE rk LIKE '{keys}' ORDER BY pk, rk"  # noqa: S608 - keys are ours
        for line in self._lines(text):
            yield msgspec.json.decode(line, type=tuple[str, dict[str, Any]])

    def _lines(self, text: str) -> list[bytes]:
        ended = subprocess.run(  # noqa: S603 - our own arguments
            [*self._command, "--command", text], check=True, capture_output=True
        )
        return ended.stdout.splitlines()


def left_over(place: LedgerPlace) -> list[str]:
    """What only open jobs have, counted."""
    ledger = ledger_rows(place)
    try:
        counts = {name: ledger.count(table) for name, table in LEFT_OVER.items()}
    finally:
        ledger.close()
    return [f"{count} {name} are left" for name, count in counts.items() if count]


def check(place: LedgerPlace, accepted: Mapping[str, str], effects: Path, steps: int) -> list[str]:
    """`accepted`: each job's id and the state it was seen to end in. `steps`: of a job that succeeds."""
    ledger = ledger_rows(place)
    try:
        jobs = dict(ledger.rows("JOB"))
        found = [*_jobs(jobs, accepted), *_events(ledger, jobs), *_outbox(ledger)]
        found += _effects(ledger, _done(effects))
        found += _steps(ledger, jobs, steps)
    finally:
        ledger.close()
    return [*left_over(place), *found][:FINDINGS_MAX]


def _jobs(jobs: Mapping[str, dict[str, Any]], accepted: Mapping[str, str]) -> Iterator[str]:
    for job_id in jobs.keys() - accepted.keys():
        yield f"{job_id} is there, and no client was told of it"
    for job_id, state in accepted.items():
        job = jobs.get(job_id)
        if job is None:
            yield f"{job_id} was accepted, and is lost"
        elif job["state"] != state or state not in ENDS.values():
            yield f"{job_id} was seen as {state}, and is {job['state']}"


def _events(ledger: LedgerRows, jobs: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Numbers without a gap, one creation, one end, each step's success once."""
    numbers: dict[str, list[int]] = defaultdict(list)
    once: Counter[tuple[str, str, str | None]] = Counter()
    ends: Counter[str] = Counter()
    for job_id, event in ledger.rows("EVENT#%"):
        numbers[job_id].append(event["seq"])
        if event["type"] in ("JOB_CREATED", "STEP_SUCCEEDED"):
            once[job_id, event["type"], event.get("step_id")] += 1
        if event["type"] in ENDS:
            ends[job_id] += 1
            if job_id in jobs and jobs[job_id]["state"] != ENDS[event["type"]]:
                yield f"{job_id} has {event['type']}, and is {jobs[job_id]['state']}"
    for (job_id, kind, step_id), count in once.items():
        if count != 1:
            yield f"{job_id} {step_id or ''} has {count} times {kind}"
    for job_id in jobs:
        if ends[job_id] != 1:
            yield f"{job_id} ended {ends[job_id]} times"
        if numbers[job_id] != list(range(1, len(numbers[job_id]) + 1)):
            yield f"{job_id} has gaps in its events: {numbers[job_id]}"


def _outbox(ledger: LedgerRows) -> Iterator[str]:
    for job_id, row in ledger.rows("OUTBOX#%"):
        if row.get("state", "PENDING") == "PENDING":  # what is as usual is left out of a row
            yield f"{job_id} has an outbox row that still waits"


def _done(effects: Path) -> list[DoneWork]:
    lines = effects.read_bytes().splitlines() if effects.exists() else []
    return [msgspec.json.decode(line, type=DoneWork) for line in lines]


def _effects(ledger: LedgerRows, done: Iterable[DoneWork]) -> Iterator[str]:
    """No attempt was worked on twice, and each result is the work of the attempt that the ledger names."""
    times = Counter((one.job_id, one.step_id, one.attempt_no, one.lease_id) for one in done)
    for key, count in times.items():
        if count != 1:
            yield f"{key} was done {count} times"
    for job_id, step in ledger.rows("STEP#%"):
        if step["state"] != "SUCCEEDED":
            continue
        winner = DoneWork(
            job_id=job_id,
            step_id=step["step_id"],
            attempt_no=step["attempt_no"],
            lease_id=step["lease_id"],
            pid=0,
        )
        if not times[job_id, winner.step_id, winner.attempt_no, winner.lease_id]:
            yield f"{job_id} {winner.step_id} succeeded by an attempt that no worker worked on"
        if (step.get("result_ref") or {}).get("uri") != winner.uri:
            yield f"{job_id} {winner.step_id} has the result of another attempt"


def _steps(ledger: LedgerRows, jobs: Mapping[str, dict[str, Any]], steps: int) -> Iterator[str]:
    succeeded = Counter(job_id for job_id, step in ledger.rows("STEP#%") if step["state"] == "SUCCEEDED")
    for job_id, job in jobs.items():
        if job["state"] == "SUCCEEDED" and succeeded[job_id] != steps:
            yield f"{job_id} succeeded with {succeeded[job_id]} of {steps} steps"

"""What must hold once everything is quiet again, read from the file of the ledger and from what was done.

In: the data folder, the jobs that were accepted, the work that was done. Out: what is wrong, in words;
nothing if all is well. Reads the SQLite file itself, so that it does not believe the code it checks.
"""

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lucius_lab.chaos.work import DoneWork

FINDINGS_MAX = 20
ENDS = {"JOB_SUCCEEDED": "SUCCEEDED", "JOB_CANCELLED": "CANCELLED", "JOB_FAILED": "FAILED_FINAL"}
# Rows that stand around open jobs only, each with the table that holds them.
LEFT_OVER = {
    "in-flight slots": "lucius_inflight",
    "due rows": "lucius_due",
    "dispatch rows": "lucius_dispatch",
}

Row = tuple[str, dict[str, Any]]


class LedgerFile:
    """The ledger as it lies in the file."""

    def __init__(self, data: Path) -> None:
        self._connection = sqlite3.connect(f"file:{data / 'lucius.db'}?mode=ro", uri=True)

    def close(self) -> None:
        self._connection.close()

    def count(self, table: str) -> int:
        """Of a table without any write so far: none."""
        if not self._connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone():
            return 0
        found = self._connection.execute(f'SELECT count(*) FROM "{table}"')  # noqa: S608 - names are ours
        return int(found.fetchone()[0])

    def rows(self, keys: str) -> Iterator[Row]:
        """Rows of all jobs whose key is like this, in the order of their keys."""
        text = "SELECT pk, body FROM lucius_ledger WHERE rk LIKE ? ORDER BY pk, rk"
        for partition, body in self._connection.execute(text, (keys,)):
            yield partition, msgspec.json.decode(body)


def left_over(data: Path) -> list[str]:
    """What only open jobs have, counted."""
    ledger_file = LedgerFile(data)
    try:
        counts = {name: ledger_file.count(table) for name, table in LEFT_OVER.items()}
    finally:
        ledger_file.close()
    return [f"{count} {name} are left" for name, count in counts.items() if count]


def check(data: Path, accepted: Mapping[str, str], effects: Path, steps: int) -> list[str]:
    """`accepted`: each job's id and the state it was seen to end in. `steps`: of a job that succeeds."""
    ledger_file = LedgerFile(data)
    try:
        jobs = dict(ledger_file.rows("JOB"))
        found = [*_jobs(jobs, accepted), *_events(ledger_file, jobs), *_outbox(ledger_file)]
        found += _effects(ledger_file, _done(effects))
        found += _steps(ledger_file, jobs, steps)
    finally:
        ledger_file.close()
    return [*left_over(data), *found][:FINDINGS_MAX]


def _jobs(jobs: Mapping[str, dict[str, Any]], accepted: Mapping[str, str]) -> Iterator[str]:
    for job_id in jobs.keys() - accepted.keys():
        yield f"{job_id} is there, and no client was told of it"
    for job_id, state in accepted.items():
        job = jobs.get(job_id)
        if job is None:
            yield f"{job_id} was accepted, and is lost"
        elif job["state"] != state or state not in ENDS.values():
            yield f"{job_id} was seen as {state}, and is {job['state']}"


def _events(ledger_file: LedgerFile, jobs: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """Numbers without a gap, one creation, one end, each step's success once."""
    numbers: dict[str, list[int]] = defaultdict(list)
    once: Counter[tuple[str, str, str | None]] = Counter()
    ends: Counter[str] = Counter()
    for job_id, event in ledger_file.rows("EVENT#%"):
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


def _outbox(ledger_file: LedgerFile) -> Iterator[str]:
    for job_id, row in ledger_file.rows("OUTBOX#%"):
        if row.get("state", "PENDING") == "PENDING":  # what is as usual is left out of a row
            yield f"{job_id} has an outbox row that still waits"


def _done(effects: Path) -> list[DoneWork]:
    lines = effects.read_bytes().splitlines() if effects.exists() else []
    return [msgspec.json.decode(line, type=DoneWork) for line in lines]


def _effects(ledger_file: LedgerFile, done: Iterable[DoneWork]) -> Iterator[str]:
    """No attempt was worked on twice, and each result is the work of the attempt that the ledger names."""
    times = Counter((one.job_id, one.step_id, one.attempt_no, one.lease_id) for one in done)
    for key, count in times.items():
        if count != 1:
            yield f"{key} was done {count} times"
    for job_id, step in ledger_file.rows("STEP#%"):
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


def _steps(ledger_file: LedgerFile, jobs: Mapping[str, dict[str, Any]], steps: int) -> Iterator[str]:
    succeeded = Counter(job_id for job_id, step in ledger_file.rows("STEP#%") if step["state"] == "SUCCEEDED")
    for job_id, job in jobs.items():
        if job["state"] == "SUCCEEDED" and succeeded[job_id] != steps:
            yield f"{job_id} succeeded with {succeeded[job_id]} of {steps} steps"

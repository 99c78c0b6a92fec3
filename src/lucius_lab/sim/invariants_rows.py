"""The rows around one job: due, dispatch, slot, lists, DLQ, retention; and what they should be.

In: a job's record. Out: nothing, or a `Violation` that names the row that is missing or too much.
"""

import msgspec

from lucius.core.decide import is_dispatchable
from lucius.core.model import Job, JobRecord, Outbox
from lucius.core.states import Engine, JobState
from lucius.ledger.names import (
    dispatch_key,
    dispatch_partition,
    lane_list,
    lane_partition,
    month_of,
    newest_first_key,
    tenant_list,
    time_key,
)
from lucius.ledger.rows import DispatchRow, ListRow
from lucius_lab.sim.watch import Violation

Place = tuple[str, str]
"""Partition and key of a row."""

_dispatch_row = msgspec.json.Decoder(DispatchRow)
_list_row = msgspec.json.Decoder(ListRow)


class JobRows:
    """The rows around one job, as they stand."""

    __slots__ = (
        "dispatch",
        "dlq",
        "due",
        "due_place",
        "found_by",
        "left",
        "listed",
        "lists",
        "retention",
        "slots",
        "waiting",
    )

    def __init__(self) -> None:
        self.due: dict[Place, bytes] = {}
        self.dispatch: dict[Place, bytes] = {}
        self.slots: set[str] = set()
        self.lists: dict[Place, bytes] = {}
        self.dlq: Place | None = None
        self.left = False
        self.retention: Place | None = None
        self.found_by: set[Place] = set()  # the lists of its end, and the names by which it is searched
        self.listed = False  # it stands in its lists, as far as the rows were looked at
        # Where its rows belong, kept while what that follows from is the same.
        self.due_place: tuple[int, Place] | None = None
        self.waiting: tuple[Outbox, Place] | None = None

    def __repr__(self) -> str:
        return f"due {[*self.due]} dispatch {[*self.dispatch]} slots {[*self.slots]} lists {[*self.lists]}"

    @property
    def stands(self) -> bool:
        """Whether there is a row that an open job needs."""
        return bool(self.due or self.dispatch or self.slots or self.lists or self.found_by)

    def check_open(self, record: JobRecord, *, spans: bool) -> None:
        """What an open job relies on is there; where commits span, nothing else is."""
        job = record.job
        if job.tenant_norm not in self.slots:
            raise Violation("I5", job.job_id, "an open job has no in-flight slot")
        due_at_ms = job.due_at_ms
        if due_at_ms is None or self.due_place_of(job, due_at_ms) not in self.due:
            raise Violation("I6", job.job_id, f"an open job has no due row at {due_at_ms}")
        waiting = self.dispatch_place_of(record)
        if waiting is not None and waiting not in self.dispatch:
            raise Violation("I6", job.job_id, f"a row that waits is not in the dispatch index: {waiting}")
        self._check_listed(job)
        if spans:
            self._check_found_by(job)
            self._check_nothing_else(record, waiting)

    def check_ended(self, job: Job, *, at_rest: bool) -> None:
        """Nothing is left but the lists, the way to retention and, for the finally failed, the DLQ. A row
        that schedules a notice to the job's workflow stays until the notice was sent."""
        if self.slots:
            raise Violation("I5", job.job_id, "an ended job holds an in-flight slot")
        if self.due and (at_rest or job.engine is Engine.OUTBOX):
            raise Violation("I6", job.job_id, f"an ended job stands in the due index: {sorted(self.due)}")
        if self.dispatch:
            raise Violation(
                "I6", job.job_id, f"an ended job stands in the dispatch index: {sorted(self.dispatch)}"
            )
        self._check_listed(job)
        self._check_found_by(job)
        for body in set(self.lists.values()):
            if _list_row.decode(body).state != job.state:
                raise Violation("I6", job.job_id, "a list does not show the job's end")
        self.check_dlq(job)
        if self.retention != retention_place(job):
            raise Violation("I6", job.job_id, f"retention will not find the job: {self.retention}")

    def check_dlq(self, job: Job) -> None:
        if job.state is JobState.FAILED_FINAL:
            if self.dlq != dlq_place(job) and not self.left:
                raise Violation("I6", job.job_id, "a finally failed job is not in the DLQ")
        elif self.dlq is not None:
            raise Violation("I6", job.job_id, f"a job that is {job.state} stands in the DLQ")

    def due_place_of(self, job: Job, due_at_ms: int) -> Place:
        kept = self.due_place
        if kept is None or kept[0] != due_at_ms:
            kept = self.due_place = due_at_ms, (lane_partition(job.lane), time_key(due_at_ms, job.job_id))
        return kept[1]

    def dispatch_place_of(self, record: JobRecord) -> Place | None:
        """Where a row that waits for dispatch stands."""
        outbox = record.outbox
        if outbox is None or not is_dispatchable(record):
            return None
        kept = self.waiting
        if kept is None or kept[0] is not outbox:
            place = (
                dispatch_partition(outbox.service, outbox.lane),
                dispatch_key(record.job.tenant_norm, _rank_ms(record.job, outbox), record.job.job_id),
            )
            kept = self.waiting = outbox, place
        return kept[1]

    def _check_listed(self, job: Job) -> None:
        """Looks again only after a list row was written: where they belong never changes."""
        if self.listed:
            return
        places = list_places(job)
        for place in places:
            if place not in self.lists:
                raise Violation("I6", job.job_id, f"the job is missing from the list {place[0]}")
        if len(self.lists) != len(places):
            raise Violation("I6", job.job_id, f"the job stands in other lists: {sorted(self.lists)}")
        self.listed = True

    def _check_found_by(self, job: Job) -> None:
        if self.found_by != found_by_places(job):
            raise Violation(
                "I6", job.job_id, f"the job is searched for and listed by {sorted(self.found_by)}"
            )

    def _check_nothing_else(self, record: JobRecord, waiting: Place | None) -> None:
        job_id = record.job.job_id
        if len(self.due) != 1:
            raise Violation("I6", job_id, f"an open job stands in the due index at {sorted(self.due)}")
        if len(self.dispatch) != (waiting is not None):
            raise Violation("I6", job_id, f"the dispatch index holds {sorted(self.dispatch)}")
        if waiting is not None and record.outbox is not None:
            row = _dispatch_row.decode(self.dispatch[waiting])
            if row.lease_id != record.outbox.lease_id:
                raise Violation("I6", job_id, "the dispatch index names another attempt")
        if self.dlq is not None:
            raise Violation("I6", job_id, "an open job stands in the DLQ")


def list_places(job: Job) -> tuple[Place, Place]:
    key, month = newest_first_key(job.created_at_ms, job.job_id), month_of(job.created_at_ms)
    return (tenant_list(job.tenant_norm, month), key), (lane_list(job.lane, month), key)


def found_by_places(job: Job) -> set[Place]:
    names = {name.strip().lower()[:64] for name in (job.doc_id, job.correlation_id) if name}
    at = newest_first_key(job.created_at_ms, job.job_id)
    places = {
        (f"search#{lane_partition(job.lane)}", f"{name}\x1f{at}") for name in names if name not in job.job_id
    }
    if job.state in (JobState.FAILED_FINAL, JobState.CANCELLED):
        month = month_of(job.created_at_ms)
        for owner in (f"tenant#{job.tenant_norm}", f"lane#{lane_partition(job.lane)}"):
            places.add((f"ended#{job.state}#{owner}#{month}", at))
    return places


def dlq_place(job: Job) -> Place:
    return lane_partition(job.lane), newest_first_key(_ended_at_ms(job), job.job_id)


def retention_place(job: Job) -> Place:
    return lane_partition(job.lane), time_key(_ended_at_ms(job), job.job_id)


def _ended_at_ms(job: Job) -> int:
    return job.updated_at_ms if job.completed_at_ms is None else job.completed_at_ms


def _rank_ms(job: Job, outbox: Outbox) -> int:
    """A level of priority is worth five minutes; what the bus refused has the lowest."""
    level = 0 if outbox.failures else job.priority
    return max(0, outbox.due_at_ms + (5 - level) * 300_000)

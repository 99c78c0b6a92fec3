"""The truth about one job, followed commit by commit.

In: the job's own rows as they are written. Out: the record they make, or a `Violation` that names the rule.
What a commit writes is predicted by folding its events into the record before it, and compared as bytes. Only
where the bytes differ is a row decoded: to say what is wrong, or to let progress pass that is in no event.

Rules whose breach `fold` itself might share (a terminal row that changes, a lease used twice, routing that
moves, an attempt begun while paused) are checked on the rows and events alone.
"""

from collections import Counter

import msgspec

from lucius.core.fold import IllegalMove, fold
from lucius.core.model import Event, Job, JobRecord, Json, Step
from lucius.core.replies import EVIDENCE_MAX, is_stopped
from lucius.core.routing import LANES, lane_of
from lucius.core.states import EVIDENCE, JOB_TERMINAL, STEP_ACTIVE, STEP_TERMINAL, Fact, JobState, StepState
from lucius.ledger.rows import decode_event, decode_job, decode_outbox, decode_step, encode
from lucius_lab.sim.invariants_events import wrong_end, wrong_words
from lucius_lab.sim.watch import Violation

replace = msgspec.structs.replace

AttemptKey = tuple[str, int]
"""A step's id and the number of the attempt."""
ReplyKey = tuple[str, str, int, str]
"""A reply's type, step, attempt number and lease."""

_STILL = frozenset({JobState.PAUSED, JobState.PAUSING, JobState.CANCELLING})
# Looked up once: the members of an enum are slow to reach, and every event asks for some.
_BEGUN, _PUBLISHED, _ACKED, _SUCCEEDED, _FAILED = (
    Fact.ATTEMPT_BEGUN,
    Fact.DIRECTIVE_PUBLISHED,
    Fact.STEP_ACKED,
    Fact.STEP_SUCCEEDED,
    Fact.STEP_FAILED,
)
_PAUSED, _CANCELLING = JobState.PAUSED, JobState.CANCELLING
_PAUSES, _IS_PAUSING = Fact.JOB_PAUSING, JobState.PAUSING
_CANCELS = frozenset({Fact.JOB_CANCELLING, Fact.JOB_CANCELLED})


class JobInvariants:
    """One job's rows, and what one commit writes of them."""

    __slots__ = (
        "acked",
        "asked",
        "begun",
        "cancelled",
        "events",
        "evidence",
        "evidence_count",
        "implied",
        "job_body",
        "job_deletion",
        "job_id",
        "leases",
        "lost",
        "outbox_body",
        "record",
        "resulted",
        "seq",
        "started",
        "steps",
        "stopped",
        "trail",
    )

    def __init__(self, job_id: str, leases: dict[str, tuple[str, str, int]]) -> None:
        """`leases`: every lease ever given, to which job, step and attempt; shared by all jobs."""
        self.job_id = job_id
        self.leases = leases
        self.record: JobRecord | None = None
        self.seq = 0
        self.trail: list[bytes] = []  # every event that was committed
        self.job_deletion = False
        self.started: list[str] = []  # leases whose directive this commit says has left
        self.begun = 0
        self.cancelled = False  # a client asked for it
        self.asked: set[str] = set()  # leases of attempts that a pause asked to stop
        self.lost: Event | None = None  # the last step that failed for good
        self.acked: set[AttemptKey] = set()
        self.implied: set[AttemptKey] = set()
        self.resulted: set[AttemptKey] = set()
        self.stopped: set[tuple[str, str, int]] = set()  # ACKs and RESULTs that were told to stop
        self.evidence: Counter[tuple[Fact, ReplyKey]] = Counter()
        self.evidence_count = 0
        # What the commit that is being looked at writes.
        self.job_body: bytes | None = None
        self.steps: list[tuple[int, bytes]] = []
        self.outbox_body: bytes | None = None
        self.events: list[bytes] = []

    def apply(self) -> bool:
        """Takes the rows that were written in one commit; whether they made the job."""
        created = False
        if self.job_deletion and self.job_body is None:
            pass  # evidence that comes while the job is being forgotten goes with it
        elif self.record is None:
            created = self._created()
        elif self.record.job.state in JOB_TERMINAL:
            self._after_the_end(self.record)
        else:
            self._changed(self.record)
        self.job_body = self.outbox_body = None
        self.steps.clear()
        self.trail += self.events
        self.events.clear()
        return created

    def broken(self, name: str, text: str) -> Violation:
        return Violation(name, self.job_id, text)

    # Creation

    def _created(self) -> bool:
        if self.job_body is None:
            raise self.broken("I3", "rows were written for a job that does not exist")
        job = decode_job.of_bytes(self.job_body)
        steps = tuple(decode_step.of_bytes(body) for _, body in sorted(self.steps))
        outbox = None if self.outbox_body is None else decode_outbox.of_bytes(self.outbox_body)
        self._check_birth(job, steps)
        folded = self._folded(JobRecord(job=_unborn(job), steps=tuple(map(_unbegun, steps))))
        expected = replace(folded, job=replace(folded.job, version=job.version, due_at_ms=job.due_at_ms))
        record = JobRecord(job=job, steps=steps, outbox=outbox)
        if expected != record:
            raise self.broken("I10", "the rows of the new job are not what its events say")
        _check_one_active(self, record)
        self.record = record
        return True

    def _check_birth(self, job: Job, steps: tuple[Step, ...]) -> None:
        if [step.step_index for step in steps] != list(range(len(steps))):
            raise self.broken("I3", "the job was created without all its steps")
        first = decode_event.of_bytes(self.events[0]) if self.events else None
        if first is None or first.type is not Fact.JOB_CREATED:
            raise self.broken("I10", "the trail does not begin with JOB_CREATED")
        if len(first.data["steps"]) != len(steps):
            raise self.broken("I3", "the job was created without all its steps")
        for step in steps:
            routing = step.routing
            if not routing.lane == job.lane == lane_of(routing.routing_key_used) < LANES:
                raise self.broken("I8", f"{step.step_id} is not on the lane of its routing key")
            if routing.resolved_mode is not job.mode:
                raise self.broken("I8", f"{step.step_id} has another mode than its job")

    # Changes

    def _changed(self, before: JobRecord) -> None:
        if self.job_body is None:
            raise self.broken("I10", "an open job's rows were written without its JOB row")
        folded = self._folded(before)
        self._check_steps(before, folded)
        record = self._compared(before, folded)
        if record.steps is not before.steps:
            _check_one_active(self, record)
        if record.job.attempts_total != self.begun:
            raise self.broken(
                "I7", f"{self.begun} attempts were begun, and {record.job.attempts_total} counted"
            )
        if (wrong := wrong_end(record)) is not None:
            raise self.broken("I13", wrong)
        self.record = record

    def _folded(self, record: JobRecord) -> JobRecord:
        """The record after this commit's events, each of which is checked on its way."""
        for body in self.events:
            event = decode_event.of_bytes(body)
            if event.seq != self.seq + 1:
                raise self.broken("I10", f"event {self.seq} was followed by event {event.seq}")
            self.seq = event.seq
            self.cancelled = self.cancelled or event.type in _CANCELS
            acked, lost = bool(self.acked or self.implied), self.lost
            self._note(record, event)
            if (wrong := wrong_words(record, event, acked=acked, lost=lost)) is not None:
                raise self.broken("I13", f"{event.type} of {event.step_id or 'the job'}: {wrong}")
            try:
                record = fold(record, event)
            except IllegalMove as fault:
                raise self.broken("I10", str(fault)) from fault
        return record

    def _note(self, before: JobRecord, event: Event) -> None:
        fact = event.type
        if fact is _BEGUN:
            self.begun += 1
            self._check_attempt(before, event)
            return
        if fact is _FAILED:
            self.lost = event
        if fact in EVIDENCE:
            self._note_evidence(event)
            return
        if before.job.state is _PAUSED and _is_of_age(event):
            raise self.broken("I12", "the job aged while it was paused")
        if fact is _PAUSES:
            self._note_pause(before.current)
        if event.step_id is not None and event.attempt_no is not None:
            self._note_of_attempt(before, event, (event.step_id, event.attempt_no))

    def _note_of_attempt(self, before: JobRecord, event: Event, key: AttemptKey) -> None:
        fact, step = event.type, before.step(key[0])
        if fact is _PUBLISHED:
            if step is not None and step.lease_id is not None:
                self.started.append(step.lease_id)
                if before.job.state is _PAUSED:
                    self._note_pause(step)
        elif fact is _ACKED:
            (self.implied if event.data.get("implied") else self.acked).add(key)
            if self._tells_to_stop(before, step):
                self.stopped.add(("ACK", *key))
        elif fact is _SUCCEEDED or event.data.get("reason") == "RESULT":
            self.resulted.add(key)
            if self._tells_to_stop(before, step):
                self.stopped.add(("RESULT", *key))
            if is_stopped(event) and (step is None or step.lease_id not in self.asked):
                raise self.broken("I7", f"attempt {key} does not count, and no pause asked it to stop")

    def _note_pause(self, step: Step | None) -> None:
        if step is not None and step.stop_on_pause and step.lease_id is not None:
            self.asked.add(step.lease_id)

    def _tells_to_stop(self, before: JobRecord, step: Step | None) -> bool:
        state = before.job.state
        asked = state is _IS_PAUSING and step is not None and step.lease_id in self.asked
        return asked or state is _CANCELLING

    def _note_evidence(self, event: Event) -> None:
        self.evidence_count += 1
        if self.evidence_count > EVIDENCE_MAX:
            raise self.broken("I11", f"more than {EVIDENCE_MAX} answers are kept as evidence")
        reply: dict[str, Json] = event.data["reply"]
        key = (reply["type"], event.step_id or "", event.attempt_no or 0, reply.get("lease_id", ""))
        self.evidence[event.type, key] += 1

    def _check_attempt(self, before: JobRecord, event: Event) -> None:
        step, lease_id = before.step(event.step_id or ""), event.data["lease_id"]
        if step is None or event.attempt_no != step.attempt_no + 1:
            raise self.broken("I7", f"{event.step_id} went on to attempt {event.attempt_no}")
        if event.attempt_no - step.attempts_forgiven > step.policy.max_attempts:
            raise self.broken("I7", f"{step.step_id} began attempt {event.attempt_no}, more than allowed")
        if lease_id in self.leases:
            raise self.broken("I7", f"{lease_id} of {self.leases[lease_id]} was used again")
        self.leases[lease_id] = (self.job_id, step.step_id, event.attempt_no)
        if before.job.state in _STILL:
            raise self.broken("I12", f"an attempt began while the job was {before.job.state}")

    def _check_steps(self, before: JobRecord, after: JobRecord) -> None:
        """What must hold of a step that changed, in every case."""
        if after.job.lane != before.job.lane or after.job.mode is not before.job.mode:
            raise self.broken("I8", "the job's lane or mode changed")
        if after.steps is before.steps:
            return
        changed = 0
        for old, new in zip(before.steps, after.steps, strict=True):
            if new is old:
                continue
            changed += 1
            if old.state in STEP_TERMINAL:
                raise self.broken("I1", f"{old.step_id} changed after it had ended as {old.state}")
            if new.routing is not old.routing and new.routing != old.routing:
                raise self.broken("I8", f"the routing of {old.step_id} changed")
            if new.attempt_no == old.attempt_no and new.lease_id != old.lease_id:
                raise self.broken("I7", f"attempt {old.attempt_no} of {old.step_id} got another lease")
        if changed > len(self.steps):
            raise self.broken("I10", f"{changed} steps changed and {len(self.steps)} were written")

    def _compared(self, before: JobRecord, folded: JobRecord) -> JobRecord:
        """The record as it was written, which is what its events say."""
        steps, silent = folded.steps, False
        for index, body in self.steps:
            if encode(steps[index]) != body:
                row = self._silent(steps[index], decode_step.of_bytes(body))
                steps = (*steps[:index], row, *steps[index + 1 :])
                silent = True
        job = self._compared_job(before.job, folded.job, silent=silent)
        self._check_outbox(before, folded)
        return JobRecord(job=job, steps=steps, outbox=folded.outbox)

    def _compared_job(self, before: Job, folded: Job, *, silent: bool) -> Job:
        """Each commit counts the version on. When the job is looked at next is decided beside its events, and
        mostly stays; progress in the row alone moves the time of its last change."""
        assert self.job_body is not None
        version = before.version + 1
        job = replace(folded, version=version)
        if encode(job) == self.job_body:
            return job
        shown = decode_job.of_bytes(self.job_body)
        if shown.version != version:
            raise self.broken("I10", f"version {before.version} was followed by {shown.version}")
        changed_at_ms = shown.updated_at_ms if silent else folded.updated_at_ms
        job = replace(job, due_at_ms=shown.due_at_ms, updated_at_ms=changed_at_ms)
        if shown != job:
            raise self.broken("I10", f"JOB is not what its events say: {_difference(job, shown)}")
        return job

    def _silent(self, folded: Step, row: Step) -> Step:
        """Progress between two progress events is in the row alone."""
        if not self.events and folded.progress_event_at_ms is not None:
            shown = replace(
                folded,
                progress=row.progress,
                progress_note=row.progress_note,
                lease_expires_at_ms=row.lease_expires_at_ms,
                updated_at_ms=row.updated_at_ms,
            )
            # Progress renews up to `max_duration`, and takes no time away that stood (the ACK may have led
            # beyond).
            renewed_ms = (row.attempt_began_at_ms or 0) + row.policy.max_duration_ms
            bounded = (row.lease_expires_at_ms or 0) <= max(renewed_ms, folded.lease_expires_at_ms or 0)
            if row == shown and row.state is StepState.PROCESSING and bounded:
                return row
        if row == folded:
            return row  # the same value in other bytes
        name = "I8" if row.routing != folded.routing else "I10"
        raise self.broken(name, f"{row.step_id} is not what its events say: {_difference(folded, row)}")

    def _check_outbox(self, before: JobRecord, folded: JobRecord) -> None:
        outbox = folded.outbox
        if self.outbox_body is None:
            if outbox is not before.outbox and outbox != before.outbox:
                raise self.broken("I10", "the outbox row changed and was not written")
        elif outbox is None or encode(outbox) != self.outbox_body:
            row = decode_outbox.of_bytes(self.outbox_body)
            if row != outbox:
                raise self.broken("I10", f"the outbox row is not what its events say: {row}")

    # After the end

    def _after_the_end(self, before: JobRecord) -> None:
        """Nothing changes but where the job stands in the due index; what comes is evidence."""
        for body in self.events:
            event = decode_event.of_bytes(body)
            if event.type not in EVIDENCE:
                raise self.broken("I1", f"{event.type} happened to a job that had ended")
            if event.seq != self.seq + 1:
                raise self.broken("I10", f"event {self.seq} was followed by event {event.seq}")
            self.seq = event.seq
            self._note_evidence(event)
        for index, body in self.steps:
            if decode_step.of_bytes(body) != before.steps[index]:
                raise self.broken("I1", f"{before.steps[index].step_id} changed after the job's end")
        if self.outbox_body is not None and decode_outbox.of_bytes(self.outbox_body) != before.outbox:
            raise self.broken("I1", "the outbox row changed after the job's end")
        if self.job_body is None:
            return
        row = decode_job.of_bytes(self.job_body)
        expected = replace(before.job, version=row.version, due_at_ms=row.due_at_ms)
        if row != expected:
            raise self.broken("I1", f"JOB changed after its end: {_difference(before.job, row)}")
        self.record = replace(before, job=row)


def _check_one_active(truth: JobInvariants, record: JobRecord) -> None:
    active = [step.step_id for step in record.steps if step.state in STEP_ACTIVE]
    if len(active) > 1:
        raise truth.broken("I2", f"{' and '.join(active)} are active at once")


def _is_of_age(event: Event) -> bool:
    return event.type is Fact.SLA_ESCALATED or event.data.get("reason") == "SLA"


def _unborn(job: Job) -> Job:
    """The job as it was before its first event."""
    return replace(
        job,
        state=JobState.QUEUED,
        resume_to=None,
        current_step_id=None,
        current_step_index=None,
        attempts_total=0,
        completed_at_ms=None,
        error_code=None,
        error_message=None,
        final_output=None,
        seq=0,
        evidence_count=0,
        version=0,
        due_at_ms=None,
    )


def _unbegun(step: Step) -> Step:
    """The step as it was before its job's first event: a rerun's may have succeeded already."""
    if step.state is StepState.SUCCEEDED and step.attempt_no == 0:
        return step
    return replace(
        step,
        state=StepState.PENDING,
        attempt_no=0,
        attempt_began_at_ms=None,
        lease_id=None,
        lease_expires_at_ms=None,
        acked=False,
        updated_at_ms=step.created_at_ms,
    )


def _difference(expected: msgspec.Struct, row: msgspec.Struct) -> str:
    changed = [
        f"{name} {getattr(expected, name)!r} → {getattr(row, name)!r}"
        for name in expected.__struct_fields__
        if getattr(expected, name) != getattr(row, name)
    ]
    return ", ".join(changed)

"""The answers that clients and services got, checked against the trail of the job.

In: each 202, each outcome of a reply, each reply that was settled on the bus. Out: nothing, or a `Violation`.
"""

from collections import Counter

import msgspec

from lucius.core.draft import Outcome
from lucius.core.replies import evidence_max
from lucius.core.states import Fact
from lucius.sdk.directive import Key
from lucius_lab.sim.invariants_job import JobInvariants, ReplyKey
from lucius_lab.sim.watch import Violation

_EVIDENCE_OF = {
    Outcome.DUPLICATE.value: Fact.REPLY_DUPLICATE,
    Outcome.RECORDED.value: Fact.REPLY_LATE,
    Outcome.STALE.value: Fact.REPLY_STALE,
    Outcome.OTHER_TENANT.value: Fact.REPLY_REFUSED,
}
_APPLIED, _DUPLICATE = Outcome.APPLIED.value, Outcome.DUPLICATE.value


class _SeenReply(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    job_id: str = msgspec.field(name="jobId")
    step_id: str = msgspec.field(name="stepId")
    attempt_no: int
    lease_id: str


_reply = msgspec.json.Decoder(_SeenReply)


class ReplyInvariants:
    def __init__(self) -> None:
        self.jobs: dict[str, JobInvariants] = {}
        self._leases: dict[str, tuple[str, str, int]] = {}
        self._answers: dict[str, str] = {}
        self._asked: dict[str, str] = {}
        self._new: set[str] = set()
        self._told: Counter[tuple[str, str, ReplyKey]] = Counter()

    def answered(self, job_id: str, *, key: str, duplicate: bool) -> None:
        truth = self.jobs.get(job_id)
        if truth is None or truth.record is None:
            raise Violation("I3", job_id, "a client was told of a job that does not exist")
        if not duplicate:
            if job_id in self._new:
                raise Violation("I3", job_id, "two clients were told that they made this job")
            self._new.add(job_id)
        if not key:
            return
        if self._asked.setdefault(job_id, key) != key:
            raise Violation("I3", job_id, f"{key!r} was answered with the job of {self._asked[job_id]!r}")
        known = self._answers.setdefault(key, job_id)
        if known != job_id:
            if not self.jobs[known].job_deletion:
                raise Violation("I3", job_id, f"the key of {known} made a second job")
            self._answers[key] = job_id

    def replied(self, attempt: Key, kind: str, outcome: str, *, stop: bool) -> None:
        job_id, step_id, attempt_no, lease_id = attempt
        truth = self.jobs.get(job_id)
        if truth is None or truth.record is None:
            raise Violation("I11", job_id, f"a {kind} for a job that does not exist was {outcome}")
        reply = (kind, step_id, attempt_no, lease_id)
        if outcome == _APPLIED:
            if self._leases.get(lease_id) != (job_id, step_id, attempt_no):
                raise Violation("I7", job_id, f"a {kind} under a lease that is not its attempt's counted")
            if not _counted(truth, reply):
                raise Violation("I7", job_id, f"a {kind} of an attempt that was over counted: {reply}")
            if kind == "PROGRESS":
                # Its outcome is not in the trail. Checked is only that no service is told to stop without a
                # reason.
                wrong = stop and not truth.cancelled and lease_id not in truth.asked
            else:
                wrong = stop is not ((kind, step_id, attempt_no) in truth.stopped)
            if wrong:
                raise Violation("I11", job_id, f"a {kind} was told stop: {stop}: {reply}")
            return
        if not stop and (kind == "RESULT" or outcome != _DUPLICATE):
            raise Violation("I11", job_id, f"a {kind} that was {outcome} was not told to stop: {reply}")
        fact = _EVIDENCE_OF.get(outcome)
        if fact is None or truth.job_deletion or truth.evidence_count >= evidence_max(kind):
            return
        self._told[job_id, outcome, reply] += 1
        if truth.evidence[fact, reply] < self._told[job_id, outcome, reply]:
            raise Violation("I11", job_id, f"a {kind} was {outcome}, and the trail does not say so: {reply}")

    def settled(self, body: bytes, *, now_ms: int) -> None:
        said = _reply.decode(body)
        reply = (said.type, said.step_id, said.attempt_no, said.lease_id)
        truth = self.jobs.get(said.job_id)
        if truth is None or truth.record is None:
            raise Violation("I11", said.job_id, f"a reply for a job that does not exist was settled: {reply}")
        if truth.job_deletion or truth.evidence_count >= evidence_max(said.type):
            return
        ours = self._leases.get(said.lease_id) == (said.job_id, said.step_id, said.attempt_no)
        if ours and _counted(truth, reply):
            return
        if not any((fact, reply) in truth.evidence for fact in _EVIDENCE_OF.values()):
            raise Violation("I11", said.job_id, f"a reply was settled before its commit: {reply}")


def _counted(truth: JobInvariants, reply: ReplyKey) -> bool:
    """Whether the trail shows that this reply of this attempt was applied."""
    kind, attempt = reply[0], reply[1:3]
    if kind == "ACK":
        return attempt in truth.acked
    if kind == "RESULT":
        return attempt in truth.resulted
    return attempt in truth.acked or attempt in truth.implied

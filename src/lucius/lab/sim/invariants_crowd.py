"""How much is under way at once, held against the bounds of the deployment.

In: each job before and after a commit, and each life of a process that begins. Out: nothing, or a
`Violation`. Where several processes open the door each keeps the limits by what it knows, so that they may
add up; a relay that begins anew does not know what the one before it has out, and may fill the window once
more.
"""

from collections import Counter

from lucius.core.model import JobRecord
from lucius.core.states import JOB_TERMINAL, Mode, OutboxState, StepState
from lucius.intake.admission import Limits
from lucius.lab.sim.watch import Violation


class Crowd:
    def __init__(self, limits: Limits, window: int) -> None:
        self._limits = limits
        self._window = window
        self._doors: set[str] = set()
        self._relays = 0  # lives of them
        self._open: Counter[str] = Counter()
        self._burst = 0
        self._unacked: dict[tuple[str, int], set[str]] = {}

    def started(self, name: str, *, opens: bool, relays: bool) -> None:
        if opens:
            self._doors.add(name)
        self._relays += relays

    def changed(self, before: JobRecord | None, after: JobRecord) -> None:
        was_open = before is not None and before.job.state not in JOB_TERMINAL
        is_open = after.job.state not in JOB_TERMINAL
        if is_open is not was_open:
            self._count(after, 1 if is_open else -1)
        if before is not None and before.outbox is not None:
            place = (before.outbox.service, before.outbox.lane)
            self._unacked.get(place, set()).discard(after.job.job_id)
        if is_open and after.outbox is not None:
            self._note_window(after)

    def _count(self, record: JobRecord, by: int) -> None:
        job, limits, doors = record.job, self._limits, len(self._doors)
        self._open[job.tenant_norm] += by
        self._burst += by if job.mode is Mode.BURST else 0
        over = (
            ("the tenant's", self._open[job.tenant_norm], limits.tenant_max),
            ("all", self._open.total(), limits.total_max),
            ("all BURST", self._burst, limits.burst_max),
        )
        for whose, found, most in over:
            if by > 0 and found > most * doors:
                raise Violation("I14", job.job_id, f"{found} of {whose} jobs are in flight, of {most}")

    def _note_window(self, record: JobRecord) -> None:
        outbox = record.outbox
        assert outbox is not None
        if outbox.state is not OutboxState.SENT:
            return
        if record.steps[outbox.step_index].state is not StepState.INITIATED:
            return
        place, job_id = (outbox.service, outbox.lane), record.job.job_id
        waiting = self._unacked.setdefault(place, set())
        waiting.add(job_id)
        if self._relays and len(waiting) > self._window * self._relays:
            raise Violation("I14", job_id, f"{len(waiting)} directives of {place} are out without an ACK")

"""A second opinion: what should become of jobs, written down from the specification, without the machine.

Plain data and plain rules: no row, no version, no event, nothing of `lucius`. Times are in milliseconds. Each
verb returns what a caller would be answered, and changes the model as the system should have changed.
"""

from dataclasses import dataclass, field

ATTEMPTS_MAX = 3
ACK_MS = 30_000
LEASE_MS = {"ocr": 15 * 60_000, "embedding": 5 * 60_000}
DURATION_MAX_MS = {"ocr": 6 * 3_600_000, "embedding": 2 * 3_600_000}
SLA_MS = 7 * 86_400_000
BACKOFF_ACK_MS = (60_000, 5 * 60_000, 15 * 60_000)
BACKOFF_RESULT_MS = (30_000, 2 * 60_000, 10 * 60_000)
SERVICES = {"OCR": ["ocr"], "OCR_EMBEDDING": ["ocr", "embedding"]}

ENDED = {"SUCCEEDED", "FAILED_FINAL", "CANCELLED"}
UNDER_WAY = {"INITIATED", "PROCESSING"}
ACTIVE = {"DISPATCHING", *UNDER_WAY}

StatusAndCode = tuple[int, str]  # the status, and the code or the outcome


@dataclass
class Step:
    service: str
    state: str = "PENDING"
    attempt: int = 0
    acked: bool = False
    answered: bool = False  # a RESULT was applied to the present attempt
    published: int = 0
    deadline: int | None = None
    retry_at: int | None = None
    progress: int | None = None


@dataclass
class Job:
    tenant: str
    kind: str
    created: int
    steps: list[Step]
    state: str = "DISPATCHING"
    rerun_of: str | None = None
    attempts: int = 0
    acked: bool = False  # anything, ever
    evidence: int = 0
    paused_at: int | None = None
    paused_ms: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def current(self) -> Step | None:
        """The first step that has not succeeded."""
        return next((step for step in self.steps if step.state != "SUCCEEDED"), None)

    @property
    def under_way(self) -> bool:
        return any(step.state in UNDER_WAY for step in self.steps)

    @property
    def due(self) -> list[int]:
        """When time will next ask for something, pauses and the SLA apart."""
        return [at for step in self.steps for at in (step.deadline, step.retry_at) if at is not None]


@dataclass
class LedgerModel:
    tenant_max: int
    now: int
    jobs: dict[str, Job] = field(default_factory=dict)
    keys: dict[tuple[str, str], tuple[object, str]] = field(default_factory=dict)

    # Coming in

    def open_jobs(self, tenant: str) -> int:
        return sum(job.tenant == tenant and not job.ended for job in self.jobs.values())

    def expect(self, tenant: str, key: str, what: object) -> StatusAndCode:
        """What asking for a new job under this key should be answered."""
        if (tenant, key) in self.keys:
            known, _ = self.keys[tenant, key]
            return (202, "duplicate") if known == what else (422, "IDEMPOTENCY_KEY_REUSED")
        return (429, "TENANT_LIMIT") if self.open_jobs(tenant) >= self.tenant_max else (202, "new")

    def create(self, job_id: str, tenant: str, kind: str, key: str, what: object) -> Job:
        job = Job(tenant, kind, self.now, [Step(service) for service in SERVICES[kind]])
        self.keys[tenant, key] = (what, job_id)
        self.jobs[job_id] = job
        self._go_on(job)
        return job

    def rerun_from(self, job_id: str, from_step: str | None) -> int | StatusAndCode:
        """The index of the first step that would run again, or the refusal."""
        job = self.jobs[job_id]
        if not job.ended:
            return 409, "JOB_NOT_TERMINAL"
        undone = next((i for i, step in enumerate(job.steps) if step.state != "SUCCEEDED"), None)
        if from_step is None:
            return (409, "NOTHING_TO_RERUN") if undone is None else undone
        wanted = {f"step_{i + 1:02d}": i for i in range(len(job.steps))}.get(from_step)
        if wanted is None or (undone is not None and wanted > undone):
            return 422, "INVALID_ENVELOPE"
        return wanted

    def expect_rerun(self, job_id: str, first: int, key: str | None) -> StatusAndCode:
        tenant = self.jobs[job_id].tenant
        if key is not None:
            return self.expect(tenant, key, ("rerun", job_id, first))
        _, latest = self.keys.get((tenant, f"rerun#{job_id}"), (None, None))
        if latest is not None and self.jobs[latest].ended:
            del self.keys[tenant, f"rerun#{job_id}"]
        return self.expect(tenant, f"rerun#{job_id}", "rerun")

    def create_rerun(self, job_id: str, new_id: str, first: int, key: str | None) -> Job:
        old = self.jobs[job_id]
        what: object = "rerun" if key is None else ("rerun", job_id, first)
        steps = [Step(s.service, "SUCCEEDED" if i < first else "PENDING") for i, s in enumerate(old.steps)]
        job = Job(old.tenant, old.kind, self.now, steps, rerun_of=job_id)
        self.keys[old.tenant, f"rerun#{job_id}" if key is None else key] = (what, new_id)
        self.jobs[new_id] = job
        self._go_on(job)
        return job

    # Work

    def leasable(self, service: str) -> set[str]:
        return {
            job_id
            for job_id, job in self.jobs.items()
            if job.state != "PAUSED"
            and any(step.service == service and step.state == "DISPATCHING" for step in job.steps)
        }

    def leased(self, job_id: str, service: str) -> Step:
        step = next(step for step in self.jobs[job_id].steps if step.service == service)
        step.state, step.published, step.deadline = "INITIATED", self.now, self.now + ACK_MS
        return step

    def is_current(self, job_id: str, index: int, attempt: int) -> bool:
        job = self.jobs[job_id]
        step = job.steps[index]
        return not job.ended and step.attempt == attempt and step.state in ACTIVE

    def reply(
        self, job_id: str, index: int, attempt: int, kind: str, word: str, number: int = 0
    ) -> StatusAndCode:
        """`word`: the status of a RESULT; `number`: the progress of a PROGRESS. The first rule that fits."""
        job = self.jobs[job_id]
        step = job.steps[index]
        applied = {"ACK": step.acked, "RESULT": step.answered, "PROGRESS": False}[kind]
        if step.attempt != attempt:
            told = 409, "STALE_ATTEMPT"
        elif applied:
            told = 200, "duplicate"
        elif job.ended or step.state in ENDED:
            told = 200, "recorded"
        elif step.state == "FAILED_RETRY":
            told = 409, "STALE_ATTEMPT"
        else:
            self._apply(job, step, kind, word, number)
            return 200, "applied"
        job.evidence += 1
        return told

    def _apply(self, job: Job, step: Step, kind: str, word: str, number: int) -> None:
        if not step.acked:
            step.acked = job.acked = True
            step.state, step.deadline = "PROCESSING", self.now + LEASE_MS[step.service]
            if job.state == "DISPATCHING":
                job.state = "IN_PROGRESS"
        if kind == "PROGRESS":
            # Nobody loses time by telling of progress, though the ACK came late (decision 034).
            latest = max(step.published + DURATION_MAX_MS[step.service], step.deadline or 0)
            step.deadline = min(self.now + LEASE_MS[step.service], latest)
            step.progress = max(number, step.progress or 0)
        if kind == "RESULT":
            step.answered = True
            if word == "SUCCEEDED":
                self._end_step(step, word)
                self._go_on(job)
            elif word == "FAILED_FINAL":
                self._fail(job, step)
            else:
                self._try_again(job, step, BACKOFF_RESULT_MS)

    def _end_step(self, step: Step, state: str) -> None:
        step.state, step.deadline, step.retry_at = state, None, None

    def _try_again(self, job: Job, step: Step, backoff_ms: tuple[int, ...]) -> None:
        if job.state == "CANCELLING":
            self._end_step(step, "CANCELLED")
        elif step.attempt >= ATTEMPTS_MAX:
            self._fail(job, step)
            return
        else:
            self._end_step(step, "FAILED_RETRY")
            step.retry_at = self.now + backoff_ms[min(step.attempt, len(backoff_ms)) - 1]
        self._go_on(job)

    def _fail(self, job: Job, step: Step) -> None:
        self._end_step(step, "FAILED_FINAL")
        if job.state == "CANCELLING":
            self._go_on(job)
        else:
            self._end_job(job, "FAILED_FINAL")

    def _end_job(self, job: Job, state: str) -> None:
        job.state = state
        if state == "CANCELLED":
            for step in job.steps:
                if step.state not in ENDED:
                    self._end_step(step, "CANCELLED")

    def _go_on(self, job: Job) -> None:
        """Whatever may begin or end now does."""
        step = job.current
        if job.ended or job.under_way or job.state == "PAUSED":
            return
        if job.state == "CANCELLING":
            self._end_job(job, "CANCELLED")
        elif step is None:
            self._end_job(job, "SUCCEEDED")
        elif job.state == "PAUSING":
            job.state, job.paused_at = "PAUSED", self.now
        elif step.state == "PENDING" or (step.state == "FAILED_RETRY" and (step.retry_at or 0) <= self.now):
            step.state, step.attempt, step.retry_at = "DISPATCHING", step.attempt + 1, None
            step.acked = step.answered = False
            step.progress = None
            job.attempts += 1

    # Control

    def control(self, job_id: str, verb: str) -> StatusAndCode:
        job = self.jobs[job_id]
        if verb == "cancel":
            return self._cancel(job)
        if job.state == "CANCELLING":
            return 409, "JOB_CANCELLING"
        if job.ended:
            return 409, "JOB_TERMINAL"
        if verb == "pause":
            if job.state not in ("PAUSED", "PAUSING"):
                job.state, job.paused_at = ("PAUSING", None) if job.under_way else ("PAUSED", self.now)
        elif job.state in ("PAUSED", "PAUSING"):
            self._unpause(job)
            job.state = "IN_PROGRESS" if job.acked else "DISPATCHING"
            self._go_on(job)
        return 202, ""

    def _cancel(self, job: Job) -> StatusAndCode:
        if job.ended:
            return (202, "") if job.state == "CANCELLED" else (409, "JOB_TERMINAL")
        self._unpause(job)
        job.state = "CANCELLING"
        self._go_on(job)
        return 202, ""

    def _unpause(self, job: Job) -> None:
        if job.paused_at is not None:
            job.paused_ms += self.now - job.paused_at
            job.paused_at = None

    # Time

    def sweep(self) -> None:
        for job in self.jobs.values():
            if not job.ended:
                self._sweep_job(job)

    def _sweep_job(self, job: Job) -> None:
        step = job.current
        if step is not None and step.deadline is not None and step.deadline <= self.now:
            waits_for_ack = step.state == "INITIATED"
            self._try_again(job, step, BACKOFF_ACK_MS if waits_for_ack else BACKOFF_RESULT_MS)
        age = self.now - job.created - job.paused_ms
        step = job.current
        if (
            step is not None
            and not job.ended
            and job.state not in ("CANCELLING", "PAUSED")
            and age >= 2 * SLA_MS
        ):
            self._fail(job, step)
        self._go_on(job)

"""The small house of `ledger_house` with jobs of the temporal engine.

What a workflow would ask for is asked here from where the ledger says the job stands, by the same process
that is made to die or sleep. So the operations of `ledger_plays` can be played on either engine.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from tests.conformance.ledger_setup import Deployment, Trial, TriedStore, World

from lucius.contracts.internal import StepSignal, position_of
from lucius.core.attempt import AttemptRef
from lucius.core.due import deadline_of
from lucius.core.inputs import BeginAttempt, Expire, Published
from lucius.core.model import JobRecord
from lucius.core.states import Engine, JobState, StepState

ASKS_MAX = 10


class LastSignals:
    """A signaller that always finds a workflow, and keeps the last signal to each."""

    def __init__(self) -> None:
        self.last: dict[str, StepSignal] = {}

    async def signal(self, job_id: str, name: str, signal: StepSignal) -> bool:
        self.last[job_id] = signal
        return True


class WorkedSweeper:
    """The sweeper, and the workflows of all jobs after it."""

    def __init__(self, deployment: "TemporalDeployment", sweep: Callable[[], Awaitable[int]]) -> None:
        self._deployment = deployment
        self._sweep = sweep

    async def sweep(self) -> int:
        met = await self._sweep()
        await self._deployment.look()
        return met


class TemporalDeployment(Deployment):
    def __init__(self, world: "TemporalWorld", store: TriedStore) -> None:
        super().__init__(
            store, world.layout, world.clock, world.ids, engine=Engine.TEMPORAL, signaller=world.signals
        )
        self._ids = world.ids
        sweeper: Any = WorkedSweeper(self, self.sweeper.sweep)
        self.sweeper = sweeper

    async def look(self) -> None:
        """What every workflow asks for now."""
        for job_id in self._ids.jobs:
            for _ in range(ASKS_MAX):
                loaded = await self.ledger.load(job_id, fresh=True)
                ask = None if loaded is None else self._ask(loaded.record)
                if ask is None:
                    break
                await self.writer.apply(job_id, ask)

    def _ask(self, record: JobRecord) -> BeginAttempt | Expire | None:
        step, deadline, now_ms = record.current, deadline_of(record), self.clock()
        if record.job.terminal or step is None or record.job.state is JobState.PAUSED:
            return None
        if deadline is not None:
            if deadline.at_ms > now_ms:
                return None
            lease_id = step.lease_id or ""
            return Expire(
                step_id=step.step_id, attempt_no=step.attempt_no, lease_id=lease_id, reason=deadline.reason
            )
        waits = step.state in (StepState.PENDING, StepState.FAILED_RETRY)
        if not waits or (step.next_attempt_at_ms or 0) > now_ms:
            return None
        return BeginAttempt(
            step_id=step.step_id, attempt_no=step.attempt_no + 1, lease_id=self._ids.new_lease_id()
        )

    async def take(self, service: str, *, directives_max: int = 100) -> list[AttemptRef]:
        """What a worker gets once the workflows have had their directives published."""
        await self.look()
        taken = []
        for job_id in self._ids.jobs:
            loaded = await self.ledger.load(job_id, fresh=True)
            at = None if loaded is None else position_of(loaded.record)
            if loaded is None or at is None or at.stepId is None or at.job_state is JobState.PAUSED:
                continue
            step = loaded.record.step(at.stepId)
            if step is None or step.service != service or not loaded.record.awaits_dispatch(step):
                continue
            attempt = AttemptRef(
                job_id=job_id,
                step_id=step.step_id,
                attempt_no=step.attempt_no,
                lease_id=step.lease_id or "",
            )
            note = Published(step_id=step.step_id, attempt_no=step.attempt_no, lease_id=attempt.lease_id)
            await self.writer.apply(job_id, note)
            taken.append(attempt)
        return taken


class TemporalWorld(World):
    signals: LastSignals

    def deployment(
        self, trial: Trial | None = None, *, waits: Callable[[], Awaitable[None]] | None = None
    ) -> Deployment:
        if not hasattr(self, "signals"):
            self.signals = LastSignals()
        return TemporalDeployment(self, TriedStore(self.store, self.places, trial, waits))

"""A hand-out, put together for tests: intake, progress and the desk over a store in memory."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.core.states import Engine, StepState
from lucius.engines.outbox.dispatcher import HandedOut, LedgerDispatcher
from lucius.jobs.admission import Admission, InFlightLimits
from lucius.jobs.due import DueHandler
from lucius.jobs.new_job import JobDefaults, NewIds
from lucius.jobs.references import ReferencePolicy
from lucius.jobs.submit import JobSubmitter, ModeConfig, Submitted
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.jobs.writer import JobWriter
from lucius.ledger.commit_listeners import CommitListeners
from lucius.ledger.direct_dispatch import DirectDispatch
from lucius.ledger.indexes import Indexes
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.name_index import NameIndex
from lucius.ledger.slots import Slots
from lucius.ledger.store import Op, StoreUnavailable
from lucius.registry.builtin import BuiltinRegistry


class SlowStore(MemoryStore):
    """Commits at once, and says so when it is let: a caller that goes away meanwhile has committed."""

    def __init__(self, before_commit: Callable[[Sequence[Op]], None]) -> None:
        super().__init__(before_commit=before_commit)
        self.to_hold = 0  # how many of the next commits are not answered yet
        self.takes_seconds = 0.0  # before a commit counts; what is decided meanwhile is out of date then
        self.held = asyncio.Event()
        self.answered = asyncio.Event()

    def hold(self) -> None:
        self.to_hold += 1
        self.held.clear()
        self.answered.clear()

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        if self.takes_seconds:
            await asyncio.sleep(self.takes_seconds)
        etags = await super().commit(ops)
        if self.to_hold > 0:
            self.to_hold -= 1
            self.held.set()
            await self.answered.wait()
        return etags


class Place:
    """Intake, progress and one hand-out over an in-process store that counts commits and can fail them."""

    def __init__(self) -> None:
        self.commits: list[Sequence[Op]] = []
        self.failing = False
        self._numbers = count(1)
        self.store = SlowStore(self._before)
        self.ledger = ledger = JobLedger(self.store, LayoutName.LEDGER)
        listeners, direct_dispatch = CommitListeners(), DirectDispatch()
        self.indexes = indexes = Indexes(ledger)
        progress = JobWriter(ledger, listeners, direct_dispatch, now_ms=self.now_ms, new_lease_id=self._lease)
        self.progress = progress
        due_handler = DueHandler(ledger, indexes, listeners, now_ms=self.now_ms, new_lease_id=self._lease)
        self.dispatcher = LedgerDispatcher(
            indexes,
            progress,
            due_handler,
            CallbackTokens([SigningKey(kid="1", secret="s" * 32)]),
            callback_base="http://lucius.test",
            now_ms=self.now_ms,
            look_every_ms=1_000,
        )
        direct_dispatch.find = self.dispatcher.hand_for
        listeners.add(self.dispatcher.watch)
        self.submitter = JobSubmitter(
            ledger,
            BuiltinRegistry(),
            Admission(Slots(ledger), NameIndex(ledger, "tenants"), InFlightLimits()),
            NameIndex(ledger, "services"),
            ReferencePolicy(),
            ReferencePolicy(),
            listeners,
            JobDefaults(engine=Engine.OUTBOX, sla_ms=10**9, workspace_root="s3://space"),
            ModeConfig(),
            now_ms=self.now_ms,
            new_ids=self._ids,
            new_lease_id=self._lease,
            direct_dispatch=direct_dispatch,
        )

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    async def submit(self, tenant: str = "acme") -> str:
        accepted = await self.submitter.submit(_envelope(tenant, next(self._numbers)))
        assert isinstance(accepted, Submitted)
        return accepted.job_id

    async def step_state(self, job_id: str) -> StepState:
        loaded = await self.ledger.load(job_id, fresh=True)
        assert loaded is not None
        return loaded.record.steps[0].state

    async def waiting(self, **options: object) -> "asyncio.Task[list[HandedOut]]":
        """A taker that has looked, found nothing, and waits."""
        task = asyncio.create_task(
            self.dispatcher.take("ocr", directives_max=2, wait_ms=5_000, **options)  # type: ignore[arg-type]
        )
        await asyncio.sleep(0.01)
        return task

    def _before(self, ops: Sequence[Op]) -> None:
        if self.failing:
            raise StoreUnavailable("the disk is full")
        self.commits.append(ops)

    def _ids(self) -> NewIds:
        number = next(self._numbers)
        return NewIds(job_id=f"job_{number:026d}", correlation_id="c", traceparent="00-1-1-01")

    def _lease(self) -> str:
        return f"lease-{next(self._numbers)}"


def _envelope(tenant: str, number: int) -> Envelope:
    envelope = parse_envelope(
        {
            "tenant_id": tenant,
            "request_type": "OCR",
            "input_ref": {"uri": f"s3://in/{number}"},
            "output_ref": {"uri": f"s3://out/{number}"},
            "payload": {},
            "schema_version": "1",
        }
    )
    assert isinstance(envelope, Envelope)
    return envelope


def ids(taken: Sequence[HandedOut]) -> list[str]:
    return [handed.record.job.job_id for handed in taken]

"""Dispatch from the ledger, put together for tests: the kernel and a dispatcher over a store in memory."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import count

from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.core.states import StepState
from lucius.engines.outbox.dispatcher import HandedOut, LedgerDispatcher
from lucius.jobs.new_job import NewIds
from lucius.jobs.submit import Submitted
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.ledger.memory import MemoryStore
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
    """The kernel and one dispatcher over an in-process store that counts commits and can fail them."""

    def __init__(self) -> None:
        self.commits: list[Sequence[Op]] = []
        self.failing = False
        self._numbers = count(1)
        self.store = SlowStore(self._before)
        self.kernel = kernel = Kernel(
            self.store,
            KernelOptions(registry=BuiltinRegistry(), sla_ms=10**9, workspace_root="s3://space"),
            now_ms=self.now_ms,
            ids=self,
        )
        self.ledger, self.indexes = kernel.ledger, kernel.indexes
        self.writer, self.submitter = kernel.writer, kernel.submitter
        self.dispatcher = LedgerDispatcher(
            kernel.fair_share,
            kernel.writer,
            kernel.due_handler,
            CallbackTokens([SigningKey(kid="1", secret="s" * 32)]),
            callback_base="http://lucius.test",
            now_ms=self.now_ms,
            look_every_ms=1_000,
        )
        kernel.writer.reserve_waiter = self.dispatcher.waiter_for
        kernel.listeners.add(self.dispatcher.watch)

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

    def new_ids(self) -> NewIds:
        number = next(self._numbers)
        return NewIds(job_id=f"job_{number:026d}", correlation_id="c", traceparent="00-1-1-01")

    def new_lease_id(self) -> str:
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

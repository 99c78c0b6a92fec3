"""Flow control put together for tests: replicas over one store, workers that lease from them, one clock."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec

from lucius.assembly.kernel import Kernel, KernelOptions
from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.core.flow import ServiceLimits
from lucius.core.inputs import Result, ResultStatus
from lucius.core.model import JobRecord, ProtocolSpec, StepPolicy
from lucius.core.states import STEP_UNDER_WAY
from lucius.engines.outbox.dispatcher import HandedOut, LedgerDispatcher
from lucius.engines.outbox.sweeper import Sweeper
from lucius.jobs.new_job import NewIds
from lucius.jobs.submit import Submitted
from lucius.jobs.tokens import CallbackTokens, SigningKey
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import TableStore
from lucius.registry.builtin import BuiltinRegistry
from lucius.registry.catalogue import Catalogue
from lucius.registry.documents import parse_protocol


class FlowRegistry(Catalogue):
    """One protocol of one step, and limits that a test may change at any time."""

    def __init__(self, policy: StepPolicy, **step: Any) -> None:
        doc = {
            "protocol_id": "read_v1",
            "request_types": ["READ", "READ_AGAIN"],
            "steps": [{"step_type": "READ", "service": "ocr", **step}],
        }
        parsed = parse_protocol(doc, defaults=policy)
        assert isinstance(parsed, ProtocolSpec), parsed
        super().__init__([("test", parsed)])
        self.limits: dict[str, ServiceLimits] = {}

    def services(self) -> Mapping[str, ServiceLimits]:
        return self.limits


class LimitedRegistry(BuiltinRegistry):
    """The built-in protocols, and limits that a test may change at any time."""

    def __init__(self, policy: StepPolicy | None = None) -> None:
        super().__init__(defaults=policy)
        self.limits: dict[str, ServiceLimits] = {}

    def services(self) -> Mapping[str, ServiceLimits]:
        return self.limits


class FlowReplica:
    """A process that hands out from the ledger. `crash` ends it as kill -9 would."""

    def __init__(self, fleet: "FlowFleet", store: TableStore) -> None:
        self.fleet = fleet
        self.kernel = kernel = Kernel(
            store,
            KernelOptions(registry=fleet.registry, sla_ms=10**9, workspace_root="s3://space"),
            now_ms=fleet.now_ms,
            ids=fleet,
        )
        self.flow = kernel.flow
        self.dispatcher = LedgerDispatcher(
            kernel.fair_share,
            kernel.writer,
            kernel.due_handler,
            CallbackTokens([SigningKey(kid="1", secret="s" * 32)]),
            callback_base="http://lucius.test",
            now_ms=fleet.now_ms,
            look_every_ms=1_000,
            flow=kernel.flow,
        )
        self.flow.on_open.append(self.dispatcher.flow_opened)
        kernel.writer.reserve_waiter = self.dispatcher.waiter_for
        kernel.listeners.add(self.dispatcher.watch)
        sweeper = Sweeper(kernel.indexes, kernel.due_handler, now_ms=fleet.now_ms, look_every_ms=1_000)
        kernel.listeners.add(sweeper.watch)
        self.tasks = [asyncio.create_task(duty) for duty in (self.flow.run(), sweeper.run())]

    async def submit(self, tenant: str = "acme", request_type: str = "READ") -> str:
        accepted = await self.kernel.submitter.submit(
            _envelope(tenant, request_type, next(self.fleet.numbers))
        )
        assert isinstance(accepted, Submitted), accepted
        return accepted.job_id

    async def take(self, directives_max: int = 1, wait_ms: int = 0, service: str = "ocr") -> list[HandedOut]:
        return await self.dispatcher.take(service, directives_max=directives_max, wait_ms=wait_ms)

    async def answer(
        self, handed: HandedOut, status: ResultStatus = ResultStatus.SUCCEEDED, **more: Any
    ) -> None:
        step = handed.step
        reply = Result(
            step_id=step.step_id,
            attempt_no=step.attempt_no,
            lease_id=step.lease_id or "",
            content=dict,
            status=status,
            error_code=None if status is ResultStatus.SUCCEEDED else "DOWN",
        )
        await self.kernel.writer.apply(handed.record.job.job_id, msgspec.structs.replace(reply, **more))

    async def record(self, job_id: str) -> JobRecord:
        loaded = await self.kernel.ledger.peek(job_id)
        assert loaded is not None
        return loaded.record

    async def crash(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.dispatcher.close()


class FlowFleet:
    """`policy`: of the one step, whose lease is short, so that tests see attempts run out."""

    def __init__(
        self,
        limits: ServiceLimits | None = None,
        policy: StepPolicy | None = None,
        store: TableStore | None = None,
        now_ms: Callable[[], int] | None = None,
        **step: Any,
    ) -> None:
        self.store = store or MemoryStore()
        self.numbers = count(1)
        self._now_ms = now_ms
        self.registry = FlowRegistry(policy or StepPolicy(), **step)
        if limits is not None:
            self.registry.limits["ocr"] = limits
        self.replicas: list[FlowReplica] = []
        self.jobs: list[str] = []

    def start(self, store: TableStore | None = None) -> FlowReplica:
        replica = FlowReplica(self, store or self.store)
        self.replicas.append(replica)
        return replica

    def now_ms(self) -> int:
        if self._now_ms is not None:
            return self._now_ms()
        return 1_800_000_000_000 + round(asyncio.get_running_loop().time() * 1000)

    async def submit(self, jobs: int, *tenants: str) -> list[str]:
        names = tenants or ("acme",)
        made = [await self.replicas[-1].submit(names[number % len(names)]) for number in range(jobs)]
        self.jobs += made
        return made

    async def under_way(self) -> Counter[str]:
        """How many attempts are out, by service and as the ledger has it."""
        found: Counter[str] = Counter()
        for job_id in self.jobs:
            record = await self.replicas[-1].record(job_id)
            step = record.current
            if not record.job.terminal and step is not None and step.state in STEP_UNDER_WAY:
                found[step.service] += 1
        return found

    async def stop(self) -> None:
        for replica in self.replicas:
            await replica.crash()

    def new_ids(self) -> NewIds:
        number = next(self.numbers)
        return NewIds(job_id=f"job_{number:026d}", correlation_id="c", traceparent="00-1-1-01")

    def new_lease_id(self) -> str:
        return f"lease-{next(self.numbers)}"


def _envelope(tenant: str, request_type: str, number: int) -> Envelope:
    envelope = parse_envelope(
        {
            "tenant_id": tenant,
            "request_type": request_type,
            "input_ref": {"uri": f"s3://in/{number}"},
            "output_ref": {"uri": f"s3://out/{number}"},
            "payload": {},
            "schema_version": "1",
        }
    )
    assert isinstance(envelope, Envelope)
    return envelope


def job_ids(taken: Sequence[HandedOut]) -> list[str]:
    return [handed.record.job.job_id for handed in taken]

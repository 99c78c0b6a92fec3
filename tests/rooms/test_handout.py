"""The hand-out: who gets what, in how many commits, and what happens when a commit fails or a taker goes."""

import asyncio
from collections.abc import Sequence
from itertools import count

import pytest

from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.core.states import Engine, OutboxState, StepState
from lucius.engines.outbox.handout import HandedOut, HandOuts
from lucius.intake.admission import Admission, Limits
from lucius.intake.build import JobDefaults, NewIds
from lucius.intake.references import ReferencePolicy
from lucius.intake.submit import Accepted, Intake, ModeConfig
from lucius.ledger.hands import Hands
from lucius.ledger.indexes import Indexes
from lucius.ledger.jobs import JobLedger, LayoutName
from lucius.ledger.known import KnownNames
from lucius.ledger.memory import MemoryStore
from lucius.ledger.slots import Slots
from lucius.ledger.store import Op, StoreUnavailable
from lucius.ledger.watchers import Watchers
from lucius.progress.apply import Progress
from lucius.progress.due import DueKeeper
from lucius.progress.tokens import CallbackTokens, SigningKey
from lucius.registry.builtin import BuiltinRegistry


class Place:
    """Intake, progress and one hand-out over an in-process store that counts commits and can fail them."""

    def __init__(self) -> None:
        self.commits: list[Sequence[Op]] = []
        self.failing = False
        self._numbers = count(1)
        ledger = JobLedger(MemoryStore(before_commit=self._before), LayoutName.LEDGER)
        self.ledger = ledger
        watchers, hands, indexes = Watchers(), Hands(), Indexes(ledger)
        progress = Progress(ledger, watchers, hands, now_ms=self.now_ms, new_lease_id=self._lease)
        keeper = DueKeeper(ledger, indexes, watchers, now_ms=self.now_ms, new_lease_id=self._lease)
        self.handouts = HandOuts(
            indexes,
            progress,
            keeper,
            CallbackTokens([SigningKey(kid="1", secret="s" * 32)]),
            callback_base="http://lucius.test",
            now_ms=self.now_ms,
            look_every_ms=1_000,
        )
        hands.find = self.handouts.hand_for
        watchers.add(self.handouts.watch)
        self.intake = Intake(
            ledger,
            BuiltinRegistry(),
            Admission(Slots(ledger), KnownNames(ledger, "tenants"), Limits()),
            KnownNames(ledger, "services"),
            ReferencePolicy(),
            ReferencePolicy(),
            watchers,
            JobDefaults(engine=Engine.OUTBOX, sla_ms=10**9, workspace_root="s3://space"),
            ModeConfig(),
            now_ms=self.now_ms,
            new_ids=self._ids,
            new_lease_id=self._lease,
            hands=hands,
        )

    def now_ms(self) -> int:
        return round(asyncio.get_running_loop().time() * 1000)

    async def submit(self, tenant: str = "acme") -> str:
        accepted = await self.intake.submit(_envelope(tenant, next(self._numbers)))
        assert isinstance(accepted, Accepted)
        return accepted.job_id

    async def step_state(self, job_id: str) -> StepState:
        loaded = await self.ledger.load(job_id, fresh=True)
        assert loaded is not None
        return loaded.record.steps[0].state

    async def waiting(self, **options: object) -> "asyncio.Task[list[HandedOut]]":
        """A taker that has looked, found nothing, and waits."""
        task = asyncio.create_task(
            self.handouts.take("ocr", directives_max=2, wait_ms=5_000, **options)  # type: ignore[arg-type]
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


@pytest.mark.parametrize(("picked_up", "state"), [(True, StepState.PROCESSING), (False, StepState.INITIATED)])
async def test_a_waiting_taker_is_served_by_the_commit_that_creates_the_job(
    picked_up: bool, state: StepState
) -> None:
    place = Place()
    await place.submit("globex")  # writes the names down once
    await place.handouts.take("ocr", directives_max=1, wait_ms=0)
    taker = await place.waiting(picked_up=picked_up)
    place.commits.clear()
    job_id = await place.submit("globex")
    taken = await taker
    assert ids(taken) == [job_id] and len(place.commits) == 1
    assert taken[0].step.state is state and await place.step_state(job_id) is state
    outbox = taken[0].record.outbox
    assert outbox is not None and outbox.state is OutboxState.SENT
    assert not [op for op in place.commits[0] if op.table == "lucius_dispatch"]


async def test_nobody_gets_more_than_they_asked_for() -> None:
    place = Place()
    jobs: list[str] = []
    taken: list[str] = []
    done = asyncio.Event()

    async def taker() -> None:
        while not done.is_set():
            got = await place.handouts.take("ocr", directives_max=2, wait_ms=50)
            assert len(got) <= 2
            taken.extend(ids(got))

    async def submitter(tenant: str) -> None:
        for _ in range(40):
            jobs.append(await place.submit(tenant))
            await asyncio.sleep(0)

    takers = [asyncio.create_task(taker()) for _ in range(5)]
    await asyncio.gather(*(submitter(f"tenant-{n}") for n in range(8)))
    while len(taken) < len(jobs):
        await asyncio.sleep(0.01)
    done.set()
    await asyncio.gather(*takers)
    assert sorted(taken) == sorted(jobs), "each job is handed out exactly once"


async def test_lanes_are_respected() -> None:
    place = Place()
    taker = await place.waiting(lanes=[0])
    job_id = await place.submit("acme")  # lane 14
    await asyncio.sleep(0.02)
    assert not taker.done() and await place.step_state(job_id) is StepState.DISPATCHING
    taker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taker


async def test_rows_that_wait_longer_go_first() -> None:
    place = Place()
    first, second = await place.submit(), await place.submit()
    taker = asyncio.create_task(place.handouts.take("ocr", directives_max=2, wait_ms=1_000))
    third = await place.submit()
    assert ids(await taker) == [first, second]
    assert await place.step_state(third) is StepState.DISPATCHING


async def test_a_commit_that_fails_gives_the_hand_back() -> None:
    place = Place()
    await place.submit()
    await place.handouts.take("ocr", directives_max=1, wait_ms=0)
    taker = await place.waiting()
    place.failing = True
    with pytest.raises(StoreUnavailable):
        await place.submit()
    place.failing = False
    assert await taker == [], "the taker is sent home rather than left with a place that never comes"
    job_id = await place.submit()
    assert ids(await place.handouts.take("ocr", directives_max=1, wait_ms=100)) == [job_id]


async def test_a_taker_that_leaves_takes_nothing_with_it() -> None:
    place = Place()
    taker = await place.waiting()
    taker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taker
    job_id = await place.submit()
    assert await place.step_state(job_id) is StepState.DISPATCHING
    assert ids(await place.handouts.take("ocr", directives_max=1, wait_ms=0)) == [job_id]


async def test_closing_sends_everybody_home() -> None:
    place = Place()
    taker = await place.waiting()
    place.handouts.close()
    assert await asyncio.wait_for(taker, 1) == []
    job_id = await place.submit()
    assert await place.step_state(job_id) is StepState.DISPATCHING

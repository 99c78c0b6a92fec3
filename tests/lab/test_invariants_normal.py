"""The normal form: two runs of one script compare equal, runs of two do not."""

import msgspec
from tests.conformance.ledger_setup import START_MS, Deployment, World, submit

from lucius.core.inputs import ResultStatus
from lucius.core.states import Engine, JobState, StepState
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius_lab.sim.normal_form import NormalForm, normalised

replace = msgspec.structs.replace


async def played(layout: LayoutName, *, others: int, late_ms: int, fails: bool = False) -> NormalForm:
    """One job of two steps; others came before it, so that its ids and leases have other numbers."""
    world = World(MemoryStore(spans=layout is LayoutName.TABLE), layout)
    deployment = world.deployment()
    for number in range(others):
        await submit(deployment, 100 + number, request_type="SIS", tenant="somebody_else")
    world.clock.now_ms = START_MS + late_ms
    job_id = await submit(deployment, request_type="OCR_EMBEDDING")
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_RETRY if fails else ResultStatus.SUCCEEDED, "BUSY")
    world.clock.now_ms += 60_000 + late_ms
    await deployment.sweeper.sweep()
    await deployment.work()
    return await form(world, deployment, job_id)


async def form(world: World, deployment: Deployment, job_id: str) -> NormalForm:
    loaded = await deployment.ledger.load(job_id, fresh=True)
    assert loaded is not None
    return normalised(loaded.record, await world.events(job_id))


async def test_other_ids_times_and_tables_make_no_difference() -> None:
    first = await played(LayoutName.LEDGER, others=0, late_ms=0, fails=True)
    second = await played(LayoutName.TABLE, others=3, late_ms=1_234, fails=True)
    assert first == second
    assert first.job["job_id"] == "<job>" and first.steps[0]["lease_id"] != first.steps[1]["lease_id"]


async def test_another_story_makes_a_difference() -> None:
    assert await played(LayoutName.LEDGER, others=0, late_ms=0) != await played(
        LayoutName.LEDGER, others=0, late_ms=0, fails=True
    )


async def test_what_one_engine_alone_has_makes_no_difference() -> None:
    world = World(MemoryStore(), LayoutName.LEDGER)
    deployment = world.deployment()
    job_id = await submit(deployment)
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None
    record, events = loaded.record, await world.events(job_id)
    assert record.job.state is JobState.DISPATCHING
    job = replace(record.job, engine=Engine.TEMPORAL, state=JobState.QUEUED, version=9, due_at_ms=1)
    steps = (replace(record.steps[0], state=StepState.INITIATED),)
    created = replace(events[0], data={**events[0].data, "engine": "temporal"})
    other = replace(record, job=job, steps=steps, outbox=None)
    assert normalised(other, [created, *events[1:]]) == normalised(record, events)

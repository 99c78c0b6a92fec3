"""Controls, alarms and repair: whatever happens, a job's workflow is there and knows where the job stands."""

from typing import TYPE_CHECKING

import pytest

from lucius.contracts.internal import Verdict
from lucius.core.due import ALARM_AFTER_MS, ALARM_EVERY_MS_MAX
from lucius.core.inputs import Cancel, Control, Pause, Resume
from lucius.core.model import StepPolicy
from lucius.core.refusal import Code, Refused
from lucius.core.states import Fact, JobState, StepState
from lucius.ledger.watchers import Watchers
from lucius.progress.due import DueKeeper, DueOutcome
from lucius.progress.repair import ASK_EVERY_MS, PATIENCE_MS
from lucius.progress.workflows import Labels

if TYPE_CHECKING:
    from tests.rooms.invoker_house import House, Workflows
    from tests.rooms.relay_house import TENANT, Worker, World, ack
else:
    from invoker_house import House, Workflows
    from relay_house import TENANT, Worker, World, ack


@pytest.fixture(params=[True, False], ids=["spans", "no-spans"])
def world(request: pytest.FixtureRequest) -> World:
    return World(spans=request.param)


@pytest.fixture
def house(world: World) -> House:
    return House(world, Workflows())


async def test_controls_are_committed_told_and_due_at_once(world: World, house: House) -> None:
    job_id = await house.submit()
    wishes: list[tuple[Control, JobState]] = [
        (Pause(), JobState.PAUSED),
        (Resume(), JobState.QUEUED),
        (Cancel(), JobState.CANCELLED),
    ]
    for wish, state in wishes:
        world.clock_ms += 10
        told = await house.control(job_id, wish)
        assert (told.verdict, told.position.job_state) == (Verdict.GO, state)
        assert house.workflows.newest(job_id) == told.position
        assert [entry.at_ms for entry in await house.due()] == [world.clock_ms]
        await house.sweeper.sweep()
    assert house.workflows.names(job_id) == ["pause", "pause", "resume", "resume", "cancel", "cancel"]
    assert await house.due() == []


async def test_a_control_that_cannot_be_granted_is_refused(house: House) -> None:
    job_id = await house.submit()
    await house.control(job_id, Cancel())
    assert (await house.control(job_id, Cancel())).verdict is Verdict.GO
    for wish, code in ((Pause(), Code.JOB_TERMINAL),):
        refused = await house.invoker.control(job_id, wish)
        assert isinstance(refused, Refused) and refused.code is code
    refused = await house.invoker.control("job_nowhere", Cancel())
    assert isinstance(refused, Refused) and refused.code is Code.JOB_NOT_FOUND


@pytest.mark.parametrize("wish", [Cancel(), Pause()], ids=["cancel", "pause"])
async def test_a_control_is_told_until_somebody_hears_it(world: World, house: House, wish: Control) -> None:
    job_id = await house.submit()
    house.workflows.down = True
    state = (await house.control(job_id, wish)).position.job_state
    for _ in range(3):
        world.clock_ms += 1_000
        await house.sweeper.sweep()
    assert house.workflows.names(job_id) == []
    assert len(await house.due()) == 1
    house.workflows.down = False
    world.clock_ms += 1_000
    await House(world, house.workflows).sweeper.sweep()
    assert house.workflows.newest(job_id).job_state is state
    assert [entry for entry in await house.due() if entry.at_ms <= world.clock_ms] == []


async def test_workflows_that_are_away_are_not_asked_for_every_row(world: World, house: House) -> None:
    jobs = [await house.submit() for _ in range(5)]
    for job_id in jobs:
        await house.control(job_id, Pause())
    house.workflows.down = True
    asked = 0

    async def count() -> None:
        nonlocal asked
        asked += 1
        await Workflows.ping(house.workflows)

    house.workflows.ping = count  # type: ignore[method-assign]
    entries = await house.due()
    outcomes = [await house.keeper.meet(entry) for entry in entries]
    assert outcomes == [DueOutcome.WAITING] * 5
    assert asked == 1


async def test_a_job_without_a_workflow_gets_one(world: World, house: House) -> None:
    job_id = await house.submit(workflow=False)
    world.clock_ms += ALARM_AFTER_MS
    await house.sweeper.sweep()
    assert len(await house.due()) == 1, "the row stays for whoever starts workflows"
    await house.repairer.sweep()
    assert house.workflows.starts == [], "those who tell workflows come first"
    world.clock_ms += PATIENCE_MS
    await house.repairer.sweep()
    ((started, position, labels),) = house.workflows.starts
    assert (started, position.step_state) == (job_id, StepState.PENDING)
    assert labels == Labels(tenant=TENANT, request_type="OCR")
    await house.sweeper.sweep()
    assert house.workflows.names(job_id) == ["resume"]
    assert (await house.due())[0].at_ms > world.clock_ms


async def test_repair_begins_wherever_the_job_stands(world: World, house: House) -> None:
    job_id = await house.submit()
    await house.attempt(job_id)
    await house.apply(job_id, ack(await Worker(world).take_one()))
    house.workflows.open.clear()  # it was terminated
    world.clock_ms += 900_000 + ALARM_AFTER_MS + PATIENCE_MS
    await house.sweeper.sweep()
    await house.repairer.sweep()
    ((_, position, _),) = house.workflows.starts
    assert (position.step_state, position.attempt_no) == (StepState.PROCESSING, 1)
    assert position.deadline_at_ms is not None and position.deadline_at_ms < world.clock_ms
    assert (await house.states(job_id)) == ("IN_PROGRESS", "PROCESSING"), "the workflow decides, not repair"


async def test_an_open_job_whose_workflow_has_ended_gets_another(world: World, house: House) -> None:
    """A ledger that was put back has jobs that are open again."""
    job_id = await house.submit()
    house.workflows.open.clear()
    house.workflows.ended.add(job_id)
    world.clock_ms += ALARM_AFTER_MS + PATIENCE_MS
    await house.sweeper.sweep()
    await house.repairer.sweep()
    assert house.workflows.open == {job_id}
    assert house.repairer.actions["acted"] == 1


async def test_a_paused_job_misses_no_workflow_that_has_ended(world: World, house: House) -> None:
    """Should it end before the start gets through, nobody would tell that workflow."""
    job_id = await house.submit()
    await house.apply(job_id, Pause())
    house.workflows.open.clear()
    house.workflows.ended.add(job_id)
    world.clock_ms += ALARM_AFTER_MS + PATIENCE_MS
    await house.sweeper.sweep()
    await house.repairer.sweep()
    assert house.workflows.open == set()
    assert house.repairer.actions["waiting"] == 1


async def test_repair_does_not_ask_all_the_time_and_survives_an_outage(world: World, house: House) -> None:
    job_id = await house.submit(workflow=False)
    world.clock_ms += ALARM_AFTER_MS + PATIENCE_MS
    house.workflows.down = True
    await house.repairer.sweep()
    house.workflows.down = False
    for _ in range(3):
        await house.repairer.sweep()
    assert len(house.workflows.starts) == 1
    world.clock_ms += ASK_EVERY_MS
    await house.repairer.sweep()
    assert [started for started, _, _ in house.workflows.starts] == [job_id, job_id]
    assert house.repairer.actions[DueOutcome.ACTED] == 1


async def test_repair_leaves_alone_what_has_ended(world: World, house: House) -> None:
    job_id = await house.submit()
    await house.control(job_id, Cancel())
    world.clock_ms += PATIENCE_MS
    await house.repairer.sweep()
    assert house.workflows.starts == []


async def test_an_ended_job_whose_workflow_is_gone_is_done_with(world: World, house: House) -> None:
    job_id = await house.submit()
    house.workflows.open.clear()
    await house.control(job_id, Cancel())
    await house.sweeper.sweep()
    assert await house.due() == []


async def test_a_keeper_that_cannot_tell_workflows_leaves_their_rows_alone(
    world: World, house: House
) -> None:
    job_id = await house.submit()
    blind = DueKeeper(
        house.ledger, house.indexes, Watchers(), now_ms=world.now_ms, new_lease_id=world.new_lease_id
    )
    world.clock_ms += ALARM_AFTER_MS
    (entry,) = await house.due()
    assert await blind.meet(entry) is DueOutcome.NOT_OURS
    await house.control(job_id, Cancel())
    for entry in await house.due():
        assert await blind.meet(entry) is DueOutcome.NOT_OURS
    assert await house.due() != []


async def test_an_alarm_that_changes_nothing_rings_ever_more_seldom(world: World, house: House) -> None:
    await house.submit()
    spans = []
    for _ in range(10):
        (entry,) = await house.due()
        spans.append(entry.at_ms - world.clock_ms)
        world.clock_ms = entry.at_ms
        await house.sweeper.sweep()
    assert spans[:4] == [30_000, 30_000, 60_000, 120_000]
    assert spans[-1] == ALARM_EVERY_MS_MAX


async def test_a_job_past_its_sla_is_ended_and_its_workflow_told(world: World) -> None:
    house = House(world, Workflows(), policy=StepPolicy(lease_ms=30 * 86_400_000))
    job_id = await house.submit()
    await house.attempt(job_id)
    await house.apply(job_id, ack(await Worker(world).take_one()))
    for _ in range(40):
        if (await house.record(job_id)).job.terminal:
            break
        world.clock_ms = max(world.clock_ms, (await house.due())[0].at_ms)
        await house.sweeper.sweep()
    facts = await house.facts(job_id)
    assert facts[-3:] == [Fact.SLA_ESCALATED, Fact.STEP_FAILED, Fact.JOB_FAILED]
    assert house.workflows.newest(job_id).job_state is JobState.FAILED_FINAL

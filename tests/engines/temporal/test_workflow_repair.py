"""Controls, alarms and repair: whatever happens, a job's workflow is there and knows where the job stands."""

import pytest
from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import TENANT, Worker, World, ack

from lucius.assembly.kernel import Kernel
from lucius.contracts.internal import Verdict
from lucius.core.due import ALARM_AFTER_MS, ALARM_EVERY_MS_MAX
from lucius.core.inputs import Cancel, Control, Pause, Resume
from lucius.core.model import StepPolicy
from lucius.core.refusal import Code, Refused
from lucius.core.states import Fact, JobState, StepState
from lucius.engines.temporal.repair import ANSWER_GRACE_MS, ASK_EVERY_MS
from lucius.jobs.due import DueOutcome
from lucius.jobs.workflows import WorkflowLabels


@pytest.fixture(params=[True, False], ids=["spans", "no-spans"])
def world(request: pytest.FixtureRequest) -> World:
    return World(spans=request.param)


@pytest.fixture
def deployment(world: World) -> Deployment:
    return Deployment(world, Workflows())


async def test_controls_are_committed_told_and_due_at_once(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    wishes: list[tuple[Control, JobState]] = [
        (Pause(), JobState.PAUSED),
        (Resume(), JobState.QUEUED),
        (Cancel(), JobState.CANCELLED),
    ]
    for wish, state in wishes:
        world.clock_ms += 10
        told = await deployment.control(job_id, wish)
        assert (told.verdict, told.position.job_state) == (Verdict.GO, state)
        assert deployment.workflows.newest(job_id) == told.position
        assert [entry.at_ms for entry in await deployment.due()] == [world.clock_ms]
        await deployment.sweeper.sweep()
    assert deployment.workflows.names(job_id) == ["pause", "pause", "resume", "resume", "cancel", "cancel"]
    assert await deployment.due() == []


async def test_a_control_that_cannot_be_granted_is_refused(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.control(job_id, Cancel())
    assert (await deployment.control(job_id, Cancel())).verdict is Verdict.GO
    for wish, code in ((Pause(), Code.JOB_TERMINAL),):
        refused = await deployment.invoker.control(job_id, wish)
        assert isinstance(refused, Refused) and refused.code is code
    refused = await deployment.invoker.control("job_nowhere", Cancel())
    assert isinstance(refused, Refused) and refused.code is Code.JOB_NOT_FOUND


@pytest.mark.parametrize("wish", [Cancel(), Pause()], ids=["cancel", "pause"])
async def test_a_control_is_told_until_somebody_hears_it(
    world: World, deployment: Deployment, wish: Control
) -> None:
    job_id = await deployment.submit()
    deployment.workflows.down = True
    state = (await deployment.control(job_id, wish)).position.job_state
    for _ in range(3):
        world.clock_ms += 1_000
        await deployment.sweeper.sweep()
    assert deployment.workflows.names(job_id) == []
    assert len(await deployment.due()) == 1
    deployment.workflows.down = False
    world.clock_ms += 1_000
    await Deployment(world, deployment.workflows).sweeper.sweep()
    assert deployment.workflows.newest(job_id).job_state is state
    assert [entry for entry in await deployment.due() if entry.at_ms <= world.clock_ms] == []


async def test_workflows_that_are_away_are_not_asked_for_every_row(
    world: World, deployment: Deployment
) -> None:
    jobs = [await deployment.submit() for _ in range(5)]
    for job_id in jobs:
        await deployment.control(job_id, Pause())
    deployment.workflows.down = True
    asked = 0

    async def count() -> None:
        nonlocal asked
        asked += 1
        await Workflows.ping(deployment.workflows)

    deployment.workflows.ping = count  # type: ignore[method-assign]
    entries = await deployment.due()
    outcomes = [await deployment.due_handler.meet(entry) for entry in entries]
    assert outcomes == [DueOutcome.WAITING] * 5
    assert asked == 1


async def test_a_job_without_a_workflow_gets_one(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit(workflow=False)
    world.clock_ms += ALARM_AFTER_MS
    await deployment.sweeper.sweep()
    assert len(await deployment.due()) == 1, "the row stays for whoever starts workflows"
    await deployment.repairer.sweep()
    assert deployment.workflows.starts == [], "those who tell workflows come first"
    world.clock_ms += ANSWER_GRACE_MS
    await deployment.repairer.sweep()
    ((started, position, labels),) = deployment.workflows.starts
    assert (started, position.step_state) == (job_id, StepState.PENDING)
    assert labels == WorkflowLabels(tenant=TENANT, request_type="OCR")
    await deployment.sweeper.sweep()
    assert deployment.workflows.names(job_id) == ["resume"]
    assert (await deployment.due())[0].at_ms > world.clock_ms


async def test_repair_begins_wherever_the_job_stands(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.attempt(job_id)
    await deployment.apply(job_id, ack(await Worker(world).take_one()))
    deployment.workflows.open.clear()  # it was terminated
    world.clock_ms += 900_000 + ALARM_AFTER_MS + ANSWER_GRACE_MS
    await deployment.sweeper.sweep()
    await deployment.repairer.sweep()
    ((_, position, _),) = deployment.workflows.starts
    assert (position.step_state, position.attempt_no) == (StepState.PROCESSING, 1)
    assert position.deadline_at_ms is not None and position.deadline_at_ms < world.clock_ms
    assert (await deployment.states(job_id)) == ("IN_PROGRESS", "PROCESSING"), (
        "the workflow decides, not repair"
    )


async def test_an_open_job_whose_workflow_has_ended_gets_another(
    world: World, deployment: Deployment
) -> None:
    """A ledger that was put back has jobs that are open again."""
    job_id = await deployment.submit()
    deployment.workflows.open.clear()
    deployment.workflows.ended.add(job_id)
    world.clock_ms += ALARM_AFTER_MS + ANSWER_GRACE_MS
    await deployment.sweeper.sweep()
    await deployment.repairer.sweep()
    assert deployment.workflows.open == {job_id}
    assert deployment.repairer.actions["acted"] == 1


async def test_a_paused_job_misses_no_workflow_that_has_ended(world: World, deployment: Deployment) -> None:
    """Should it end before the start gets through, nobody would tell that workflow."""
    job_id = await deployment.submit()
    await deployment.apply(job_id, Pause())
    deployment.workflows.open.clear()
    deployment.workflows.ended.add(job_id)
    world.clock_ms += ALARM_AFTER_MS + ANSWER_GRACE_MS
    await deployment.sweeper.sweep()
    await deployment.repairer.sweep()
    assert deployment.workflows.open == set()
    assert deployment.repairer.actions["waiting"] == 1


async def test_repair_does_not_ask_all_the_time_and_survives_an_outage(
    world: World, deployment: Deployment
) -> None:
    job_id = await deployment.submit(workflow=False)
    world.clock_ms += ALARM_AFTER_MS + ANSWER_GRACE_MS
    deployment.workflows.down = True
    await deployment.repairer.sweep()
    deployment.workflows.down = False
    for _ in range(3):
        await deployment.repairer.sweep()
    assert len(deployment.workflows.starts) == 1
    world.clock_ms += ASK_EVERY_MS
    await deployment.repairer.sweep()
    assert [started for started, _, _ in deployment.workflows.starts] == [job_id, job_id]
    assert deployment.repairer.actions[DueOutcome.ACTED] == 1


async def test_repair_leaves_alone_what_has_ended(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    await deployment.control(job_id, Cancel())
    world.clock_ms += ANSWER_GRACE_MS
    await deployment.repairer.sweep()
    assert deployment.workflows.starts == []


async def test_an_ended_job_whose_workflow_is_gone_is_done_with(world: World, deployment: Deployment) -> None:
    job_id = await deployment.submit()
    deployment.workflows.open.clear()
    await deployment.control(job_id, Cancel())
    await deployment.sweeper.sweep()
    assert await deployment.due() == []


async def test_a_keeper_that_cannot_tell_workflows_leaves_their_rows_alone(
    world: World, deployment: Deployment
) -> None:
    job_id = await deployment.submit()
    blind = Kernel(world.store, deployment.kernel.options, now_ms=world.now_ms, ids=world).due_handler
    world.clock_ms += ALARM_AFTER_MS
    (entry,) = await deployment.due()
    assert await blind.meet(entry) is DueOutcome.NOT_OURS
    await deployment.control(job_id, Cancel())
    for entry in await deployment.due():
        assert await blind.meet(entry) is DueOutcome.NOT_OURS
    assert await deployment.due() != []


async def test_an_alarm_that_changes_nothing_rings_ever_more_seldom(
    world: World, deployment: Deployment
) -> None:
    await deployment.submit()
    spans = []
    for _ in range(10):
        (entry,) = await deployment.due()
        spans.append(entry.at_ms - world.clock_ms)
        world.clock_ms = entry.at_ms
        await deployment.sweeper.sweep()
    assert spans[:4] == [30_000, 30_000, 60_000, 120_000]
    assert spans[-1] == ALARM_EVERY_MS_MAX


async def test_a_job_past_its_sla_is_ended_and_its_workflow_told(world: World) -> None:
    deployment = Deployment(world, Workflows(), policy=StepPolicy(lease_ms=30 * 86_400_000))
    job_id = await deployment.submit()
    await deployment.attempt(job_id)
    await deployment.apply(job_id, ack(await Worker(world).take_one()))
    for _ in range(40):
        if (await deployment.record(job_id)).job.terminal:
            break
        world.clock_ms = max(world.clock_ms, (await deployment.due())[0].at_ms)
        await deployment.sweeper.sweep()
    facts = await deployment.facts(job_id)
    assert facts[-3:] == [Fact.SLA_ESCALATED, Fact.STEP_FAILED, Fact.JOB_FAILED]
    assert deployment.workflows.newest(job_id).job_state is JobState.FAILED_FINAL

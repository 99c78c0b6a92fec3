"""The orchestrator's side: a workflow for every new job, and controls that the invoker writes."""

from typing import cast

import httpx2
import pytest
from starlette.responses import Response
from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import LANE, World, fates

from lucius.api.dependencies import CallbackDependencies
from lucius.api.internal import make_internal_app
from lucius.api.routing import OpenCall, Router, without_credential
from lucius.bus.memory import PublishFault
from lucius.core.inputs import Cancel, Control, Pause, Resume
from lucius.core.refusal import Code, Refused
from lucius.core.states import Engine, StepState
from lucius.engines.outbox.backlog import BacklogMeter
from lucius.engines.outbox.retry_now import RetryNow, RetryWorkflowsNow
from lucius.engines.temporal.controls import NOT_TAKEN, UNKNOWN, RemoteControls, invoker_client
from lucius.engines.temporal.workflow_starts import WorkflowStarts
from lucius.jobs.admission import Admission, InFlightLimits
from lucius.jobs.workflows import WorkflowsUnavailable
from lucius.jobs.writer import Applied
from lucius.ledger.name_index import NameIndex
from lucius.ledger.slots import Slots
from lucius.telemetry import Metrics

SECRET = "a-secret-of-many-letters"


def remote(orchestrator: Deployment, invoker: Deployment | None, secret: str = SECRET) -> RemoteControls:
    """An orchestrator that reaches this invoker, or none."""
    client = invoker_client("http://127.0.0.1:9/", secret)
    if invoker is not None:
        app = make_internal_app(invoker.invoker, [SECRET], {})
        client = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=app), base_url="http://invoker.test", headers=client.headers
        )
    return RemoteControls(orchestrator.ledger, orchestrator.writer, client)


async def test_every_new_job_gets_its_workflow() -> None:
    deployment = Deployment(World(), Workflows())
    starting = WorkflowStarts(deployment.workflows)
    deployment.listeners.add(starting.watch)
    job_id = await deployment.submit(workflow=False)
    await deployment.attempt(job_id)
    await starting.idle()
    ((started, position, _),) = deployment.workflows.starts
    assert (started, position.step_state, position.version) == (job_id, StepState.PENDING, 1)
    assert starting.outcomes == {"started": 1}


async def test_a_start_that_fails_or_is_one_too_many_holds_nobody_up() -> None:
    deployment = Deployment(World(), Workflows())
    starting = WorkflowStarts(deployment.workflows, starts_max=1)
    deployment.listeners.add(starting.watch)
    deployment.workflows.down = True
    await deployment.submit(workflow=False)
    await starting.idle()
    none = WorkflowStarts(deployment.workflows, starts_max=0, waiting_max=0)
    deployment.listeners.add(none.watch)
    await deployment.submit(workflow=False)
    await starting.idle()
    assert (starting.outcomes, none.outcomes) == ({"unavailable": 2}, {"left_to_repair": 1})


async def test_jobs_of_the_outbox_engine_have_no_workflow() -> None:
    deployment = Deployment(World(), Workflows(), engine=Engine.OUTBOX)
    starting = WorkflowStarts(deployment.workflows)
    deployment.listeners.add(starting.watch)
    await deployment.submit(workflow=False)
    await starting.idle()
    assert deployment.workflows.starts == []


async def test_controls_of_temporal_jobs_are_written_by_the_invoker() -> None:
    world, workflows = World(), Workflows()
    orchestrator, invoker = Deployment(world, workflows), Deployment(world, workflows)
    controls = remote(orchestrator, invoker)
    job_id = await orchestrator.submit()
    wishes: list[tuple[Control, str]] = [(Pause(), "PAUSED"), (Resume(), "QUEUED"), (Cancel(), "CANCELLED")]
    for wish, state in wishes:
        applied = await controls.apply(job_id, wish)
        assert isinstance(applied, Applied) and applied.record.job.state.value == state
    assert workflows.names(job_id) == ["pause", "resume", "cancel"]
    assert orchestrator.writer.outcomes.total() == 0, "the orchestrator writes nothing after creation"
    refused = await controls.apply(job_id, Pause())
    assert isinstance(refused, Refused) and refused.code is Code.JOB_TERMINAL


async def test_controls_of_other_jobs_are_written_here() -> None:
    world = World()
    deployment = Deployment(world, Workflows(), engine=Engine.OUTBOX)
    controls = remote(deployment, None)
    job_id = await deployment.submit()
    applied = await controls.apply(job_id, Cancel())
    assert isinstance(applied, Applied) and applied.record.job.state.value == "CANCELLED"
    refused = await controls.apply("job_nowhere", Cancel())
    assert isinstance(refused, Refused) and refused.code is Code.JOB_NOT_FOUND


@pytest.mark.parametrize("reachable", [True, False], ids=["wrong-secret", "unreachable"])
async def test_an_invoker_that_cannot_be_asked_is_a_fault(reachable: bool) -> None:
    world = World()
    deployment = Deployment(world, Workflows())
    controls = remote(deployment, deployment if reachable else None, secret="the-wrong-one-entirely")
    job_id = await deployment.submit()
    with pytest.raises(WorkflowsUnavailable):
        await controls.apply(job_id, Cancel())
    assert (await deployment.states(job_id))[0] == "QUEUED"


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (httpx2.ConnectError("refused"), NOT_TAKEN),
        (httpx2.ReadTimeout("silence"), UNKNOWN),
        (None, UNKNOWN),
    ],
    ids=["unreachable", "silent", "senseless"],
)
async def test_whoever_sends_a_control_learns_whether_it_may_have_been_taken(
    fault: Exception | None, told: str
) -> None:
    deployment = Deployment(World(), Workflows())
    job_id = await deployment.submit()

    def invoker(request: httpx2.Request) -> httpx2.Response:
        if fault is not None:
            raise fault
        return httpx2.Response(503, text="busy")

    client = httpx2.AsyncClient(transport=httpx2.MockTransport(invoker), base_url="http://invoker.test")
    controls = RemoteControls(deployment.ledger, deployment.writer, client)

    async def pause(call: OpenCall) -> Response:
        await controls.apply(job_id, Pause())
        return Response()

    app = Router([without_credential(("POST",), "/pause", pause)], cast("CallbackDependencies", None))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://house") as http:
        answer = await http.post("/pause")
    assert (answer.status_code, answer.json()["code"]) == (503, "SYSTEM_SATURATED")
    assert answer.json()["detail"] == told
    assert "retry-after" in answer.headers


async def unsent(deployment: Deployment) -> str:
    """A job whose directive the bus did not take: it waits for its backoff."""
    world = deployment.world
    world.bus.on_publish = fates(PublishFault.REFUSED)
    job_id = await deployment.submit()
    await deployment.publish_in_vain(job_id)
    record = await deployment.record(job_id)
    assert record.outbox is not None and record.outbox.failures >= 1
    assert record.outbox.due_at_ms > world.clock_ms
    return job_id


async def test_an_operator_who_will_not_wait_reaches_directives_that_workflows_send() -> None:
    world, workflows = World(), Workflows()
    orchestrator, invoker = Deployment(world, workflows), Deployment(world, workflows)
    controls = remote(orchestrator, invoker)
    job_id = await unsent(orchestrator)
    paused = await orchestrator.submit()
    await controls.apply(paused, Pause())
    hurried = RetryWorkflowsNow(orchestrator.ledger, orchestrator.indexes, controls, now_ms=world.now_ms)
    retry_now = RetryNow(
        orchestrator.indexes, NameIndex(orchestrator.ledger, "services"), orchestrator.writer, hurried
    )
    written = orchestrator.writer.outcomes.total()
    assert await retry_now.all_due() == 1
    record = await orchestrator.record(job_id)
    assert record.outbox is not None and record.outbox.due_at_ms <= world.clock_ms
    ((name, signal),) = workflows.sent[job_id]
    assert (name, signal.position.version) == ("resume", record.job.version)
    assert orchestrator.writer.outcomes.total() == written, "the invoker writes it"
    assert await retry_now.all_due() == 1, "it still waits to leave, and is due already"
    assert len(workflows.sent[job_id]) == 1


async def test_directives_that_workflows_send_are_counted_while_they_wait() -> None:
    deployment = Deployment(World(), Workflows())
    await unsent(deployment)
    deployment.world.clock_ms += 5_000
    metrics = Metrics(lambda name: True)
    admission = Admission(Slots(deployment.ledger), NameIndex(deployment.ledger, "tenants"), InFlightLimits())
    depths = BacklogMeter(
        deployment.ledger,
        deployment.indexes,
        NameIndex(deployment.ledger, "services"),
        admission,
        metrics,
        now_ms=deployment.world.now_ms,
    )
    await depths.census()
    await depths.look()
    assert metrics.depths.waiting["ocr"] == 1
    assert metrics.depths.lanes[LANE] == 1
    assert metrics.depths.oldest_seconds["ocr"] >= 5

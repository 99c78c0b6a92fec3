"""Starting and signalling workflows, against a real Temporal server, one without our labels, and none."""

import asyncio
from pathlib import Path
from typing import cast

import msgspec
import pytest
from temporalio.service import RPCError, RPCStatusCode
from tests.replay.temporal_setup_replay import LABELS, now_ms, open_deployment

from lucius.contracts.internal import Position, StepSignal
from lucius.core.states import JobState, StepState
from lucius.engines.temporal import client
from lucius.engines.temporal.activities import InvokerCalls
from lucius.engines.temporal.client import (
    StartOptions,
    TemporalLink,
    TemporalSignaller,
    TemporalStarter,
    TemporalTarget,
)
from lucius.engines.temporal.dev_server import START_SECONDS_MAX, dev_server, free_port
from lucius.engines.temporal.worker import TemporalWorker, WorkerLimits
from lucius.jobs.workflows import StartOutcome, WorkflowsUnavailable
from lucius_lab.bench.stand_in_invoker import StandInInvoker
from lucius_lab.bench.stand_in_ledger import StandInLedger, StandInTimeouts

pytestmark = pytest.mark.xdist_group("temporal")

BEGINNING = Position(
    version=1, job_state=JobState.QUEUED, stepId="step_01", step_index=0, step_state=StepState.PENDING
)


async def hold_on(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
    """The service takes the directive and says no more."""


async def test_a_job_has_one_workflow(temporal: TemporalTarget) -> None:
    starter = TemporalStarter(TemporalLink(temporal), StartOptions())
    answers = await asyncio.gather(*(starter.start("job_one", BEGINNING, LABELS) for _ in range(8)))
    assert sorted(answers) == [StartOutcome.RUNNING] * 7 + [StartOutcome.STARTED]


async def test_a_workflow_that_was_terminated_may_start_again(temporal: TemporalTarget) -> None:
    link = TemporalLink(temporal)
    starter = TemporalStarter(link, StartOptions())
    assert await starter.start("job_again", BEGINNING) is StartOutcome.STARTED
    await (await link.client()).get_workflow_handle("job_again").terminate()
    assert await starter.start("job_again", BEGINNING) is StartOutcome.STARTED


async def test_a_workflow_that_ended_well_starts_again_only_for_a_job_that_is_open(
    temporal: TemporalTarget,
) -> None:
    async with open_deployment(temporal) as deployment:
        stand_in = await deployment.begin()
        assert await deployment.end(stand_in) == JobState.SUCCEEDED
        starter = TemporalStarter(deployment.link, StartOptions())
        assert await starter.start(stand_in.job_id, BEGINNING) is StartOutcome.RUNNING
        assert await starter.start(stand_in.job_id, BEGINNING, is_open=True) is StartOutcome.STARTED
        assert await deployment.end(stand_in) == JobState.SUCCEEDED, (
            "it asked, and learned how the job had ended"
        )


async def test_an_operator_finds_a_workflow_by_its_labels(temporal: TemporalTarget) -> None:
    async with open_deployment(temporal) as deployment:
        stand_in = await deployment.begin(labels=LABELS)
        assert await deployment.end(stand_in) == JobState.SUCCEEDED
        found = await deployment.handle(stand_in).describe()
        labels = {pair.key.name: pair.value for pair in found.typed_search_attributes}
        assert labels["LuciusTenant"] == LABELS.tenant
        assert labels["LuciusRequestType"] == LABELS.request_type
        assert labels["LuciusState"] == "SUCCEEDED"


class Guest(TemporalLink):
    """May not add search attributes."""

    async def register_attributes(self) -> None:
        pass


async def test_a_namespace_without_our_labels_starts_workflows_all_the_same(tmp_path: Path) -> None:
    async with dev_server(tmp_path / "temporal.db", labelled=False) as server:
        link = Guest(server)
        starter = TemporalStarter(link, StartOptions())
        for job_id in ("job_first", "job_second"):
            assert await starter.start(job_id, BEGINNING, LABELS) is StartOutcome.STARTED
        # It may be ours after all: then they are registered with the first start.
        starter = TemporalStarter(TemporalLink(server), StartOptions())
        assert await starter.start("job_third", BEGINNING, LABELS) is StartOutcome.STARTED
        await TemporalLink(server).register_attributes()


async def test_a_signal_to_nobody_is_not_an_error(temporal: TemporalTarget) -> None:
    async with open_deployment(temporal) as deployment:
        signaller = TemporalSignaller(deployment.link)
        told = StepSignal(jobId="job_nobody", position=BEGINNING)
        assert await signaller.signal("job_nobody", "cancel", told) is False
        stand_in = await deployment.begin()
        assert await deployment.end(stand_in) == JobState.SUCCEEDED
        assert await signaller.signal(stand_in.job_id, "cancel", told) is False


async def test_a_signal_is_heard(temporal: TemporalTarget) -> None:
    async with open_deployment(temporal) as deployment:
        deployment.invoker.script = hold_on
        stand_in = await deployment.begin()
        ended = StepSignal(jobId=stand_in.job_id, position=Position(version=99, job_state=JobState.CANCELLED))
        assert await TemporalSignaller(deployment.link).signal(stand_in.job_id, "cancel", ended) is True
        assert await deployment.end(stand_in) == JobState.CANCELLED


async def test_an_execution_timeout_is_set_only_if_asked_for(temporal: TemporalTarget) -> None:
    link = TemporalLink(temporal)
    client = await link.client()
    for job_id, seconds in (("job_timed", 90.0), ("job_untimed", None)):
        starter = TemporalStarter(link, StartOptions(execution_timeout_seconds=seconds))
        assert await starter.start(job_id, BEGINNING) is StartOutcome.STARTED
        config = (await client.get_workflow_handle(job_id).describe()).raw_description.execution_config
        assert config.workflow_execution_timeout.ToSeconds() == (seconds or 0)


async def test_a_namespace_that_is_not_there_is_unavailable(temporal: TemporalTarget) -> None:
    link = TemporalLink(msgspec.structs.replace(temporal, namespace="elsewhere"))
    told = StepSignal(jobId="job_x", position=BEGINNING)
    with pytest.raises(WorkflowsUnavailable):
        await link.ping()
    with pytest.raises(WorkflowsUnavailable):
        await TemporalStarter(link, StartOptions()).start("job_x", BEGINNING)
    with pytest.raises(WorkflowsUnavailable):
        await TemporalSignaller(link).signal("job_x", "cancel", told)


async def test_temporal_may_come_late_and_go_for_a_while(tmp_path: Path) -> None:
    """One link and one worker, from before the first start of the server to after its second."""
    database, port, taken = tmp_path / "temporal.db", free_port(), asyncio.Event()
    link = TemporalLink(TemporalTarget(address=f"127.0.0.1:{port}"))
    starter, signaller = TemporalStarter(link, StartOptions()), TemporalSignaller(link)
    told = StepSignal(jobId="job_x", position=BEGINNING)
    for call in (link.ping(), starter.start("job_x", BEGINNING), signaller.signal("job_x", "cancel", told)):
        with pytest.raises(WorkflowsUnavailable):
            await call

    async def take(invoker: StandInInvoker, stand_in: StandInLedger) -> None:
        taken.set()

    async with StandInInvoker(signaller, now_ms, script=take, secret="hush") as invoker:
        calls = InvokerCalls(invoker.url, "hush")
        worker = TemporalWorker(link, calls, WorkerLimits(reconnect_seconds=0.1), build_id="test")
        running = asyncio.create_task(worker.run())
        stand_in = invoker.create("job_away", StandInTimeouts(steps=1))
        async with dev_server(database, port=port):
            await asyncio.wait_for(worker.polling.wait(), START_SECONDS_MAX)
            assert await starter.start(stand_in.job_id, stand_in.position()) is StartOutcome.STARTED
            await asyncio.wait_for(taken.wait(), START_SECONDS_MAX)
        with pytest.raises(WorkflowsUnavailable):
            await link.ping()
        async with dev_server(database, port=port):
            assert await starter.start(stand_in.job_id, stand_in.position()) is StartOutcome.RUNNING
            await invoker.result(stand_in, StepState.SUCCEEDED)
            handle = (await link.client()).get_workflow_handle(stand_in.job_id, result_type=str)
            assert await asyncio.wait_for(handle.result(), START_SECONDS_MAX) == JobState.SUCCEEDED
            worker.stop()
            await running
        await calls.close()


def test_the_invoker_is_not_called_without_its_secret() -> None:
    with pytest.raises(ValueError, match="secret"):
        InvokerCalls("http://127.0.0.1:1", "")


class Closing:
    """A workflow whose last task is being written down, and which is closed then."""

    def __init__(self, busy: int) -> None:
        self.busy = busy

    async def client(self) -> "Closing":
        return self

    def get_workflow_handle(self, job_id: str) -> "Closing":
        return self

    async def signal(self, name: str, heard: object, **_: object) -> None:
        self.busy -= 1
        if self.busy >= 0:
            raise RPCError("workflow is closing", RPCStatusCode.RESOURCE_EXHAUSTED, b"")
        raise RPCError("workflow execution already completed", RPCStatusCode.NOT_FOUND, b"")


async def test_a_signal_waits_for_a_workflow_that_is_closing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CLOSING_SECONDS", 0.001)
    news = StepSignal(jobId="j", position=Position(version=1, job_state=JobState.SUCCEEDED))
    assert await TemporalSignaller(cast(TemporalLink, Closing(3))).signal("j", "step_result", news) is False
    with pytest.raises(WorkflowsUnavailable, match="closing"):
        await TemporalSignaller(cast(TemporalLink, Closing(100))).signal("j", "step_result", news)

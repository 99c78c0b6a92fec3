"""Recorded histories, played through the workflow of today: what it would do now is what it did then."""

import asyncio
import base64
import json
from typing import Any

import pytest
from temporalio import workflow
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer
from temporalio.workflow import NondeterminismError
from tests.replay.record import HISTORIES
from tests.replay.shapes import SHAPES

from lucius.engines.temporal.worker import runner
from lucius.engines.temporal.workflow import WORKFLOW_NAME, JobWorkflow

RECORDED = sorted(path.stem for path in HISTORIES.glob("*.json"))
# Histories in which the workflow set a timer.
TIMED = ["success", "retry", "ack_timeout", "window_full"]


@workflow.defn(name=WORKFLOW_NAME)
class Hesitating(JobWorkflow):
    """Changed on purpose: one more timer at the beginning."""

    @workflow.init
    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: dict[str, Any]) -> str:
        await workflow.sleep(0.001)
        return await super().run(given)


@workflow.defn(name=WORKFLOW_NAME)
class Untimed(JobWorkflow):
    """Changed on purpose: it never sets its alarm."""

    @workflow.init
    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: dict[str, Any]) -> str:
        return await super().run(given)

    def _armed(self, until_ms: int) -> asyncio.Task[None]:
        return asyncio.create_task(workflow.wait_condition(lambda: False))


@workflow.defn(name=WORKFLOW_NAME)
class Patched(JobWorkflow):
    """The first of these changes, made as an upgrade has to make it."""

    @workflow.init
    def __init__(self, given: dict[str, Any]) -> None:
        super().__init__(given)

    @workflow.run
    async def run(self, given: dict[str, Any]) -> str:
        if workflow.patched("hesitate-first"):
            await workflow.sleep(0.001)
        return await super().run(given)


async def replay(name: str, changed: type = JobWorkflow, *, sandboxed: bool = False) -> None:
    history = WorkflowHistory.from_json(name, (HISTORIES / f"{name}.json").read_text())
    replayer = Replayer(workflows=[changed], workflow_runner=runner(sandboxed=sandboxed))
    await replayer.replay_workflow(history)


def test_every_shape_is_recorded() -> None:
    assert sorted(SHAPES) == RECORDED


@pytest.mark.parametrize("name", RECORDED)
async def test_it_would_do_the_same_again(name: str) -> None:
    await replay(name)


async def test_a_worker_from_before_began_what_one_of_today_goes_on_with() -> None:
    """It knows nothing of a member that the orchestrator, which is newer, has put into the assignment."""
    told = json.loads((HISTORIES / "repaired.json").read_text())
    (given,) = told["events"][0]["workflowExecutionStartedEventAttributes"]["input"]["payloads"]
    assignment = {**json.loads(base64.b64decode(given["data"])), "ask_first": True}
    given["data"] = base64.b64encode(json.dumps(assignment).encode()).decode()
    replayer = Replayer(workflows=[JobWorkflow], workflow_runner=runner(sandboxed=False))
    await replayer.replay_workflow(WorkflowHistory.from_json("repaired", told))


@pytest.mark.parametrize("name", ["history_grows", "invoker_away", "late_and_double_signals", "retry"])
async def test_it_would_do_the_same_in_the_sandbox(name: str) -> None:
    await replay(name, sandboxed=True)


@pytest.mark.parametrize("name", RECORDED)
async def test_a_new_command_is_noticed(name: str) -> None:
    with pytest.raises(NondeterminismError):
        await replay(name, Hesitating)


@pytest.mark.parametrize("name", TIMED)
async def test_a_missing_command_is_noticed(name: str) -> None:
    with pytest.raises(NondeterminismError):
        await replay(name, Untimed)


@pytest.mark.parametrize("name", RECORDED)
async def test_a_new_command_behind_a_patch_leaves_running_workflows_alone(name: str) -> None:
    await replay(name, Patched)

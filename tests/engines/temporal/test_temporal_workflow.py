"""The workflow against a real Temporal server, in every shape of a job."""

import pytest
from tests.replay.shapes import SHAPES
from tests.replay.temporal_setup_replay import open_deployment

from lucius.engines.temporal.client import TemporalTarget
from lucius.engines.temporal.worker import WorkerLimits

pytestmark = pytest.mark.xdist_group("temporal")


@pytest.mark.parametrize("name", SHAPES)
async def test_a_job_of_this_shape(temporal: TemporalTarget, name: str) -> None:
    async with open_deployment(temporal) as deployment:
        await SHAPES[name](deployment)


async def test_the_workflow_runs_in_the_sandbox_too(temporal: TemporalTarget) -> None:
    async with open_deployment(temporal, limits=WorkerLimits(sandboxed=True)) as deployment:
        await SHAPES["ack_timeout"](deployment)

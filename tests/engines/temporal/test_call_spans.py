"""What a workflow waited for, as spans of its job's trace."""

import pytest
from tests.replay.shapes_of_jobs import answer_lost
from tests.replay.temporal_setup_replay import open_deployment

from lucius.engines.temporal.client import TemporalTarget
from lucius.telemetry.traces import Span, span_id_of
from lucius_lab.bench.stand_in_invoker import TRACEPARENT

pytestmark = pytest.mark.xdist_group("temporal")


async def test_a_call_that_is_made_again_has_a_span_of_its_own(temporal: TemporalTarget) -> None:
    """The task that made it failed and stands in no history: the next gives the call the same number."""
    spans: list[Span] = []
    async with open_deployment(temporal, take=spans.append) as deployment:
        job = await answer_lost(deployment)
    assert [span.name for span in spans] == ["workflow begin"] * 2
    assert len({span.span_id for span in spans}) == 2
    assert {span.trace_id for span in spans} == {TRACEPARENT.split("-")[1]}
    assert {span.parent_id for span in spans} == {span_id_of(job.job_id)}
    assert {span.attributes["jobId"] for span in spans} == {job.job_id}

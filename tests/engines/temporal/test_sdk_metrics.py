"""What Temporal's library counts, read from a worker that has run a workflow."""

import pytest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from tests.replay.temporal_setup_replay import open_deployment

from lucius.engines.temporal.client import TemporalTarget
from lucius.engines.temporal.sdk_metrics import SdkMetrics
from lucius.telemetry import Exposition

pytestmark = pytest.mark.xdist_group("temporal")


async def test_a_worker_tells_what_the_library_counts(temporal: TemporalTarget) -> None:
    metrics = SdkMetrics()
    async with open_deployment(temporal, metrics=metrics.buffer) as deployment:
        stand_in = await deployment.begin()
        metrics.drain()  # what was drained before is not lost, nor counted twice
        assert await deployment.end(stand_in) == "SUCCEEDED"
    shown = Exposition(metrics.families)
    plain = {
        family.name: family
        for family in text_string_to_metric_families(shown.text("", tenants=False)[0].decode())
    }
    assert _value(plain, "temporal_workflow_completed_total", workflow_type="LuciusJob") == 1
    assert _value(plain, "temporal_local_activity_total", activity_type="begin_attempt") == 1
    assert _value(plain, "temporal_request_total", operation="StartWorkflowExecution") == 1
    took = "temporal_workflow_task_execution_latency_seconds"
    assert plain[took].type == "histogram"
    count = _value(plain, f"{took}_count", workflow_type="LuciusJob")
    assert count == _value(plain, f"{took}_bucket", le="+Inf") >= 1
    assert 0 < _value(plain, f"{took}_sum") < 60
    slots = "temporal_worker_task_slots_available"
    assert plain[slots].type == "gauge"
    assert _value(plain, slots, worker_type="WorkflowWorker") > 1, "the newest, not the sum of all"
    assert _value(plain, slots, worker_type="WorkflowWorker") < 1_000
    assert "process_resident_memory_bytes" in plain
    opened, media_type = shown.text("application/openmetrics-text; version=1.0.0", tenants=False)
    assert opened.endswith(b"# EOF\n") and media_type.startswith("application/openmetrics-text")


def _value(families: dict[str, Metric], name: str, **labels: str) -> float:
    found = [
        sample.value
        for family in families.values()
        for sample in family.samples
        if sample.name == name and sample.labels.items() >= labels.items()
    ]
    assert found, (name, labels)
    return sum(found)

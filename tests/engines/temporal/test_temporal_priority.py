"""What Temporal is told of a job's priority."""

import pytest

from lucius.engines.temporal.client import _priority
from lucius.jobs.workflows import WorkflowLabels


@pytest.mark.parametrize(
    ("priority", "level"), [(9, 1), (8, 1), (7, 2), (5, 3), (4, 3), (2, 4), (1, 5), (0, 5)]
)
def test_ten_levels_are_five(priority: int, level: int) -> None:
    told = _priority(WorkflowLabels(tenant="a tenant " * 20, request_type="OCR", priority=priority))
    assert told.priority_key == level
    assert told.fairness_key is not None and len(told.fairness_key) <= 64

"""The harness of fair shares measures the real thing, and shows before and after."""

from pathlib import Path

import pytest

from lucius.core.routing import lane_of
from lucius_lab.bench.fairness import ELSEWHERE, FLOOD, QUIET, FairnessOptions, measure, table


def test_the_quiet_tenant_shares_the_lane_and_the_third_does_not() -> None:
    assert lane_of(QUIET) == lane_of(FLOOD) != lane_of(ELSEWHERE)


@pytest.mark.xdist_group("bench")
async def test_a_flood_no_longer_keeps_a_quiet_tenant_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine with other work, only what is far apart is compared."""
    monkeypatch.setattr("lucius_lab.bench.fairness.EMPTY_JOBS", 8)
    options = FairnessOptions(jobs=200, at_a_time=2, work_ms=60)
    found = await measure(options, tmp_path / "embedded", "embedded")
    assert found.quiet_ms < found.quiet_before_ms / 2
    assert found.flood_per_second > 0 and found.cpu_ms > 0
    assert table([found]).splitlines()[-1].startswith("| embedded | ")

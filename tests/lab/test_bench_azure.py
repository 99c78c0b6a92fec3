"""The part of `lucius bench` about Azure: it measures the real thing, and round trips do not creep up."""

from pathlib import Path

import pytest

from lucius_lab.bench.azure import measure_azure

pytestmark = pytest.mark.xdist_group("azurite")


async def test_a_job_asks_as_little_as_it_can(tmp_path: Path) -> None:
    found = await measure_azure(2, 8, tmp_path, over_bus=False)
    assert found.per_second > 0
    assert found.lone_p50_ms > 0
    assert found.trips_a_job == pytest.approx(19, abs=0.5)
    assert found.trips["commit"] == pytest.approx(16, abs=0.5)


async def test_the_bus_is_measured_too(tmp_path: Path) -> None:
    found = await measure_azure(2, 2, tmp_path, over_bus=True)
    assert found.per_second > 0
    assert found.trips_a_job > 19

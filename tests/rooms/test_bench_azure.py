"""The part of `lucius bench` about Azure: it measures the real thing, and round trips do not creep up."""

from pathlib import Path

import pytest

from lucius.cli.bench_azure import measure_azure
from lucius.core.routing import LANES

pytestmark = pytest.mark.xdist_group("azurite")

LONE = 4


async def test_a_job_asks_as_little_as_it_can(tmp_path: Path) -> None:
    found = await measure_azure(2, LONE, tmp_path, over_bus=False)
    assert found.per_second > 0
    assert found.lone_p50_ms > 0
    assert found.trips["commit"] == pytest.approx(16, abs=0.5)
    assert found.trips["get"] == pytest.approx(3, abs=0.5)
    # No job asks for a range of rows. A look at the indexes does, of every lane, and may fall into the count.
    queries = round(found.trips.get("query", 0) * LONE)
    assert queries == 0 or queries >= LANES


async def test_the_bus_is_measured_too(tmp_path: Path) -> None:
    found = await measure_azure(2, 2, tmp_path, over_bus=True)
    assert found.per_second > 0
    assert found.trips_a_job > 19

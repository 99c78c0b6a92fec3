"""The simulation's faults in front of Azure's tables: every promise holds there as it does in process.

`python -m lucius_lab.schedules_servers --store azure` runs many seeds in all deployments; here one of each
layout.
"""

from collections.abc import Iterator, Sequence

import pytest
from tests.conformance.azurite_setup import azurite, new_prefix
from tests.conformance.schedules_setup import NEEDED, eventful, faulty

from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.names import Tables
from lucius.ledger.store import Op
from lucius_lab.schedules_servers import on_azure
from lucius_lab.sim.cluster import ClusterTopology
from lucius_lab.sim.run import SimShape, simulate
from lucius_lab.sim.store_azure import AzureTables, SharedAzureStore, azure_tables

pytestmark = pytest.mark.xdist_group("azurite")


@pytest.fixture
def account() -> Iterator[AzureTables]:
    with azure_tables(azurite().connection_string) as found:
        yield found


@pytest.mark.parametrize("layout", LayoutName)
def test_a_schedule_full_of_faults_comes_to_the_same_rest_as_in_process(
    account: AzureTables, layout: LayoutName
) -> None:
    shape = faulty(layout, spans=False)
    seed = eventful(shape)
    outcome = on_azure(account, seed, shape, prefix=new_prefix())
    assert outcome.violations == (), seed
    assert {fault.kind for fault in outcome.faults} >= NEEDED
    assert len(outcome.jobs) >= 3
    assert {job.state for job in outcome.jobs} <= {"SUCCEEDED", "FAILED_FINAL", "CANCELLED"}


class _Keeping(SharedAzureStore):
    """Says that a slot was given back, and keeps it."""

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        slot = ops[0].table == Tables().inflight and not ops[0].body
        return [""] * len(ops) if slot else await super().commit(ops)


def test_a_row_that_nobody_was_told_of_is_found_in_the_tables(account: AzureTables) -> None:
    shape = SimShape(
        jobs=1,
        steps=1,
        faults="none",
        topology=ClusterTopology.EMBEDDED,
        quiet_at_seconds=5,
        rest_seconds_max=30,
    )
    found = simulate(1, shape, store=_Keeping(account, new_prefix()))
    assert [violation.name for violation in found.violations] == ["I4"]
    assert "no rest" in found.violations[0].text
    assert Tables().inflight in found.violations[0].text

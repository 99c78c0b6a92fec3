"""The simulation's faults in front of PostgreSQL: every promise holds there as it does in process.

`python -m lucius_lab.schedules_servers --store postgres` runs many seeds in all deployments; here one
schedule of each layout, and those in which several processes would overshoot a limit.
"""

from collections.abc import Iterator, Sequence
from itertools import islice

import pytest
from tests.conformance.postgres_setup import postgres
from tests.conformance.schedules_setup import NEEDED, SEEDS_MAX, eventful, faulty

from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.names import Tables
from lucius.ledger.store import Op
from lucius_lab.schedules_servers import on_postgres
from lucius_lab.sim.cluster import ClusterTopology
from lucius_lab.sim.constraints import Constraint
from lucius_lab.sim.run import SimShape, simulate
from lucius_lab.sim.store import SharedStore
from lucius_lab.sim.store_postgres import PostgresDatabases, SharedPostgresStore, postgres_databases

pytestmark = pytest.mark.xdist_group("postgres")

OVERSHOT = 3
SCARCE = SimShape(
    topology=ClusterTopology.BROKER, layout=LayoutName.LEDGER, spans=True, constraint=Constraint.SLOTS
)


@pytest.fixture(scope="module")
def databases() -> Iterator[PostgresDatabases]:
    with postgres_databases(postgres()) as ready:
        yield ready


@pytest.mark.parametrize("layout", LayoutName)
def test_a_schedule_full_of_faults_comes_to_the_same_rest_as_in_process(
    databases: PostgresDatabases, layout: LayoutName
) -> None:
    shape = faulty(layout, spans=True)
    seed = eventful(shape)
    outcome = on_postgres(databases, seed, shape)
    assert outcome.violations == (), seed
    assert {fault.kind for fault in outcome.faults} >= NEEDED
    assert len(outcome.jobs) >= 3
    assert {job.state for job in outcome.jobs} <= {"SUCCEEDED", "FAILED_FINAL", "CANCELLED"}


class _CountsNothing(SharedStore):
    """Says that it keeps limits, and does not."""

    keeps_bounds = True


def _overshot() -> Iterator[int]:
    """Seeds by which processes that only know of their own jobs accept too many."""
    for seed in range(SEEDS_MAX):
        found = simulate(seed, SCARCE, store=_CountsNothing())
        if found.violations:
            assert {violation.name for violation in found.violations} == {"I14"}
            yield seed


def test_limits_hold_where_processes_by_themselves_would_overshoot(databases: PostgresDatabases) -> None:
    seeds = list(islice(_overshot(), OVERSHOT))
    assert len(seeds) == OVERSHOT
    for seed in seeds:
        assert on_postgres(databases, seed, SCARCE).violations == (), seed


class _Keeping(SharedPostgresStore):
    """Says that a slot was given back, and keeps it."""

    async def commit(self, ops: Sequence[Op]) -> list[str]:
        given_back = [op.table == Tables().inflight and not op.body for op in ops]
        others = [op for op, left_out in zip(ops, given_back, strict=True) if not left_out]
        etags = iter(await super().commit(others))
        return ["" if left_out else next(etags) for left_out in given_back]


def test_a_row_that_was_left_behind_is_found_in_the_database(databases: PostgresDatabases) -> None:
    shape = SimShape(
        jobs=1,
        steps=1,
        faults="none",
        topology=ClusterTopology.EMBEDDED,
        quiet_at_seconds=5,
        rest_seconds_max=30,
    )
    with databases.store() as store:
        found = simulate(1, shape, store=_Keeping(store._thread, store._inner))
    assert [violation.name for violation in found.violations] == ["I4"]
    assert "no rest" in found.violations[0].text
    assert Tables().inflight in found.violations[0].text

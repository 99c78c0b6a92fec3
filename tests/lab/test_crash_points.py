"""A process dies at every point of a job's life, one point a run; and at every pair of the shortest job's.

The points are found by a run without a crash: every step of every process, and before and after every commit,
publish, receive and settle. Whatever dies where, the job ends once and nothing is left behind.
"""

from collections.abc import Iterable, Sequence

import pytest
from tests.sizes import SOAKING

from lucius.ledger.job_ledger import LayoutName
from lucius_lab.sim.cluster import ClusterTopology
from lucius_lab.sim.crash_points import CrashPoint, crash_at, explore, pairs
from lucius_lab.sim.run import SimShape

SEED = 1
DEPLOYMENTS = [
    (topology, layout, spans)
    for topology in ClusterTopology
    for layout in LayoutName
    for spans in (True, False)
    # A store that cannot span is the harder one; where there is time, both, in every house.
    if SOAKING or not spans or topology is ClusterTopology.EMBEDDED
]


def one_job(topology: ClusterTopology, layout: LayoutName, spans: bool, *, steps: int) -> SimShape:
    return SimShape(
        jobs=1,
        steps=steps,
        faults="none",
        topology=topology,
        layout=layout,
        spans=spans,
        submit_seconds=0.0,
        quiet_at_seconds=0.0,
    )


def crash_at_each(shape: SimShape, places: Iterable[Sequence[CrashPoint]]) -> int:
    """How many runs there were. In each a process died, except where a receive found nothing."""
    runs = crashed = 0
    for points in places:
        outcome = crash_at(SEED, shape, points)
        story = " and ".join(str(point) for point in points)
        assert outcome.passed, f"{story}: {outcome.violations[0]}"
        assert [job.state for job in outcome.jobs] == ["SUCCEEDED"], story
        assert outcome.faults or points[0].step is None, story
        runs += 1
        crashed += bool(outcome.faults)
    assert crashed > 0.85 * runs
    return runs


@pytest.mark.parametrize(("topology", "layout", "spans"), DEPLOYMENTS)
def test_a_job_of_three_steps_survives_a_crash_at_every_point(
    topology: ClusterTopology, layout: LayoutName, spans: bool
) -> None:
    shape = one_job(topology, layout, spans, steps=3)
    explored = explore(SEED, shape)
    assert explored.outcome.passed
    commits = [point for point in explored.points if point.decision is not None]
    assert len(commits) >= 2 * explored.outcome.commits
    assert len(explored.points) - len(commits) > 2 * explored.outcome.commits  # it waits around each of them
    assert crash_at_each(shape, ([point] for point in explored.points)) == len(explored.points)


def test_the_shortest_job_survives_every_pair_of_crashes() -> None:
    shape = one_job(ClusterTopology.EMBEDDED, LayoutName.LEDGER, True, steps=1)
    points = explore(SEED, shape).points
    assert crash_at_each(shape, pairs(points)) == len(points) * (len(points) - 1) // 2


def test_the_points_of_a_scenario_are_always_the_same() -> None:
    shape = one_job(ClusterTopology.BROKER, LayoutName.TABLE, False, steps=1)
    first, second = explore(SEED, shape), explore(SEED, shape)
    assert first.points == second.points
    assert first.outcome.trace_hash == second.outcome.trace_hash

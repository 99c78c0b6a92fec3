"""Whole simulations: one seed decides everything, all topologies come to rest, and a breach is seen."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from lucius.bus.port import DirectiveOut
from lucius.core.model import ProtocolSpec, StepSpec
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.store import Op
from lucius.sdk.directive import Key
from lucius_lab.sim.cluster import ClusterTopology
from lucius_lab.sim.constraints import QUICK
from lucius_lab.sim.faults import FaultKind
from lucius_lab.sim.run import DEPLOYMENTS, SimOutcome, SimShape, simulate
from lucius_lab.sim.watch import StoreReader, Violation
from lucius_lab.sim.workers import Behaviour

TERMINAL = {"SUCCEEDED", "FAILED_FINAL", "CANCELLED"}
HASHES = """
from lucius_lab.sim.run import SimShape, simulate
from lucius_lab.sim.cluster import ClusterTopology
for topology in ClusterTopology:
    for seed in (3, 4):
        print(simulate(seed, SimShape(topology=topology, faults="heavy")).trace_hash)
"""


def clean(outcome: SimOutcome) -> SimOutcome:
    assert outcome.passed, (outcome.seed, outcome.topology, outcome.layout, outcome.spans, outcome.violations)
    return outcome


@pytest.mark.parametrize("topology", ClusterTopology)
@pytest.mark.parametrize("layout", LayoutName)
@pytest.mark.parametrize("spans", [True, False])
def test_every_deployment_comes_to_rest(topology: ClusterTopology, layout: LayoutName, spans: bool) -> None:
    shape = SimShape(topology=topology, layout=layout, spans=spans)
    for seed in range(100, 103):
        outcome = clean(simulate(seed, shape))
        assert len(outcome.jobs) >= shape.jobs
        assert {job.state for job in outcome.jobs} <= TERMINAL
        assert outcome.fault_counts


@pytest.mark.parametrize("topology", ClusterTopology)
def test_without_faults_every_job_succeeds_at_the_first_attempt(topology: ClusterTopology) -> None:
    outcome = clean(simulate(1, SimShape(topology=topology, faults="none")))
    assert outcome.faults == ()
    assert [(job.state, job.attempts) for job in outcome.jobs] == [("SUCCEEDED", 3)] * 8
    assert all(job.seconds is not None and job.seconds < 30 for job in outcome.jobs)


def test_the_same_seed_is_the_same_run_in_any_process() -> None:
    runs = [
        subprocess.run(
            [sys.executable, "-c", HASHES],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for hash_seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0])) == len(runs[0]) == 6


def test_watching_and_recording_change_nothing() -> None:
    shape = SimShape(topology=ClusterTopology.BROKER)
    plain = simulate(7, shape)
    recorded = simulate(7, msgspec.structs.replace(shape, record=True))
    blind = simulate(7, msgspec.structs.replace(shape, watched=False))
    assert plain.trace_hash == recorded.trace_hash == blind.trace_hash
    assert plain.timeline == ()
    text = "\n".join(recorded.timeline)
    assert "JOB_SUCCEEDED" in text
    assert "✗ fault" in text
    assert "INITIATED→PROCESSING" in text


def test_faults_can_be_taken_out() -> None:
    shape = SimShape(topology=ClusterTopology.WORKERS)
    every = clean(simulate(11, shape))
    none = clean(simulate(11, msgspec.structs.replace(shape, only=frozenset())))
    assert none.faults == ()
    kept = frozenset(fault.number for fault in every.faults[: len(every.faults) // 2])
    some = clean(simulate(11, msgspec.structs.replace(shape, only=kept)))
    assert some.faults
    assert {fault.number for fault in some.faults} <= kept


def test_every_kind_of_fault_happens() -> None:
    missing = {kind.value for kind in FaultKind}
    for seed in range(40):
        missing -= simulate(seed, SimShape(faults="heavy", watched=False)).fault_counts.keys()
        if not missing:
            break
    assert not missing


@pytest.mark.parametrize("topology", ClusterTopology)
def test_retention_runs_beside_everything_else(topology: ClusterTopology) -> None:
    shape = SimShape(topology=topology, retention_seconds=15.0)
    states = {job.state for seed in range(4) for job in clean(simulate(seed, shape)).jobs}
    assert "FORGOTTEN" in states


def test_protocols_and_services_of_a_user_can_be_simulated() -> None:
    steps = tuple(StepSpec(step_type=name, service=name.lower(), policy=QUICK) for name in ("SCAN", "SORT"))
    shape = SimShape(
        protocols=(ProtocolSpec(protocol_id="mine_v1", request_types=("MINE",), steps=steps),),
        behaviours={"sort": Behaviour(final_rate=1.0)},
        faults="none",
        jobs=3,
        topology=ClusterTopology.EMBEDDED,
    )
    outcome = clean(simulate(5, shape))
    assert [job.state for job in outcome.jobs] == ["FAILED_FINAL"] * 3


class Picky:
    """Breaks the run at the third commit."""

    def __init__(self) -> None:
        self.commits = 0

    def committed(self, ops: Sequence[Op], *, now_ms: int, by: str) -> None:
        self.commits += 1
        if self.commits == 3:
            raise Violation("PICKY", "", f"{by} wrote {len(ops)} rows")

    def published(self, directive: DirectiveOut, *, now_ms: int) -> None: ...

    def answered(self, job_id: str, *, key: str, duplicate: bool) -> None: ...

    def started(self, name: str, *, opens: bool, relays: bool, offset_ms: int) -> None: ...

    def stood_still(self, name: str, *, from_ms: int, until_ms: int) -> None: ...

    def rerun_asked(self, job_id: str, first: int) -> None: ...

    def replied(self, attempt: Key, kind: str, outcome: str, *, stop: bool) -> None: ...

    def settled(self, body: bytes, *, now_ms: int) -> None: ...

    def lost(self, table: str, partition: str, key: str, *, now_ms: int) -> None: ...

    def passed(self, *, now_ms: int) -> None: ...

    def at_rest(self, reader: StoreReader) -> list[Violation]:
        return []


def test_a_breach_ends_the_run_where_it_happens() -> None:
    outcome = simulate(3, SimShape(record=True), watch=Picky())
    assert [violation.name for violation in outcome.violations] == ["PICKY"]
    assert outcome.commits == 3
    assert "PICKY" in outcome.timeline[-1]


def test_seeds_live_in_every_deployment_and_in_no_other() -> None:
    shape = SimShape(jobs=0, faults="none")
    outcomes = [simulate(seed, shape) for seed in range(400)]
    lived = Counter((outcome.topology, outcome.layout, outcome.spans) for outcome in outcomes)
    assert lived.keys() == DEPLOYMENTS.keys()
    assert sum(DEPLOYMENTS.values()) == 100
    assert all(
        abs(lived[deployment] - 4 * lane_leases) < 30 for deployment, lane_leases in DEPLOYMENTS.items()
    )


def test_a_deployment_that_is_asked_for_is_the_one() -> None:
    for seed in range(30):
        outcome = simulate(
            seed, SimShape(jobs=0, faults="none", topology=ClusterTopology.WORKERS, spans=False)
        )
        assert (outcome.topology, outcome.spans) == (ClusterTopology.WORKERS, False)

"""Who has work is woken, and does not wait for the regular look: where nothing goes wrong, jobs are quick.

The simulation looks every 8 and 15 seconds, so a wake-up that is missing shows in virtual time.
"""

from collections.abc import Sequence
from statistics import median

import pytest
from tests.lab.test_sim_run import Picky

from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.rows import decode_event
from lucius.ledger.store import Op
from lucius_lab.sim.cluster import ClusterTopology
from lucius_lab.sim.constraints import Constraint
from lucius_lab.sim.faults import FaultKind
from lucius_lab.sim.run import SimShape, simulate

WORK_SECONDS = 3 * 1.5
LOOK_SECONDS = 8.0
LATE_SECONDS_MAX = 1.0


class Lateness(Picky):
    """How long after its time each new attempt began, and how long it waited to be taken."""

    def __init__(self) -> None:
        super().__init__()
        self.due_ms: dict[str, int] = {}
        self.late_ms: list[int] = []
        self.begun_ms: dict[str, int] = {}
        self.untaken_ms: list[int] = []

    def committed(self, ops: Sequence[Op], *, now_ms: int, by: str) -> None:
        for op in ops:
            if op.key.startswith("EVENT#"):
                event = decode_event.of_bytes(op.body)
                if event.type == "STEP_RETRYING":
                    self.due_ms[op.partition] = event.data["next_attempt_at_ms"]
                elif event.type == "ATTEMPT_BEGUN" and (due_ms := self.due_ms.pop(op.partition, None)):
                    self.late_ms.append(event.at_ms - due_ms)
                    self.begun_ms[op.partition] = event.at_ms
                elif event.type == "DIRECTIVE_PUBLISHED" and op.partition in self.begun_ms:
                    self.untaken_ms.append(event.at_ms - self.begun_ms.pop(op.partition))


@pytest.mark.parametrize("topology", [ClusterTopology.EMBEDDED, ClusterTopology.WORKERS])
def test_a_directive_is_taken_when_it_is_there(topology: ClusterTopology) -> None:
    for seed in range(40):
        outcome = simulate(seed, SimShape(faults="none", topology=topology))
        slowest = max(job.seconds or 0.0 for job in outcome.jobs)
        assert slowest < WORK_SECONDS + LATE_SECONDS_MAX, f"seed {seed}: {slowest} s"


@pytest.mark.parametrize("topology", [ClusterTopology.EMBEDDED, ClusterTopology.WORKERS])
def test_an_attempt_begins_when_its_backoff_is_over_and_is_taken(topology: ClusterTopology) -> None:
    late_ms: list[int] = []
    untaken_ms: list[int] = []
    for seed in range(20):
        watch = Lateness()
        rates = {FaultKind.WORKER_RETRYABLE: 0.4}
        shape = SimShape(
            rates=rates,
            topology=topology,
            layout=LayoutName.LEDGER,
            spans=True,
            constraint=Constraint.NONE,  # what waits for a place at a service is not woken sooner
        )
        simulate(seed, shape, watch=watch)
        late_ms += watch.late_ms
        untaken_ms += watch.untaken_ms
    # One deadline is remembered: those right behind it may wait for the regular look, and no longer.
    assert len(late_ms) > 50
    assert median(late_ms) < 300
    assert max(late_ms) < 1_000 * (LOOK_SECONDS + LATE_SECONDS_MAX)
    assert len(untaken_ms) > 50
    assert max(untaken_ms) < 1_000 * (WORK_SECONDS + LATE_SECONDS_MAX)  # a service may be busy

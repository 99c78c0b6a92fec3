"""A schedule in which all goes wrong that a store must bear: the in-process store finds it at once."""

from lucius.ledger.job_ledger import LayoutName
from lucius_lab.sim.cluster import ClusterTopology
from lucius_lab.sim.faults import PRESETS, FaultKind
from lucius_lab.sim.run import SimShape, simulate

SEEDS_MAX = 500
COMMITS_MAX = 300
STORE = {
    FaultKind.STORE_CONFLICT: 0.06,
    FaultKind.STORE_UNAVAILABLE: 0.04,
    FaultKind.STORE_TIMEOUT_BEFORE: 0.04,
    FaultKind.STORE_TIMEOUT_AFTER: 0.06,
    FaultKind.STORE_READ_ERROR: 0.02,
    FaultKind.CRASH_BEFORE: 0.02,
    FaultKind.CRASH_AFTER: 0.02,
}
NEEDED = {*STORE, FaultKind.CONTROL, FaultKind.COMMAND_DUPLICATE}


def faulty(layout: LayoutName, *, spans: bool) -> SimShape:
    # Where one commit spans what takes several elsewhere, there are fewer in which something can go wrong.
    jobs, more_often = (8, 2) if spans else (3, 1)
    rates = {**PRESETS["default"], **{kind: rate * more_often for kind, rate in STORE.items()}}
    return SimShape(jobs=jobs, rates=rates, layout=layout, spans=spans, topology=ClusterTopology.EMBEDDED)


def eventful(shape: SimShape) -> int:
    """The first seed by which everything goes wrong that we ask for."""
    for seed in range(SEEDS_MAX):
        outcome = simulate(seed, shape)
        cancelled = any(job.state == "CANCELLED" for job in outcome.jobs)
        met = {fault.kind for fault in outcome.faults} >= NEEDED
        if met and cancelled and outcome.commits <= COMMITS_MAX:
            return seed
    raise AssertionError("no seed has it all")

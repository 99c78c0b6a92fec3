"""Index rows that vanish in a simulation: the audit puts them back, and one that misses a kind is noticed."""

from contextlib import nullcontext

import pytest

from lucius.ledger.index_audit import IndexAudit, IndexKind
from lucius.ledger.store import Op
from lucius_lab.planted_bugs import _attribute
from lucius_lab.sim.faults import FaultKind
from lucius_lab.sim.run import SimOutcome, SimShape, simulate

RATES = {
    FaultKind.INDEX_LOST: 0.6,
    FaultKind.WORKER_SILENT: 0.4,
    FaultKind.WORKER_RETRYABLE: 0.3,
    FaultKind.STORE_TIMEOUT_AFTER: 0.01,
}
SEEDS = range(200)

_right = IndexAudit._open_checks


def blind_to(missed: IndexKind) -> object:
    def checks(self: IndexAudit, record: object) -> list[tuple[IndexKind, Op]]:
        return [(kind, op) for kind, op in _right(self, record) if kind is not missed]  # type: ignore[arg-type]

    return checks


def first_broken(missed: IndexKind | None) -> tuple[SimOutcome | None, int]:
    """The first schedule that breaks a promise, and in how many rows vanished until then."""
    struck = 0
    patch = nullcontext() if missed is None else _attribute(IndexAudit, "_open_checks", blind_to(missed))
    with patch:
        for seed in SEEDS:
            outcome = simulate(seed, SimShape(rates=RATES, quiet_at_seconds=90.0))
            struck += any(fault.kind is FaultKind.INDEX_LOST for fault in outcome.faults)
            if not outcome.passed:
                return outcome, struck
    return None, struck


def test_rows_that_vanish_are_put_back_and_every_job_ends() -> None:
    broken, struck = first_broken(None)
    assert broken is None, broken and broken.violations
    assert struck >= 10


@pytest.mark.parametrize("missed", [IndexKind.DUE, IndexKind.DISPATCH, IndexKind.SLOT, IndexKind.LIST])
def test_an_audit_that_misses_a_kind_is_found(missed: IndexKind) -> None:
    broken, _ = first_broken(missed)
    assert broken is not None
    assert broken.violations[0].name in {"I17", "I6", "I4"}

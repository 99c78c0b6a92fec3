"""Index rows that vanish in a simulation: the audit puts them back, and one that misses a kind is noticed."""

from contextlib import nullcontext

import pytest

from lucius.lab.bugs import _attribute
from lucius.lab.sim.faults import Kind
from lucius.lab.sim.run import Outcome, Shape, simulate
from lucius.ledger.audit import IndexAudit
from lucius.ledger.audit import Kind as IndexKind
from lucius.ledger.store import Op

RATES = {
    Kind.INDEX_LOST: 0.6,
    Kind.WORKER_SILENT: 0.4,
    Kind.WORKER_RETRYABLE: 0.3,
    Kind.STORE_TIMEOUT_AFTER: 0.01,
}
SEEDS = range(100)

_right = IndexAudit._open_checks


def blind_to(missed: IndexKind) -> object:
    def checks(self: IndexAudit, record: object) -> list[tuple[IndexKind, Op]]:
        return [(kind, op) for kind, op in _right(self, record) if kind is not missed]  # type: ignore[arg-type]

    return checks


def first_broken(missed: IndexKind | None) -> tuple[Outcome | None, int]:
    """The first schedule that breaks a promise, and in how many rows vanished until then."""
    struck = 0
    patch = nullcontext() if missed is None else _attribute(IndexAudit, "_open_checks", blind_to(missed))
    with patch:
        for seed in SEEDS:
            outcome = simulate(seed, Shape(rates=RATES, quiet_at_seconds=90.0))
            struck += any(fault.kind is Kind.INDEX_LOST for fault in outcome.faults)
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

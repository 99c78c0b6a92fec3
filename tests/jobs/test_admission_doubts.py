"""Slots of which nobody knows whether a job has them: limits hold, and nobody is refused in vain."""

import asyncio
from typing import Any

import pytest
from tests.core.machine import START_MS
from tests.jobs.test_admission import admission_of, end, ledger, refused, slot, taken

from lucius.core.refusal import Code
from lucius.core.states import Mode
from lucius.jobs.admission import LOOK_EVERY_MS, InFlightCounts
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import Row, StoreUnavailable, discard

__all__ = ["ledger"]


async def test_a_job_that_may_have_been_created_keeps_its_slot_until_somebody_counts(
    ledger: JobLedger,
) -> None:
    """Else the limit is broken by every commit that took effect and gave no answer."""
    admission = admission_of(ledger, tenant_max=1)
    assert await admission.reserve("acme", "job_1", Mode.DEFAULT, START_MS) is None
    await slot(ledger, "acme", "job_1")
    admission.doubt("acme", "job_1")
    assert (await refused(admission, "acme")).code is Code.TENANT_LIMIT
    assert admission.in_flight("acme") == InFlightCounts(tenant=1, total=1, burst=0)


async def test_nobody_is_refused_for_a_job_that_was_never_created(ledger: JobLedger) -> None:
    admission = admission_of(ledger, tenant_max=1, total_max=2, burst_max=1)
    assert await admission.reserve("acme", "job_1", Mode.BURST, START_MS) is None
    admission.doubt("acme", "job_1")  # nobody wrote its slot
    assert await admission.reserve("beta", "job_2", Mode.BURST, START_MS) is None
    assert admission.in_flight("beta") == InFlightCounts(tenant=1, total=1, burst=1)
    admission.doubt("beta", "job_2")
    both = (admission.reserve("beta", f"job_{number}", Mode.BURST, START_MS) for number in (3, 4))
    answers = await asyncio.gather(*both)  # the second waits for what the first is about to learn
    assert sorted(answer is None for answer in answers) == [False, True]
    assert admission.in_flight("beta") == InFlightCounts(tenant=1, total=1, burst=1)


async def test_nobody_is_refused_for_an_end_that_was_not_heard_of(ledger: JobLedger) -> None:
    """The commit of the end took effect and gave no answer."""
    admission = admission_of(ledger, tenant_max=1)
    job_id = await taken(admission)
    assert (await refused(admission, "acme")).code is Code.TENANT_LIMIT
    await ledger.store.commit([discard(ledger.tables.inflight, "acme", job_id)])
    assert (await refused(admission, "acme", now_ms=START_MS + 1)).code is Code.TENANT_LIMIT
    later_ms = START_MS + LOOK_EVERY_MS
    assert await admission.reserve("acme", "job_1", Mode.DEFAULT, later_ms) is None


async def test_an_end_that_is_heard_of_after_a_count_is_counted_once(ledger: JobLedger) -> None:
    admission = admission_of(ledger, tenant_max=2)
    first, _ = await taken(admission), await taken(admission)
    await ledger.store.commit([discard(ledger.tables.inflight, "acme", first)])
    await admission.recount()
    await end(admission, START_MS, job_id=first)
    assert admission.in_flight("acme").tenant == 1


async def test_what_comes_and_goes_while_two_count_is_seen_by_both(ledger: JobLedger) -> None:
    admission = admission_of(ledger)
    gone = await taken(admission)
    counts = [asyncio.create_task(admission.recount()) for _ in range(2)]
    for _ in range(4):
        await asyncio.sleep(0)
    come = await taken(admission)
    await end(admission, START_MS, job_id=gone)
    await asyncio.gather(*counts)
    assert list(admission._jobs["acme"]) == [come]


async def test_a_job_that_has_its_slot_needs_no_other(ledger: JobLedger) -> None:
    """Whoever finishes a job under the id that another chose may find its slot taken by it."""
    admission = admission_of(ledger, tenant_max=1)
    await slot(ledger, "acme", "job_1")
    await admission._names.add("acme")
    await admission.recount()
    assert await admission.reserve("acme", "job_1", Mode.DEFAULT, START_MS) is None
    assert admission.in_flight("acme").tenant == 1


async def test_where_rows_cannot_be_read_a_refusal_stands_and_so_does_the_doubt(
    ledger: JobLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = admission_of(ledger, tenant_max=1)
    assert await admission.reserve("acme", "job_1", Mode.DEFAULT, START_MS) is None
    admission.doubt("acme", "job_1")

    async def down(*place: Any, **bounds: Any) -> list[Row]:
        raise StoreUnavailable("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(ledger.store, "query", down)
        assert (await refused(admission, "acme")).code is Code.TENANT_LIMIT
    assert await admission.reserve("acme", "job_2", Mode.DEFAULT, START_MS) is None

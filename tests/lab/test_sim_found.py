"""What the simulation found in the product, each in its smallest form."""

import pytest
from tests.support.dispatch_setup import Place, ids

from lucius.core.routing import lane_of
from lucius.ledger.names import dispatch_partition
from lucius.ledger.store import Row, StoreUnavailable
from lucius_lab.sim.run import simulate


async def test_rows_claimed_before_a_read_failed_are_handed_out_by_the_next_look() -> None:
    """They stayed claimed for the life of the process, and nobody was ever given them."""
    place = Place()
    first, second = sorted(("acme", "beta"), key=lane_of)
    assert lane_of(first) < lane_of(second)
    jobs = [await place.submit(first), await place.submit(second)]
    store, failures = place.ledger.store, [dispatch_partition("ocr", lane_of(second))]
    read = store.query

    async def fails_once(
        table: str, partition: str, *, start: str = "", end: str | None = None, limit: int
    ) -> list[Row]:
        if partition in failures:
            failures.clear()
            raise StoreUnavailable("the store did not answer")
        return await read(table, partition, start=start, end=end, limit=limit)

    store.query = fails_once  # type: ignore[method-assign]
    with pytest.raises(StoreUnavailable):
        await place.dispatcher.take("ocr", directives_max=2, wait_ms=0)
    assert sorted(ids(await place.dispatcher.take("ocr", directives_max=2, wait_ms=0))) == sorted(jobs)


@pytest.mark.parametrize(
    "seed",
    [
        # Two announced one version of a job. One was refused and took the due row back; the other wrote it.
        55272,
        93865,
        # Chores that were done were repeated while the job was taken up again: it stood in the DLQ once more.
        151570,
        # A due row of a clock that ran ahead was lost, and put back as one that was to wait for that time.
        1000181,
        # A clock far ahead counted an attempt's time beyond the SLA: its row stayed as it was.
        3000211,
        5000335,
        # A hand-out was decided, and committed after a standstill: its time to answer was over as it left.
        8297,
        # A process stood still while it started: it took the time before that for the end of its absence.
        15305,
        # The lab was wrong: a lease was counted from its commit, which a standstill had put off.
        11878,
        # The lab was wrong: a second standstill shortened the first, and the judge knew only the longer one.
        1000594,
    ],
)
def test_schedules_that_broke_a_promise_keep_it(seed: int) -> None:
    assert simulate(seed).violations == ()

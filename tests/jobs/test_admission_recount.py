"""The recount of slots: right, and never in the way, however many tenants and jobs there are."""

import asyncio
import gc
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from tests.jobs.test_admission import admission_of, end, job, slot, taken
from tests.support.virtual_time import virtual

from lucius.assembly.process import every, settle_memory
from lucius.core.states import Mode
from lucius.jobs.admission import Admission, InFlightCounts
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.slots import PAGE_ROWS_MAX
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import Op, insert

TENANTS = 45_000
SLOTS = 200_000
BURST_EVERY = 3
COMMIT_ROWS_MAX = 100
COMMITS_AT_ONCE = 200
STALL_SECONDS_MAX = 0.020
CHANGES = 300


@pytest.fixture(autouse=True)
def memory_as_in_a_process() -> Iterator[None]:
    """Where what lives long is not looked at by the garbage collector over and over."""
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[JobLedger]:
    store = await SqliteStore.open(tmp_path / "lucius.db")
    yield JobLedger(store, LayoutName.LEDGER)
    await store.close()


async def filled(ledger: JobLedger, tenants: int, slots: int) -> dict[str, Counter[str]]:
    """The slots of each tenant by mode; some tenants have none."""
    plain: dict[str, Counter[str]] = {f"tenant {number:05}": Counter() for number in range(tenants)}
    busy = list(plain)[: max(1, tenants * 9 // 10)]
    ops: list[Op] = [insert(ledger.tables.meta, "tenants", name, b"{}") for name in plain]
    for number in range(slots):
        tenant = busy[number % len(busy)]
        mode = "BURST" if number % BURST_EVERY == 0 else "DEFAULT"
        plain[tenant][mode] += 1
        body = b'{"v":1,"mode":"%s"}' % mode.encode()
        ops.append(insert(ledger.tables.inflight, tenant, f"job_{number:06}", body))
    commits = [ops[first : first + COMMIT_ROWS_MAX] for first in range(0, len(ops), COMMIT_ROWS_MAX)]
    for first in range(0, len(commits), COMMITS_AT_ONCE):
        await asyncio.gather(*map(ledger.store.commit, commits[first : first + COMMITS_AT_ONCE]))
    return plain


class Stalls:
    """How long the event loop was kept, in this thread's own time: other processes do not count."""

    def __init__(self) -> None:
        self.longest_seconds = 0.0
        self.turns = 0

    async def watch(self) -> None:
        while True:
            before = time.thread_time()
            await asyncio.sleep(0)
            self.longest_seconds = max(self.longest_seconds, time.thread_time() - before)
            self.turns += 1


@asynccontextmanager
async def stalls() -> AsyncIterator[Stalls]:
    settle_memory()
    found = Stalls()
    watching = asyncio.create_task(found.watch())
    try:
        yield found
    finally:
        watching.cancel()
        await asyncio.wait({watching})


def told(admission: Admission, plain: dict[str, Counter[str]]) -> None:
    total = sum(count.total() for count in plain.values())
    burst = sum(count["BURST"] for count in plain.values())
    assert admission.by_tenant == {tenant: count.total() for tenant, count in plain.items() if count}
    assert admission.in_flight("nobody") == InFlightCounts(tenant=0, total=total, burst=burst)


@pytest.mark.parametrize(
    ("tenants", "slots"), [(TENANTS, TENANTS), (TENANTS, SLOTS), (200, SLOTS), (1, SLOTS)]
)
async def test_a_recount_keeps_nobody_waiting_and_counts_right(
    ledger: JobLedger, tenants: int, slots: int
) -> None:
    plain = await filled(ledger, tenants, slots)
    admission = admission_of(ledger)
    for _ in range(2):  # the second time everything is known already, and has to be let go of
        async with stalls() as found:
            await admission.recount()
        told(admission, plain)
        # Without a pause there would be no turn, and nothing to measure.
        assert found.turns > slots // (2 * PAGE_ROWS_MAX)
        assert found.longest_seconds < STALL_SECONDS_MAX


async def test_what_changes_between_slices_is_counted_once(ledger: JobLedger) -> None:
    """Jobs come and go while a recount is at work; what is known in the end is what the rows say."""
    plain = await filled(ledger, 40, 8_000)
    admission = admission_of(ledger)
    await admission.recount()
    over = asyncio.Event()

    async def count_on() -> int:
        counts = 0
        while not over.is_set():
            await admission.recount()
            counts += 1
        return counts

    counting = asyncio.create_task(count_on())
    for changes in range(CHANGES):
        tenant = f"tenant {changes % 36:05}"
        mode = Mode.BURST if changes % 2 else Mode.DEFAULT
        job_id = await taken(admission, tenant, mode)
        if changes % 3:
            await end(admission, 0, tenant, mode, job_id)
        else:
            plain[tenant][mode.value] += 1
    over.set()
    assert await counting > 1
    told(admission, plain)
    await admission.recount()
    told(admission, plain)


async def test_a_slot_that_is_only_reserved_outlives_a_recount(ledger: JobLedger) -> None:
    await filled(ledger, 1, 3_000)
    admission = admission_of(ledger, tenant_max=10_000)
    assert await admission.reserve("tenant 00000", "mine", Mode.BURST, 0) is None
    await admission.recount()
    assert admission.in_flight("tenant 00000") == InFlightCounts(tenant=3_001, total=3_001, burst=1_001)
    admission.release("tenant 00000", "mine")
    assert admission.in_flight("tenant 00000") == InFlightCounts(tenant=3_000, total=3_000, burst=1_000)


async def test_a_job_that_ends_before_its_row_is_read_stays_away(ledger: JobLedger) -> None:
    await filled(ledger, 1, 3_000)
    admission = admission_of(ledger)
    await admission.recount()
    counting = asyncio.create_task(admission.recount())
    await asyncio.sleep(0)
    ended = job("tenant 00000", job_id="job_002999", ended_at_ms=1)
    admission.watch(job("tenant 00000", job_id="job_002999"), ended, ())  # its row is still there
    await counting
    assert "job_002999" not in admission._jobs["tenant 00000"]
    assert admission.in_flight("tenant 00000").total == 2_999


async def test_what_another_process_wrote_is_known_with_the_next_recount(ledger: JobLedger) -> None:
    admission = admission_of(ledger)
    await taken(admission, "acme")
    await slot(ledger, "acme", "of another")
    await admission.recount()
    assert admission.in_flight("acme").tenant == 2


async def test_a_duty_that_takes_part_of_its_time_comes_no_later_for_that() -> None:
    began: list[float] = []
    now = asyncio.get_running_loop().time

    async def duty() -> None:
        began.append(now())
        await asyncio.sleep(0.1)

    doing = asyncio.create_task(every(0.3, duty))
    await asyncio.sleep(1.4)
    doing.cancel()
    await asyncio.wait({doing})
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert gaps and min(gaps) < 0.35


@virtual
async def test_a_duty_that_is_to_rest_takes_no_more_than_its_share() -> None:
    began: list[float] = []
    now = asyncio.get_running_loop().time

    async def duty() -> None:
        began.append(now())
        await asyncio.sleep(2.0)

    doing = asyncio.create_task(every(1.0, duty, rest_factor=30.0))
    await asyncio.sleep(600.0)
    doing.cancel()
    await asyncio.wait({doing})
    assert [later - earlier for earlier, later in pairwise(began)] == pytest.approx([62.0] * 9)

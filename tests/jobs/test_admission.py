"""Admission: limits hold, `Retry-After` follows how fast jobs end, and counting again repairs every drift."""

import asyncio
from collections.abc import AsyncIterator
from itertools import count
from typing import Any

import msgspec
import pytest
from tests.core.machine import SECOND_MS, START_MS, born

from lucius.core.model import JobRecord
from lucius.core.refusal import Code, Refused
from lucius.core.states import JobState, Mode
from lucius.jobs.admission import (
    ENDS_KEPT_MAX,
    RETRY_AFTER_SYSTEM_SECONDS,
    RETRY_AFTER_TENANT_SECONDS,
    TENANTS_KEPT_MAX,
    Admission,
    CompletionRate,
    InFlightCounts,
    InFlightLimits,
)
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.name_index import AGAIN_MS, IDLE_MS, NameIndex
from lucius.ledger.slots import Slots
from lucius.ledger.store import Bound, Row, RowScope, StoreUnavailable, discard, put


class SlowStore(MemoryStore):
    """A store whose reads of slots let others act in between."""

    async def query(self, table: str, partition: str, **bounds: Any) -> list[Row]:
        rows = await super().query(table, partition, **bounds)
        await asyncio.sleep(0)
        return rows


@pytest.fixture
async def ledger() -> AsyncIterator[JobLedger]:
    store = SlowStore()
    yield JobLedger(store, LayoutName.LEDGER)
    await store.close()


def admission_of(ledger: JobLedger, **limits: int) -> Admission:
    return Admission(Slots(ledger), NameIndex(ledger, "tenants"), InFlightLimits(**limits))


def job(
    tenant: str = "acme",
    mode: Mode = Mode.DEFAULT,
    *,
    job_id: str = "job_1",
    ended_at_ms: int | None = None,
) -> JobRecord:
    record = born()
    changes: dict[str, Any] = {"tenant_norm": tenant, "mode": mode, "job_id": job_id}
    if ended_at_ms is not None:
        changes |= {"state": JobState.SUCCEEDED, "completed_at_ms": ended_at_ms}
    return msgspec.structs.replace(record, job=msgspec.structs.replace(record.job, **changes))


_numbers = count(1)


async def end(
    admission: Admission, at_ms: int, tenant: str = "acme", mode: Mode = Mode.DEFAULT, job_id: str = ""
) -> None:
    """The tenant's oldest job ends, unless another is named."""
    job_id = job_id or next(iter(admission._jobs.get(tenant, {"none": mode})))
    slots = admission._slots
    await slots._store.commit([discard(slots._t.inflight, tenant, job_id)])
    before = job(tenant, mode, job_id=job_id)
    admission.watch(before, job(tenant, mode, job_id=job_id, ended_at_ms=at_ms), ())


async def taken(
    admission: Admission, tenant: str = "acme", mode: Mode = Mode.DEFAULT, now_ms: int = START_MS
) -> str:
    job_id = f"job of {next(_numbers)}"
    assert await admission.reserve(tenant, job_id, mode, now_ms) is None
    slots = admission._slots
    row = b'{"v":1,"mode":"%s"}' % mode.value.encode()
    await slots._store.commit([put(slots._t.inflight, tenant, job_id, row)])
    admission.watch(None, job(tenant, mode, job_id=job_id), ())
    return job_id


async def slot(ledger: JobLedger, tenant: str, job_id: str, mode: str = "DEFAULT") -> None:
    row = b'{"v":1,"mode":"%s"}' % mode.encode()
    await ledger.store.commit([put(ledger.tables.inflight, tenant, job_id, row)])


async def refused(
    admission: Admission, tenant: str, mode: Mode = Mode.DEFAULT, now_ms: int = START_MS
) -> Refused:
    answer = await admission.reserve(tenant, "one too many", mode, now_ms)
    assert answer is not None
    return answer


async def test_each_limit_refuses_with_its_own_code(ledger: JobLedger) -> None:
    admission = admission_of(ledger, tenant_max=2, total_max=4, burst_max=1)
    await taken(admission)
    await taken(admission)
    answer = await refused(admission, "acme")
    assert (answer.code, answer.retry_after_seconds) == (Code.TENANT_LIMIT, RETRY_AFTER_TENANT_SECONDS)
    await taken(admission, "globex", Mode.BURST)
    answer = await refused(admission, "initech", Mode.BURST)
    assert (answer.code, answer.retry_after_seconds) == (Code.SYSTEM_SATURATED, RETRY_AFTER_SYSTEM_SECONDS)
    assert "BURST" in answer.message
    await taken(admission, "initech")
    assert (await refused(admission, "hooli")).code is Code.SYSTEM_SATURATED
    flight = admission.in_flight("acme")
    assert (flight.tenant, flight.total, flight.burst) == (2, 4, 1)


async def test_either_mode_has_a_limit(ledger: JobLedger) -> None:
    admission = admission_of(ledger, default_max=1, burst_max=2)
    await taken(admission)
    assert "1 DEFAULT jobs are in flight" in (await refused(admission, "globex")).message
    await taken(admission, "globex", Mode.BURST)
    await taken(admission, "globex", Mode.BURST)
    assert "2 BURST jobs are in flight" in (await refused(admission, "acme", Mode.BURST)).message
    assert admission.in_flight("acme").default == 1
    await end(admission, START_MS)
    await taken(admission, "globex")


async def test_a_tenant_may_have_a_limit_of_its_own_and_it_may_change(ledger: JobLedger) -> None:
    own = {"acme": 1, "globex": 3}
    limits = InFlightLimits(tenant_max=2)
    admission = Admission(Slots(ledger), NameIndex(ledger, "tenants"), limits, lambda: own)
    await taken(admission)
    answer = await refused(admission, "acme")
    assert (answer.code, answer.message) == (Code.TENANT_LIMIT, "the tenant has 1 jobs in flight, its limit")
    for _ in range(3):
        await taken(admission, "globex")
    assert (await refused(admission, "globex")).code is Code.TENANT_LIMIT
    for _ in range(2):
        await taken(admission, "initech")
    assert "2 jobs" in (await refused(admission, "initech")).message
    own["acme"] = 2
    await taken(admission)
    own["acme"] = 0
    assert "0 jobs" in (await refused(admission, "acme")).message


def test_a_store_is_told_what_to_count() -> None:
    """Of DEFAULT jobs only where fewer may be in flight than of all: each count is a row that is locked."""
    limits = InFlightLimits(tenant_max=5, total_max=9, default_max=9, burst_max=2)
    tenant, total = Bound(RowScope.PARTITION, 5), Bound(RowScope.TABLE, 9)
    assert limits.bounds(Mode.DEFAULT) == (tenant, total)
    assert limits.bounds(Mode.BURST) == (tenant, total, Bound(RowScope.BODY, 2))
    own = limits.bounds(Mode.DEFAULT, tenant_max=0)
    assert own == (Bound(RowScope.PARTITION, 0), total)
    fewer = msgspec.structs.replace(limits, default_max=8)
    assert fewer.bounds(Mode.DEFAULT)[2:] == (Bound(RowScope.BODY, 8),)


async def test_what_is_refused_takes_no_slot(ledger: JobLedger) -> None:
    admission = admission_of(ledger, tenant_max=1)
    await taken(admission)
    for _ in range(3):
        await refused(admission, "acme")
    await end(admission, START_MS)
    assert admission.by_tenant == {}
    await taken(admission)


async def test_retry_after_is_how_fast_the_tenants_jobs_end(ledger: JobLedger) -> None:
    admission = admission_of(ledger, tenant_max=1)
    for number in range(5):
        await taken(admission)
        await end(admission, START_MS + number * 3 * SECOND_MS)
        await taken(admission, "globex")
        await end(admission, START_MS + number * 20 * SECOND_MS, "globex")
    await taken(admission)
    await taken(admission, "globex")
    quick = await refused(admission, "acme", now_ms=START_MS + 12 * SECOND_MS)
    slow = await refused(admission, "globex", now_ms=START_MS + 80 * SECOND_MS)
    assert (quick.retry_after_seconds, slow.retry_after_seconds) == (3, 20)


async def test_retry_after_grows_with_silence_up_to_a_minute(ledger: JobLedger) -> None:
    admission = admission_of(ledger, tenant_max=1)
    for number in range(3):
        await taken(admission)
        await end(admission, START_MS + number * SECOND_MS)
    await taken(admission)
    said = [
        (await refused(admission, "acme", now_ms=START_MS + seconds * SECOND_MS)).retry_after_seconds
        for seconds in (2, 20, 60, 86_400)
    ]
    assert said == [1, 10, 30, 60]


async def test_retry_after_of_the_system_and_of_burst(ledger: JobLedger) -> None:
    admission = admission_of(ledger, total_max=2, burst_max=1)
    for number in range(4):
        await taken(admission, f"t{number}", Mode.BURST)
        await end(admission, START_MS + number * 8 * SECOND_MS, f"t{number}", Mode.BURST)
        await taken(admission, f"t{number}")
        await end(admission, START_MS + number * 8 * SECOND_MS, f"t{number}")
    now_ms = START_MS + 24 * SECOND_MS
    await taken(admission, "t9", Mode.BURST)
    assert (await refused(admission, "t8", Mode.BURST, now_ms)).retry_after_seconds == 8
    await taken(admission, "t9")
    assert (await refused(admission, "t8", now_ms=now_ms)).retry_after_seconds == 4


def test_a_pace_needs_two_ends_and_keeps_a_bounded_number() -> None:
    pace = CompletionRate()
    assert pace.retry_after_seconds(START_MS, 7) == 7
    pace.ended(START_MS)
    assert pace.retry_after_seconds(START_MS, 7) == 7
    for number in range(10 * ENDS_KEPT_MAX):
        pace.ended(START_MS + number)
    # Many a second: never less than the smallest wait that a header can say. A clock that went back is borne.
    assert pace.retry_after_seconds(START_MS + 10 * ENDS_KEPT_MAX, 7) == 1
    assert pace.retry_after_seconds(START_MS - SECOND_MS, 7) == 1


async def test_paces_of_tenants_are_bounded(ledger: JobLedger) -> None:
    admission = admission_of(ledger)
    for number in range(TENANTS_KEPT_MAX + 10):
        await end(admission, START_MS, f"t{number}")
    assert len(admission._tenant_paces) == TENANTS_KEPT_MAX
    assert "t0" not in admission._tenant_paces


async def test_a_job_that_is_born_ended_gives_its_slot_back(ledger: JobLedger) -> None:
    admission = admission_of(ledger, tenant_max=1)
    assert await admission.reserve("acme", "job_1", Mode.BURST, START_MS) is None
    admission.watch(None, job("acme", Mode.BURST, ended_at_ms=START_MS), ())
    assert admission.by_tenant == {}
    assert admission.in_flight("acme").burst == 0
    await taken(admission)


async def test_counting_again_hears_of_other_processes(ledger: JobLedger) -> None:
    one, other = admission_of(ledger, tenant_max=2), admission_of(ledger, tenant_max=2)
    await taken(one)
    await taken(other, mode=Mode.BURST)
    await one.recount()
    assert (one.by_tenant, one.in_flight("acme").burst) == ({"acme": 2}, 1)
    assert (await refused(one, "acme")).code is Code.TENANT_LIMIT


async def test_a_slot_that_is_reserved_and_not_yet_written_is_counted(ledger: JobLedger) -> None:
    admission = admission_of(ledger, tenant_max=1)
    assert await admission.reserve("acme", "job_1", Mode.BURST, START_MS) is None
    await admission.recount()
    assert (admission.by_tenant, admission.in_flight("acme").burst) == ({"acme": 1}, 1)
    assert (await refused(admission, "acme")).code is Code.TENANT_LIMIT
    admission.release("acme", "job_1")
    await admission.recount()
    assert admission.by_tenant == {}


async def test_a_busy_tenant_is_counted_all_the_same(ledger: JobLedger) -> None:
    """One that changes all the time must not keep its own count, or anybody else's, from being mended."""
    admission = admission_of(ledger)
    for tenant in ("busy", "quiet"):
        await admission._names.add(tenant)
    for number in range(7):
        await slot(ledger, "quiet", f"job_{number}")
        await slot(ledger, "busy", f"job_{number}")
    stop = asyncio.Event()

    async def come_and_go() -> None:
        while not stop.is_set():
            if await admission.reserve("busy", "passing", Mode.DEFAULT, START_MS) is None:
                admission.release("busy", "passing")
            await asyncio.sleep(0)

    busy = asyncio.create_task(come_and_go())
    await asyncio.sleep(0)
    await admission.recount()
    stop.set()
    await busy
    assert admission.by_tenant == {"busy": 7, "quiet": 7}
    assert admission.in_flight("quiet").total == 14


async def test_a_tenant_that_came_while_it_counted_keeps_its_count(ledger: JobLedger) -> None:
    admission = admission_of(ledger)
    await taken(admission, "first")
    counting = asyncio.create_task(admission.recount())
    await asyncio.sleep(0)
    await taken(admission, "second")
    await counting
    assert admission.by_tenant == {"first": 1, "second": 1}


async def test_a_refused_tenant_leaves_no_name_behind(ledger: JobLedger) -> None:
    admission = admission_of(ledger, total_max=1)
    await taken(admission)
    await refused(admission, "stranger")
    assert await NameIndex(ledger, "tenants").all() == ["acme"]


async def test_a_slot_is_given_back_when_the_ledger_fails(
    ledger: JobLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    admission = admission_of(ledger, total_max=1)
    with monkeypatch.context() as patch:
        patch.setattr(ledger.store, "commit", _refuse_commits)
        with pytest.raises(StoreUnavailable):
            await admission.reserve("acme", "job_1", Mode.DEFAULT, START_MS)
    await taken(admission, "other")


async def _refuse_commits(_: object) -> list[str]:
    raise StoreUnavailable("the disk is full")


async def test_a_job_whose_slot_is_written_and_that_is_not_created_yet_counts_once(
    ledger: JobLedger,
) -> None:
    """Where rows are written one by one, a count may come in between."""
    admission = admission_of(ledger, tenant_max=3)
    for number in range(2):
        assert await admission.reserve("acme", f"job_{number}", Mode.BURST, START_MS) is None
        await slot(ledger, "acme", f"job_{number}", "BURST")
        await admission.recount()
        assert admission.in_flight("acme") == InFlightCounts(
            tenant=number + 1, total=number + 1, burst=number + 1
        )
    assert await admission.reserve("acme", "job_2", Mode.DEFAULT, START_MS) is None
    await admission.recount()
    assert admission.in_flight("acme") == InFlightCounts(tenant=3, total=3, burst=2), "one has no row yet"
    assert (await refused(admission, "acme")).code is Code.TENANT_LIMIT


class Clock:
    now_ms = START_MS

    def __call__(self) -> int:
        return self.now_ms


async def test_a_tenant_with_nothing_to_do_is_forgotten_and_known_again_when_it_comes_back(
    ledger: JobLedger,
) -> None:
    clock = Clock()
    names = [NameIndex(ledger, "tenants", now_ms=clock) for _ in range(2)]
    one, other = (Admission(Slots(ledger), known, InFlightLimits(tenant_max=1)) for known in names)
    for tenant in ("acme", "globex"):
        await taken(one, tenant)
    await end(one, START_MS, "globex")
    clock.now_ms += IDLE_MS - 1
    await other.recount()
    assert await names[1].all() == ["acme", "globex"]
    clock.now_ms += 1
    await other.recount()
    assert await names[1].all() == ["acme"], "a job is open, so the tenant stays"
    await taken(one, "globex")
    assert await names[1].all() == ["acme", "globex"]
    await other.recount()
    assert (await refused(other, "globex")).code is Code.TENANT_LIMIT


async def test_a_tenant_that_is_used_stays_known_and_is_not_written_each_time(ledger: JobLedger) -> None:
    clock = Clock()
    names = NameIndex(ledger, "tenants", now_ms=clock)
    used = Admission(Slots(ledger), names, InFlightLimits())
    etags = []
    for _ in range(4):
        clock.now_ms += AGAIN_MS // 2
        await taken(used)
        await end(used, clock.now_ms)
        (row,) = await names.rows()
        etags.append(row.etag)
    assert len(set(etags)) == 2
    clock.now_ms += IDLE_MS
    stale = (await names.rows())[0]
    await names.add("acme")  # by somebody, while another was about to forget it
    await names.forget(stale)
    assert await names.all() == ["acme"]

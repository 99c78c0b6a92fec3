"""Lists, newest first: of a tenant, of all tenants, filtered, in pages, over the borders of months."""

import datetime

import pytest
from msgspec.structs import replace
from tests.conformance.ledger_setup import DAY_MS, TENANT, Deployment, World, submit

from lucius.assembly.clock_and_ids import time_ordered_id
from lucius.core.inputs import Cancel, Pause, ResultStatus
from lucius.ledger import lists
from lucius.ledger.job_search import Search
from lucius.ledger.lists import FilterNotServed, ListCursor, ListFilter, decode_cursor
from lucius.ledger.names import MS_MAX

TENANTS = (TENANT, "tenant_b", "tenant_c")  # on three lanes
EVERYTHING = ListFilter()
BIRTH_MS = int(datetime.datetime(2026, 11, 20, tzinfo=datetime.UTC).timestamp() * 1000)


@pytest.fixture
def world(world: World) -> World:
    world.clock.now_ms = BIRTH_MS
    return world


@pytest.fixture
async def deployment(world: World) -> Deployment:
    ready = world.deployment()
    await ready.lists.record_time(world.clock.now_ms)
    return ready


async def some_jobs(
    world: World, deployment: Deployment, count: int, *, every_ms: int, first: int = 0
) -> list[str]:
    """Jobs of three tenants, turn by turn; the newest first."""
    made = []
    for number in range(first, first + count):
        kind = "OCR" if number % 2 else "EMBEDDING"
        made.append(await submit(deployment, number, tenant=TENANTS[number % 3], request_type=kind))
        world.clock.now_ms += every_ms
    return made[::-1]


async def all_pages(
    deployment: Deployment, wanted: ListFilter, limit: int, *, pages_max: int = 200
) -> list[list[str]]:
    pages: list[list[str]] = []
    cursor: ListCursor | None = None
    while len(pages) < pages_max:
        page = await deployment.lists.page(wanted, cursor, limit, deployment.clock.now_ms)
        pages.append(list(page.job_ids))
        if page.next_cursor is None:
            return pages
        cursor = decode_cursor(page.next_cursor)
        assert cursor is not None and cursor.scope == wanted.scope()
    raise AssertionError("the list does not end")


def flat(pages: list[list[str]]) -> list[str]:
    return [job_id for page in pages for job_id in page]


async def test_an_empty_list_ends(deployment: Deployment) -> None:
    assert await all_pages(deployment, ListFilter(), 10) == [[]]
    assert await all_pages(deployment, ListFilter(tenant_norm=TENANT), 10) == [[]]


async def test_the_newest_comes_first_over_all_lanes(world: World, deployment: Deployment) -> None:
    made = await some_jobs(world, deployment, 20, every_ms=7)
    assert flat(await all_pages(deployment, ListFilter(), 100)) == made
    assert flat(await all_pages(deployment, ListFilter(tenant_norm="tenant_b"), 100)) == made[0::3]


async def test_pages_go_on_over_the_borders_of_months(world: World, deployment: Deployment) -> None:
    made = await some_jobs(world, deployment, 24, every_ms=4 * DAY_MS)  # from November to February
    pages = await all_pages(deployment, ListFilter(), 7)
    assert [len(page) for page in pages] == [7, 7, 7, 3]
    assert flat(pages) == made
    tenant = await all_pages(deployment, ListFilter(tenant_norm=TENANT), 3)
    assert flat(tenant) == made[2::3] and len(tenant) >= 3


async def test_jobs_of_the_same_millisecond_are_listed_once_each(
    world: World, deployment: Deployment
) -> None:
    made = await some_jobs(world, deployment, 15, every_ms=0)
    pages = await all_pages(deployment, ListFilter(), 4)
    assert sorted(flat(pages)) == sorted(made)


async def test_lists_by_state(world: World, deployment: Deployment) -> None:
    made = await some_jobs(world, deployment, 12, every_ms=1_000)
    for job_id in made[::4]:
        await deployment.writer.apply(job_id, Cancel())
    (attempt,) = await deployment.take("ocr", directives_max=1)
    await deployment.result(attempt)
    for fresh in (deployment, world.deployment()):
        assert flat(await all_pages(fresh, ListFilter(states=frozenset({"CANCELLED"})), 2)) == made[::4]
        assert flat(await all_pages(fresh, ListFilter(states=frozenset({"SUCCEEDED"})), 2)) == [
            attempt.job_id
        ]
        waiting = [job_id for job_id in made if job_id not in {*made[::4], attempt.job_id}]
        assert flat(await all_pages(fresh, ListFilter(states=frozenset({"DISPATCHING"})), 2)) == waiting
        assert flat(await all_pages(fresh, ListFilter(states=frozenset({"PAUSED"})), 2)) == []


async def test_the_few_that_failed_are_found_among_many(
    world: World, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await some_jobs(world, deployment, 24, every_ms=3 * DAY_MS)
    await deployment.writer.apply(made[-1], Cancel())
    failed = []
    for code in ("BROKEN", "EMPTY"):
        (attempt,) = await deployment.take("ocr", directives_max=1)
        await deployment.result(attempt, ResultStatus.FAILED_FINAL, code)
        failed.append(attempt.job_id)
    monkeypatch.setattr(lists, "PAGE_ROWS_MAX", 2)
    fails, ended = frozenset({"FAILED_FINAL"}), frozenset({"FAILED_FINAL", "CANCELLED"})
    in_order = [job_id for job_id in made if job_id in failed]
    assert flat(await all_pages(deployment, ListFilter(states=fails), 1)) == in_order
    assert flat(await all_pages(deployment, ListFilter(states=ended), 2)) == [
        job_id for job_id in made if job_id in {*failed, made[-1]}
    ]
    empty = ListFilter(states=fails, error_code="EMPTY")
    assert flat(await all_pages(deployment, empty, 5)) == [failed[1]]
    for service, there in (("ocr", in_order), ("embedding", [])):
        assert flat(await all_pages(deployment, ListFilter(states=fails, service=service), 5)) == there


async def test_open_jobs_are_found_by_their_slots(
    world: World, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = (await some_jobs(world, deployment, 3, every_ms=1_000))[::-1]
    await deployment.writer.apply(stuck[1], Pause())
    for job_id in await some_jobs(world, deployment, 12, every_ms=DAY_MS, first=3):
        await deployment.writer.apply(job_id, Cancel())
    world.clock.now_ms += DAY_MS
    waiting = ListFilter(states=frozenset({"DISPATCHING"}))
    monkeypatch.setattr(lists, "SLOT_PAGE_ROWS", 1)
    for limit in (1, 10):
        assert flat(await all_pages(deployment, waiting, limit)) == [stuck[2], stuck[0]]
    either = ListFilter(states=frozenset({"DISPATCHING", "PAUSED"}))
    assert flat(await all_pages(deployment, either, 2)) == stuck[::-1]
    assert flat(await all_pages(deployment, replace(either, tenant_norm=TENANTS[1]), 2)) == [stuck[1]]
    assert flat(await all_pages(deployment, replace(either, service="embedding"), 2)) == [stuck[2], stuck[0]]
    assert flat(await all_pages(deployment, replace(either, created_after_ms=BIRTH_MS), 2)) == stuck[:0:-1]
    monkeypatch.setattr(lists, "OPEN_JOBS_MAX", 2)
    with pytest.raises(FilterNotServed, match="tenant_id"):
        await all_pages(deployment, either, 2)


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        (ListFilter(service="ocr"), "add open states"),
        (ListFilter(service="ocr", states=frozenset({"SUCCEEDED"})), "add open states"),
        (ListFilter(service="ocr", states=frozenset({"PAUSED", "FAILED_FINAL"})), "not both"),
        (ListFilter(error_code="X", states=frozenset({"PAUSED"})), "FAILED_FINAL"),
    ],
)
async def test_what_no_index_serves_is_refused_with_advice(
    deployment: Deployment, wanted: ListFilter, advice: str
) -> None:
    with pytest.raises(FilterNotServed, match=advice):
        await deployment.lists.page(wanted, None, 5, BIRTH_MS)


async def found_by(
    deployment: Deployment, text: str, wanted: ListFilter = EVERYTHING, limit: int = 50
) -> list[str]:
    page = await Search(deployment.ledger, deployment.lists, text).page(
        wanted, None, limit, deployment.clock.now_ms
    )
    return list(page.job_ids)


async def test_jobs_are_found_by_what_they_are_called(world: World, deployment: Deployment) -> None:
    one = await submit(deployment, 1, doc_id="Invoice 2291/ä", key="key one")
    two = await submit(deployment, 2, doc_id="invoice 22", tenant="tenant_b")
    long = await submit(deployment, 3, doc_id="x" * 250)
    world.clock.now_ms += 10
    again = await submit(deployment, 4, doc_id="invoice 22", correlation_id="Trace#7")
    assert await found_by(deployment, " INVOICE 2291/Ä") == [one]
    assert await found_by(deployment, "invoice 22") == [again, two, one]
    assert await found_by(deployment, "invoice 22", ListFilter(tenant_norm="tenant_b")) == [two]
    assert await found_by(deployment, "invoice 22", limit=2) == [again, two]
    assert await found_by(deployment, "x" * 250) == [long]
    assert await found_by(deployment, "x" * 251) == []
    assert await found_by(deployment, "trace#7") == [again]
    assert await found_by(deployment, "key one") == []
    assert await found_by(deployment, "key one", ListFilter(tenant_norm=TENANT)) == [one]
    assert await found_by(deployment, "key one", ListFilter(tenant_norm="tenant_b")) == []
    assert await found_by(deployment, one) == [one]
    assert await found_by(deployment, "voice") == []
    await deployment.writer.apply(two, Cancel())
    cancelled = ListFilter(states=frozenset({"CANCELLED"}))
    assert await found_by(deployment, "invoice 22", cancelled) == [two]


async def test_jobs_are_found_by_a_part_of_their_id(
    world: World, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    for number in range(20):
        world.clock.now_ms += DAY_MS
        world.ids.next_job_id = f"job_{time_ordered_id(world.clock.now_ms)}"
        made.append(await submit(deployment, number))
    monkeypatch.setattr(lists, "LOOK_ROWS_MAX", 100)
    for job_id in made[:2]:
        assert await found_by(deployment, job_id[4:]) == [job_id]
        assert await found_by(deployment, job_id[:16]) == [job_id]  # its beginning says when it was created
        search = Search(deployment.ledger, deployment.lists, job_id[14:24])
        cursor: ListCursor | None = None
        found: list[str] = []
        while True:
            page = await search.page(ListFilter(), cursor, 5, world.clock.now_ms)
            found += page.job_ids
            if page.next_cursor is None:
                break
            cursor = decode_cursor(page.next_cursor)
        assert found == [job_id]
    assert await found_by(deployment, "job_zzzz") == []


async def test_lists_by_request_type(world: World, deployment: Deployment) -> None:
    made = await some_jobs(world, deployment, 12, every_ms=1_000)
    assert flat(await all_pages(deployment, ListFilter(request_type="OCR"), 4)) == made[0::2]
    wanted = ListFilter(request_type="OCR", tenant_norm=TENANT)
    assert flat(await all_pages(deployment, wanted, 4)) == [job for job in made[2::3] if job in made[0::2]]


async def test_lists_by_time(world: World, deployment: Deployment) -> None:
    made = await some_jobs(world, deployment, 24, every_ms=4 * DAY_MS)
    made.reverse()
    born = [BIRTH_MS + number * 4 * DAY_MS for number in range(24)]
    # Both ends are left out.
    for tenant in (None, TENANT):
        between = ListFilter(tenant_norm=tenant, created_after_ms=born[4], created_before_ms=born[16])
        expected = [job for n, job in enumerate(made) if 4 < n < 16 and (tenant is None or n % 3 == 0)]
        assert flat(await all_pages(deployment, between, 5)) == expected[::-1]
    assert flat(await all_pages(deployment, ListFilter(created_after_ms=born[23]), 5)) == []
    assert flat(await all_pages(deployment, ListFilter(created_before_ms=born[0]), 5)) == []
    assert flat(await all_pages(deployment, ListFilter(created_before_ms=-1), 5)) == []
    assert flat(await all_pages(deployment, ListFilter(created_after_ms=born[21]), 1)) == made[:21:-1]


async def test_a_list_after_a_time_ends_there(
    world: World, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older rows are not looked through one by one just to be left out."""
    made = await some_jobs(world, deployment, 30, every_ms=10)
    monkeypatch.setattr(lists, "LOOK_ROWS_MAX", 5)
    wanted = ListFilter(tenant_norm=TENANT, created_after_ms=world.clock.now_ms - 31)
    assert await all_pages(deployment, wanted, 100) == [[made[2]]]


@pytest.mark.parametrize("tenant", [None, TENANT])
async def test_a_page_looks_at_a_bounded_number_of_rows(
    world: World, deployment: Deployment, tenant: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "LOOK_ROWS_MAX", 12)
    monkeypatch.setattr(lists, "PAGE_ROWS_MAX", 2)
    made = await some_jobs(world, deployment, 30, every_ms=3 * DAY_MS)
    await deployment.writer.apply(made[-1], Cancel())
    everything = made if tenant is None else made[2::3]
    pages = await all_pages(deployment, ListFilter(tenant_norm=tenant), 1_000)
    assert flat(pages) == everything and len(pages) > 1
    none = ListFilter(tenant_norm=tenant, request_type="SIS")
    page = await deployment.lists.page(none, None, 1_000, world.clock.now_ms)
    assert (page.jobs, page.partial) == ((), True) and page.looked_back_to_ms is not None
    assert flat(await all_pages(deployment, none, 1_000)) == []


async def test_a_walk_through_empty_months_is_bounded_too(
    world: World, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await submit(deployment)
    world.clock.now_ms += 20 * 366 * DAY_MS
    monkeypatch.setattr(lists, "LOOK_ROWS_MAX", 100)
    for tenant in (None, TENANT):
        pages = await all_pages(deployment, ListFilter(tenant_norm=tenant), 10)
        assert flat(pages) == [job_id] and len(pages) > 2


async def test_a_cursor_of_a_far_future_begins_now(world: World, deployment: Deployment) -> None:
    job_id = await submit(deployment)
    far = ListCursor(month="999912", after=f"{MS_MAX:014d}", scope="*")
    page = await deployment.lists.page(ListFilter(), far, 10, world.clock.now_ms)
    assert page.job_ids == (job_id,)


def test_what_is_no_cursor_is_none() -> None:
    for text in ("", "x", "!!", "e30", "eyJtb250aCI6MX0", "a" * 5_000):
        assert decode_cursor(text) is None


@pytest.mark.parametrize("ahead_days", [1, 40, 800])
async def test_jobs_of_a_clock_that_was_set_back_are_listed(
    world: World, deployment: Deployment, ahead_days: int
) -> None:
    early = await some_jobs(world, deployment, 4, every_ms=1_000)
    world.clock.now_ms += ahead_days * DAY_MS
    await deployment.lists.record_time(world.clock.now_ms)  # as a process does when it starts
    ahead = await some_jobs(world, deployment, 5, every_ms=1_000, first=10)
    world.clock.now_ms -= ahead_days * DAY_MS
    await deployment.lists.record_time(world.clock.now_ms)
    late = await some_jobs(world, deployment, 4, every_ms=1_000, first=20)
    made = [*ahead, *late, *early]
    assert flat(await all_pages(deployment, ListFilter(), 3)) == made
    of_tenant = {ahead[2], late[2], early[0], early[3]}
    assert flat(await all_pages(deployment, ListFilter(tenant_norm=TENANT), 2)) == [
        job for job in made if job in of_tenant
    ]
    before = ListFilter(created_before_ms=BIRTH_MS + DAY_MS // 2)
    assert flat(await all_pages(deployment, before, 3)) == [*late, *early]


async def test_jobs_from_before_a_birth_that_a_clock_ahead_recorded_are_listed(world: World) -> None:
    deployment = world.deployment()
    await deployment.lists.record_time(BIRTH_MS + 500 * DAY_MS)
    await deployment.lists.record_time(BIRTH_MS)
    made = await some_jobs(world, deployment, 4, every_ms=1_000)
    for days in range(0, 120, 10):
        world.clock.now_ms = BIRTH_MS + days * DAY_MS
        await deployment.lists.record_time(world.clock.now_ms)
        assert flat(await all_pages(deployment, ListFilter(), 10)) == made

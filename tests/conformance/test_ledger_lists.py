"""Lists, newest first: of a tenant, of all tenants, filtered, in pages, over the borders of months."""

import datetime

import pytest
from tests.conformance.ledger_setup import DAY_MS, TENANT, Deployment, World, submit

from lucius.core.inputs import Cancel
from lucius.ledger import lists
from lucius.ledger.lists import ListCursor, ListFilter, decode_cursor
from lucius.ledger.names import MS_MAX

TENANTS = (TENANT, "tenant_b", "tenant_c")  # on three lanes
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
        assert flat(await all_pages(fresh, ListFilter(state="CANCELLED"), 2)) == made[::4]
        assert flat(await all_pages(fresh, ListFilter(state="SUCCEEDED"), 2)) == [attempt.job_id]
        waiting = [job_id for job_id in made if job_id not in {*made[::4], attempt.job_id}]
        assert flat(await all_pages(fresh, ListFilter(state="DISPATCHING"), 2)) == waiting
        assert flat(await all_pages(fresh, ListFilter(state="PAUSED"), 2)) == []


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
    few = await all_pages(deployment, ListFilter(tenant_norm=TENANT, state="CANCELLED"), 1_000)
    assert flat(few) == [made[-1]] and len(few) > 1


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

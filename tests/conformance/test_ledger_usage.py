"""What services report, on every store: each result counts once, whatever dies, and the sums stay right."""

import pytest
from tests.conformance.ledger_checks import check_always, check_at_rest
from tests.conformance.ledger_setup import (
    START_MS,
    TENANT,
    Deployment,
    Died,
    Trial,
    World,
    submit,
    whose,
)

from lucius.core.attempt import AttemptRef
from lucius.core.inputs import Result, ResultStatus
from lucius.engines.usage_duty import SETTLED_AFTER_MS, UsageDuty
from lucius.ledger.usage import UsageSum, day_of, usage_partition

DAY = day_of(START_MS)


async def taken(world: World, number: int) -> AttemptRef:
    deployment = world.deployment()
    await submit(deployment, number)
    (attempt,) = await deployment.take("ocr")
    return attempt


async def report(
    deployment: Deployment, attempt: AttemptRef, status: ResultStatus = ResultStatus.SUCCEEDED, **usage: float
) -> None:
    uri = {"uri": f"s3://out/{attempt.job_id}"}
    await deployment.writer.apply(
        attempt.job_id, Result(**whose(attempt), status=status, output_ref=uri, usage=usage)
    )


async def sums(world: World) -> dict[tuple[str, str], UsageSum]:
    found = await world.deployment().kernel.usage.read(TENANT, DAY, DAY)
    return {(each.day, each.service): each.sum for each in found}


def duty(world: World) -> UsageDuty:
    kernel = world.deployment().kernel
    spans = kernel.ledger.store.spans
    return UsageDuty(kernel.usage, kernel.tenants, now_ms=world.clock, spans=spans, walks=True)


async def test_results_are_summed_by_day_and_service(world: World) -> None:
    for number, pages in ((1, 3), (2, 4)):
        await report(world.deployment(), await taken(world, number), pages=pages, usd=0.25)
    await report(world.deployment(), await taken(world, 3))
    assert await sums(world) == {(DAY, "ocr"): UsageSum(results=2, usage={"pages": 7, "usd": 0.5})}
    await check_at_rest(world)


async def test_a_result_that_comes_again_counts_once(world: World) -> None:
    attempt = await taken(world, 1)
    for _ in range(3):
        await report(world.deployment(), attempt, ResultStatus.FAILED_RETRY, pages=3)
    assert await sums(world) == {(DAY, "ocr"): UsageSum(results=1, usage={"pages": 3})}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_it_counts_once_wherever_a_process_dies(world: World, after: bool) -> None:
    """The service, which had no answer, sends its RESULT again."""
    for at in range(30):
        attempt = await taken(world, at + 1)
        trial = Trial(at=at, dies_before=not after, dies_after=after)
        try:
            await report(world.deployment(trial), attempt, pages=1)
        except Died:
            await report(world.deployment(), attempt, pages=1)
            await check_always(world)
        else:
            break
    (total,) = (await sums(world)).values()
    assert total == UsageSum(results=at + 1, usage={"pages": at + 1})


async def test_results_are_added_up_and_read_the_same(world: World) -> None:
    for number in range(5):
        await report(world.deployment(), await taken(world, number + 1), pages=number)
    before, keeper = await sums(world), duty(world)
    world.clock.now_ms += SETTLED_AFTER_MS + 1
    assert await keeper.look() == 5
    rows = await world.store.query(
        world.deployment().kernel.ledger.tables.meta, usage_partition(TENANT), limit=9
    )
    assert [row.key for row in rows] == [f"s#{DAY}#ocr"]
    assert await sums(world) == before == {(DAY, "ocr"): UsageSum(results=5, usage={"pages": 10})}
    await report(world.deployment(), await taken(world, 9), pages=1)
    assert (await sums(world))[DAY, "ocr"].usage == {"pages": 11}


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_process_that_dies_adding_up_counts_nothing_twice(world: World, after: bool) -> None:
    for number in range(4):
        await report(world.deployment(), await taken(world, number + 1), pages=1)
    until_ms = world.clock.now_ms
    for at in range(20):
        trial = Trial(at=at, dies_before=not after, dies_after=after)
        try:
            await world.deployment(trial).kernel.usage.add_up(TENANT, until_ms)
        except Died:
            assert (await sums(world))[DAY, "ocr"].usage == {"pages": 4}
        else:
            break
    assert (await sums(world))[DAY, "ocr"] == UsageSum(results=4, usage={"pages": 4})


async def test_results_on_two_days_are_told_apart_and_expire(world: World) -> None:
    await report(world.deployment(), await taken(world, 1), pages=1)
    world.clock.now_ms += 86_400_000
    await report(world.deployment(), await taken(world, 2), pages=2)
    usage, next_day = world.deployment().kernel.usage, day_of(world.clock.now_ms)
    found = await usage.read(TENANT, DAY, next_day)
    assert [(each.day, each.sum.usage) for each in found] == [(DAY, {"pages": 1}), (next_day, {"pages": 2})]
    await usage.add_up(TENANT, world.clock.now_ms)
    await usage.expire(TENANT, world.clock.now_ms)
    assert [each.day for each in await usage.read(TENANT, DAY, next_day)] == [next_day]


async def test_nothing_more_is_written_where_nothing_is_reported(world: World) -> None:
    attempt, reported = await taken(world, 1), world.deployment()
    await report(reported, attempt)
    meta = reported.kernel.ledger.tables.meta
    assert not [op for ops in reported.store.commits for op in ops if op.table == meta]

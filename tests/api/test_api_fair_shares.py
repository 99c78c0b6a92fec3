"""Shares of a lane, from outside: by `LUCIUS_TENANT_WEIGHTS`, and by priority within a tenant."""

from collections import Counter

from tests.support.api_setup import Callers, Deployment

from lucius.core.routing import lane_of

HEAVY, LIGHT = [name for n in range(999) if lane_of(name := f"tenant {n}") == 7][:2]


async def shares(deployment: Deployment, reads: int, most: int) -> Counter[str]:
    counts: Counter[str] = Counter()
    for _ in range(reads):
        counts.update(each["tenant_id"] for each in await deployment.lease("ocr", most=most))
    return counts


async def test_a_weight_gives_a_larger_share_while_others_wait(callers: Callers) -> None:
    deployment = await callers.open({"LUCIUS_TENANT_WEIGHTS": f"{HEAVY.upper()}=3"})
    for tenant in (LIGHT, HEAVY):
        for _ in range(40):
            await deployment.submit(tenant_id=tenant)
    counts = await shares(deployment, reads=10, most=4)
    assert counts[HEAVY] == 30 and counts[LIGHT] == 10
    assert (await shares(deployment, reads=10, most=4)) == Counter({LIGHT: 30, HEAVY: 10}), "its work is done"


async def test_tenants_without_a_weight_share_alike(callers: Callers) -> None:
    deployment = await callers.open()
    for tenant in (LIGHT, HEAVY):
        for _ in range(20):
            await deployment.submit(tenant_id=tenant)
    counts = await shares(deployment, reads=5, most=4)
    assert abs(counts[HEAVY] - counts[LIGHT]) <= 1 and counts.total() == 20


async def test_priority_says_what_leaves_first_within_a_tenant(callers: Callers) -> None:
    deployment = await callers.open()
    jobs = {priority: await deployment.submit(priority=priority) for priority in (5, 0, 9, 7)}
    leased = [each["jobId"] for _ in range(4) for each in await deployment.lease("ocr", most=1)]
    assert leased == [jobs[priority] for priority in (9, 7, 5, 0)]
    job = await deployment.job(jobs[9])
    assert job["priority"] == 9

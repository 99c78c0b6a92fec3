"""The window of the publisher is shared between the tenants of a lane, as hand-outs are."""

from collections import Counter

from tests.support.publisher_setup import LANE, TENANT, Deployment, Worker, World, ack, message_of

from lucius.core.routing import lane_of

QUIET = next(name for n in range(999) if lane_of(name := f"quiet {n}") == lane_of(TENANT) == LANE)


async def take(deployment: Deployment, worker: Worker) -> str:
    """The job of the next directive on the bus; its ACK makes room in the window."""
    (delivery,) = await worker.take(1)
    await worker.complete(delivery)
    directive = message_of(delivery)
    await deployment.apply(directive["jobId"], ack(directive))
    await deployment.look()
    return str(directive["jobId"])


async def test_a_flood_does_not_fill_the_window_for_a_quiet_tenant() -> None:
    world = World()
    deployment, worker = Deployment(world, window=4), Worker(world)
    for _ in range(40):
        await deployment.submit()
    await deployment.look()
    quiet = await deployment.submit(tenant_id=QUIET)
    taken: list[str] = []
    while quiet not in taken:
        taken.append(await take(deployment, worker))
    assert len(taken) <= 4 + 1 + 1, "what was published before, a turn of the flood, then the quiet tenant"


async def test_tenants_with_work_get_the_window_in_turns() -> None:
    world = World()
    deployment, worker = Deployment(world, window=8), Worker(world)
    tenants = {}
    for tenant in (TENANT, QUIET):
        for _ in range(30):
            tenants[await deployment.submit(tenant_id=tenant)] = tenant
    await deployment.look()
    counts = Counter([tenants[await take(deployment, worker)] for _ in range(40)])
    # The first window went to the tenant that was there first.
    assert abs(counts[TENANT] - counts[QUIET]) <= 8 + 2, counts

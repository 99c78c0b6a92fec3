"""A job that ends is told of: once if all goes well, again if it does not, and never not at all."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from standardwebhooks.webhooks import WebhookVerificationError
from tests.conformance.ledger_setup import DAY_MS, KEEP_MS, LAYOUTS, STORES, Died, Trial, submit
from tests.support.webhook_receiver import status_line
from tests.support.webhook_setup import HOST, Setup, opened_setup

from lucius.core.inputs import Cancel, ResultStatus
from lucius.engines.webhooks.delivery import BACKOFF_MS, CLAIM_MS
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.store import StoreUnavailable
from lucius.ledger.webhooks import WebhookPhase


@pytest.fixture(params=[(store, layout) for store in STORES for layout in LAYOUTS], ids=str)
async def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Setup]:
    async with opened_setup(tmp_path, *request.param) as one:
        yield one


@pytest.fixture
async def setup(tmp_path: Path) -> AsyncIterator[Setup]:
    async with opened_setup(tmp_path) as one:
        yield one


async def test_a_job_that_ended_is_told_of_once(everywhere: Setup) -> None:
    job_id = await everywhere.ended()
    webhooks = await everywhere.send()
    for _ in range(3):
        everywhere.world.clock.now_ms += DAY_MS
        await everywhere.send()
    (request,) = everywhere.there.received
    assert webhooks.outcomes == {"delivered": 1}
    assert await everywhere.phase(job_id) is WebhookPhase.DELIVERED
    assert await everywhere.rows() == [f"JOB#{job_id}"]
    assert request.path == "/done?job=1"
    assert request.headers["host"] == f"{HOST}:{everywhere.there.port}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["webhook-id"] == f"msg_{job_id}"
    assert everywhere.there.names == [HOST]


async def test_the_body_is_the_job_without_its_payloads(setup: Setup) -> None:
    job_id = await setup.ended()
    await setup.send()
    document = setup.verified(setup.there.received[0])
    assert document.keys() == {"type", "timestamp", "data"}
    assert document["type"] == "job.completed"
    data = document["data"]
    assert (data["jobId"], data["state"], data["tenant_id"]) == (job_id, "SUCCEEDED", "tenant_a")
    assert document["timestamp"] == data["completed_at"]
    assert [step["state"] for step in data["steps"]] == ["SUCCEEDED"]
    assert b'"payload"' not in setup.there.received[0].body
    forged = msgspec.structs.replace(setup.there.received[0], body=b"{}")
    with pytest.raises(WebhookVerificationError):
        setup.verified(forged)


async def test_a_job_without_a_callback_writes_no_row(everywhere: Setup) -> None:
    deployment = everywhere.world.deployment()
    await submit(deployment)
    await deployment.work()
    await everywhere.send()
    assert await everywhere.rows() == []


async def test_however_a_job_ends_it_is_told_of(setup: Setup) -> None:
    deployment = setup.world.deployment()
    failed = await submit(deployment, 1, callback_urls={"completed": setup.url})
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
    cancelled = await submit(deployment, 2, callback_urls={"completed": setup.url})
    await deployment.writer.apply(cancelled, Cancel())
    await setup.send()
    told = {(doc := setup.verified(each)["data"])["jobId"]: doc["state"] for each in setup.there.received}
    assert told == {failed: "FAILED_FINAL", cancelled: "CANCELLED"}


async def test_it_is_tried_again_at_the_times_of_the_table_and_then_given_up(everywhere: Setup) -> None:
    everywhere.there.answering = lambda request: status_line(503)
    job_id = await everywhere.ended()
    await everywhere.send()
    for number, wait_ms in enumerate(BACKOFF_MS, 1):
        assert len(everywhere.there.received) == number
        assert await everywhere.phase(job_id) is WebhookPhase.PENDING
        everywhere.world.clock.now_ms += wait_ms - 1
        await everywhere.send()
        assert len(everywhere.there.received) == number
        everywhere.world.clock.now_ms += 1
        await everywhere.send()
    assert len(everywhere.there.received) == len(BACKOFF_MS) + 1 == 8
    assert {request.headers["webhook-id"] for request in everywhere.there.received} == {f"msg_{job_id}"}
    ((_, letter),) = await everywhere.webhooks(everywhere.world.deployment()).dead("", 10)
    assert (letter.job_id, letter.attempts, letter.url) == (job_id, 8, everywhere.url)
    assert letter.last_problem == "the receiver answered 503"
    everywhere.world.clock.now_ms += 10 * DAY_MS
    await everywhere.send()
    assert len(everywhere.there.received) == 8


async def test_a_dead_letter_is_sent_again_on_request(everywhere: Setup) -> None:
    everywhere.there.answering = lambda request: status_line(410)
    job_id = await everywhere.ended()
    assert (await everywhere.send()).outcomes == {"dead": 1}  # gone for good: no second try
    deployment = everywhere.world.deployment()
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None
    everywhere.there.answering = lambda request: status_line(200)
    everywhere.world.clock.now_ms += 1_000
    again = everywhere.webhooks(deployment)
    assert (await again.redeliver(loaded.record.job)).phase is WebhookPhase.PENDING
    assert await again.dead("", 10) == []
    await everywhere.send()
    assert await everywhere.phase(job_id) is WebhookPhase.DELIVERED
    assert [each.headers["webhook-id"] for each in everywhere.there.received] == [f"msg_{job_id}"] * 2


async def test_chores_that_are_repeated_send_nothing_again(everywhere: Setup) -> None:
    deployment = everywhere.world.deployment()
    job_id = await everywhere.ended(deployment)
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None
    everywhere.there.answering = lambda request: status_line(500)
    await everywhere.send()
    await deployment.ledger.do_chores(loaded.record)  # while a retry is waiting
    await everywhere.send()
    assert len(everywhere.there.received) == 1
    everywhere.there.answering = lambda request: status_line(200)
    everywhere.world.clock.now_ms += BACKOFF_MS[0]
    await everywhere.send()
    await deployment.ledger.do_chores(loaded.record)  # after it was delivered
    await everywhere.send()
    assert len(everywhere.there.received) == 2
    assert await everywhere.rows() == [f"JOB#{job_id}"]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("at", [0, 1])
async def test_a_process_may_die_at_any_of_its_writes(everywhere: Setup, at: int, *, before: bool) -> None:
    """A webhook is sent at least once, each time under the same id, and soon after the crash."""
    job_id = await everywhere.ended()
    dying = everywhere.world.deployment(Trial(at=at, dies_before=before, dies_after=not before))
    webhooks = everywhere.webhooks(dying)
    await webhooks.look()
    (task,) = webhooks._tasks
    with pytest.raises(Died):
        await task
    assert len(everywhere.there.received) == (0 if at == 0 else 1)
    everywhere.world.clock.now_ms += CLAIM_MS
    await everywhere.send()
    assert await everywhere.phase(job_id) is WebhookPhase.DELIVERED
    expected = 2 if at == 1 and before else 1
    assert [each.headers["webhook-id"] for each in everywhere.there.received] == [f"msg_{job_id}"] * expected


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_the_process_that_ends_the_job_may_die_at_any_write(layout: LayoutName, tmp_path: Path) -> None:
    """Where the end and its chores are not one commit, the due row brings the webhook's row."""
    for at in range(40):
        async with opened_setup(tmp_path, layout=layout) as setup:
            world, there = setup.world, setup.there
            job_id, died = await _ended_by_one_who_dies(setup, at)
            for _ in range(6):
                world.clock.now_ms += 1_200_000
                later = world.deployment()
                await later.sweeper.sweep()
                await later.work()
                await setup.send(later)
            assert [each.headers["webhook-id"] for each in there.received] == [f"msg_{job_id}"]
            if not died:
                assert at > 3
                return
    raise AssertionError("it never lived through its writes")


async def _ended_by_one_who_dies(setup: Setup, at: int) -> tuple[str, bool]:
    """The job, and whether the process that ended it died at that write."""
    job_id = await submit(setup.world.deployment(), callback_urls={"completed": setup.url})
    dying = setup.world.deployment()
    (attempt,) = await dying.take("ocr")
    await dying.ack(attempt)
    dying.store.commits.clear()
    dying.store.trial = Trial(at=at, dies_after=True)
    try:
        await dying.result(attempt)
    except Died:
        return job_id, True
    return job_id, False


async def test_of_two_processes_one_sends(everywhere: Setup) -> None:
    for number in range(5):
        await everywhere.ended(number=number)
    first, second = (everywhere.webhooks(everywhere.world.deployment()) for _ in range(2))
    await asyncio.gather(first.look(), second.look())
    await asyncio.gather(first.settle(), second.settle())
    assert len(everywhere.there.received) == 5
    assert (first.outcomes + second.outcomes)["delivered"] == 5


async def test_a_job_stays_until_its_end_was_told_or_nobody_took_it(everywhere: Setup) -> None:
    everywhere.there.answering = lambda request: status_line(503)
    untold, second = await everywhere.ended(), await everywhere.ended(number=2)
    deployment = everywhere.world.deployment()
    other = await submit(deployment, 3)
    await deployment.work()
    everywhere.world.clock.now_ms += KEEP_MS + 1
    assert await everywhere.world.deployment().retention.look() == 1
    ledger = everywhere.world.deployment().ledger
    assert await ledger.load(other) is None
    for wait_ms in (0, *BACKOFF_MS):
        assert await everywhere.world.deployment().retention.look() == 0
        everywhere.world.clock.now_ms += wait_ms
        await everywhere.send()
    assert {await everywhere.phase(job_id) for job_id in (untold, second)} == {WebhookPhase.DEAD}
    assert await everywhere.world.deployment().retention.look() == 2
    assert await everywhere.rows() == []


@pytest.mark.parametrize("status", [200, 410])
async def test_retention_leaves_nothing(everywhere: Setup, status: int) -> None:
    everywhere.there.answering = lambda request: status_line(status)
    job_id = await everywhere.ended()
    await everywhere.send()
    everywhere.world.clock.now_ms += KEEP_MS + 1
    assert await everywhere.world.deployment().retention.look() == 1
    assert await everywhere.world.deployment().ledger.load(job_id) is None
    assert await everywhere.rows() == []


async def test_rows_of_a_job_that_is_gone_are_removed(setup: Setup) -> None:
    job_id = await setup.ended()
    deployment = setup.world.deployment()
    while ops := await deployment.ledger.layout.removals(setup.world.store, job_id, ""):
        await setup.world.store.commit(ops)
    await setup.send()
    assert setup.there.received == []
    assert await setup.rows() == []


async def test_a_ledger_that_fails_for_a_while_loses_nothing(setup: Setup) -> None:
    job_id = await setup.ended()

    deployment = setup.world.deployment()

    async def fails() -> None:
        raise StoreUnavailable("the disk is full")

    deployment.store.trial = Trial(at=1, sleeps=fails)
    await setup.send(deployment)
    assert len(setup.there.received) == 1  # sent, and the note of it failed
    setup.world.clock.now_ms += CLAIM_MS
    await setup.send()
    assert await setup.phase(job_id) is WebhookPhase.DELIVERED
    assert len(setup.there.received) == 2

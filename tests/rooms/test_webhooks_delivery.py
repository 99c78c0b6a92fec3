"""A job that ends is told of: once if all goes well, again if it does not, and never not at all."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from standardwebhooks.webhooks import WebhookVerificationError
from tests.conformance.ledger_house import DAY_MS, KEEP_MS, LAYOUTS, STORES, Died, Trial, submit
from tests.rooms.webhook_receiver import status_line
from tests.rooms.webhook_scene import HOST, Scene, opened_scene

from lucius.core.inputs import Cancel, ResultStatus
from lucius.engines.webhooks import BACKOFF_MS, CLAIM_MS
from lucius.ledger.jobs import LayoutName
from lucius.ledger.store import StoreUnavailable
from lucius.ledger.webhooks import WebhookPhase


@pytest.fixture(params=[(store, layout) for store in STORES for layout in LAYOUTS], ids=str)
async def everywhere(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened_scene(tmp_path, *request.param) as one:
        yield one


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with opened_scene(tmp_path) as one:
        yield one


async def test_a_job_that_ended_is_told_of_once(everywhere: Scene) -> None:
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


async def test_the_body_is_the_job_without_its_payloads(scene: Scene) -> None:
    job_id = await scene.ended()
    await scene.send()
    document = scene.verified(scene.there.received[0])
    assert document.keys() == {"type", "timestamp", "data"}
    assert document["type"] == "job.completed"
    data = document["data"]
    assert (data["jobId"], data["state"], data["tenant_id"]) == (job_id, "SUCCEEDED", "tenant_a")
    assert document["timestamp"] == data["completed_at"]
    assert [step["state"] for step in data["steps"]] == ["SUCCEEDED"]
    assert b'"payload"' not in scene.there.received[0].body
    forged = msgspec.structs.replace(scene.there.received[0], body=b"{}")
    with pytest.raises(WebhookVerificationError):
        scene.verified(forged)


async def test_a_job_without_a_callback_writes_no_row(everywhere: Scene) -> None:
    house = everywhere.world.house()
    await submit(house)
    await house.work()
    await everywhere.send()
    assert await everywhere.rows() == []


async def test_however_a_job_ends_it_is_told_of(scene: Scene) -> None:
    house = scene.world.house()
    failed = await submit(house, 1, callback_urls={"completed": scene.url})
    (attempt,) = await house.take("ocr")
    await house.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
    cancelled = await submit(house, 2, callback_urls={"completed": scene.url})
    await house.progress.apply(cancelled, Cancel())
    await scene.send()
    told = {(doc := scene.verified(each)["data"])["jobId"]: doc["state"] for each in scene.there.received}
    assert told == {failed: "FAILED_FINAL", cancelled: "CANCELLED"}


async def test_it_is_tried_again_at_the_times_of_the_table_and_then_given_up(everywhere: Scene) -> None:
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
    ((_, letter),) = await everywhere.webhooks(everywhere.world.house()).dead("", 10)
    assert (letter.job_id, letter.attempts, letter.url) == (job_id, 8, everywhere.url)
    assert letter.last_problem == "the receiver answered 503"
    everywhere.world.clock.now_ms += 10 * DAY_MS
    await everywhere.send()
    assert len(everywhere.there.received) == 8


async def test_a_dead_letter_is_sent_again_on_request(everywhere: Scene) -> None:
    everywhere.there.answering = lambda request: status_line(410)
    job_id = await everywhere.ended()
    assert (await everywhere.send()).outcomes == {"dead": 1}  # gone for good: no second try
    house = everywhere.world.house()
    loaded = await house.ledger.load(job_id)
    assert loaded is not None
    everywhere.there.answering = lambda request: status_line(200)
    everywhere.world.clock.now_ms += 1_000
    again = everywhere.webhooks(house)
    assert (await again.redeliver(loaded.record.job)).phase is WebhookPhase.PENDING
    assert await again.dead("", 10) == []
    await everywhere.send()
    assert await everywhere.phase(job_id) is WebhookPhase.DELIVERED
    assert [each.headers["webhook-id"] for each in everywhere.there.received] == [f"msg_{job_id}"] * 2


async def test_chores_that_are_repeated_send_nothing_again(everywhere: Scene) -> None:
    house = everywhere.world.house()
    job_id = await everywhere.ended(house)
    loaded = await house.ledger.load(job_id)
    assert loaded is not None
    everywhere.there.answering = lambda request: status_line(500)
    await everywhere.send()
    await house.ledger.do_chores(loaded.record)  # while a retry is waiting
    await everywhere.send()
    assert len(everywhere.there.received) == 1
    everywhere.there.answering = lambda request: status_line(200)
    everywhere.world.clock.now_ms += BACKOFF_MS[0]
    await everywhere.send()
    await house.ledger.do_chores(loaded.record)  # after it was delivered
    await everywhere.send()
    assert len(everywhere.there.received) == 2
    assert await everywhere.rows() == [f"JOB#{job_id}"]


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("at", [0, 1])
async def test_a_process_may_die_at_any_of_its_writes(everywhere: Scene, at: int, *, before: bool) -> None:
    """A webhook is sent at least once, each time under the same id, and soon after the crash."""
    job_id = await everywhere.ended()
    dying = everywhere.world.house(Trial(at=at, dies_before=before, dies_after=not before))
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
        async with opened_scene(tmp_path, layout=layout) as scene:
            world, there = scene.world, scene.there
            job_id, died = await _ended_by_one_who_dies(scene, at)
            for _ in range(6):
                world.clock.now_ms += 1_200_000
                later = world.house()
                await later.sweeper.sweep()
                await later.work()
                await scene.send(later)
            assert [each.headers["webhook-id"] for each in there.received] == [f"msg_{job_id}"]
            if not died:
                assert at > 3
                return
    raise AssertionError("it never lived through its writes")


async def _ended_by_one_who_dies(scene: Scene, at: int) -> tuple[str, bool]:
    """The job, and whether the process that ended it died at that write."""
    job_id = await submit(scene.world.house(), callback_urls={"completed": scene.url})
    dying = scene.world.house()
    (attempt,) = await dying.take("ocr")
    await dying.ack(attempt)
    dying.store.commits.clear()
    dying.store.trial = Trial(at=at, dies_after=True)
    try:
        await dying.result(attempt)
    except Died:
        return job_id, True
    return job_id, False


async def test_of_two_processes_one_sends(everywhere: Scene) -> None:
    for number in range(5):
        await everywhere.ended(number=number)
    first, second = (everywhere.webhooks(everywhere.world.house()) for _ in range(2))
    await asyncio.gather(first.look(), second.look())
    await asyncio.gather(first.settle(), second.settle())
    assert len(everywhere.there.received) == 5
    assert (first.outcomes + second.outcomes)["delivered"] == 5


async def test_a_job_stays_until_its_end_was_told_or_nobody_took_it(everywhere: Scene) -> None:
    everywhere.there.answering = lambda request: status_line(503)
    untold, second = await everywhere.ended(), await everywhere.ended(number=2)
    house = everywhere.world.house()
    other = await submit(house, 3)
    await house.work()
    everywhere.world.clock.now_ms += KEEP_MS + 1
    assert await everywhere.world.house().retention.look() == 1
    ledger = everywhere.world.house().ledger
    assert await ledger.load(other) is None
    for wait_ms in (0, *BACKOFF_MS):
        assert await everywhere.world.house().retention.look() == 0
        everywhere.world.clock.now_ms += wait_ms
        await everywhere.send()
    assert {await everywhere.phase(job_id) for job_id in (untold, second)} == {WebhookPhase.DEAD}
    assert await everywhere.world.house().retention.look() == 2
    assert await everywhere.rows() == []


@pytest.mark.parametrize("status", [200, 410])
async def test_retention_leaves_nothing(everywhere: Scene, status: int) -> None:
    everywhere.there.answering = lambda request: status_line(status)
    job_id = await everywhere.ended()
    await everywhere.send()
    everywhere.world.clock.now_ms += KEEP_MS + 1
    assert await everywhere.world.house().retention.look() == 1
    assert await everywhere.world.house().ledger.load(job_id) is None
    assert await everywhere.rows() == []


async def test_rows_of_a_job_that_is_gone_are_removed(scene: Scene) -> None:
    job_id = await scene.ended()
    house = scene.world.house()
    while ops := await house.ledger.layout.removals(scene.world.store, job_id, ""):
        await scene.world.store.commit(ops)
    await scene.send()
    assert scene.there.received == []
    assert await scene.rows() == []


async def test_a_ledger_that_fails_for_a_while_loses_nothing(scene: Scene) -> None:
    job_id = await scene.ended()

    house = scene.world.house()

    async def fails() -> None:
        raise StoreUnavailable("the disk is full")

    house.store.trial = Trial(at=1, sleeps=fails)
    await scene.send(house)
    assert len(scene.there.received) == 1  # sent, and the note of it failed
    scene.world.clock.now_ms += CLAIM_MS
    await scene.send()
    assert await scene.phase(job_id) is WebhookPhase.DELIVERED
    assert len(scene.there.received) == 2

"""What is left behind by a crash is taken further."""

import asyncio
import contextlib
from decimal import Decimal
from typing import Any

import msgspec
from tests.lifebook.stage import Stage, play
from tests.lifebook.test_worker import Three, _crash

from lucius.lifebook.job import AnalyticsEvent, LifebookJob
from lucius.lifebook.message import body_of, message_for
from lucius.lifebook.queue import Depths, JobDelivery
from lucius.lifebook.states import Status
from lucius.lifebook.worker import Done


def _break(target: Any, name: str) -> None:
    async def broken(*args: Any, **named: Any) -> Any:
        raise ConnectionError

    setattr(target, name, broken)


async def _submit_broken(stage: Stage, target: Any, name: str) -> LifebookJob:
    """A run whose client was told nothing: the process broke off at this call."""
    _break(target, name)
    with contextlib.suppress(ConnectionError):
        await stage.submit(input={})
    delattr(target, name)
    return stage.job()


def test_a_pending_job_that_was_never_enqueued_is() -> None:
    async def setup(stage: Stage) -> None:
        for target, name in ((stage.balances, "hold"), (stage.queue, "send")):
            stage.table.jobs.clear()
            stage.table.guards.clear()
            job = await _submit_broken(stage, target, name)
            assert (job.status, stage.queue.bodies()) == (Status.PENDING, [])
            assert (await stage.sweeper.sweep()).enqueued == 0  # its process may only be slow
            await asyncio.sleep(61)
            assert (await stage.sweeper.sweep()).enqueued == 1
            assert stage.job().status is Status.QUEUED
            assert await stage.once() == Done()
            assert stage.job().status is Status.COMPLETED

    play(Three, setup)


def test_a_pending_job_whose_credits_are_refused_is_canceled() -> None:
    async def setup(stage: Stage) -> None:
        await _submit_broken(stage, stage.balances, "hold")
        stage.balances._accounts.clear()
        await asyncio.sleep(61)
        await stage.sweeper.sweep()
        job = stage.job()
        assert (job.status, job.last_error_code) == (Status.CANCELED, "CREDITS_INSUFFICIENT")
        assert [body["status"] for body in stage.sink.bodies] == ["canceled"]

    play(Three, setup)


def test_a_running_job_whose_message_is_gone_is_taken_further() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 500]]}})
        await _crash(stage, 5)
        stage.queue._kept.clear()
        await asyncio.sleep(60)
        assert (await stage.sweeper.sweep()).lost == 0
        await asyncio.sleep(70)
        swept = await stage.sweeper.sweep()
        assert (swept.lost, swept.enqueued) == (1, 1)
        assert (stage.job().status, stage.job().attempts) == (Status.FAILED, 1)
        assert await stage.once() == Done()
        assert stage.job().status is Status.COMPLETED

    play(Three, setup)


def test_a_cancel_of_a_worker_that_died_takes_effect() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 500]]}})
        await _crash(stage, 5)
        await stage.runs.cancel(stage.job().job_id)
        await asyncio.sleep(130)
        await stage.sweeper.sweep()
        assert stage.job().status is Status.CANCELED
        assert stage.job().settled_at is not None

    play(Three, setup)


def test_a_queued_job_that_no_worker_took_for_hours_gets_another_message() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={})
        stage.queue._kept.clear()
        await asyncio.sleep(6 * 3600 + 1)
        assert (await stage.sweeper.sweep()).enqueued == 1
        assert (await stage.sweeper.sweep()).enqueued == 0
        assert await stage.once() == Done()

    play(Three, setup)


def test_an_event_that_was_not_sent_is_sent_and_credits_are_released() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={}, credits_estimate=Decimal(2))
        _break(stage.sink, "send")
        assert await stage.once() == Done()
        delattr(stage.sink, "send")
        await asyncio.sleep(61)
        assert (await stage.sweeper.sweep()).events == 1
        assert len(stage.sink.bodies) == 1
        _break(stage.balances, "settle")
        await stage.submit(input={}, idempotency_key="2", credits_estimate=Decimal(2))
        assert await stage.once() == Done()
        assert (await stage.balances.balance("ws")).held == 2
        delattr(stage.balances, "settle")
        await asyncio.sleep(61)
        swept = await stage.sweeper.sweep()
        assert (swept.ended, swept.events) in ((1, 0), (1, 1))
        account = await stage.balances.balance("ws")
        assert (account.held, account.spent) == (Decimal(0), Decimal("1.5"))
        assert (await stage.sweeper.sweep()).events == 0
        assert len({body["event_id"] for body in stage.sink.bodies}) == 2

    play(Three, setup)


async def _into_dlq(stage: Stage) -> None:
    for _ in range(5):
        await stage.queue.set_visibility(await stage.delivery(), 0)
    assert await stage.queue.receive(messages_max=1, wait_seconds=1, visibility_ms=1) == []
    assert len(stage.queue.dead_bodies()) == 1


def test_a_message_in_the_dead_letter_queue_that_was_never_tried_comes_back() -> None:
    """Deliveries can be used up without an attempt: by throttled calls, by workers that could not start."""

    async def setup(stage: Stage) -> None:
        await stage.submit(input={})
        await _into_dlq(stage)
        assert (await stage.sweeper.sweep()).from_dlq == 1
        assert stage.queue.dead_bodies() == []
        assert await stage.once() == Done()
        assert stage.job().status is Status.COMPLETED

    play(Three, setup)


def test_a_job_that_killed_all_its_workers_is_dead_and_its_message_stays() -> None:
    async def setup(stage: Stage) -> None:
        job = await stage.submit(input={})
        await _into_dlq(stage)
        running = msgspec.structs.replace(
            job, status=Status.RUNNING, attempts=4, lease_owner="gone", lease_expires_at=stage.now_ms()
        )
        stage.table.jobs[job.job_id] = running
        await stage.sweeper.sweep()
        assert stage.job().status is Status.RUNNING  # the lease may still be renewed
        await asyncio.sleep(6)
        await stage.sweeper.sweep()
        assert (stage.job().status, stage.job().attempts) == (Status.DEAD, 5)
        await asyncio.sleep(6)
        await stage.sweeper.sweep()
        assert len(stage.queue.dead_bodies()) == 1
        assert len(stage.sink.bodies) == 1

    play(Three, setup)


def test_messages_of_jobs_that_ended_well_do_not_stay_in_the_dead_letter_queue() -> None:
    async def setup(stage: Stage) -> None:
        job = await stage.submit(input={})
        stage.queue.put("poison")
        await stage.once()
        await stage.once()
        stage.queue.put(body_of(message_for(job)))
        await _into_dlq_beside(stage)
        assert (await stage.sweeper.sweep()).from_dlq == 1
        assert stage.queue.dead_bodies() == ["poison"]
        # The alarm counts what is visible, and operators see no more than that.
        assert len(await stage.queue.receive_dead(messages_max=10, visibility_ms=0)) == 1

    play(Three, setup)


async def _into_dlq_beside(stage: Stage) -> None:
    for _ in range(5):
        await stage.queue.set_visibility(await stage.delivery(), 0)
    assert await stage.queue.receive(messages_max=1, wait_seconds=1, visibility_ms=1) == []


def test_a_sweep_hides_dead_letters_no_longer_than_it_needs() -> None:
    """It waits where there is nothing that could be hidden meanwhile, and no more once it has found some."""

    async def setup(stage: Stage) -> None:
        for number in range(25):
            stage.queue.put(f"poison {number}")
        while await stage.queue.depths() != Depths(waiting=0, in_flight=0, delayed=0, dead=25):
            await stage.once()
        receive, waits = stage.queue.receive_dead, []

        async def noted(**asked: Any) -> list[JobDelivery]:
            waits.append(asked["wait_seconds"])
            return await receive(**asked)

        stage.queue.receive_dead = noted  # type: ignore[method-assign]
        await stage.sweeper.sweep()
        assert waits == [1, 0, 0, 0]

    play(Three, setup)


def test_a_fault_with_one_does_not_keep_the_others_waiting() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={})
        stage.table.events["bad"] = AnalyticsEvent(
            event_id="bad", job_id="x", body="{", created_at=0, sweep_at=0
        )
        stage.queue._kept.clear()
        await asyncio.sleep(6 * 3600 + 1)
        swept = await stage.sweeper.sweep()
        assert (swept.enqueued, swept.faults) == (1, 1)

    play(Three, setup)

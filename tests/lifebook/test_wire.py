"""Attempts that run out, on real queues: the queue itself moves the message, and a redrive brings the job
back."""

from decimal import Decimal

import pytest
from tests.lifebook.deployed import Deployed, deployed

from lucius.lifebook.job import LifebookJob
from lucius.lifebook.runs import AcceptedRun, RunRequest
from lucius.lifebook.states import Status

pytestmark = pytest.mark.xdist_group("lifebook")


async def _work(place: Deployed, job_id: str) -> LifebookJob:
    """Deliveries one after the other, until the job has ended and nothing more comes."""
    worker, queue = place.lifebook.worker(), place.lifebook.queue
    for _ in range(60):
        found = await queue.receive(messages_max=1, wait_seconds=1, visibility_ms=worker.visibility_ms)
        for delivery in found:
            await worker.settle(delivery, await worker.handle(delivery))
        job = await place.lifebook.writer.get(job_id)
        assert job is not None
        if job.terminal and not found:
            return job
    raise AssertionError(f"{job_id} did not end")


async def test_attempts_run_out_and_a_redrive_completes_the_job(ministack: dict[str, str]) -> None:
    async with deployed(ministack, LIFEBOOK_BACKOFF="1ms") as place:
        told = await place.lifebook.runs.submit(
            RunRequest(workspace_id="ws", user_id="u", workflow_id="told", input={"fails_second": 5})
        )
        assert isinstance(told, AcceptedRun), told
        dead = await _work(place, told.job.job_id)
        assert (dead.status, dead.attempts, dead.step_cursor) == (Status.DEAD, 5, 1)
        assert (dead.last_error_code, dead.redrives) == ("TOLD", 0)
        assert dead.completed_at is not None
        # What the alarm lifebook-orchestrator-dlq-depth looks at.
        assert (await place.lifebook.queue.depths()).dead == 1
        (message,) = await place.lifebook.queue.receive_dead(messages_max=10, visibility_ms=0)
        assert dead.job_id in message.body
        assert message.reason is None  # no worker put it there

        again = await place.lifebook.runs.redrive(dead.job_id)
        assert isinstance(again, LifebookJob), again
        assert again.step_cursor == 1
        done = await _work(place, dead.job_id)
        assert (done.status, done.attempts, done.redrives) == (Status.COMPLETED, 1, 1)
        assert done.results[0] == '{"attempt":1}'  # not run again
        assert done.results[:1] == dead.results
        account = await place.lifebook.balances.balance("ws")
        assert (account.held, account.spent) == (Decimal(0), done.credits_spent)
        await place.lifebook.sweeper.sweep()
        assert (await place.lifebook.queue.depths()).dead == 0

"""Attempts that run out, on real queues: the queue itself moves the message, and a redrive brings the job
back."""

import json
from decimal import Decimal
from uuid import uuid4

import msgspec
import pytest
from tests.lifebook.deployed import Deployed, deployed

from lucius.lifebook.credits import MemoryBalances
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.refusals import RunCode, RunRefused
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


async def test_a_job_that_another_program_wrote_by_the_contract_runs_to_its_end(
    ministack: dict[str, str],
) -> None:
    """The item has the contract's fields and no others, the message its eight."""
    job_id, at = str(uuid4()), "2026-11-19T20:00:00Z"
    texts = {
        "job_id": job_id,
        "workspace_id": "ws",
        "user_id": "u",
        "workflow_id": "told",
        "trigger_type": "manual",
        "status": "queued",
        "idempotency_key": "k",
        "last_error_code": "",
        "last_error_message": "",
        "created_at": at,
        "updated_at": at,
    }
    numbers = {"attempts": 0, "max_attempts": 5, "step_cursor": 0, "steps_total": 3}
    credits_ = {"credits_estimate": 1, "credits_reserved": 1, "credits_spent": 0}
    item = {name: {"S": text} for name, text in texts.items()}
    item |= {name: {"N": str(number)} for name, number in (numbers | credits_).items()}
    body = {
        "v": 1,
        "job_id": job_id,
        "workspace_id": "ws",
        "trigger_type": "manual",
        "attempt": 1,
        "max_attempts": 5,
        "trace_id": "t",
        "idempotency_key": "k",
    }
    async with deployed(ministack, LIFEBOOK_CREDITS="off") as place:
        aws = place.lifebook.aws
        table = place.lifebook.settings.table
        await aws.call(aws.client("dynamodb").put_item, TableName=table, Item=item)
        await place.lifebook.queue._send_body(json.dumps(body))
        done = await _work(place, job_id)
        assert (done.status, done.step_cursor, done.attempts) == (Status.COMPLETED, 3, 1)
        assert (done.credits_spent, done.started_at is not None) == (Decimal("0.2"), True)


async def test_an_item_that_cannot_be_read_ends_among_the_dead_letters(ministack: dict[str, str]) -> None:
    async with deployed(ministack) as place:
        told = await place.lifebook.runs.submit(
            RunRequest(workspace_id="ws", user_id="u", workflow_id="told", input={})
        )
        assert isinstance(told, AcceptedRun), told
        aws = place.lifebook.aws
        await aws.call(
            aws.client("dynamodb").update_item,
            TableName=place.lifebook.settings.table,
            Key={"job_id": {"S": told.job.job_id}},
            UpdateExpression="SET #status = :later",
            ExpressionAttributeNames={"#status": "status"},
            ExpressionAttributeValues={":later": {"S": "archived"}},
        )
        worker, queue = place.lifebook.worker(), place.lifebook.queue
        for _ in range(5):
            (delivery,) = await queue.receive(messages_max=1, wait_seconds=5, visibility_ms=60_000)
            await worker.settle(delivery, await worker.handle(delivery))
        assert await queue.receive(messages_max=1, wait_seconds=1, visibility_ms=60_000) == []
        await place.lifebook.sweeper.sweep()
        assert (await queue.depths()).dead == 1
        page = await place.lifebook.writer.table.page("ws", now_ms=told.job.created_at, rows_max=10)
        assert page.rows == ()


async def test_balances_of_a_system_of_ones_own_are_asked(ministack: dict[str, str]) -> None:
    async with deployed(ministack, LIFEBOOK_CREDITS="lucius.lifebook.credits:MemoryBalances") as place:
        assert isinstance(place.lifebook.balances, MemoryBalances)
        asked = RunRequest(workspace_id="ws", user_id="u", workflow_id="told", input={})
        told = await place.lifebook.runs.submit(asked)
        assert isinstance(told, AcceptedRun), told
        done = await _work(place, told.job.job_id)
        account = await place.lifebook.balances.balance("ws")
        assert (account.held, account.spent) == (Decimal(0), done.credits_spent)
        poor = msgspec.structs.replace(asked, workspace_id="poor")
        refused = await place.lifebook.runs.submit(poor)
        assert isinstance(refused, RunRefused)
        assert refused.code is RunCode.CREDITS_INSUFFICIENT


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

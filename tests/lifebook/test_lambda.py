"""The Lambda functions under Amazon's own runtime client, on real messages of a queue."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.lifebook.deployed import Deployed, deployed
from tests.lifebook.runtime_api import Function, function

from lucius.lifebook import aws_lambda
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.queue import JobDelivery
from lucius.lifebook.refusals import RunCode, RunRefused
from lucius.lifebook.runs import AcceptedRun, RunRequest
from lucius.lifebook.states import Status

pytestmark = pytest.mark.xdist_group("lifebook")


async def _submit(place: Deployed, **given: Any) -> str:
    told = await place.lifebook.runs.submit(
        RunRequest(workspace_id="ws", user_id="u", workflow_id="told", input=given)
    )
    assert isinstance(told, AcceptedRun), told
    return told.job.job_id


async def _received(place: Deployed, count: int) -> list[JobDelivery]:
    found: list[JobDelivery] = []
    while len(found) < count:
        found += await place.lifebook.queue.receive(messages_max=10, wait_seconds=1, visibility_ms=60_000)
    return found


def _event(deliveries: list[JobDelivery]) -> dict[str, Any]:
    return {
        "Records": [
            {
                "messageId": each.message_id,
                "receiptHandle": each.receipt,
                "body": each.body,
                "attributes": {
                    "ApproximateReceiveCount": str(each.receives),
                    "SentTimestamp": "1789000000000",
                    "SenderId": "lifebook",
                    "ApproximateFirstReceiveTimestamp": "1789000000001",
                },
                "messageAttributes": {},
                "md5OfBody": "",
                "eventSource": "aws:sqs",
                "eventSourceARN": "arn:aws:sqs:us-east-1:000000000000:lifebook-orchestrator-queue",
                "awsRegion": "us-east-1",
            }
            for each in deliveries
        ]
    }


async def _call(worker: Function, event: dict[str, Any], left_ms: int) -> set[str]:
    answer = await asyncio.to_thread(worker.call, event, left_ms=left_ms)
    return {failure["itemIdentifier"] for failure in answer["batchItemFailures"]}


async def _jobs(place: Deployed, ids: list[str]) -> list[LifebookJob]:
    found = [await place.lifebook.writer.get(job_id) for job_id in ids]
    return [job for job in found if job is not None]


async def test_of_ten_records_exactly_the_three_that_fail_come_again(
    ministack: dict[str, str], tmp_path: Path
) -> None:
    async with deployed(ministack) as place:
        ids = [await _submit(place, fails=int(number in (2, 5, 7))) for number in range(10)]
        deliveries = await _received(place, 10)
        by_job = {job_id: each for each in deliveries for job_id in ids if job_id in each.body}
        with function("lucius.lifebook.aws_lambda.handler", place.env, tmp_path) as worker:
            failed = await _call(worker, _event(deliveries), 60_000)
            assert failed == {by_job[ids[number]].message_id for number in (2, 5, 7)}
            jobs = await _jobs(place, ids)
            assert [job.status for job in jobs].count(Status.COMPLETED) == 7
            for number in (2, 5, 7):
                assert (jobs[number].status, jobs[number].last_error_code) == (Status.FAILED, "TOLD")
            # Lambda deletes the others; these wait for their backoff.
            for each in deliveries:
                if each.message_id not in failed:
                    await place.lifebook.queue.delete(each)
            depths = await place.lifebook.queue.depths()
            assert (depths.waiting, depths.in_flight) == (0, 3)
            assert '"event": "attempt_failed"' in worker.log()


async def test_with_two_seconds_left_no_record_is_begun(ministack: dict[str, str], tmp_path: Path) -> None:
    async with deployed(ministack) as place:
        ids = [await _submit(place) for _ in range(3)]
        deliveries = await _received(place, 3)
        with function("lucius.lifebook.aws_lambda.handler", place.env, tmp_path) as worker:
            failed = await _call(worker, _event(deliveries), 2_000)
            assert failed == {each.message_id for each in deliveries}
            assert {job.status for job in await _jobs(place, ids)} == {Status.QUEUED}
            assert {job.attempts for job in await _jobs(place, ids)} == {0}
            again = await _received(place, 3)
            assert await _call(worker, _event(again), 60_000) == set()
            assert {job.status for job in await _jobs(place, ids)} == {Status.COMPLETED}


async def test_when_the_time_runs_short_the_rest_is_returned(
    ministack: dict[str, str], tmp_path: Path
) -> None:
    async with deployed(ministack, LIFEBOOK_LAMBDA_MARGIN="3s") as place:
        ids = [await _submit(place, sleep=2) for _ in range(3)]
        deliveries = await _received(place, 3)
        with function("lucius.lifebook.aws_lambda.handler", place.env, tmp_path) as worker:
            failed = await _call(worker, _event(deliveries), 7_000)
        jobs = {job.job_id: job for job in await _jobs(place, ids)}
        # The first completes; the second is not begun, or is given back between its steps.
        completed = [job for job in jobs.values() if job.status is Status.COMPLETED]
        assert 1 <= len(completed) < 3
        assert failed
        assert all(job.attempts <= 1 for job in jobs.values())


async def test_poison_is_no_failure_of_the_batch(ministack: dict[str, str], tmp_path: Path) -> None:
    async with deployed(ministack) as place:
        await _submit(place)
        (delivery,) = await _received(place, 1)
        poison = JobDelivery(message_id="p", receipt=delivery.receipt, body="{", receives=1)
        with function("lucius.lifebook.aws_lambda.handler", place.env, tmp_path) as worker:
            assert await _call(worker, _event([poison]), 60_000) == set()
            assert "poison_message" in worker.log()
        (dead,) = await place.lifebook.queue.receive_dead(messages_max=10, visibility_ms=0)
        assert dead.body == "{"
        assert dead.reason is not None


async def test_a_schedule_and_a_dropped_file_start_one_run_each(
    ministack: dict[str, str], tmp_path: Path
) -> None:
    drops = '[{"bucket":"in","prefix":"a/","workspace_id":"ws","user_id":"u","workflow_id":"told"}]'
    async with deployed(ministack, LIFEBOOK_FILE_DROPS=drops) as place:
        thing = {"key": "a/my+letter%C3%A9.pdf", "size": 3, "sequencer": "0A1B"}
        dropped = {"Records": [{"s3": {"bucket": {"name": "in"}, "object": thing}}]}
        other = {"Records": [{"s3": {"bucket": {"name": "out"}, "object": thing}}]}
        scheduled = {
            "workspace_id": "ws",
            "user_id": "u",
            "workflow_id": "told",
            "scheduled_time": "2026-11-18T20:00:00Z",
        }
        with function("lucius.lifebook.aws_lambda.trigger", place.env, tmp_path) as trigger:
            answers = [
                (await asyncio.to_thread(trigger.call, event, left_ms=60_000))["runs"][0]
                for event in (dropped, dropped, scheduled, scheduled, other, {"x": 1})
            ]
        assert [each.get("duplicate") for each in answers] == [False, True, False, True, None, None]
        assert [each.get("code") for each in answers[4:]] == ["UNKNOWN_WORKFLOW", "INVALID_REQUEST"]
        job = await place.lifebook.writer.get(answers[0]["job_id"])
        assert job is not None
        assert (str(job.trigger_type), job.input) == (
            "file_drop",
            '{"uri":"s3://in/a/my letteré.pdf","bytes":3}',
        )


def test_a_run_that_cannot_be_started_for_the_moment_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A call of a schedule that returns is never repeated, and its run would be lost."""
    answers = [
        RunRefused(RunCode.SYSTEM_SATURATED, "The key is being freed."),
        RunRefused(RunCode.CREDITS_INSUFFICIENT, "The balance is too small."),
    ]

    async def submit(asked: RunRequest) -> RunRefused:
        return answers.pop(0)

    lifebook = SimpleNamespace(runs=SimpleNamespace(submit=submit))
    monkeypatch.setattr(
        aws_lambda, "runtime", lambda: SimpleNamespace(lifebook=lifebook, do=asyncio.run, drops=())
    )
    at_nine = {"workspace_id": "ws", "user_id": "u", "workflow_id": "told", "scheduled_time": "9:00"}
    with pytest.raises(aws_lambda.NotNow):
        aws_lambda.trigger(at_nine, None)
    told = aws_lambda.trigger(at_nine, None)
    assert [each["code"] for each in told["runs"]] == ["CREDITS_INSUFFICIENT"]


async def test_the_sweep_is_a_function_of_its_own(ministack: dict[str, str], tmp_path: Path) -> None:
    async with deployed(ministack, LIFEBOOK_PENDING_GRACE="1ms") as place:

        async def lost(*args: Any, **named: Any) -> None:
            raise ConnectionError

        with pytest.MonkeyPatch.context() as patch, pytest.raises(ConnectionError):
            patch.setattr(place.lifebook.queue, "send", lost)
            await _submit(place)
        with function("lucius.lifebook.aws_lambda.sweep", place.env, tmp_path) as sweep:
            swept = await asyncio.to_thread(sweep.call, {}, left_ms=60_000)
        assert (swept["enqueued"], swept["faults"]) == (1, 0)
        assert len(await _received(place, 1)) == 1


async def test_a_function_killed_at_its_timeout_costs_an_attempt_and_no_step_that_was_done(
    ministack: dict[str, str], tmp_path: Path
) -> None:
    own = {"LIFEBOOK_LEASE": "2s", "LIFEBOOK_CLOCK_SKEW": "100ms", "LIFEBOOK_BACKOFF": "100ms"}
    async with deployed(ministack, **own) as place:
        (job_id,) = [await _submit(place, sleep_second=60)]
        with function("lucius.lifebook.aws_lambda.handler", place.env, tmp_path) as worker:
            deliveries = await _received(place, 1)
            await place.lifebook.queue.set_visibility(deliveries[0], 2_500)
            worker.begin(_event(deliveries), left_ms=60_000)
            for _ in range(200):
                (job,) = await _jobs(place, [job_id])
                if job.step_cursor == 1:
                    break
                await asyncio.sleep(0.05)
            assert (job.status, job.step_cursor) == (Status.RUNNING, 1)
            worker.kill()
        with function("lucius.lifebook.aws_lambda.handler", place.env, tmp_path) as worker:
            for _ in range(20):
                (job,) = await _jobs(place, [job_id])
                if job.terminal:
                    break
                found = await place.lifebook.queue.receive(
                    messages_max=1, wait_seconds=1, visibility_ms=60_000
                )
                if found:
                    await _call(worker, _event(found), 60_000)
        assert (job.status, job.attempts) == (Status.COMPLETED, 2)
        assert job.last_error_code == "WORKER_LOST"
        assert job.results[0] == '{"attempt":1}'

"""What becomes of a delivery, in memory and virtual time."""

import asyncio
from decimal import Decimal
from typing import Any

import msgspec
import pytest
import structlog
from tests.lifebook.stage import START_MS, Stage, play

from lucius.lifebook.failures import NotYet, StepFailed
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.message import body_of, message_for
from lucius.lifebook.queue import JobDelivery
from lucius.lifebook.states import Status
from lucius.lifebook.worker import Buried, Done, Later, Left
from lucius.lifebook.workflows import StepRun, step


class Three:
    """Does as it is told: by the input, step by step."""

    async def _do(self, run: StepRun) -> Any:
        for what in run.input.get(str(run.index), {}).get(str(run.attempt), []):
            match what:
                case ["sleep", seconds]:
                    await asyncio.sleep(seconds)
                case ["fail", code, message, final]:
                    raise StepFailed(code, message, final=final)
                case ["raise"]:
                    raise ValueError("customer ann.lee@example.com has no letter")
                case ["not yet", seconds]:
                    raise NotYet(seconds)
                case ["spend", amount]:
                    run.spend(amount)
                case ["keep", note]:
                    await run.keep(note)
                case ["garbage"]:
                    return {"x": object()}
                case ["large"]:
                    return "x" * 20_000
                case ["negative"]:
                    run.spend("-1")
                case ["cancelled"]:
                    raise asyncio.CancelledError
        return {"token": run.token, "checkpoint": run.checkpoint, "attempt": run.attempt}

    @step(credits="0.25")
    async def first(self, run: StepRun) -> Any:
        return await self._do(run)

    @step(credits="0.25")
    async def second(self, run: StepRun) -> Any:
        return await self._do(run)

    @step(credits="0.25", timeout_seconds=100)
    async def third(self, run: StepRun) -> Any:
        return await self._do(run)


def test_a_job_runs_to_its_end() -> None:
    async def setup(stage: Stage) -> None:
        asked = await stage.submit(input={})
        assert asked.status is Status.QUEUED
        assert await stage.once() == Done()
        job = stage.job()
        assert (job.status, job.attempts, job.step_cursor) == (Status.COMPLETED, 1, 3)
        assert job.credits_spent == Decimal("0.75") == job.credits_reserved
        assert job.started_at is not None
        assert job.completed_at is not None
        assert job.ttl_at == (job.completed_at + 90 * 86_400_000) // 1000
        assert [msgspec.json.decode(text)["token"] for text in job.results] == [
            f"{job.job_id}:{index}" for index in range(3)
        ]
        (event,) = stage.sink.bodies
        assert event["event"] == "workflow_run_completed"
        assert (event["job_id"], event["success"]) == (job.job_id, True)
        assert stage.queue.bodies() == []
        account = await stage.balances.balance("ws")
        assert (account.held, account.spent) == (Decimal(0), Decimal("0.75"))

    play(Three, setup)


@pytest.mark.parametrize(
    ("what", "code", "message"),
    [
        (["fail", "NO_TEXT", "page 3 is empty", False], "NO_TEXT", "page 3 is empty"),
        (["fail", "bad code!", "for user_7, tel. 0170 1234567", False], "STEP_FAILED", "for ***, tel. ***"),
        (["raise"], "STEP_RAISED", "Step 1 raised ValueError."),
        (["garbage"], "BAD_RESULT", "The result of step second is not JSON."),
        (["large"], "BAD_RESULT", "The result of step second has more than 16384 bytes of JSON; keep it"),
        (["negative"], "BAD_RESULT", "spend must be a number of credits from 0, with at most 9 places."),
        (["cancelled"], "STEP_CANCELLED", "Step second cancelled itself."),
        (["sleep", 5_000], "STEP_TIMEOUT", "Step second ran longer than 900 s."),
    ],
)
def test_a_failed_attempt_has_a_code_and_is_tried_again(what: list[Any], code: str, message: str) -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"1": {"1": [what]}})
        with structlog.testing.capture_logs() as lines:
            assert await stage.once() == Later(30_000)
        job = stage.job()
        assert (job.status, job.attempts, job.step_cursor) == (Status.FAILED, 1, 1)
        assert job.last_error_code == code
        assert (job.last_error_message or "").startswith(message)
        assert "ann.lee" not in str([line for line in lines if line["log_level"] != "debug"])
        assert any(line["event"] == "attempt_failed" and line["code"] == code for line in lines)
        assert await stage.once() == Done()
        job = stage.job()
        assert (job.status, job.attempts) == (Status.COMPLETED, 2)
        assert [msgspec.json.decode(text)["attempt"] for text in job.results] == [1, 2, 2]

    play(Three, setup)


def test_attempts_run_out_and_a_redrive_brings_the_job_back() -> None:
    async def setup(stage: Stage) -> None:
        failing = {"1": {str(n): [["fail", "NO", "no", False]] for n in range(1, 6)}}
        await stage.submit(input=failing)
        waits = [await stage.once() for _ in range(5)]
        assert waits[:4] == [Later(30_000), Later(120_000), Later(600_000), Later(1_800_000)]
        assert isinstance(waits[4], Buried)
        job = stage.job()
        assert (job.status, job.attempts, job.last_error_code) == (Status.DEAD, 5, "NO")
        assert job.completed_at is not None
        assert await stage.queue.receive(messages_max=1, wait_seconds=2, visibility_ms=1) == []
        assert len(stage.queue.dead_bodies()) == 1
        (event,) = stage.sink.bodies
        assert (event["success"], event["status"], event["error_code"]) == (False, "dead", "NO")

        stage.table.jobs[job.job_id] = msgspec.structs.replace(job, input="{}")
        again = await stage.runs.redrive(job.job_id)
        assert isinstance(again, LifebookJob)
        assert (again.status, again.attempts, again.step_cursor, again.ttl_at) == (Status.QUEUED, 0, 1, None)
        assert await stage.once() == Done()
        job = stage.job()
        assert (job.status, job.attempts, job.redrives) == (Status.COMPLETED, 1, 1)
        assert [body["success"] for body in stage.sink.bodies] == [False, True]
        assert len({body["event_id"] for body in stage.sink.bodies}) == 2
        account = await stage.balances.balance("ws")
        assert (account.held, account.spent) == (Decimal(0), Decimal("0.75"))

    play(Three, setup)


def test_a_final_failure_allows_no_further_attempt() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["fail", "NEVER", "", True]]}})
        assert isinstance(await stage.once(), Buried)
        assert (stage.job().status, stage.job().attempts) == (Status.DEAD, 1)

    play(Three, setup)


def test_the_heartbeat_renews_lease_and_visibility_and_stops_before_the_backoff() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 70], ["fail", "X", "", False]]}})
        await stage.once()
        assert [visibility for _, visibility in stage.queue.set] == [65_000, 65_000, 65_000, 30_000]
        await asyncio.sleep(29)
        assert await stage.queue.receive(messages_max=1, wait_seconds=0, visibility_ms=1) == []
        await asyncio.sleep(2)
        assert len(await stage.queue.receive(messages_max=1, wait_seconds=0, visibility_ms=1)) == 1
        assert len(stage.queue.set) == 4

    play(Three, setup)


def test_a_delivery_that_meets_a_running_lease_waits_and_is_no_attempt() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 30]]}})
        stage.queue.put(body_of(message_for(stage.job())))
        first = asyncio.ensure_future(stage.once())
        await asyncio.sleep(5)
        second = await stage.once(stage.another("w2"))
        assert isinstance(second, Later)
        assert 0 < second.wait_ms <= 65_000
        assert await first == Done()
        assert await stage.once() == Done()
        assert (stage.job().status, stage.job().attempts) == (Status.COMPLETED, 1)
        assert len(stage.sink.bodies) == 1

    play(Three, setup)


async def _crash(stage: Stage, seconds: float) -> None:
    """A worker that takes the next delivery and is gone after this long, without another word."""
    delivery = await stage.delivery()
    working = asyncio.ensure_future(stage.another("gone").handle(delivery))
    await asyncio.sleep(seconds)
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    await asyncio.gather(working, return_exceptions=True)


def test_a_takeover_counts_the_attempt_of_the_worker_that_died() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"1": {"1": [["keep", {"page": 7}], ["sleep", 500]]}})
        await _crash(stage, 10)
        assert (stage.job().status, stage.job().step_cursor) == (Status.RUNNING, 1)
        waited = await stage.once()
        assert isinstance(waited, Later)  # the backoff after the attempt that was lost
        assert (stage.job().status, stage.job().attempts) == (Status.FAILED, 1)
        assert stage.job().last_error_code == "WORKER_LOST"
        assert await stage.once() == Done()
        job = stage.job()
        assert (job.status, job.attempts) == (Status.COMPLETED, 2)
        results = [msgspec.json.decode(text) for text in job.results]
        assert [(each["attempt"], each["checkpoint"]) for each in results] == [
            (1, None),
            (2, {"page": 7}),
            (2, None),
        ]

    play(Three, setup)


def test_a_worker_that_lost_its_lease_changes_nothing_more() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 400]]}})
        slow = asyncio.ensure_future(stage.worker.handle(await stage.delivery()))
        await asyncio.sleep(1)
        job = stage.job()
        stage.table.jobs[job.job_id] = msgspec.structs.replace(job, lease_owner="w2", version=9)
        assert await slow == Left()
        assert stage.job() == msgspec.structs.replace(job, lease_owner="w2", version=9)
        assert stage.now_ms() - START_MS < 60_000  # it was broken off, not waited for

    play(Three, setup)


def test_a_cancel_is_seen_between_steps() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 30]]}})
        running = asyncio.ensure_future(stage.once())
        await asyncio.sleep(10)
        asked = await stage.runs.cancel(stage.job().job_id)
        assert isinstance(asked, LifebookJob)
        assert (asked.status, asked.cancel_requested_at) == (Status.RUNNING, START_MS + 10_000)
        assert await running == Done()
        job = stage.job()
        assert (job.status, job.step_cursor, job.credits_spent) == (Status.CANCELED, 1, Decimal("0.25"))
        assert [body["status"] for body in stage.sink.bodies] == ["canceled"]
        assert (await stage.balances.balance("ws")).spent == Decimal("0.25")

    play(Three, setup)


def test_a_cancel_before_the_start_is_at_once_and_the_message_a_no_op() -> None:
    async def setup(stage: Stage) -> None:
        job = await stage.submit(input={})
        assert isinstance(await stage.runs.cancel(job.job_id), LifebookJob)
        assert stage.job().status is Status.CANCELED
        assert await stage.once() == Done()
        assert stage.job().step_cursor == 0
        again = await stage.runs.cancel(job.job_id)
        assert isinstance(again, LifebookJob)
        assert len(stage.sink.bodies) == 1

    play(Three, setup)


def test_a_step_may_say_not_yet_without_an_attempt() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"1": {"1": [["keep", "asked"], ["not yet", 40]]}})
        assert await stage.once() == Done()  # a new message stands for the job
        job = stage.job()
        assert (job.status, job.attempts, job.step_cursor) == (Status.QUEUED, 0, 1)
        stage.table.jobs[job.job_id] = msgspec.structs.replace(job, input="{}")
        started = stage.now_ms()
        assert await stage.once() == Done()
        assert stage.now_ms() - started >= 39_000
        job = stage.job()
        assert (job.status, job.attempts) == (Status.COMPLETED, 1)
        assert msgspec.json.decode(job.results[1])["checkpoint"] == "asked"

    play(Three, setup)


def test_a_worker_that_must_end_gives_the_job_back_between_steps() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 30]]}})
        assert await stage.once(deadline_ms=START_MS + 31_000) == Done()
        job = stage.job()
        assert (job.status, job.attempts, job.step_cursor) == (Status.COMPLETED, 1, 3)

    async def short(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 30]]}})
        asyncio.get_running_loop().call_later(10, setattr, stage.worker, "stopping", True)
        assert await stage.once() == Done()
        job = stage.job()
        assert (job.status, job.attempts, job.step_cursor) == (Status.QUEUED, 0, 1)
        assert await stage.once(stage.another("w2")) == Done()
        assert (stage.job().status, stage.job().attempts) == (Status.COMPLETED, 1)

    play(Three, setup)
    play(Three, short)


def test_a_step_that_outlasts_its_process_is_broken_off_in_time() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 300]]}})
        assert isinstance(await stage.once(deadline_ms=START_MS + 20_000), Later)
        assert stage.job().last_error_code == "STEP_TIMEOUT"
        assert stage.now_ms() - START_MS < 21_000

    play(Three, setup)


def test_a_message_received_too_often_makes_room_for_a_new_one() -> None:
    """Deliveries that are no attempts must not bring a good job into the dead-letter queue."""

    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["fail", "X", "", False]]}})
        for _ in range(4):
            await stage.queue.set_visibility(await stage.delivery(), 0)
        assert await stage.once() == Done()
        job = stage.job()
        assert (job.status, job.attempts, job.message_attempt) == (Status.FAILED, 1, 2)
        assert await stage.once() == Done()
        assert (stage.job().status, stage.job().attempts) == (Status.COMPLETED, 2)
        assert stage.queue.dead_bodies() == []

    play(Three, setup)


@pytest.mark.parametrize(
    "change",
    [
        {"job_id": "00000000-0000-4000-8000-000000000000"},
        {"workspace_id": "another"},
        {"v": 2},
        None,
    ],
)
def test_poison_is_buried_with_a_reason_in_the_log(change: dict[str, Any] | None) -> None:
    async def setup(stage: Stage) -> None:
        message = message_for(await stage.submit(input={}))
        await stage.once()
        body = "{not a message" if change is None else body_of(msgspec.structs.replace(message, **change))
        stage.queue.put(body)
        with structlog.testing.capture_logs() as lines:
            outcome = await stage.once()
        assert isinstance(outcome, Buried)
        assert outcome.at_once
        (line,) = [line for line in lines if line["event"] == "poison_message"]
        assert line["reason"]
        assert stage.queue.dead_bodies() == [body]
        assert stage.queue.bodies() == []

    play(Three, setup)


def test_messages_for_other_attempts_and_ended_jobs_are_no_ops() -> None:
    async def setup(stage: Stage) -> None:
        job = await stage.submit(input={})
        message = message_for(job)
        stage.queue.put(body_of(msgspec.structs.replace(message, attempt=3)))
        deliveries = [await stage.delivery(), await stage.delivery()]
        for delivery in sorted(deliveries, key=lambda each: '"attempt":1' in each.body):
            assert await stage.worker.handle(delivery) == Done()
        assert (stage.job().status, stage.job().attempts) == (Status.COMPLETED, 1)
        before = stage.job()
        again = JobDelivery(message_id="x", receipt="x", body=body_of(message), receives=1)
        assert await stage.worker.handle(again) == Done()
        assert stage.job() == before

    play(Three, setup)


def test_a_superseded_message_is_dropped() -> None:
    async def setup(stage: Stage) -> None:
        job = await stage.submit(input={})
        stage.table.jobs[job.job_id] = msgspec.structs.replace(job, message_attempt=2, attempts=1)
        assert await stage.once() == Done()
        assert stage.job().status is Status.QUEUED

    play(Three, setup)


def test_a_step_never_spends_more_than_is_reserved() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(
            input={"1": {"1": [["spend", "0.26"]]}}, credits_estimate=Decimal("0.75"), max_attempts=3
        )
        assert isinstance(await stage.once(), Buried)
        job = stage.job()
        assert (job.status, job.last_error_code) == (Status.DEAD, "CREDITS_EXCEEDED")
        assert (job.step_cursor, job.credits_spent) == (1, Decimal("0.25"))
        account = await stage.balances.balance("ws")
        assert (account.available, account.held, account.spent) == (
            Decimal("99.75"),
            Decimal(0),
            Decimal("0.25"),
        )

    play(Three, setup)


def test_a_step_whose_price_is_too_high_does_not_run() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"1": {"1": [["sleep", 10]]}}, credits_estimate=Decimal("0.3"))
        assert isinstance(await stage.once(), Buried)
        assert stage.now_ms() == START_MS
        assert stage.job().last_error_code == "CREDITS_EXCEEDED"

    play(Three, setup)


def test_a_job_of_another_version_of_its_workflow_is_not_run() -> None:
    async def setup(stage: Stage) -> None:
        job = await stage.submit(input={})
        stage.table.jobs[job.job_id] = msgspec.structs.replace(job, steps_total=9)
        assert isinstance(await stage.once(), Later)
        assert stage.job().last_error_code == "WORKFLOW_CHANGED"
        stage.table.jobs[job.job_id] = msgspec.structs.replace(stage.job(), workflow_id="gone")
        assert isinstance(await stage.once(), Later)
        assert stage.job().last_error_code == "UNKNOWN_WORKFLOW"

    play(Three, setup)


def test_clocks_that_differ_a_little_take_nothing_away() -> None:
    async def setup(stage: Stage) -> None:
        await stage.submit(input={"0": {"1": [["sleep", 30]]}})
        stage.queue.put(body_of(message_for(stage.job())))
        running = asyncio.ensure_future(stage.once())
        await asyncio.sleep(18)
        ahead = stage.another("ahead")
        ahead._writer = type(stage.writer)(
            table=stage.table, policy=stage.writer.policy, now_ms=lambda: stage.now_ms() + 45_000
        )
        assert isinstance(await stage.once(ahead), Later)
        assert await running == Done()
        assert stage.job().attempts == 1

    play(Three, setup)


class Thirty:
    """As many steps as their results together do not fit into an item."""


for _number in range(30):

    @step()
    async def _wide(self: Any, run: StepRun) -> str:
        return "é" * 8_000

    setattr(Thirty, f"s{_number}", _wide)


def test_results_that_are_too_large_together_are_a_failure_with_a_code() -> None:
    """Counted in bytes: an item that DynamoDB refuses could never be written, and its job never end."""

    async def setup(stage: Stage) -> None:
        await stage.submit(input={}, max_attempts=1)
        assert isinstance(await stage.once(), Buried)
        job = stage.job()
        assert (job.status, job.last_error_code) == (Status.DEAD, "BAD_RESULT")
        assert sum(len(text.encode()) for text in job.results) <= 192 * 1024

    play(Thirty, setup)

"""Lifebook in AWS Lambda: `handler` for messages of the queue, `sweep` and `trigger` for schedules and S3
events.

The settings and the workflows are those of the environment; they are read at the first call, which a warm
Lambda keeps. A batch is worked through one record after the other. Records that are to come again are
reported in `batchItemFailures`, and so is every record for which the remaining time is too short: it is not
begun.
"""

import asyncio
import os
from collections.abc import Coroutine, Mapping
from functools import cache
from typing import Any, TypeVar

import structlog
from aws_lambda_powertools.utilities.batch import (
    BatchProcessor,
    EventType,
    process_partial_response,
)
from aws_lambda_powertools.utilities.data_classes.sqs_event import SQSRecord

from lucius.lifebook.build import Lifebook, load_workflows, now_ms
from lucius.lifebook.queue import JobDelivery
from lucius.lifebook.refusals import RunCode, RunRefused
from lucius.lifebook.runs import RunRequest
from lucius.lifebook.settings import read_settings
from lucius.lifebook.triggers import of_file_drop, of_schedule
from lucius.lifebook.worker import Buried, DeliveryOutcome, Done, Left, Worker
from lucius.telemetry import configure_logging

T = TypeVar("T")
log = structlog.get_logger("lucius.lifebook")


class NotNow(Exception):
    """The record goes back to the queue; of a trigger, Lambda is to call again."""


class Runtime:
    """What a warm Lambda keeps from call to call."""

    def __init__(self, env: Mapping[str, str]) -> None:
        configure_logging("info", plain=False)
        settings = read_settings(env)
        self.lifebook = Lifebook(settings, workflows=load_workflows(settings.workflows))
        self.worker: Worker = self.lifebook.worker()
        self.margin_ms = settings.lambda_margin_ms
        self.drops = settings.file_drops
        self._loop = asyncio.new_event_loop()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run_until_complete(work)


@cache
def runtime() -> Runtime:
    return Runtime(os.environ)


_processor = BatchProcessor(event_type=EventType.SQS, raise_on_entire_batch_failure=False)


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """Works through the messages of one batch."""
    answer = process_partial_response(
        event=event, record_handler=_handle, processor=_processor, context=context
    )
    return dict(answer)


def _handle(record: SQSRecord, lambda_context: Any = None) -> None:
    kept = runtime()
    delivery = JobDelivery(
        message_id=record.message_id,
        receipt=record.receipt_handle,
        body=record.body,
        receives=int(record.attributes.approximate_receive_count),
    )
    left_ms = lambda_context.get_remaining_time_in_millis()
    kept.do(_work(kept, delivery, left_ms))


async def _work(kept: Runtime, delivery: JobDelivery, left_ms: int) -> None:
    if left_ms <= kept.margin_ms:
        log.info("record_not_begun", message_id=delivery.message_id, left_ms=left_ms)
        await kept.lifebook.queue.set_visibility(delivery, 0)
        raise NotNow
    deadline_ms = now_ms() + left_ms - kept.margin_ms
    outcome: DeliveryOutcome = await kept.worker.handle(delivery, deadline_ms=deadline_ms)
    match outcome:
        case Done():
            return  # Lambda deletes what is not reported
        case Buried(at_once=True):
            await kept.worker.settle(delivery, outcome)
        case Left():
            raise NotNow
        case _:
            await kept.worker.settle(delivery, outcome)
            raise NotNow


def sweep(event: dict[str, Any], context: Any) -> dict[str, int]:
    """For a schedule: takes further what was left behind."""
    kept = runtime()
    swept = kept.do(kept.lifebook.sweeper.sweep())
    counts = {name: getattr(swept, name) for name in swept.__struct_fields__}
    log.info("swept", **counts)
    return counts


def trigger(event: dict[str, Any], context: Any) -> dict[str, Any]:
    """For EventBridge schedules and S3 events: starts the runs that they stand for. Where one cannot be
    started for the moment the call fails, so that Lambda repeats it; the keys keep the others from starting
    twice."""
    kept = runtime()
    asked = of_file_drop(event, kept.drops) if "Records" in event else [of_schedule(event)]
    runs = [kept.do(_start(kept, each)) for each in asked]
    if any(each.get("code") == RunCode.SYSTEM_SATURATED for each in runs):
        raise NotNow
    return {"runs": runs}


async def _start(kept: Runtime, asked: RunRequest | RunRefused) -> dict[str, Any]:
    submitted = asked if isinstance(asked, RunRefused) else await kept.lifebook.runs.submit(asked)
    if isinstance(submitted, RunRefused):
        log.error("trigger_refused", code=submitted.code, why=submitted.message)
        return {"code": str(submitted.code), "message": submitted.message}
    return {"job_id": submitted.job.job_id, "duplicate": submitted.duplicate}

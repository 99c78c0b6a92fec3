"""What AWS refuses for the moment is asked again; what it answers is not."""

import os
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]
from botocore.stub import Stubber  # type: ignore[import-untyped]
from tests.lifebook.conftest import environment
from tests.lifebook.samples import NOW, a_job, guard_for

from lucius.lifebook.aws import Aws, AwsUnavailable
from lucius.lifebook.codec import item_of, item_of_guard
from lucius.lifebook.dynamodb import DynamoTable
from lucius.lifebook.local import NO_ACCOUNT
from lucius.lifebook.queue import ReturnedDead
from lucius.lifebook.sqs import SqsQueue


@pytest.fixture
def aws() -> Iterator[Aws]:
    with environment({**NO_ACCOUNT, "AWS_REGION": "us-east-1"}):
        made = Aws(chance=lambda: 0.0, tries_max=4)
        yield made
        made.close()


def _refused(stub: Any, code: str, **more: Any) -> None:
    method = more.pop("method", "transact_write_items")
    stub.add_client_error(method, code, modeled_fields=more, http_status_code=400)


def _canceled(stub: Any, *codes: str, items: dict[int, Any] | None = None) -> None:
    reasons = [
        {"Code": code, **({"Item": items[at]} if items and at in items else {})}
        for at, code in enumerate(codes)
    ]
    _refused(stub, "TransactionCanceledException", CancellationReasons=reasons)


@pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
async def test_a_transaction_in_the_way_of_another_is_asked_again(aws: Aws, code: str) -> None:
    table = DynamoTable(aws, "t")
    with Stubber(table._client) as stub:
        _canceled(stub, code, "None")
        _refused(stub, "TransactionInProgressException")
        stub.add_response("transact_write_items", {})
        job = a_job()
        assert await table.create(job, guard_for(job), now_ms=NOW) is None
        stub.assert_no_pending_responses()


async def test_a_condition_that_does_not_hold_is_asked_once(aws: Aws) -> None:
    table = DynamoTable(aws, "t")
    other = guard_for(a_job(2, idempotency_key="key-1"))
    with Stubber(table._client) as stub:
        _canceled(stub, "ConditionalCheckFailed", "TransactionConflict", items={0: item_of_guard(other)})
        job = a_job()
        assert await table.create(job, guard_for(job), now_ms=NOW) == other
        stub.assert_no_pending_responses()


async def test_an_answer_that_was_lost_is_known_again(aws: Aws) -> None:
    """The write held, its answer was lost, and the second try meets the condition of the first."""
    table = DynamoTable(aws, "t")
    before = a_job()
    after = a_job(version=2, updated_at=NOW + 9)
    for there, held in ((after, True), (a_job(version=2, user_id="other"), False)):
        with Stubber(table._client) as stub:
            stub.add_client_error(
                "update_item",
                "ConditionalCheckFailedException",
                modeled_fields={"Item": item_of(there)},
                http_status_code=400,
            )
            assert await table.replace(before, after) is held


async def test_patience_ends(aws: Aws) -> None:
    table = DynamoTable(aws, "t")
    with Stubber(table._client) as stub:
        for _ in range(4):
            _refused(stub, "ProvisionedThroughputExceededException", method="get_item")
        with pytest.raises(AwsUnavailable, match="failed 4 times"):
            await table.get("x", now_ms=NOW)


QUEUE_URL = "https://sqs.us-east-1.amazonaws.com/1/jobs"
DLQ_URL = "https://sqs.us-east-1.amazonaws.com/1/dead"


def _arns(stub: Any) -> None:
    for url, name in ((DLQ_URL, "dead"), (QUEUE_URL, "jobs")):
        stub.add_response(
            "get_queue_attributes",
            {"Attributes": {"QueueArn": f"arn:aws:sqs:us-east-1:1:{name}"}},
            {"QueueUrl": url, "AttributeNames": ["QueueArn"]},
        )


async def test_dead_letters_are_moved_by_a_task_of_sqs(aws: Aws) -> None:
    queue = SqsQueue(aws, queue=QUEUE_URL, dlq=DLQ_URL)
    with Stubber(queue._client) as stub:
        _arns(stub)
        stub.add_response(
            "start_message_move_task",
            {"TaskHandle": "handle-1"},
            {"SourceArn": "arn:aws:sqs:us-east-1:1:dead", "DestinationArn": "arn:aws:sqs:us-east-1:1:jobs"},
        )
        assert await queue.return_dead(messages_max=500) == ReturnedDead(task="handle-1")
        stub.assert_no_pending_responses()


@pytest.mark.parametrize("code", ["InvalidAction", "AWS.SimpleQueueService.UnsupportedOperation"])
async def test_where_sqs_starts_no_task_each_message_is_sent_before_it_is_deleted(
    aws: Aws, code: str
) -> None:
    queue = SqsQueue(aws, queue=QUEUE_URL, dlq=DLQ_URL)
    with Stubber(queue._client) as stub:
        _arns(stub)
        _refused(stub, code, method="start_message_move_task")
        messages = [{"MessageId": "m1", "ReceiptHandle": "r1", "Body": "{}"}]
        stub.add_response("receive_message", {"Messages": messages})
        stub.add_response("receive_message", {})
        stub.add_response("send_message", {"MessageId": "m2"}, {"QueueUrl": QUEUE_URL, "MessageBody": "{}"})
        stub.add_response("delete_message", {}, {"QueueUrl": DLQ_URL, "ReceiptHandle": "r1"})
        assert await queue.return_dead(messages_max=500) == ReturnedDead(messages=1)
        stub.assert_no_pending_responses()


async def test_a_task_that_may_not_be_started_is_told(aws: Aws) -> None:
    queue = SqsQueue(aws, queue=QUEUE_URL, dlq=DLQ_URL)
    with Stubber(queue._client) as stub:
        _arns(stub)
        _refused(stub, "AccessDenied", method="start_message_move_task")
        with pytest.raises(ClientError, match="AccessDenied"):
            await queue.return_dead(messages_max=500)


def test_without_a_region_it_is_told_what_is_missing() -> None:
    home = {"HOME": os.environ.get("HOME", "/")}
    with environment(home), pytest.raises(AwsUnavailable, match="region"):
        Aws(chance=lambda: 0.0).client("dynamodb")

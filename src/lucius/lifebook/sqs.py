"""The queue of jobs in SQS: a standard queue with a redrive policy to its dead-letter queue."""

import re
from collections.abc import Mapping
from hashlib import sha256
from math import ceil
from typing import Any, Final

from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from lucius.lifebook.aws import Aws
from lucius.lifebook.message import JobMessage, body_of
from lucius.lifebook.queue import (
    DEAD_WAIT_SECONDS,
    DELAY_MS_MAX,
    RECEIVE_MESSAGES_MAX,
    VISIBILITY_MS_MAX,
    Depths,
    JobDelivery,
    ReturnedDead,
)

REASON_ATTRIBUTE: Final = "reason"
REASON_CHARACTERS_MAX: Final = 256
# The message is gone, or its receipt is no longer the newest: there is nothing left to settle.
GONE: Final = frozenset(
    {
        "InvalidParameterValue",
        "MessageNotInflight",
        "AWS.SimpleQueueService.MessageNotInflight",
        "ReceiptHandleIsInvalid",
    }
)
# What an endpoint answers that moves no messages by itself, or does so already for another call.
NO_MOVE: Final = frozenset(
    {
        "AWS.SimpleQueueService.UnsupportedOperation",
        "InvalidAction",
        "UnknownOperationException",
        "UnsupportedOperation",
    }
)
# SQS: letters, digits and punctuation of ASCII, up to 128.
_GROUP: Final = re.compile(r"[!-~]{1,128}")
MOVED_VISIBILITY_MS: Final = 120_000
COUNTS: Final = {
    "waiting": "ApproximateNumberOfMessages",
    "in_flight": "ApproximateNumberOfMessagesNotVisible",
    "delayed": "ApproximateNumberOfMessagesDelayed",
}


class SqsQueue:
    """Names or URLs of the queues; names are looked up once, at the first call."""

    def __init__(self, aws: Aws, *, queue: str, dlq: str, fair: bool = False) -> None:
        self._aws = aws
        self._client = aws.client("sqs")
        self._names = {"queue": queue, "dlq": dlq}
        self._urls: dict[str, str] = {}
        self._fair = fair

    async def send(self, message: JobMessage, *, delay_ms: int = 0) -> None:
        # Fair queues: the group only says whose message it is; a standard queue keeps no order within it.
        fair = {"MessageGroupId": group_of(message.workspace_id)} if self._fair else {}
        await self._send_body(body_of(message), DelaySeconds=_seconds(delay_ms, DELAY_MS_MAX), **fair)

    async def _send_body(self, body: str, **more: Any) -> None:
        url = await self._url("queue")
        await self._aws.call(self._client.send_message, QueueUrl=url, MessageBody=body, **more)

    async def receive(self, *, messages_max: int, wait_seconds: int, visibility_ms: int) -> list[JobDelivery]:
        return await self._receive("queue", messages_max, wait_seconds, visibility_ms)

    async def receive_dead(
        self, *, messages_max: int, visibility_ms: int, wait_seconds: int = DEAD_WAIT_SECONDS
    ) -> list[JobDelivery]:
        return await self._receive("dlq", messages_max, wait_seconds, visibility_ms)

    async def delete(self, delivery: JobDelivery) -> None:
        await self._delete("queue", delivery)

    async def delete_dead(self, delivery: JobDelivery) -> None:
        await self._delete("dlq", delivery)

    async def set_visibility(self, delivery: JobDelivery, visibility_ms: int) -> None:
        await self._set_visibility("queue", delivery, visibility_ms)

    async def _set_visibility(self, which: str, delivery: JobDelivery, visibility_ms: int) -> None:
        try:
            await self._aws.call(
                self._client.change_message_visibility,
                QueueUrl=await self._url(which),
                ReceiptHandle=delivery.receipt,
                VisibilityTimeout=_seconds(visibility_ms, VISIBILITY_MS_MAX),
            )
        except ClientError as fault:
            _unless_gone(fault)

    async def bury(self, delivery: JobDelivery, reason: str) -> None:
        await self._aws.call(
            self._client.send_message,
            QueueUrl=await self._url("dlq"),
            MessageBody=delivery.body or " ",
            MessageAttributes={REASON_ATTRIBUTE: {"DataType": "String", "StringValue": reason_text(reason)}},
        )
        await self.delete(delivery)

    async def release_dead(self, delivery: JobDelivery) -> None:
        await self._set_visibility("dlq", delivery, 0)

    async def return_dead(self, *, messages_max: int) -> ReturnedDead:
        # The destination is named, since the queue itself knows none for what a worker put there.
        source, destination = await self._arn("dlq"), await self._arn("queue")
        try:
            answer = await self._aws.call(
                self._client.start_message_move_task, SourceArn=source, DestinationArn=destination
            )
        except ClientError as fault:
            if fault.response.get("Error", {}).get("Code") not in NO_MOVE:
                raise
            return ReturnedDead(messages=await self._return_one_by_one(messages_max))
        return ReturnedDead(task=answer["TaskHandle"])

    async def _return_one_by_one(self, messages_max: int) -> int:
        """All are received first: what dies again at once must not be returned again and again. A message is
        sent before it is deleted: a crash in between leaves it in both queues, and never in none."""
        dead: dict[str, JobDelivery] = {}
        while len(dead) < messages_max:
            most = min(RECEIVE_MESSAGES_MAX, messages_max - len(dead))
            found = await self._receive("dlq", most, DEAD_WAIT_SECONDS, MOVED_VISIBILITY_MS)
            new = {each.message_id: each for each in found if each.message_id not in dead}
            if not new:
                break
            dead.update(new)
        for delivery in dead.values():
            await self._send_body(delivery.body)
            await self.delete_dead(delivery)
        return len(dead)

    async def _arn(self, which: str) -> str:
        answer = await self._aws.call(
            self._client.get_queue_attributes, QueueUrl=await self._url(which), AttributeNames=["QueueArn"]
        )
        arn: str = answer["Attributes"]["QueueArn"]
        return arn

    async def depths(self) -> Depths:
        queue, dead = await self._counts("queue"), await self._counts("dlq")
        counts = {name: int(queue.get(attribute, 0)) for name, attribute in COUNTS.items()}
        return Depths(**counts, dead=sum(int(dead.get(attribute, 0)) for attribute in COUNTS.values()))

    async def _counts(self, which: str) -> Mapping[str, str]:
        answer = await self._aws.call(
            self._client.get_queue_attributes,
            QueueUrl=await self._url(which),
            AttributeNames=list(COUNTS.values()),
        )
        counts: Mapping[str, str] = answer["Attributes"]
        return counts

    async def _receive(
        self, which: str, messages_max: int, wait_seconds: int, visibility_ms: int
    ) -> list[JobDelivery]:
        answer = await self._aws.call(
            self._client.receive_message,
            QueueUrl=await self._url(which),
            MaxNumberOfMessages=messages_max,
            WaitTimeSeconds=wait_seconds,
            VisibilityTimeout=_seconds(visibility_ms, VISIBILITY_MS_MAX),
            MessageSystemAttributeNames=["ApproximateReceiveCount"],
            MessageAttributeNames=[REASON_ATTRIBUTE],
        )
        return [_delivery(message) for message in answer.get("Messages", ())]

    async def _delete(self, which: str, delivery: JobDelivery) -> None:
        try:
            await self._aws.call(
                self._client.delete_message,
                QueueUrl=await self._url(which),
                ReceiptHandle=delivery.receipt,
            )
        except ClientError as fault:
            _unless_gone(fault)

    async def _url(self, which: str) -> str:
        name = self._names[which]
        if "://" in name:
            return name
        if which not in self._urls:
            answer = await self._aws.call(self._client.get_queue_url, QueueName=name)
            self._urls[which] = answer["QueueUrl"]
        return self._urls[which]


def group_of(workspace_id: str) -> str:
    """The message group of a workspace: its id where SQS takes it as one, else what stands for it alone."""
    if _GROUP.fullmatch(workspace_id):
        return workspace_id
    return f"sha256-{sha256(workspace_id.encode()).hexdigest()}"


def reason_text(reason: str) -> str:
    """SQS refuses an attribute with control characters, and one that is empty."""
    text = "".join(sign if sign.isprintable() else " " for sign in reason[:REASON_CHARACTERS_MAX])
    return text.strip() or "unknown"


def _delivery(message: Mapping[str, Any]) -> JobDelivery:
    reason = message.get("MessageAttributes", {}).get(REASON_ATTRIBUTE, {}).get("StringValue")
    return JobDelivery(
        message_id=message["MessageId"],
        receipt=message["ReceiptHandle"],
        body=message["Body"],
        receives=int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
        reason=reason,
    )


def _seconds(span_ms: int, most_ms: int) -> int:
    """Rounded up: a message must not come before it is due."""
    return ceil(min(max(span_ms, 0), most_ms) / 1000)


def _unless_gone(fault: ClientError) -> None:
    if fault.response.get("Error", {}).get("Code") not in GONE:
        raise fault

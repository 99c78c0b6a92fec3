"""Where analytics events go: a file of JSON lines, an SQS queue, an EventBridge bus."""

import asyncio
import os
from pathlib import Path
from typing import Final

from lucius.lifebook.analytics import NAME, SOURCE
from lucius.lifebook.aws import Aws, AwsUnavailable
from lucius.lifebook.job import AnalyticsEvent

ID_ATTRIBUTE: Final = "event_id"


class FileSink:
    """One line an event. Several processes may append to one file: each line is one write."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def send(self, event: AnalyticsEvent) -> None:
        await asyncio.to_thread(self._append, event.body.encode() + b"\n")

    def _append(self, line: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class SqsSink:
    def __init__(self, aws: Aws, queue: str) -> None:
        self._aws = aws
        self._client = aws.client("sqs")
        self._queue = queue
        self._url: str | None = queue if "://" in queue else None

    async def send(self, event: AnalyticsEvent) -> None:
        if self._url is None:
            answer = await self._aws.call(self._client.get_queue_url, QueueName=self._queue)
            self._url = answer["QueueUrl"]
        await self._aws.call(
            self._client.send_message,
            QueueUrl=self._url,
            MessageBody=event.body,
            MessageAttributes={ID_ATTRIBUTE: {"DataType": "String", "StringValue": event.event_id}},
        )


class EventBridgeSink:
    def __init__(self, aws: Aws, bus: str) -> None:
        self._aws = aws
        self._client = aws.client("events")
        self._bus = bus

    async def send(self, event: AnalyticsEvent) -> None:
        entry = {"EventBusName": self._bus, "Source": SOURCE, "DetailType": NAME, "Detail": event.body}
        answer = await self._aws.call(self._client.put_events, Entries=[entry])
        if answer.get("FailedEntryCount"):
            code = answer["Entries"][0].get("ErrorCode", "unknown")
            raise AwsUnavailable(f"EventBridge did not take the event {event.event_id}: {code}")

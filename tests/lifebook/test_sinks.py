"""Where analytics events go, over a real wire."""

import asyncio
import random
from pathlib import Path

import msgspec
import pytest
from tests.lifebook.samples import NOW, POLICY, a_job

from lucius.lifebook.analytics import event_id_of, event_of_end
from lucius.lifebook.aws import Aws
from lucius.lifebook.sinks import EventBridgeSink, FileSink, SqsSink
from lucius.lifebook.states import Status

EVENT = event_of_end(a_job(status=Status.DEAD, last_error_code="X", completed_at=NOW), POLICY)


def test_the_event_says_what_became_of_the_run() -> None:
    body = msgspec.json.decode(EVENT.body)
    assert body["event"] == "workflow_run_completed"
    assert (body["success"], body["status"], body["error_code"]) == (False, "dead", "X")
    assert body["job_id"] == a_job().job_id
    assert body["credits_reserved"] == "1.5"


def test_the_id_follows_from_the_job_and_its_life() -> None:
    assert EVENT.event_id == event_id_of(a_job())
    assert len({event_id_of(a_job(1)), event_id_of(a_job(2)), event_id_of(a_job(1, redrives=1))}) == 3


async def test_lines_of_a_file_are_whole(tmp_path: Path) -> None:
    sinks = [FileSink(tmp_path / "events.jsonl") for _ in range(4)]
    await asyncio.gather(*(sink.send(EVENT) for sink in sinks for _ in range(10)))
    lines = (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines == [EVENT.body] * 40


@pytest.mark.xdist_group("lifebook")
@pytest.mark.usefixtures("on_ministack")
async def test_events_go_to_a_queue() -> None:
    aws = Aws(chance=random.Random(1).random)
    client = aws.client("sqs")
    url = (await aws.call(client.create_queue, QueueName="events"))["QueueUrl"]
    for queue in ("events", url):
        await SqsSink(aws, queue).send(EVENT)
    told = await aws.call(
        client.receive_message, QueueUrl=url, MaxNumberOfMessages=10, MessageAttributeNames=["All"]
    )
    assert {message["Body"] for message in told["Messages"]} == {EVENT.body}
    assert told["Messages"][0]["MessageAttributes"]["event_id"]["StringValue"] == EVENT.event_id
    aws.close()


@pytest.mark.xdist_group("lifebook")
@pytest.mark.usefixtures("on_ministack")
async def test_events_go_to_eventbridge() -> None:
    aws = Aws(chance=random.Random(1).random)
    events, sqs = aws.client("events"), aws.client("sqs")
    url = (await aws.call(sqs.create_queue, QueueName="from-bus"))["QueueUrl"]
    attributes = await aws.call(sqs.get_queue_attributes, QueueUrl=url, AttributeNames=["QueueArn"])
    await aws.call(events.create_event_bus, Name="lifebook")
    await aws.call(
        events.put_rule,
        Name="all",
        EventBusName="lifebook",
        EventPattern='{"detail-type": ["workflow_run_completed"]}',
    )
    target = {"Id": "1", "Arn": attributes["Attributes"]["QueueArn"]}
    await aws.call(events.put_targets, Rule="all", EventBusName="lifebook", Targets=[target])
    await EventBridgeSink(aws, "lifebook").send(EVENT)
    told = await aws.call(sqs.receive_message, QueueUrl=url, WaitTimeSeconds=5)
    sent = msgspec.json.decode(told["Messages"][0]["Body"])
    assert (sent["source"], sent["detail-type"]) == ("lifebook.orchestrator", "workflow_run_completed")
    assert sent["detail"]["event_id"] == EVENT.event_id
    aws.close()

"""The table and its indexes as data: what `lucius lifebook dev` creates, and what the Terraform files must
say."""

import json
from typing import Any, Final

from lucius.lifebook.codec import KEY
from lucius.lifebook.job import PROJECTED, SWEEP_SHARD

TABLE: Final = "lifebook-orchestrator-jobs"
BALANCES_TABLE: Final = "lifebook-orchestrator-balances"
QUEUE: Final = "lifebook-orchestrator-queue"
DLQ: Final = "lifebook-orchestrator-dlq"
WORKER_FUNCTION: Final = "lifebook-orchestrator-worker"
REGION: Final = "us-east-1"
WORKSPACE_INDEX: Final = "workspace_created_at"
SWEEP_INDEX: Final = "sweep_shard_sweep_at"
TTL_ATTRIBUTE: Final = "ttl_at"
RECEIVES_MAX: Final = 5
MESSAGE_DAYS_MAX: Final = 14


def table_definition(name: str) -> dict[str, Any]:
    """The arguments of CreateTable. TTL is a call of its own."""
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": KEY, "AttributeType": "S"},
            {"AttributeName": "workspace_id", "AttributeType": "S"},
            {"AttributeName": "created_at", "AttributeType": "S"},
            {"AttributeName": SWEEP_SHARD, "AttributeType": "S"},
            {"AttributeName": "sweep_at", "AttributeType": "N"},
        ],
        "KeySchema": [{"AttributeName": KEY, "KeyType": "HASH"}],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": WORKSPACE_INDEX,
                "KeySchema": [
                    {"AttributeName": "workspace_id", "KeyType": "HASH"},
                    {"AttributeName": "created_at", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": list(PROJECTED)},
            },
            {
                "IndexName": SWEEP_INDEX,
                "KeySchema": [
                    {"AttributeName": SWEEP_SHARD, "KeyType": "HASH"},
                    {"AttributeName": "sweep_at", "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "KEYS_ONLY"},
            },
        ],
    }


def balances_definition(name: str) -> dict[str, Any]:
    return {
        "TableName": name,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [{"AttributeName": "id", "AttributeType": "S"}],
        "KeySchema": [{"AttributeName": "id", "KeyType": "HASH"}],
    }


def queue_definitions(
    queue: str, dlq: str, *, visibility_seconds: int, receives_max: int, account: str = "000000000000"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of CreateQueue, the dead-letter queue first."""
    retention = str(MESSAGE_DAYS_MAX * 86_400)
    redrive = {
        "deadLetterTargetArn": f"arn:aws:sqs:{REGION}:{account}:{dlq}",
        "maxReceiveCount": receives_max,
    }
    return (
        {"QueueName": dlq, "Attributes": {"MessageRetentionPeriod": retention}},
        {
            "QueueName": queue,
            "Attributes": {
                "MessageRetentionPeriod": retention,
                "VisibilityTimeout": str(visibility_seconds),
                "RedrivePolicy": json.dumps(redrive),
            },
        },
    )

"""Makes the table, the balances and the queues where there are none: for development and tests.

A deployment has them from Terraform (deploy/terraform/lifebook), which also makes the alarm, the Lambda
functions and their permissions.
"""

from collections.abc import Callable
from typing import Any, Final

from botocore.exceptions import ClientError  # type: ignore[import-untyped]

from lucius.lifebook.aws import Aws
from lucius.lifebook.schema import (
    TTL_ATTRIBUTE,
    balances_definition,
    queue_definitions,
    table_definition,
)
from lucius.lifebook.settings import LifebookSettings

THERE: Final = frozenset(
    {"ResourceInUseException", "QueueAlreadyExists", "QueueNameExists", "ValidationException"}
)


async def provision(aws: Aws, settings: LifebookSettings) -> None:
    """All that is missing; what is there stays as it is."""
    dynamodb, sqs = aws.client("dynamodb"), aws.client("sqs")
    tables = [table_definition(settings.table)]
    if settings.balances is not None:
        tables.append(balances_definition(settings.balances))
    for definition in tables:
        await _make(aws, dynamodb.create_table, definition)
        ttl = {"AttributeName": TTL_ATTRIBUTE, "Enabled": True}
        wanted = {"TableName": definition["TableName"], "TimeToLiveSpecification": ttl}
        await _make(aws, dynamodb.update_time_to_live, wanted)
    visibility_seconds = (settings.policy.lease_ms + settings.policy.skew_ms) // 1000 + 1
    for definition in queue_definitions(
        settings.queue,
        settings.dlq,
        visibility_seconds=visibility_seconds,
        receives_max=settings.policy.receives_max,
    ):
        await _make(aws, sqs.create_queue, definition)


async def _make(aws: Aws, method: Callable[..., Any], definition: dict[str, Any]) -> None:
    try:
        await aws.call(method, **definition)
    except ClientError as fault:
        if fault.response.get("Error", {}).get("Code") not in THERE:
            raise

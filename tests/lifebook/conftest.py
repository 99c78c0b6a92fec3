"""Tables, queues and balances, by the name of what they run on."""

import os
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest
from tests.lifebook import servers

from lucius.lifebook.aws import Aws
from lucius.lifebook.credits import Balances, MemoryBalances
from lucius.lifebook.dynamodb import DynamoTable
from lucius.lifebook.dynamodb_balances import DynamoBalances
from lucius.lifebook.memory import MemoryTable
from lucius.lifebook.memory_queue import MemoryQueue
from lucius.lifebook.queue import JobQueue
from lucius.lifebook.schema import balances_definition, queue_definitions, table_definition
from lucius.lifebook.sqs import SqsQueue
from lucius.lifebook.table import JobTable

WIRED = ("ministack", "dynamodb-local")


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("AWS_", "LIFEBOOK_"))]:
            patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def ministack() -> Iterator[dict[str, str]]:
    with servers.ministack() as variables:
        yield variables


@pytest.fixture(scope="session")
def dynamodb_local() -> Iterator[dict[str, str]]:
    with servers.dynamodb_local() as variables:
        yield variables


@pytest.fixture
def on_ministack(ministack: dict[str, str]) -> Iterator[None]:
    with environment(ministack):
        yield


def on(kind: str, request: pytest.FixtureRequest) -> dict[str, str]:
    variables: dict[str, str] = request.getfixturevalue(kind.replace("-", "_"))
    return variables


@pytest.fixture(
    params=["memory", *(pytest.param(kind, marks=pytest.mark.xdist_group("lifebook")) for kind in WIRED)]
)
async def table(request: pytest.FixtureRequest) -> AsyncIterator[JobTable]:
    if request.param == "memory":
        yield MemoryTable()
        return
    with environment(on(request.param, request)):
        aws = Aws(chance=random.Random(1).random)
        name = f"jobs-{uuid4()}"
        await aws.call(aws.client("dynamodb").create_table, **table_definition(name))
        yield DynamoTable(aws, name)
        aws.close()


@pytest.fixture(
    params=["memory", *(pytest.param(kind, marks=pytest.mark.xdist_group("lifebook")) for kind in WIRED)]
)
async def balances(request: pytest.FixtureRequest) -> AsyncIterator[Balances]:
    if request.param == "memory":
        yield MemoryBalances()
        return
    with environment(on(request.param, request)):
        aws = Aws(chance=random.Random(1).random)
        name = f"balances-{uuid4()}"
        await aws.call(aws.client("dynamodb").create_table, **balances_definition(name))
        yield DynamoBalances(aws, name)
        aws.close()


@pytest.fixture(params=["memory", pytest.param("ministack", marks=pytest.mark.xdist_group("lifebook"))])
async def queue(request: pytest.FixtureRequest) -> AsyncIterator[JobQueue]:
    if request.param == "memory":
        yield MemoryQueue(now_ms=lambda: time.time_ns() // 1_000_000, chance=random.Random(1).random)
        return
    with environment(on(request.param, request)):
        aws = Aws(chance=random.Random(1).random)
        name = f"queue-{uuid4()}"
        client = aws.client("sqs")
        dlq, main = queue_definitions(name, f"{name}-dead", visibility_seconds=30, receives_max=5)
        await aws.call(client.create_queue, **dlq)
        await aws.call(client.create_queue, **main)
        yield SqsQueue(aws, queue=name, dlq=f"{name}-dead", fair=True)
        aws.close()

"""The way to AWS: boto3's clients, called from threads.

boto3 is Amazon's own client, the one that Lambda brings along; its calls block, so each runs in a thread of a
bounded pool. What AWS refuses for the moment (throttling, a transaction in the way of another) is asked again
here, with backoff and jitter; a condition that does not hold is an answer and is never asked again.
"""

import asyncio
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import boto3  # type: ignore[import-untyped]
from botocore.config import Config  # type: ignore[import-untyped]
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]

from lucius.lifebook.table import TableUnavailable

THREADS_MAX: Final = 32
TRIES_MAX: Final = 10
PAUSE_SECONDS_FIRST: Final = 0.05
PAUSE_SECONDS_MAX: Final = 5.0
CONNECT_SECONDS_MAX: Final = 5
READ_SECONDS_MAX: Final = 30

PASSING: Final = frozenset(
    {
        "InternalServerError",
        "InternalFailure",
        "LimitExceededException",
        "OverLimit",
        "ProvisionedThroughputExceeded",
        "ProvisionedThroughputExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "SlowDown",
        "ThrottledException",
        "Throttling",
        "ThrottlingError",
        "ThrottlingException",
        "TooManyRequestsException",
        "TransactionConflict",
        "TransactionConflictException",
        "TransactionInProgressException",
    }
)
CONDITION: Final = frozenset({"ConditionalCheckFailed", "ConditionalCheckFailedException"})


class AwsUnavailable(TableUnavailable):
    """AWS could not be reached, or refused what it should take, repeatedly."""


class ConditionFailed(Exception):
    """A condition did not hold. `items` are those that stood in the way, by the place of their write."""

    def __init__(self, items: Mapping[int, Mapping[str, Any]]) -> None:
        super().__init__("the condition does not hold")
        self.items = items


class Aws:
    """A session, its threads and its patience. `chance` gives a number from 0 to 1 for the jitter."""

    def __init__(
        self,
        *,
        chance: Callable[[], float],
        region: str | None = None,
        tries_max: int = TRIES_MAX,
        threads_max: int = THREADS_MAX,
    ) -> None:
        self._session = boto3.session.Session(region_name=region or os.environ.get("AWS_REGION"))
        self._pool = ThreadPoolExecutor(threads_max, thread_name_prefix="lifebook-aws")
        self._chance = chance
        self._tries_max = tries_max
        self._config = Config(
            connect_timeout=CONNECT_SECONDS_MAX,
            read_timeout=READ_SECONDS_MAX,
            max_pool_connections=threads_max,
            retries={"mode": "standard", "total_max_attempts": 2},
        )
        self.calls = 0

    def client(self, service: str) -> Any:
        try:
            return self._session.client(service, config=self._config)
        except BotoCoreError as fault:
            raise AwsUnavailable(f"The AWS SDK is not set up for {service}: {fault}") from None

    async def call(self, method: Callable[..., Any], **arguments: Any) -> Any:
        """One call, again and again while it is refused for the moment."""
        loop = asyncio.get_running_loop()
        for tried in range(1, self._tries_max + 1):
            self.calls += 1
            try:
                return await loop.run_in_executor(self._pool, lambda: method(**arguments))
            except ClientError as fault:
                if (found := _condition(fault)) is not None:
                    raise ConditionFailed(found) from None
                if not is_passing(fault):
                    raise
                why = _code(fault)
            except BotoCoreError as fault:
                why = type(fault).__name__
            if tried < self._tries_max:
                await asyncio.sleep(self._pause_seconds(tried))
        raise AwsUnavailable(f"{getattr(method, '__name__', 'a call')} failed {self._tries_max} times: {why}")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _pause_seconds(self, tried: int) -> float:
        longest: float = min(PAUSE_SECONDS_FIRST * 2 ** (tried - 1), PAUSE_SECONDS_MAX)
        return longest * (0.5 + self._chance() / 2)


def is_passing(fault: ClientError) -> bool:
    if _code(fault) == "TransactionCanceledException":
        return all(code in PASSING for code in _reasons(fault) if code != "None")
    status = fault.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return _code(fault) in PASSING or status >= 500


def _condition(fault: ClientError) -> dict[int, Mapping[str, Any]] | None:
    if _code(fault) in CONDITION:
        found = fault.response.get("Item")
        return {} if found is None else {0: found}
    if _code(fault) != "TransactionCanceledException" or CONDITION.isdisjoint(_reasons(fault)):
        return None
    reasons = fault.response.get("CancellationReasons", [])
    return {place: reason["Item"] for place, reason in enumerate(reasons) if reason.get("Item")}


def _code(fault: ClientError) -> str:
    return str(fault.response.get("Error", {}).get("Code", ""))


def _reasons(fault: ClientError) -> list[str]:
    return [str(reason.get("Code", "None")) for reason in fault.response.get("CancellationReasons", [])]

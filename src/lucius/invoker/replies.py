"""Replies from the bus: into the ledger, to the workflow, and only then settled."""

from collections.abc import Awaitable, Callable

from lucius.bus.port import ReplySource
from lucius.engines.outbox.reply_consumer import ConsumerLimits, ReplyConsumer, Tell
from lucius.ledger.store import StoreError
from lucius.progress.apply import Applies
from lucius.progress.heard import Heard
from lucius.progress.workflows import WorkflowsUnavailable

Ping = Callable[[], Awaitable[None]]


def make_reply_consumer(
    bus: ReplySource,
    progress: Applies,
    limits: ConsumerLimits,
    *,
    tell: Tell | None = None,
    ping_ledger: Ping,
    ping_workflows: Ping,
    group: str = "lucius",
    heard: Heard | None = None,
) -> ReplyConsumer:
    """`progress` or `tell` tells workflows; `ping_workflows` raises `WorkflowsUnavailable`. While either
    ledger or workflows cannot be used nothing is fetched."""

    async def ping() -> None:
        await ping_ledger()
        await ping_workflows()

    return ReplyConsumer(
        bus,
        progress,
        limits,
        ping_ledger=ping,
        group=group,
        outages=(StoreError, WorkflowsUnavailable),
        tell=tell,
        heard=heard,
    )

"""Replies from the bus: into the ledger, to the workflow, and only then settled."""

from collections.abc import Awaitable, Callable

from lucius.bus.port import ReplySource
from lucius.engines.reply_consumer import ConsumerLimits, NotifyWorkflow, ReplyConsumer
from lucius.jobs.reply_backlog import ReplyBacklog
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.workflows import WorkflowsUnavailable
from lucius.jobs.writer import InputHandler
from lucius.ledger.store import StoreError

Ping = Callable[[], Awaitable[None]]


def make_reply_consumer(
    bus: ReplySource,
    writer: InputHandler,
    limits: ConsumerLimits,
    *,
    notify: NotifyWorkflow | None = None,
    ping_ledger: Ping,
    ping_workflows: Ping,
    group: str = "lucius",
    reply_backlog: ReplyBacklog | None = None,
    tokens: CallbackTokens | None = None,
) -> ReplyConsumer:
    """`writer` or `notify` tells workflows; `ping_workflows` raises `WorkflowsUnavailable`. While either
    ledger or workflows cannot be used nothing is fetched."""

    async def ping() -> None:
        await ping_ledger()
        await ping_workflows()

    return ReplyConsumer(
        bus,
        writer,
        limits,
        ping_ledger=ping,
        group=group,
        outages=(StoreError, WorkflowsUnavailable),
        notify=notify,
        reply_backlog=reply_backlog,
        tokens=tokens,
    )

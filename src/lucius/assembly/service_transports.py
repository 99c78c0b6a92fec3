"""How services that run in this process get directives and send replies.

Without a broker they call the dispatcher and the writer. With one they use it, as services elsewhere do, and
read in the ledger whether an attempt still counts.
"""

import asyncio

import structlog

from lucius.assembly.clock_and_ids import wall_ms
from lucius.bus.port import Bus
from lucius.contracts.messages import parse_reply
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.core.states import JobState
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.jobs.writer import JobWriter
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import StoreError, StoreUnavailable
from lucius.sdk import DeliveryFailed, Directive, ReplyAnswer
from lucius.sdk.bus_transport import BusTransport
from lucius.telemetry.context import Subject

REPLY_RETRY_SECONDS = 0.5

log = structlog.get_logger("lucius.assembly")

_APPLIED = ReplyAnswer("applied")


class InProcess:
    """Calls the dispatcher and the writer."""

    def __init__(self, service: str, dispatcher: LedgerDispatcher, writer: JobWriter) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._writer = writer

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        taken = await self._dispatcher.take(
            self._service,
            directives_max=max_directives,
            wait_ms=round(wait_seconds * 1000),
            picked_up=True,
        )
        return [self._dispatcher.message(handed, signed=False) for handed in taken]

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        if message["type"] == "ACK":
            return _APPLIED  # the hand-out was its ACK
        parsed = parse_reply(message, expected=None)
        if isinstance(parsed, Refused):
            return ReplyAnswer("refused", stop=True)
        job_id, reply = parsed
        while True:
            try:
                applied = await self._writer.apply(job_id, reply)
            except StoreUnavailable as fault:
                log.warning("reply_waits_for_ledger", **Subject(job_id, reply).ids(), error=str(fault))
                await asyncio.sleep(REPLY_RETRY_SECONDS)
                continue
            if isinstance(applied, Refused):
                return ReplyAnswer("refused", stop=True)
            return ReplyAnswer(applied.outcome.value, stop=applied.stop)


_COUNTS = ReplyAnswer("sent")
_STOP = ReplyAnswer("sent", stop=True)
_STALE = ReplyAnswer("stale", stop=True)


class OverBus:
    """Uses the bus, and asks the ledger whether an attempt still counts."""

    def __init__(self, bus: Bus, service: str, ledger: JobLedger) -> None:
        self._ledger = ledger
        self._transport = BusTransport(bus, service, now_ms=wall_ms, ask=self._ask)

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        return await self._transport.lease(max_directives=max_directives, wait_seconds=wait_seconds)

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        return await self._transport.reply(directive, message)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _ask(self, directive: Directive) -> ReplyAnswer:
        try:
            loaded = await self._ledger.load(directive.job_id, fresh=True)
        except StoreError as fault:
            raise DeliveryFailed(f"the ledger cannot be asked: {fault}") from None
        if loaded is None or not directive.attempt.is_current(loaded.record):
            return _STALE
        return _STOP if loaded.record.job.state is JobState.CANCELLING else _COUNTS

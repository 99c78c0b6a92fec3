"""How services of this process get their directives and give their answers: by calling."""

import asyncio

import structlog

from lucius.contracts.messages import parse_reply
from lucius.core.model import Json
from lucius.core.refusal import Refused
from lucius.engines.outbox.dispatcher import LedgerDispatcher
from lucius.jobs.writer import JobWriter
from lucius.ledger.store import StoreUnavailable
from lucius.sdk import ReplyAnswer
from lucius.sdk.directive import Directive as SdkDirective

REPLY_RETRY_SECONDS = 0.5

log = structlog.get_logger("lucius.assembly")

_APPLIED = ReplyAnswer("applied")


class InProcess:
    def __init__(self, service: str, dispatcher: LedgerDispatcher, progress: JobWriter) -> None:
        self._service = service
        self._dispatcher = dispatcher
        self._progress = progress

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        taken = await self._dispatcher.take(
            self._service,
            directives_max=max_directives,
            wait_ms=round(wait_seconds * 1000),
            picked_up=True,
        )
        return [self._dispatcher.message(handed, signed=False) for handed in taken]

    async def reply(self, directive: SdkDirective, message: dict[str, Json]) -> ReplyAnswer:
        if message["type"] == "ACK":
            return _APPLIED  # the hand-out was its ACK
        parsed = parse_reply(message, expected=None)
        if isinstance(parsed, Refused):
            return ReplyAnswer("refused", stop=True)
        job_id, reply = parsed
        while True:
            try:
                applied = await self._progress.apply(job_id, reply)
            except StoreUnavailable as fault:
                log.warning("reply_waits_for_ledger", jobId=job_id, error=str(fault))
                await asyncio.sleep(REPLY_RETRY_SECONDS)
                continue
            if isinstance(applied, Refused):
                return ReplyAnswer("refused", stop=True)
            return ReplyAnswer(applied.outcome.value, stop=applied.stop)

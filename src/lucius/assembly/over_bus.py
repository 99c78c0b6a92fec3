"""How services of this process get their directives and give their answers where there is a broker: over it,
as services elsewhere do. Whether an attempt still counts they read in the ledger."""

from lucius.assembly.clock_and_ids import wall_ms
from lucius.bus.port import Bus
from lucius.core.model import Json
from lucius.core.states import JobState
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import StoreError
from lucius.sdk import DeliveryFailed, Directive, ReplyAnswer
from lucius.sdk.bus_transport import BusTransport

_COUNTS = ReplyAnswer("sent")
_STOP = ReplyAnswer("sent", stop=True)
_STALE = ReplyAnswer("stale", stop=True)


class OverBus:
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

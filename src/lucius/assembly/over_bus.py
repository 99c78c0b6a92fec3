"""How services of this process get their directives and give their answers where there is a broker: over it,
as services elsewhere do. Whether an attempt still counts they read in the ledger."""

from lucius.bus.port import Bus
from lucius.chance import wall_ms
from lucius.core.model import Json
from lucius.core.replies import is_current
from lucius.core.states import JobState
from lucius.ledger.jobs import JobLedger
from lucius.ledger.store import StoreError
from lucius.sdk import Answer, Directive, Undelivered
from lucius.sdk.bus_transport import BusTransport

_COUNTS = Answer("sent")
_STOP = Answer("sent", stop=True)
_STALE = Answer("stale", stop=True)


class OverBus:
    def __init__(self, bus: Bus, service: str, ledger: JobLedger) -> None:
        self._ledger = ledger
        self._transport = BusTransport(bus, service, now_ms=wall_ms, ask=self._ask)

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        return await self._transport.lease(max_directives=max_directives, wait_seconds=wait_seconds)

    async def reply(self, directive: Directive, message: dict[str, Json]) -> Answer:
        return await self._transport.reply(directive, message)

    async def aclose(self) -> None:
        await self._transport.aclose()

    async def _ask(self, directive: Directive) -> Answer:
        try:
            loaded = await self._ledger.load(directive.job_id, fresh=True)
        except StoreError as fault:
            raise Undelivered(f"the ledger cannot be asked: {fault}") from None
        if loaded is None or not is_current(loaded.record, *directive.key[1:]):
            return _STALE
        return _STOP if loaded.record.job.state is JobState.CANCELLING else _COUNTS

"""Whether an attempt still counts, asked over HTTP by services whose replies go over the bus.

In: a directive. Out: `stop` once the job is being cancelled or waits for another attempt. One question and no
second: it is a hint, and the next sign of life asks again.
"""

from types import TracebackType
from typing import Self

import httpx2
import msgspec

from lucius.sdk.directive import Directive
from lucius.sdk.ports import Answer, Undelivered

REQUEST_TIMEOUT_SECONDS = 5.0

_COUNTS = Answer("sent")
_STOP = Answer("sent", stop=True)
_STALE = Answer("stale", stop=True)


class _Attempt(msgspec.Struct):
    current: bool
    stop: bool


_decode = msgspec.json.Decoder(_Attempt).decode


class HttpAsk:
    """Asks beside the address to which the directive's ACK could be sent. For `BusTransport(ask=...)`."""

    def __init__(self, *, request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS) -> None:
        self._client = httpx2.AsyncClient(timeout=httpx2.Timeout(request_timeout_seconds, pool=None))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def __call__(self, directive: Directive) -> Answer:
        beside = (directive.callback_urls or {}).get("ack")
        if beside is None:
            raise Undelivered("the directive names no address to ask")
        url = f"{beside.rpartition('/')[0]}/attempt"
        try:
            response = await self._client.get(
                url, headers={"Authorization": f"Bearer {directive.callback_token}"}
            )
            attempt = _decode(response.content) if response.status_code == 200 else None
        except (httpx2.TransportError, httpx2.InvalidURL, msgspec.DecodeError) as fault:
            raise Undelivered(f"nobody says whether the attempt counts ({type(fault).__name__})") from None
        if attempt is None:
            raise Undelivered(f"nobody says whether the attempt counts (status {response.status_code})")
        if not attempt.current:
            return _STALE
        return _STOP if attempt.stop else _COUNTS

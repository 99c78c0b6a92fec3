"""Whether an attempt still counts, asked over HTTP by services whose replies go over the bus.

In: a directive. Out: `stop` once the job is being cancelled or waits for another attempt. One question and no
second: it is a hint, and the next sign of life asks again.
"""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

import httpx2
import msgspec

from lucius.sdk.directive import Directive, Json
from lucius.sdk.ports import DeliveryFailed, ReplyAnswer

CHECK_TIMEOUT_SECONDS = 5.0

# A server that does not take a client's certificate says so once the client has begun to read.
_UNANSWERED = (httpx2.TransportError, ssl.SSLError)

_COUNTS = ReplyAnswer("sent")
_STOP = ReplyAnswer("sent", stop=True)
_STALE = ReplyAnswer("stale", stop=True)


class _CheckedAttempt(msgspec.Struct):
    current: bool
    stop: bool


_decode = msgspec.json.Decoder(_CheckedAttempt).decode


class HttpAttemptCheck:
    """Asks beside the address to which the directive's ACK could be sent. For `BusTransport(ask=...)`."""

    def __init__(
        self, *, request_timeout_seconds: float = CHECK_TIMEOUT_SECONDS, tls: ssl.SSLContext | None = None
    ) -> None:
        """`tls`: whom it trusts and what it shows (`lucius.tls.client_tls`); None: as usual."""
        self._client = httpx2.AsyncClient(
            timeout=httpx2.Timeout(request_timeout_seconds, pool=None), verify=True if tls is None else tls
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def __call__(self, directive: Directive) -> ReplyAnswer:
        beside = (directive.callback_urls or {}).get("ack")
        if beside is None:
            raise DeliveryFailed("the directive names no address to ask")
        url = f"{beside.rpartition('/')[0]}/attempt"
        try:
            response = await self._client.get(
                url, headers={"Authorization": f"Bearer {directive.callback_token}"}
            )
            attempt = _decode(response.content) if response.status_code == 200 else None
        except (*_UNANSWERED, httpx2.InvalidURL, msgspec.DecodeError) as fault:
            raise DeliveryFailed(
                f"no answer says whether the attempt counts ({type(fault).__name__})"
            ) from None
        if attempt is None:
            raise DeliveryFailed(f"no answer says whether the attempt counts (status {response.status_code})")
        if not attempt.current:
            return _STALE
        return _STOP if attempt.stop else _COUNTS


DEADLINE_SECONDS: Final[Mapping[str, float]] = {"ACK": 20.0, "PROGRESS": 10.0, "RESULT": 600.0}
BACKOFF_SECONDS_MIN = 0.1
BACKOFF_SECONDS_MAX = 5.0
RETRY_AFTER_SECONDS_MAX = 30.0
REQUEST_TIMEOUT_SECONDS = 10.0

_REFUSED = ReplyAnswer("refused", stop=True)
_AGAIN = frozenset({408, 425, 429})


class _Leased(msgspec.Struct):
    # Whatever they are: one that is no directive must not take the others with it.
    directives: list[Json]


_decode_leased = msgspec.json.Decoder(_Leased).decode
_decode_answer = msgspec.json.Decoder(ReplyAnswer).decode


class HttpTransport:
    """Leases for `service` at `base_url`; answers at the addresses that each directive carries."""

    def __init__(
        self,
        base_url: str,
        service: str,
        api_key: str | None = None,
        *,
        connections_max: int = 32,
        deadline_seconds: Mapping[str, float] = DEADLINE_SECONDS,
        request_timeout_seconds: float = REQUEST_TIMEOUT_SECONDS,
        jitter: Callable[[], float] = lambda: 1.0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`tls`: whom it trusts and what it shows (`lucius.tls.client_tls`); None: as usual."""
        self._base_url = base_url.rstrip("/")
        self._service = service
        self._lease_headers = {"Content-Type": "application/json"}
        if api_key is not None:
            self._lease_headers["Authorization"] = f"Bearer {api_key}"
        self._deadline_seconds = deadline_seconds
        self._timeout_seconds = request_timeout_seconds
        self._jitter = jitter
        self._client = httpx2.AsyncClient(
            limits=httpx2.Limits(max_connections=connections_max),
            timeout=httpx2.Timeout(request_timeout_seconds, pool=None),
            verify=True if tls is None else tls,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        await self._client.aclose()

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        body = {"service": self._service, "max": max_directives, "wait_seconds": wait_seconds}
        timeout = httpx2.Timeout(self._timeout_seconds, read=wait_seconds + self._timeout_seconds, pool=None)
        try:
            response = await self._client.post(
                f"{self._base_url}/v1/directives:lease",
                content=msgspec.json.encode(body),
                headers=self._lease_headers,
                timeout=timeout,
            )
        except _UNANSWERED as fault:
            raise DeliveryFailed(f"no answer from the orchestrator ({type(fault).__name__})") from None
        if response.status_code != 200:
            raise DeliveryFailed(
                f"the orchestrator answered {response.status_code} to a lease",
                retry_after_seconds=_retry_after_seconds(response),
            )
        try:
            return _decode_leased(response.content).directives
        except msgspec.DecodeError:
            raise DeliveryFailed("the orchestrator's answer to a lease is not understood") from None

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        kind: str = message["type"]
        url = (directive.callback_urls or {}).get(kind.lower())
        if url is None:
            url = f"{self._base_url}/v1/callbacks/{kind.lower()}"
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {directive.callback_token}"}
        content = msgspec.json.encode(message)
        now = asyncio.get_running_loop().time
        deadline = now() + self._deadline_seconds[kind]
        pause = BACKOFF_SECONDS_MIN
        while True:
            answer, reason, wait_seconds = await self._post(url, content, headers)
            if answer is not None:
                return answer
            wait_seconds = max(wait_seconds, pause * self._jitter())
            if now() + wait_seconds >= deadline:
                raise DeliveryFailed(f"{kind} given up: {reason}")
            await asyncio.sleep(wait_seconds)
            pause = min(pause * 2, BACKOFF_SECONDS_MAX)

    async def _post(
        self, url: str, content: bytes, headers: dict[str, str]
    ) -> tuple[ReplyAnswer | None, str, float]:
        """The answer, or why there is none yet and how long the server wants to be left alone."""
        try:
            response = await self._client.post(url, content=content, headers=headers)
        except _UNANSWERED as fault:
            return None, f"no answer ({type(fault).__name__})", 0.0
        except httpx2.InvalidURL:
            return _REFUSED, "", 0.0
        status = response.status_code
        if status == 409:
            return _STALE, "", 0.0
        if status >= 500 or status in _AGAIN:
            return None, f"status {status}", _retry_after_seconds(response)
        if status != 200:
            return _REFUSED, "", 0.0
        try:
            return _decode_answer(response.content), "", 0.0
        except msgspec.DecodeError:
            return None, "an answer that is not understood", 0.0


def _retry_after_seconds(response: httpx2.Response) -> float:
    """Only the form in seconds; a date would need a clock."""
    text = response.headers.get("Retry-After", "")
    return min(float(text), RETRY_AFTER_SECONDS_MAX) if text.isascii() and text.isdigit() else 0.0

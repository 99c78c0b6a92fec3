"""The way to the orchestrator over plain HTTP: long polling for directives, callbacks for replies.

In: the orchestrator's address, the service's name and key. Out: directives and answers.
How long a reply is tried again depends on what it is worth: a RESULT is the work itself and must outlive a
restart of the server, a PROGRESS is soon overtaken by the next. Every message may arrive twice; the
orchestrator answers `duplicate` then.
"""

import asyncio
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final, Self

import httpx2
import msgspec

from lucius.sdk.directive import Directive, Json
from lucius.sdk.ports import Answer, Undelivered

DEADLINE_SECONDS: Final[Mapping[str, float]] = {"ACK": 20.0, "PROGRESS": 10.0, "RESULT": 600.0}
BACKOFF_SECONDS_MIN = 0.1
BACKOFF_SECONDS_MAX = 5.0
RETRY_AFTER_SECONDS_MAX = 30.0
REQUEST_TIMEOUT_SECONDS = 10.0

_STALE = Answer("stale", stop=True)
_REFUSED = Answer("refused", stop=True)
_AGAIN = frozenset({408, 425, 429})


class _Leased(msgspec.Struct):
    # Whatever they are: one that is no directive must not take the others with it.
    directives: list[Json]


_decode_leased = msgspec.json.Decoder(_Leased).decode
_decode_answer = msgspec.json.Decoder(Answer).decode


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
    ) -> None:
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
        except httpx2.TransportError as fault:
            raise Undelivered(f"no answer from the orchestrator ({type(fault).__name__})") from None
        if response.status_code != 200:
            raise Undelivered(
                f"the orchestrator answered {response.status_code} to a lease",
                retry_after_seconds=_retry_after_seconds(response),
            )
        try:
            return _decode_leased(response.content).directives
        except msgspec.DecodeError:
            raise Undelivered("the orchestrator's answer to a lease is not understood") from None

    async def reply(self, directive: Directive, message: dict[str, Json]) -> Answer:
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
                raise Undelivered(f"{kind} given up: {reason}")
            await asyncio.sleep(wait_seconds)
            pause = min(pause * 2, BACKOFF_SECONDS_MAX)

    async def _post(
        self, url: str, content: bytes, headers: dict[str, str]
    ) -> tuple[Answer | None, str, float]:
        """The answer, or why there is none yet and how long the server wants to be left alone."""
        try:
            response = await self._client.post(url, content=content, headers=headers)
        except httpx2.TransportError as fault:
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

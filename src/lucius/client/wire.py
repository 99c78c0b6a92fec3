"""One HTTP connection to one Lucius, with patience.

In: a method, a path, perhaps a body. Out: an `Answer`, or a `LuciusError`. What may be repeated without harm
is tried again after a while: a refusal for now (429, 503) as its `Retry-After` says, a broken connection
with a growing pause. Knows HTTP and problem documents; knows nothing of jobs.
"""

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from lucius.client.environment import ClientEnvironment
from lucius.client.errors import LuciusError, Unreachable
from lucius.client.models import Answer, Problem
from lucius.client.target import ApiTarget

if TYPE_CHECKING:  # the import costs a fifth of a second, which a program that never calls need not pay
    import httpx2

Doc = TypeVar("Doc")
OnRetry = Callable[[LuciusError, float], None]

CONNECT_TIMEOUT_SECONDS: Final = 5.0
TIMEOUT_SECONDS: Final = 30.0
ANSWER_BYTES_MAX: Final = 64 * 1024 * 1024
STREAM_QUIET_SECONDS_MAX: Final = 60.0
RETRY_AFTER_DIGITS_MAX: Final = 6

GATEWAY: Final = frozenset({502, 503, 504})
FOR_NOW: Final = frozenset({429, 503})
EVENT_STREAM: Final = "text/event-stream"


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How long to go on trying. A `Retry-After` beyond what is left is not waited for: it is reported.

    `unreachable`: whether a connection that cannot be made, or that breaks, is tried again too.
    """

    retries_max: int = 6
    pause_seconds: float = 0.2
    pause_seconds_max: float = 5.0
    total_seconds_max: float = 30.0
    unreachable: bool = True

    def pause_after(
        self, error: LuciusError, *, retry: int, waited_seconds: float, repeatable: bool, chance: float
    ) -> float | None:
        """How long to wait before the next try, None to give up; `retry` counts from 0."""
        if retry >= self.retries_max or not self._worth_it(error, repeatable):
            return None
        if error.retry_after_seconds is not None:
            # Never sooner than asked; a little later, so that not all clients come at once.
            pause = error.retry_after_seconds + chance * self.pause_seconds
        else:
            pause = min(self.pause_seconds * 2**retry, self.pause_seconds_max) * (0.5 + chance / 2)
        return pause if waited_seconds + pause <= self.total_seconds_max else None

    def _worth_it(self, error: LuciusError, repeatable: bool) -> bool:
        if isinstance(error, Unreachable):
            return self.unreachable and (repeatable or not error.sent)
        # A 429 is refused before anything is done; behind a 503 something may have been.
        return error.status in FOR_NOW and (repeatable or error.status == 429)


class HttpConnection:
    """Opens its connection at the first call. `transport` replaces the network: a server in this process."""

    def __init__(
        self,
        target: ApiTarget,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        retry: RetryPolicy,
        outside: ClientEnvironment,
        on_retry: OnRetry | None = None,
        transport: "httpx2.AsyncBaseTransport | None" = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.target = target
        self.outside = outside
        self._timeout_seconds = timeout_seconds
        self._retry = retry
        self._on_retry = on_retry
        self._transport = transport
        self._tls = tls
        self._client: httpx2.AsyncClient | None = None

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        key: str | None = None,
        wait_seconds: float = 0,
        repeatable: bool = True,
    ) -> Answer:
        """The answer. `repeatable`: that the request arrives twice does no harm."""
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        if key is not None:
            headers["Idempotency-Key"] = key
        retry, waited_seconds = 0, 0.0
        while True:
            try:
                async with self._sent(method, path, params, body, headers, wait_seconds) as response:
                    return await _read(response)
            except LuciusError as error:
                pause = self._retry.pause_after(
                    error,
                    retry=retry,
                    waited_seconds=waited_seconds,
                    repeatable=repeatable,
                    chance=self.outside.chance(),
                )
                if pause is None:
                    raise
                if self._on_retry is not None:
                    self._on_retry(error, pause)
            await self.outside.sleep(pause)
            retry, waited_seconds = retry + 1, waited_seconds + pause

    async def stream(self, path: str, last_event_id: int) -> AsyncGenerator[str, None]:
        """What comes down an event stream, each message's data; no retries.

        Raises `NoStream` if the server offers none, `LuciusError` if it refuses or the connection breaks.
        """
        import httpx2

        headers = {"Accept": EVENT_STREAM, "Last-Event-ID": str(last_event_id)}
        extra = STREAM_QUIET_SECONDS_MAX - self._timeout_seconds
        async with self._sent("GET", path, None, None, headers, max(extra, 0.0)) as response:
            if response.status_code == 204:
                return  # nothing will come, or no stream is free now
            if not response.headers.get("content-type", "").lower().startswith(EVENT_STREAM):
                await _read(response)
                raise NoStream
            async for message in httpx2.EventSource(response):
                yield message.data

    @asynccontextmanager
    async def _sent(
        self,
        method: str,
        path: str,
        params: Mapping[str, str] | None,
        body: bytes | None,
        headers: Mapping[str, str],
        more_seconds: float,
    ) -> AsyncIterator["httpx2.Response"]:
        """The response, its body unread; every fault of the network as `Unreachable`."""
        import httpx2

        timeout = httpx2.Timeout(
            self._timeout_seconds + more_seconds,
            connect=min(CONNECT_TIMEOUT_SECONDS, self._timeout_seconds),
            pool=None,
        )
        url = self.target.url
        try:
            async with self._open().stream(
                method,
                url + path,
                params=dict(params) if params else None,
                content=body,
                headers=dict(headers),
                timeout=timeout,
            ) as response:
                yield response
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Unreachable(f"Cannot connect to {url}: {_reason(error)}.", sent=False) from None
        except httpx2.TimeoutException:
            raise Unreachable(f"{url} did not answer in time.") from None
        except (httpx2.RequestError, httpx2.InvalidURL, ssl.SSLError) as error:
            raise Unreachable(f"The connection to {url} failed: {_reason(error)}.") from None

    def _open(self) -> "httpx2.AsyncClient":
        import httpx2

        if self._client is None:
            key = self.target.api_key
            self._client = httpx2.AsyncClient(
                headers={"Authorization": f"Bearer {key}"} if key else {},
                transport=self._transport,
                verify=True if self._tls is None else self._tls,
                # A proxy from the environment cannot see this machine's own loopback.
                trust_env=not self.target.loopback,
            )
        return self._client


class NoStream(Exception):
    """The server has no event stream here."""


def decoded(answer: Answer, wanted: type[Doc]) -> Doc:
    """The body as a value; a body of another shape is an error of the server's."""
    try:
        return msgspec.json.decode(answer.body, type=wanted)
    except (msgspec.DecodeError, RecursionError) as error:
        message = f"The answer ({answer.status}) does not have the shape expected: {error}"
        raise LuciusError(None, answer.status, message, body=answer.body) from None


async def _read(response: "httpx2.Response") -> Answer:
    content = bytearray()
    async for chunk in response.aiter_bytes():
        content += chunk
        if len(content) > ANSWER_BYTES_MAX:
            message = f"The answer is larger than {ANSWER_BYTES_MAX} bytes."
            raise LuciusError(None, response.status_code, message)
    status, body = response.status_code, bytes(content)
    if not 200 <= status < 300:
        raise _error_of(status, body, response.headers.get("retry-after"))
    try:
        msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError):
        raise LuciusError(None, status, f"The answer ({status}) is not a JSON object.") from None
    return Answer(status=status, headers=dict(response.headers), body=body)


def _error_of(status: int, body: bytes, retry_after: str | None) -> LuciusError:
    after_seconds = _seconds(retry_after)
    try:
        problem = msgspec.json.decode(body, type=Problem)
    except (msgspec.DecodeError, RecursionError):
        # No Lucius answers so: something else stands at that address, or in between.
        message = f"The server answered {status} without saying why."
        if status in GATEWAY:
            return Unreachable(message, status=status)
        return LuciusError(None, status, message, retry_after_seconds=after_seconds)
    return LuciusError(
        problem.code,
        status,
        problem.detail or problem.title or f"status {status}",
        problem.errors,
        retry_after_seconds=after_seconds,
        body=body,
    )


def _seconds(retry_after: str | None) -> int | None:
    """A `Retry-After` in seconds. A date would need a clock that agrees with the server's: it is left out."""
    text = (retry_after or "").strip()
    good = text.isascii() and text.isdecimal() and len(text) <= RETRY_AFTER_DIGITS_MAX
    return int(text) if good else None


def _reason(error: Exception) -> str:
    text = str(error).strip().rstrip(".")
    return text.splitlines()[0] if text else type(error).__name__

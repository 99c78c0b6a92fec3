"""Carries one webhook to its receiver: signs, connects to a checked address, posts, reads the status.

In: a URL, an id, a body. Out: what became of it. It never follows a redirect, never asks the environment for
a proxy, never shares a connection between two webhooks (one address may serve several names, and a
certificate was checked for one of them), and never repeats a word of the receiver's answer but its status.
"""

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import Enum

import httpx2
import msgspec
from standardwebhooks.webhooks import Webhook

from lucius.engines.webhooks.address import (
    AddressRefused,
    CallbackPolicy,
    Resolver,
    WebhookTarget,
    find_target,
    literal_address,
)

SEND_SECONDS_MAX = 10.0
DRAIN_SECONDS_MAX = 1.0
ANSWER_BYTES_MAX = 65_536
ADDRESSES_TRIED_MAX = 3


class DeliveryOutcome(Enum):
    DELIVERED = "delivered"
    FAILED = "failed"
    REFUSED = "refused"  # trying again will not help


class SendResult(msgspec.Struct, frozen=True, kw_only=True):
    outcome: DeliveryOutcome
    problem: str | None = None


class WebhookSender:
    def __init__(
        self,
        policy: CallbackPolicy,
        resolve: Resolver,
        secrets: Callable[[], Sequence[str]],
        *,
        user_agent: str,
        tls: ssl.SSLContext | None = None,
        send_seconds_max: float = SEND_SECONDS_MAX,
        wall_ms: Callable[[], int] | None = None,
    ) -> None:
        """`wall_ms`: the time that receivers compare a signature's time stamp with; None: the sender's."""
        self._wall_ms = wall_ms
        self._policy = policy
        self._resolve = resolve
        self._secrets = secrets
        self._user_agent = user_agent
        self._tls = tls
        self._send_seconds_max = send_seconds_max
        self._client: httpx2.AsyncClient | None = None

    async def send(self, url: str, *, webhook_id: str, body: bytes, now_ms: int) -> SendResult:
        try:
            async with asyncio.timeout(self._send_seconds_max):
                target = await find_target(self._policy, url, self._resolve)
                headers = self._headers(webhook_id, body, now_ms)
                return _judged(await self._post(url, target, headers, body))
        except AddressRefused as fault:
            return SendResult(
                outcome=DeliveryOutcome.REFUSED if fault.for_good else DeliveryOutcome.FAILED,
                problem=fault.reason,
            )
        except (TimeoutError, httpx2.TimeoutException):
            return SendResult(
                outcome=DeliveryOutcome.FAILED, problem=f"no answer within {self._send_seconds_max:g} s"
            )
        except httpx2.ConnectError:
            return SendResult(
                outcome=DeliveryOutcome.FAILED,
                problem="no connection could be made, or its TLS was not valid",
            )
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as fault:
            return SendResult(
                outcome=DeliveryOutcome.FAILED, problem=f"the exchange broke off: {type(fault).__name__}"
            )

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _headers(self, webhook_id: str, body: bytes, now_ms: int) -> dict[str, str]:
        if self._wall_ms is not None:
            now_ms = self._wall_ms()
        at = datetime.fromtimestamp(now_ms // 1000, UTC)
        text = body.decode()
        return {
            "content-type": "application/json",
            "user-agent": self._user_agent,
            "webhook-id": webhook_id,
            "webhook-timestamp": str(now_ms // 1000),
            "webhook-signature": " ".join(
                Webhook(secret).sign(webhook_id, at, text) for secret in self._secrets()
            ),
        }

    async def _post(self, url: str, target: WebhookTarget, headers: dict[str, str], body: bytes) -> int:
        """Tries the addresses in their order: the next one only if no connection to the last was made."""
        addresses = target.addresses[:ADDRESSES_TRIED_MAX]
        connect_seconds = self._send_seconds_max / len(addresses)
        for address in addresses[:-1]:
            with suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await self._post_to(address, connect_seconds, url, target, headers, body)
        return await self._post_to(addresses[-1], connect_seconds, url, target, headers, body)

    async def _post_to(
        self,
        address: str,
        connect_seconds: float,
        url: str,
        target: WebhookTarget,
        headers: dict[str, str],
        body: bytes,
    ) -> int:
        """The address goes into the URL and the name into Host and the TLS handshake, so that the name
        is not looked up a second time."""
        asked = httpx2.URL(url).copy_with(host=address, fragment=None)
        literal = literal_address(target.host) is not None
        named = f"[{target.host}]" if ":" in target.host else target.host
        standard = target.port == (443 if asked.scheme == "https" else 80)
        extensions = {} if literal else {"sni_hostname": target.host}
        timeout = httpx2.Timeout(self._send_seconds_max, connect=connect_seconds)
        async with self._opened().stream(
            "POST",
            asked,
            content=body,
            headers={**headers, "host": named if standard else f"{named}:{target.port}"},
            extensions=extensions,
            timeout=timeout,
        ) as response:
            await _drain(response)
            return response.status_code

    def _opened(self) -> httpx2.AsyncClient:
        if self._client is None:
            tls = httpx2.create_ssl_context() if self._tls is None else self._tls
            self._client = httpx2.AsyncClient(
                verify=tls,
                trust_env=False,
                follow_redirects=False,
                limits=httpx2.Limits(max_keepalive_connections=0),
            )
        return self._client


async def _drain(response: httpx2.Response) -> None:
    """Reads a little of the answer for politeness: its status is known, and nothing else of it matters."""
    read_bytes = 0
    with suppress(TimeoutError, httpx2.HTTPError):
        async with asyncio.timeout(DRAIN_SECONDS_MAX):
            async for chunk in response.aiter_raw():
                read_bytes += len(chunk)
                if read_bytes >= ANSWER_BYTES_MAX:
                    return


def _judged(status: int) -> SendResult:
    if 200 <= status < 300:
        return SendResult(outcome=DeliveryOutcome.DELIVERED)
    if status == 410:
        return SendResult(
            outcome=DeliveryOutcome.REFUSED, problem="the receiver answered 410: it is gone for good"
        )
    if 300 <= status < 400:
        return SendResult(
            outcome=DeliveryOutcome.FAILED,
            problem=f"the receiver answered {status}; redirects are not followed",
        )
    return SendResult(outcome=DeliveryOutcome.FAILED, problem=f"the receiver answered {status}")

"""The keys with which an issuer signs its tokens: fetched, kept, and fetched again when they rotate.

In: where the issuer is. Out: public keys, each pinned to the algorithms that its own type allows. Symmetric
keys are never taken, so nothing public can pass for a shared secret. Fetching follows no redirects, reads a
bounded number of bytes in a bounded time, and a failure leaves the last good copy in use for `STALE_MS_MAX`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

import httpx2
import jwt
import msgspec
import structlog

FETCH_SECONDS_MAX: Final = 5.0
DOCUMENT_BYTES_MAX: Final = 512 * 1024
KEYS_MAX: Final = 100
REFRESH_EVERY_MS: Final = 300_000
UNKNOWN_KID_EVERY_MS: Final = 30_000
RETRY_EVERY_MS: Final = 2_000
STALE_MS_MAX: Final = 86_400_000
RSA_BITS_MIN: Final = 2_048
LOOPBACK_NAMES: Final = frozenset({"127.0.0.1", "localhost", "::1"})

_RSA: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
_CURVES: Final = {
    ("EC", "P-256"): ("ES256",),
    ("EC", "P-384"): ("ES384",),
    ("EC", "P-521"): ("ES512",),
    ("OKP", "Ed25519"): ("EdDSA",),
}
ALGORITHMS: Final = frozenset(_RSA) | {name for names in _CURVES.values() for name in names}

Fetch = Callable[[str], Awaitable[bytes]]

log = structlog.get_logger("lucius.jwks")


class JwksFault(Exception):
    """The issuer's keys cannot be had. The text says why and holds no secret."""


class PinnedKey(msgspec.Struct, frozen=True, kw_only=True):
    kid: str | None
    key: Any
    algorithms: frozenset[str]


class JwksEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """`jwks_url`: None means that the issuer's own discovery document names it."""

    issuer: str
    jwks_url: str | None


class _Discovered(msgspec.Struct, frozen=True):
    issuer: str
    jwks_uri: str


class _Set(msgspec.Struct, frozen=True):
    keys: list[dict[str, Any]]


def is_fetchable(url: str) -> bool:
    """https, or plain http on this machine; no credentials in it."""
    try:
        parts = urlsplit(url)
        host, with_credentials = parts.hostname, "@" in parts.netloc
    except ValueError:
        return False
    if not host or with_credentials:
        return False
    return parts.scheme == "https" or (parts.scheme == "http" and host in LOOPBACK_NAMES)


async def fetch(url: str) -> bytes:
    """The document at an address; `JwksFault` for anything but a 200 of bounded size, in time."""
    if not is_fetchable(url):
        raise JwksFault("the address is neither https nor on this machine")
    # A proxy from the environment cannot see this machine's own loopback.
    trust_env = urlsplit(url).hostname not in LOOPBACK_NAMES
    try:
        async with (
            asyncio.timeout(FETCH_SECONDS_MAX),
            httpx2.AsyncClient(
                follow_redirects=False, timeout=FETCH_SECONDS_MAX, trust_env=trust_env
            ) as client,
            client.stream("GET", url, headers={"Accept": "application/json"}) as response,
        ):
            if response.status_code != 200:
                raise JwksFault(f"status {response.status_code}")
            content = bytearray()
            async for chunk in response.aiter_bytes():
                content += chunk
                if len(content) > DOCUMENT_BYTES_MAX:
                    raise JwksFault(f"more than {DOCUMENT_BYTES_MAX} bytes")
            return bytes(content)
    except TimeoutError:
        raise JwksFault(f"no answer within {FETCH_SECONDS_MAX:g} s") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as fault:
        raise JwksFault(type(fault).__name__) from None


def pinned_keys(document: bytes, allowed: frozenset[str]) -> list[PinnedKey]:
    """The keys of a set that may verify a signature here; the rest are passed over."""
    try:
        listed = msgspec.json.decode(document, type=_Set).keys
    except (msgspec.DecodeError, RecursionError):
        raise JwksFault("the answer is not a key set") from None
    keys = [pinned for jwk in listed[:KEYS_MAX] if (pinned := _pinned(jwk, allowed)) is not None]
    if not keys:
        raise JwksFault("none of its keys can be used here")
    return keys


def _pinned(jwk: dict[str, Any], allowed: frozenset[str]) -> PinnedKey | None:
    kty, curve, alg, kid = (jwk.get(name) for name in ("kty", "crv", "alg", "kid"))
    if jwk.get("use", "sig") != "sig" or not isinstance(kty, str):
        return None
    by_type = _RSA if kty == "RSA" else _CURVES.get((kty, str(curve)), ())
    algorithms = allowed.intersection(by_type)
    if alg is not None:
        algorithms = algorithms.intersection({str(alg)})
    if not algorithms:
        return None
    try:
        key = jwt.PyJWK(jwk, algorithm=min(algorithms)).key
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
    # A private key published by mistake is known to all: it proves nothing.
    if not hasattr(key, "verify") or (kty == "RSA" and key.key_size < RSA_BITS_MIN):
        return None
    return PinnedKey(kid=kid if isinstance(kid, str) else None, key=key, algorithms=algorithms)


class KeySet:
    def __init__(
        self,
        endpoint: JwksEndpoint,
        allowed: frozenset[str],
        *,
        now_ms: Callable[[], int],
        fetch: Fetch = fetch,
    ) -> None:
        self._endpoint = endpoint
        self._allowed = allowed
        self._now_ms = now_ms
        self._fetch = fetch
        self._keys: list[PinnedKey] = []
        self._good_at_ms: int | None = None
        self._tried_at_ms: int | None = None
        self._lock = asyncio.Lock()

    async def find(self, kid: str | None, algorithm: str) -> PinnedKey | None:
        """The key for a token's header; `JwksFault` if there are no keys to look among."""
        # While another call fetches, a copy that can still be used is.
        if not self._usable() or not self._lock.locked():
            await self._refresh(REFRESH_EVERY_MS)
        if not self._usable():
            raise JwksFault("the issuer's keys cannot be had now")
        found = self._look(kid, algorithm)
        if found is None and kid is not None:
            await self._refresh(UNKNOWN_KID_EVERY_MS)
            found = self._look(kid, algorithm)
        return found

    def _look(self, kid: str | None, algorithm: str) -> PinnedKey | None:
        if kid is None:  # without a name there must be no doubt
            return self._keys[0] if len(self._keys) == 1 and algorithm in self._keys[0].algorithms else None
        return next((key for key in self._keys if key.kid == kid and algorithm in key.algorithms), None)

    def _usable(self) -> bool:
        return self._good_at_ms is not None and self._now_ms() - self._good_at_ms < STALE_MS_MAX

    def _refresh_due(self, every_ms: int) -> bool:
        """Whether the last try is so long ago; with nothing to fall back on, the next one comes sooner."""
        if self._tried_at_ms is None:
            return True
        age_ms = self._now_ms() - self._tried_at_ms
        return not 0 <= age_ms < (every_ms if self._usable() else RETRY_EVERY_MS)

    async def _refresh(self, every_ms: int) -> None:
        """Fetches if it is time to, and waits for a fetch that is under way."""
        if self._lock.locked() or self._refresh_due(every_ms):
            async with self._lock:
                if self._refresh_due(every_ms):
                    await self._fetch_keys()

    async def _fetch_keys(self) -> None:
        self._tried_at_ms = self._now_ms()
        try:
            keys = pinned_keys(await self._fetch(await self._jwks_url()), self._allowed)
        except JwksFault as fault:
            log.warning("jwks_not_refreshed", issuer=self._endpoint.issuer, reason=str(fault))
            return
        self._keys, self._good_at_ms = keys, self._now_ms()

    async def _jwks_url(self) -> str:
        if self._endpoint.jwks_url is not None:
            return self._endpoint.jwks_url
        issuer = self._endpoint.issuer
        document = await self._fetch(f"{issuer.rstrip('/')}/.well-known/openid-configuration")
        try:
            found = msgspec.json.decode(document, type=_Discovered)
        except (msgspec.DecodeError, RecursionError):
            raise JwksFault("the discovery document cannot be read") from None
        if found.issuer != issuer:
            raise JwksFault("the discovery document names another issuer")
        if not is_fetchable(found.jwks_uri):
            raise JwksFault("the discovery document names an address that is not https")
        return found.jwks_uri

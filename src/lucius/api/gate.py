"""Who is calling, and what they may do.

In: a request and the role that its route asks for. Out: the caller, or why not. The router asks here before
a handler reads anything. A credential is an API key or, where an issuer is configured, a token that it
signed; both go in `Authorization: Bearer`. What a caller presented never reaches a log or an answer.
"""

import hmac
from typing import Protocol

import msgspec
import structlog
from starlette.requests import Request

from lucius.api.hosts import cannot_be_rebound, host_name, is_loopback, origin_host
from lucius.api.memory import memory_of
from lucius.contracts.keys import KEY_PREFIX, ROLES, Role, StoredKey, secret_hash, split_key
from lucius.core.refusal import Code, Refused

__all__ = ["ANONYMOUS", "Gate", "GuardedGate", "OpenGate", "Principal", "Role", "TokenVerifier", "bearer_of"]

CREDENTIAL_LENGTH_MAX = 16_384
# A call that is held open asks again who holds it, this often: a key may be revoked, a token run out.
ASK_AGAIN_SECONDS = 2.0

log = structlog.get_logger("lucius.gate")

_NO_SECRET = secret_hash("")
_NO_CREDENTIAL = Refused(Code.UNAUTHENTICATED, "an API key or a token is needed: Authorization: Bearer …")
_UNDER_ANOTHER_NAME = Refused(
    Code.FORBIDDEN,
    "a Lucius without authentication is not called by this name: set LUCIUS_PUBLIC_URL to the address that "
    "has it, or switch authentication on (LUCIUS_AUTH=required)",
)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """`tenants` and `services`: None means all of them. Tenants are in their normalised form."""

    name: str
    roles: frozenset[Role]
    tenants: frozenset[str] | None = None
    services: frozenset[str] | None = None
    anonymous: bool = False
    """Whether the caller is unknown, because no credential is asked for."""

    @property
    def holder(self) -> str | None:
        """Whose share it is what this caller takes; None: it cannot be distinguished from others."""
        return None if self.anonymous else self.name

    def sees(self, tenant_norm: str) -> bool:
        return self.tenants is None or tenant_norm in self.tenants

    def serves(self, service: str) -> bool:
        """Whether it may lease a service's directives. Those of all tenants share the lanes, so a
        caller who is limited to some tenants serves none."""
        return self.tenants is None and (self.services is None or service in self.services)


class Gate(Protocol):
    async def identify(self, request: Request) -> Principal | Refused:
        """The caller, whatever they may do; else why they are not known."""
        ...

    async def admit(self, request: Request, role: Role) -> Principal | Refused:
        """The caller, if they may do what the role allows; else why not."""
        ...


class TokenVerifier(Protocol):
    async def read(self, token: str) -> Principal | Refused:
        """The caller that a signed token names; else why it is not accepted."""
        ...


class KeyVerifier(Protocol):
    async def find(self, key_id: str) -> StoredKey | None: ...


ANONYMOUS = Principal(name="a caller on this machine", roles=frozenset(Role), anonymous=True)


class OpenGate:
    """Admits every caller: for loopback addresses only. Web pages from elsewhere are not on this machine,
    though the browser that runs them is."""

    def __init__(self, public_url: str | None = None) -> None:
        """`public_url`: where it is reached, if somewhere else than on this machine."""
        at = None if public_url is None else origin_host(public_url)
        self._own_name = None if at is None else host_name(at)

    async def admit(self, request: Request, role: Role) -> Principal | Refused:
        return await self.identify(request)

    async def identify(self, request: Request) -> Principal | Refused:
        headers = request.headers
        host = headers.get("host")
        # Browsers always name a host. The one that a page's own name leads to is called by that name.
        if host is not None and not self._is_ours(host):
            return _UNDER_ANOTHER_NAME
        origin = headers.get("origin")
        if origin is None or self._is_own_page(origin, host):
            return ANONYMOUS
        return Refused(Code.FORBIDDEN, "pages of another origin may not call a Lucius without authentication")

    def _is_ours(self, host: str) -> bool:
        name = host_name(host)
        return name is not None and (cannot_be_rebound(name) or name == self._own_name)

    def _is_own_page(self, origin: str, host: str | None) -> bool:
        """Of this machine, or from where the call goes: an address alone says nothing of whose page it is."""
        at = origin_host(origin)
        name = None if at is None else host_name(at)
        return name is not None and (is_loopback(name) or name == self._own_name or at == host)


class GuardedGate:
    """Asks every caller for a key or a token."""

    def __init__(self, keys: KeyVerifier, tokens: TokenVerifier | None = None) -> None:
        self._keys = keys
        self._tokens = tokens

    async def identify(self, request: Request) -> Principal | Refused:
        credential = bearer_of(request)
        if credential is None:
            return _NO_CREDENTIAL
        if credential.startswith(KEY_PREFIX) or self._tokens is None:
            return await self._holder(credential)
        return await self._tokens.read(credential)

    async def admit(self, request: Request, role: Role) -> Principal | Refused:
        if bearer_of(request) is None:
            return _NO_CREDENTIAL
        caller = await self.identify(request)
        # The scope's path: `request.url` reads the query too, and fails where that is not UTF-8.
        if isinstance(caller, Refused):
            log.info("caller_refused", path=request.scope["path"], reason=caller.message)
            return caller
        if role not in caller.roles:
            log.info("caller_lacks_role", path=request.scope["path"], caller=caller.name, role=role.value)
            return Refused(Code.FORBIDDEN, f"this needs the role {role.value}, which the caller lacks")
        memory = memory_of(request.scope)
        if memory is not None:
            memory.belongs_to(caller.name)
        return caller

    async def _holder(self, credential: str) -> Principal | Refused:
        parts = split_key(credential)
        key = None if parts is None else await self._keys.find(parts[0])
        # Always compared, so that the time taken says nothing about which part was wrong.
        given = secret_hash("" if parts is None else parts[1])
        matches = hmac.compare_digest(given, _NO_SECRET if key is None else key.secret_sha256)
        if parts is None or key is None or not matches or key.revoked_at_ms is not None:
            return Refused(Code.UNAUTHENTICATED, "the API key is not known or was revoked")
        return Principal(
            name=f"key {key.key_id}",
            # A role that a later version knows opens nothing here.
            roles=frozenset(Role(role) for role in key.roles if role in ROLES),
            tenants=None if key.tenants is None else frozenset(key.tenants),
            services=None if key.services is None else frozenset(key.services),
        )


def bearer_of(request: Request) -> str | None:
    """What the caller presents; None if it is missing, ambiguous, or nothing that could be a credential."""
    given = request.headers.getlist("authorization")
    if len(given) != 1:
        return None
    scheme, _, credential = given[0].partition(" ")
    credential = credential.strip(" ")
    if scheme.lower() != "bearer" or not 0 < len(credential) <= CREDENTIAL_LENGTH_MAX:
        return None
    # RFC 6750 allows visible ASCII only: whatever else comes is not worth a look.
    visible = credential.isascii() and credential.isprintable() and " " not in credential
    return credential if visible else None

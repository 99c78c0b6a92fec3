"""Who this process is to Azure: a credential that every adapter may be given.

In: which kind of identity the settings name. Out: one credential, made once and closed at the end. What the
identity library says when it cannot get a token is long and names addresses and files: it stays in here, and
its place is taken by a short text that names the kind of identity and the kind of fault.
"""

import logging
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

from azure.core.credentials import AccessToken, AccessTokenInfo, TokenRequestOptions
from azure.core.credentials_async import AsyncTokenCredential
from azure.core.exceptions import AzureError, ClientAuthenticationError
from azure.identity.aio import DefaultAzureCredential, ManagedIdentityCredential, WorkloadIdentityCredential

from lucius.settings import IdentitySettings
from lucius.workspace import BlobToken, TokenSource

CLI_SECONDS_MAX: Final = 10
STORAGE_SCOPE: Final = "https://storage.azure.com/.default"


class NoIdentity(Exception):
    """The identity that was asked for cannot be had here. The text holds no secret."""


class AzureIdentity:
    """A credential whose faults are short, and whose text says nothing but its kind."""

    def __init__(self, kind: str, credential: AsyncTokenCredential) -> None:
        self._kind = kind
        self._credential = credential

    async def get_token(self, *scopes: str, **more: Any) -> AccessToken:
        try:
            return await self._credential.get_token(*scopes, **more)
        except (AzureError, OSError, ValueError) as fault:
            raise self._refused(fault) from None

    async def get_token_info(
        self, *scopes: str, options: TokenRequestOptions | None = None
    ) -> AccessTokenInfo:
        try:
            return await self._credential.get_token_info(*scopes, options=options)  # type: ignore[attr-defined, no-any-return]
        except (AzureError, OSError, ValueError) as fault:
            raise self._refused(fault) from None

    def _refused(self, fault: Exception) -> ClientAuthenticationError:
        return ClientAuthenticationError(f"the {self._kind} identity gives no token ({type(fault).__name__})")

    async def close(self) -> None:
        await self._credential.close()

    async def __aenter__(self) -> "AzureIdentity":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None = None,
        fault: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AzureIdentity({self._kind})"


def make_identity(settings: IdentitySettings) -> AzureIdentity:
    """Sends no request yet. Raises `NoIdentity` where what the identity needs is not there."""
    # The library logs every failed link of its chain at length; what matters comes as the fault.
    logging.getLogger("azure.identity").setLevel(logging.ERROR)
    kind = settings.kind or "default"
    try:
        return AzureIdentity(kind, _credential(kind, settings.client_id))
    except ValueError:
        raise NoIdentity(_WANTED[kind]) from None


def storage_tokens(settings: IdentitySettings) -> TokenSource:
    """Tokens for Blob Storage. An identity is made for each and closed again: one is asked for once an hour
    or so, and what reads and writes objects has no end at which it could close one."""

    async def token() -> BlobToken:
        async with make_identity(settings) as identity:
            found = await identity.get_token(STORAGE_SCOPE)
        return {"token": found.token, "expires_at": datetime.fromtimestamp(found.expires_on, UTC)}

    return token


def _credential(kind: str, client_id: str | None) -> AsyncTokenCredential:
    named: dict[str, Any] = {} if client_id is None else {"client_id": client_id}
    match kind:
        case "managed":
            return ManagedIdentityCredential(**named)
        case "workload":
            return WorkloadIdentityCredential(**named)
    chained: dict[str, Any] = {} if client_id is None else {"managed_identity_client_id": client_id}
    return DefaultAzureCredential(process_timeout=CLI_SECONDS_MAX, **chained)


_WANTED: Final = {
    "default": "the default identity cannot be used: look at the AZURE_* variables",
    "managed": "the managed identity cannot be used: look at LUCIUS_AZURE_CLIENT_ID",
    "workload": "the workload identity needs AZURE_TENANT_ID, AZURE_CLIENT_ID and AZURE_FEDERATED_TOKEN_FILE",
}

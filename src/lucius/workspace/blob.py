"""An account of Azure Blob Storage: what opens it, and which URIs lie in it.

In: a connection string, or the account's address where an identity opens it. Out: how a store of one of its
containers is made, and where a URI leads. The account's secret leaves here in no text.
"""

import base64
import binascii
import re
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final, TypedDict
from urllib.parse import unquote, urlsplit

import msgspec

CLOUD_SUFFIXES: Final = (".blob.core.windows.net", ".dfs.core.windows.net")
CONTAINER: Final = re.compile(r"[a-z0-9$][a-z0-9-]{2,62}")
EMULATOR: Final = "UseDevelopmentStorage=true"
# The account that every Azurite has, with the key that is printed in its manual: it opens nothing else.
EMULATOR_NAME: Final = "devstoreaccount1"
EMULATOR_KEY: Final = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


class BlobToken(TypedDict):
    token: str
    expires_at: datetime | None


TokenSource = Callable[[], Awaitable[BlobToken]]
"""A token for Azure Storage, of the identity of this process. Asked for again when the last token ends."""


class BlobAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Without key and signature it is opened by an identity."""

    name: str
    endpoint: str
    key: str | None = None
    signature: str | None = None

    @property
    def opened_by_identity(self) -> bool:
        return self.key is None and self.signature is None

    def options(self, tokens: TokenSource | None) -> dict[str, Any]:
        """For a store of one of its containers."""
        config = {"account_name": self.name, "endpoint": self.endpoint}
        if self.key is not None:
            config["account_key"] = self.key
        elif self.signature is not None:
            config["sas_key"] = self.signature
        options: dict[str, Any] = {"config": config}
        if self.endpoint.startswith("http://"):
            options["client_options"] = {"allow_http": True}
        if self.opened_by_identity and tokens is not None:
            options["credential_provider"] = tokens
        return options

    def __repr__(self) -> str:
        return f"BlobAccount({self.name})"


class ObjectLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where an object lies. `account` None: the one in the settings of the process."""

    account: str | None
    container: str
    key: str


def blob_account_of(text: str) -> BlobAccount | None:
    """From a connection string, or from `https://ACCOUNT.blob.core.windows.net`; None if it is neither."""
    if text.startswith("https://"):
        host = urlsplit(text).hostname or ""
        name = host.partition(".")[0]
        plain = text.rstrip("/") == f"https://{host}" and host.endswith(CLOUD_SUFFIXES[0])
        return BlobAccount(name=name, endpoint=f"https://{host}") if plain and name else None
    if text.rstrip(";") == EMULATOR:
        endpoint = f"http://127.0.0.1:10000/{EMULATOR_NAME}"
        return BlobAccount(name=EMULATOR_NAME, endpoint=endpoint, key=EMULATOR_KEY)
    parts = dict(part.strip().partition("=")[::2] for part in text.split(";") if part.strip())
    name, key = parts.get("AccountName", ""), parts.get("AccountKey")
    signature = parts.get("SharedAccessSignature")
    suffix = parts.get("EndpointSuffix", "core.windows.net")
    protocol = parts.get("DefaultEndpointsProtocol", "https")
    endpoint = parts.get("BlobEndpoint", f"{protocol}://{name}.blob.{suffix}").rstrip("/")
    if not name and "BlobEndpoint" in parts:
        name = (urlsplit(endpoint).hostname or "").partition(".")[0]
    sound = name and endpoint.startswith(("https://", "http://")) and (key is None) is not (signature is None)
    if not sound or (key is not None and not _is_base64(key)):
        return None
    return BlobAccount(
        name=name, endpoint=endpoint, key=key, signature=None if signature is None else signature.lstrip("?")
    )


def blob_place(uri: str, account: BlobAccount | None) -> ObjectLocation | None:
    """Of an http(s) URI that lies in Azure Storage or in `account`; None if it does not. Decoded once."""
    parts = urlsplit(uri)
    host = (parts.hostname or "").lower()
    if account is not None and uri.startswith(f"{account.endpoint}/"):
        name, path = account.name, uri.removeprefix(f"{account.endpoint}/")
    elif parts.scheme == "https" and host.endswith(CLOUD_SUFFIXES) and parts.port is None:
        name, path = host.partition(".")[0], parts.path.removeprefix("/")
    else:
        return None
    container, _, key = path.partition("?")[0].partition("/")
    return ObjectLocation(account=name, container=unquote(container), key=unquote(key))


def _is_base64(text: str) -> bool:
    try:
        return bool(base64.b64decode(text, validate=True))
    except binascii.Error:
        return False

"""What is told about Azure: who we are to it, and where our configuration is."""

import base64
from typing import Final

import msgspec

from lucius.settings_addresses import web_address_of

IDENTITIES: Final = ("default", "managed", "workload")
STRING: Final = "LUCIUS_APP_CONFIGURATION_CONNECTION_STRING"
STRING_WANTED: Final = "Endpoint=https://…;Id=…;Secret=…, as the portal shows it"
ENDPOINT: Final = "LUCIUS_APP_CONFIGURATION_ENDPOINT"
ENDPOINT_WANTED: Final = "an address such as https://NAME.azconfig.io"
LABEL_WANTED: Final = "a label without * , and \\"


class IdentitySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Who we are to Azure where no connection string opens the door."""

    kind: str | None = None
    """One of `IDENTITIES`; None: the default one, and only where nothing else opens the door."""
    client_id: str | None = None
    """Of a managed identity that is not the only one; None: the one there is."""


class AppConfigurationSettings(msgspec.Struct, frozen=True, kw_only=True):
    connection_string: str | None = None
    endpoint: str | None = None
    environment: str | None = None
    """The label of what is ours alone; what has no label is everybody's."""
    refresh_ms: int = 30_000

    @property
    def wanted(self) -> bool:
        return self.connection_string is not None or self.endpoint is not None

    @property
    def place(self) -> str:
        """Without a secret."""
        return self.endpoint or (self.connection_string or "").partition(";")[0].removeprefix("Endpoint=")

    def __repr__(self) -> str:
        return f"AppConfigurationSettings(wanted={self.wanted}, environment={self.environment})"


def string_of(text: str) -> str | None:
    parts = dict(part.partition("=")[::2] for part in text.split(";"))
    address = parts.get("Endpoint", "")
    try:
        base64.b64decode(parts.get("Secret", ""), validate=True)
    except ValueError:
        return None
    sound = text.startswith("Endpoint=") and web_address_of(address)
    return text if sound and parts.get("Id") and parts.get("Secret") else None


def endpoint_of(text: str) -> str | None:
    """Over plain HTTP a token would be read by everybody on the way, so the library refuses it."""
    return text.rstrip("/") if web_address_of(text, ("https",)) else None


def label_of(text: str) -> str | None:
    return None if any(sign in text for sign in "*,\\\0") else text

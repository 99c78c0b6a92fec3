"""What is told about Service Bus: where it is, and what its topics and subscriptions are like."""

import re
from typing import Final

import msgspec

from lucius.core.routing import LANES, reply_topic

REPLY_PREFIX: Final = reply_topic(0).removesuffix("0")
SUBSCRIPTION: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,48}[A-Za-z0-9])?")
NAMESPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{1,252}")

_ENDPOINT: Final = re.compile(r"(?:^|;)\s*Endpoint\s*=\s*sb://([^/;\s]+)", re.IGNORECASE)
_KEY: Final = re.compile(r"(?:^|;)\s*SharedAccess(Key|Signature)\s*=\s*[^;\s]", re.IGNORECASE)


class ServiceBusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Either a connection string or a namespace, to which our identity in Azure opens the door."""

    connection_string: str | None = None
    namespace: str | None = None
    reply_subscription: str = "lucius-invoker"
    deliveries_max: int = 10
    largest_message_bytes: int = 262_144
    partition_keys: bool = True
    sessions: bool = False

    @property
    def wanted(self) -> bool:
        return self.connection_string is not None or self.namespace is not None

    @property
    def place(self) -> str:
        found = _ENDPOINT.search(self.connection_string or "")
        return found[1] if found else self.namespace or ""

    def __repr__(self) -> str:
        return f"ServiceBusSettings({self.place})"


def service_bus_string_of(text: str) -> str | None:
    """It names an endpoint, and something that opens it."""
    return text if _ENDPOINT.search(text) and _KEY.search(text) else None


def namespace_of(text: str) -> str | None:
    name = text.removeprefix("https://").removeprefix("sb://").rstrip("/")
    return name if NAMESPACE.fullmatch(name) and "." in name else None


def subscription_of(text: str) -> str | None:
    return text if SUBSCRIPTION.fullmatch(text) else None


def pinned_lanes(text: str) -> int | None:
    return LANES if text == str(LANES) else None


def pinned_prefix(text: str) -> str | None:
    return text if text == REPLY_PREFIX else None

"""Who may attach to what: the tokens that a connection has shown, signed with the emulator's key.

In: a token as the SDK makes it of a connection string, and the name of an entity. Out: whether the token
holds, and whether one that was shown covers the entity. As on Azure a token is for one resource and all
below it, and opens nothing once its time has passed. Tokens of an identity are not understood.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable
from typing import Final
from urllib.parse import unquote_plus

SCHEME: Final = "SharedAccessSignature"
TOKENS_MAX: Final = 1_024


class AccessKey:
    """What connection strings of this emulator hold."""

    def __init__(self, name: str, value: str) -> None:
        self._name = name
        self._value = value.encode()

    def __repr__(self) -> str:
        return f"Key({self._name})"

    def grant(self, token: str, now_seconds: float) -> tuple[str, int] | str:
        """The path that the token opens, and until when; or what is wrong with it."""
        scheme, _, rest = token.partition(" ")
        parts = dict(part.partition("=")[::2] for part in rest.split("&"))
        if scheme != SCHEME or not {"sr", "sig", "se", "skn"} <= parts.keys():
            return "the token is no shared access signature"
        if unquote_plus(parts["skn"]) != self._name:
            return "there is no key of that name"
        if not (parts["se"].isascii() and parts["se"].isdecimal()) or int(parts["se"]) <= now_seconds:
            return "the token has expired"
        signed = hmac.new(self._value, f"{parts['sr']}\n{parts['se']}".encode(), hashlib.sha256).digest()
        try:
            given = base64.b64decode(unquote_plus(parts["sig"]), validate=True)
        except binascii.Error:
            return "the signature is not base64"
        if not hmac.compare_digest(signed, given):
            return "the signature does not match"
        return _path(unquote_plus(parts["sr"])), int(parts["se"])


class EmulatorAccess:
    """Of one connection."""

    def __init__(self, key: AccessKey, now_ms: Callable[[], int]) -> None:
        self._key = key
        self._now_ms = now_ms
        self._until: dict[str, int] = {}

    def show(self, token: str) -> str | None:
        """What is wrong with the token; None: it counts from now on."""
        granted = self._key.grant(token, self._now_ms() / 1000)
        if isinstance(granted, str):
            return granted
        if len(self._until) >= TOKENS_MAX:
            return f"a connection has at most {TOKENS_MAX} tokens"
        path, until_seconds = granted
        self._until[path] = until_seconds
        return None

    def opens(self, address: str) -> bool:
        now_seconds = self._now_ms() / 1000
        return any(
            until_seconds > now_seconds and (not path or f"{address}/".startswith(f"{path}/"))
            for path, until_seconds in self._until.items()
        )


def _path(resource: str) -> str:
    """Of `sb://host:port/Topic/Subscriptions/x`, as addresses are compared; empty: of all there is."""
    scheme, divider, rest = resource.partition("://")
    return (rest if divider else scheme).partition("/")[2].strip("/").lower()

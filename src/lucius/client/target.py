"""Where the API is and how to introduce oneself.

In: an address and a key, as the user wrote them. Out: an `ApiTarget`, or in plain words what is wrong with
them. No text here echoes the key, or an address that carries a password.
"""

from typing import Final
from urllib.parse import urlsplit

import msgspec

DEFAULT_URL: Final = "http://127.0.0.1:8420"
LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class ApiTarget(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    api_key: str | None = None

    @property
    def loopback(self) -> bool:
        return urlsplit(self.url).hostname in LOOPBACK


def target_of(
    url: str, api_key: str | None, *, url_name: str = "LUCIUS_URL", key_name: str = "LUCIUS_API_KEY"
) -> ApiTarget | str:
    """The target, or what is wrong with the two settings, called by the names they were given under."""
    try:
        parts = urlsplit(url.strip())
        _ = parts.port
    except ValueError:
        return f"{url_name} is not a URL."
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{url_name} must look like {DEFAULT_URL}."
    if parts.username is not None or parts.password is not None:
        return f"{url_name} must not carry a name or password; use {key_name}."
    if parts.query or parts.fragment:
        return f"{url_name} must not carry a query or a fragment."
    key = (api_key or "").strip()
    if not header_safe(key):
        return f"{key_name} holds characters that no key has."
    return ApiTarget(url=url.strip().rstrip("/"), api_key=key or None)


def header_safe(text: str) -> bool:
    return text.isascii() and (text == "" or text.isprintable())

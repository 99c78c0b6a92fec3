"""Addresses in settings: taken as they are written, or not at all."""

from collections.abc import Collection
from urllib.parse import urlsplit


def host_and_port_of(text: str) -> str | None:
    host, _, port = text.rpartition(":")
    return text if host and "/" not in host and port.isdecimal() and 0 < int(port) < 65_536 else None


def web_address_of(text: str, schemes: Collection[str] = ("http", "https")) -> str | None:
    """Without user, password or query: what is shown to others must not open a door."""
    try:
        parsed = urlsplit(text)
        sound = parsed.scheme in schemes and parsed.hostname and (parsed.port or 1) > 0
    except ValueError:
        return None
    if not sound or parsed.username or parsed.query or any(sign.isspace() for sign in text):
        return None
    return text

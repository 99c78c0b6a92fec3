"""Lists in settings: each entry is one that can ever be met, or the list is refused."""

from collections.abc import Callable
from typing import Final

from lucius.jobs.references import is_host, is_scheme

HOSTS_WANTED: Final = (
    "a list of host names with commas, such as files.example.com,[2001:db8::1]: "
    "without scheme, port, path or *"
)
SCHEMES_WANTED: Final = "a list of the names of schemes with commas, such as s3,https: without ://"


def hosts_of(text: str) -> frozenset[str] | None:
    """In the spelling in which they are compared."""
    hosts = _entries(text, is_host)
    return None if hosts is None else frozenset(host.rstrip(".") for host in hosts)


def schemes_of(text: str) -> frozenset[str] | None:
    return _entries(text, is_scheme)


def _entries(text: str, is_sound: Callable[[str], bool]) -> frozenset[str] | None:
    """In small letters; None if one is not sound."""
    entries = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
    return entries if all(map(is_sound, entries)) else None

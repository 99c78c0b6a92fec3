"""Under which names a Lucius without authentication is called.

In: what a Host or Origin header says. Out: whether it can be trusted. A web page may have its own name lead
to this machine (DNS rebinding); to its browser, Lucius is then of the page's own origin. That takes a name
which another party gives out: an address cannot be made to lead elsewhere, a name without a dot is given by
this machine or its network, and `localhost` leads nowhere but here.
"""

import re
from functools import lru_cache
from urllib.parse import urlsplit

# An address in brackets or a name, and a port.
_host = re.compile(r"(\[[0-9a-f:.]+\]|[0-9a-z._-]+)(?::\d*)?", re.IGNORECASE | re.ASCII).fullmatch
LOCALHOST = "localhost"
HOSTS_KEPT = 256


@lru_cache(HOSTS_KEPT)
def host_name(host: str) -> str | None:
    """The name or address in a Host header, as it is compared; None if it is neither."""
    found = _host(host.strip())
    return None if found is None else found[1].lower().removesuffix(".")


@lru_cache(HOSTS_KEPT)
def cannot_be_rebound(name: str) -> bool:
    """Whether no stranger can have this name lead here."""
    # No top-level domain is a number: what ends in one is an address, in whatever spelling.
    is_address = name.startswith("[") or name.rpartition(".")[2].isdecimal()
    return is_address or "." not in name or is_loopback(name)


def is_loopback(name: str) -> bool:
    if name in (LOCALHOST, "[::1]") or name.endswith(f".{LOCALHOST}"):
        return True
    first, *others = name.split(".")
    return first == "127" and len(others) == 3 and all(each.isdecimal() for each in others)


def origin_host(origin: str) -> str | None:
    """The Host header of a call to this origin itself; None for what is no web page's."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return None
    return parts.netloc if parts.scheme in ("http", "https") and parts.netloc else None

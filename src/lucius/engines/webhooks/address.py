"""Which addresses a webhook may be sent to.

In: a URL from a command, or the answer of a look-up. Out: None, or in plain words why not; the addresses that
were checked. Opens nothing. A URL is judged twice: its text when the command comes in, and text and every
address behind its name when it is called. In doubt it is refused.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lucius.jobs.references import ReferencePolicy

ADDRESSES_MAX: Final = 64
HOST_LENGTH_MAX: Final = 253

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""Asks for the addresses of a name, once; raises OSError if there are none."""

# By our own list as well as the library's, whose idea of a global address changes from version to version.
_V4_REFUSED: Final = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",
            "127.0.0.0/8",
            "168.63.129.16/32",  # looks public, and is the wire server inside every Azure network
            "169.254.0.0/16",
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.88.99.0/24",
            "192.168.0.0/16",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/4",
            "240.0.0.0/4",
        ),
    )
)
_V6_UNICAST: Final = IPv6Network("2000::/3")
_V6_REFUSED: Final = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # Teredo, ORCHID, benchmarking
            "2001:db8::/32",
            "2002::/16",  # 6to4
            "3fff::/20",
        ),
    )
)
# DNS64 answers with these on networks that only speak IPv6: the address inside counts.
_NAT64: Final = IPv6Network("64:ff9b::/96")
# The interface half of an address that tunnels to the IPv4 address in its last 32 bits.
_ISATAP: Final = frozenset({0x0000_5EFE, 0x0200_5EFE})
_LOCAL_NAMES: Final = ("localhost", "localdomain", "local", "internal", "home.arpa")


def is_public(address: IPv4Address | IPv6Address) -> bool:
    """Whether the address is one of the open internet, and carries no other inside that is not."""
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _V4_REFUSED)
    if address.scope_id is not None:
        return False
    if address in _NAT64:
        return is_public(IPv4Address(int(address) & 0xFFFF_FFFF))
    if address not in _V6_UNICAST or any(address in network for network in _V6_REFUSED):
        return False
    if (int(address) >> 32) & 0xFFFF_FFFF in _ISATAP:
        return False
    return address.is_global


class CallbackPolicy(ReferencePolicy, frozen=True, kw_only=True):
    """`hosts` is the list of hosts that may be called, None for no limit. The list does not open private
    addresses: only `private_allowed` does."""

    schemes: frozenset[str] = frozenset({"https"})
    private_allowed: bool = False

    def check(self, uri: str, tenant_norm: str = "") -> str | None:
        reason = ReferencePolicy.check(self, uri)
        if reason is not None:
            return reason
        try:
            host = callback_host(uri)
        except ValueError:
            return "the host is not a valid name"
        literal = literal_address(host)
        if literal is None:
            if not self.private_allowed and any(host == n or host.endswith(f".{n}") for n in _LOCAL_NAMES):
                return "the host is a private one, which the policy does not allow"
            return None
        if isinstance(literal, str):
            return literal
        return self.address_problem([str(literal)])

    def address_problem(self, addresses: Sequence[str]) -> str | None:
        """None if all of them may be connected to. One that may not spoils them all: a name server
        that gives a good and a bad one is not to be trusted with either."""
        if not addresses or len(addresses) > ADDRESSES_MAX:
            return "the host has no address, or too many"
        for text in addresses:
            try:
                address = ip_address(text)
            except ValueError:
                return "the look-up of the host gave something that is no address"
            if not self.private_allowed and not is_public(address):
                return "the host has a private address, which the policy does not allow"
        return None


class WebhookTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A checked way to a URL: whom to call, by which name, at which addresses."""

    host: str
    port: int
    addresses: tuple[str, ...]


class AddressRefused(Exception):
    """The URL may not be called as things are, or has no address. The text says why, without the URL."""

    def __init__(self, reason: str, *, for_good: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.for_good = for_good


async def find_target(policy: CallbackPolicy, url: str, resolve: Resolver) -> WebhookTarget:
    """Judges a URL and asks for its addresses, once. What is connected to must be one of those returned."""
    reason = policy.check(url)
    if reason is not None:
        raise AddressRefused(reason, for_good=True)
    parts, host = urlsplit(url), callback_host(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    literal = literal_address(host)
    if literal is not None:
        return WebhookTarget(host=host, port=port, addresses=(str(literal),))
    try:
        addresses = tuple(dict.fromkeys(await resolve(host, port)))
    except (OSError, UnicodeError):
        raise AddressRefused("the host's name could not be resolved", for_good=False) from None
    reason = policy.address_problem(addresses)
    if reason is not None:
        raise AddressRefused(reason, for_good=False)
    return WebhookTarget(host=host, port=port, addresses=addresses)


async def system_resolver(host: str, port: int) -> list[str]:
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP
    )
    return [str(address[0]) for *_, address in found]


def callback_host(url: str) -> str:
    """The host of a URL that the reference policy let pass, in the one spelling that is judged and called."""
    host = (urlsplit(url).hostname or "").lower().removesuffix(".")
    if not host or len(host) > HOST_LENGTH_MAX:
        raise ValueError("no host")
    return host


def literal_address(host: str) -> IPv4Address | IPv6Address | str | None:
    """The address that a host is written as; None if it is a name; a reason if it is neither.

    To the system's own look-up `2130706433`, `0x7f.1` and `0177.0.0.1` are addresses. Here a host whose last
    part is a number is an address in its one plain spelling, or nothing.
    """
    last = host.rpartition(".")[2]
    if ":" not in host and not last.isdecimal() and not _is_hex(last):
        return None
    try:
        return ip_address(host)
    except ValueError:
        return "the host is not an address in its plain form"


def _is_hex(label: str) -> bool:
    return label.startswith("0x") and all(letter in "0123456789abcdef" for letter in label[2:])

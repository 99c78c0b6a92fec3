"""Several hosts on one machine: a network namespace for each, joined by a bridge, whose links can be cut.

In: names of hosts. Out: their addresses, and a command line that runs a program there. The database and the
clients stay on this machine, at addresses of their own. Needs root and `ip`.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

_NETWORKS = count()
_DATABASE, _CLIENTS, _FIRST = 2, 1, 10


class NoHosts(Exception):
    """This machine has no network namespaces for this process."""


class ChaosHosts:
    def __init__(self) -> None:
        """Raises `NoHosts`."""
        # Short, for names of links, and another one for each process and network of it.
        self._tag = f"lu{os.getpid() % 100_000}{next(_NETWORKS)}"
        self._net = f"10.{100 + os.getpid() % 100}.{os.getpid() // 100 % 250}"
        self._numbers: dict[str, int] = {}
        try:
            _ip("link", "add", self._tag, "type", "bridge")
            for number in (_CLIENTS, _DATABASE):
                _ip("address", "add", f"{self._net}.{number}/24", "dev", self._tag)
            _ip("link", "set", self._tag, "up")
        except (OSError, subprocess.CalledProcessError) as fault:
            raise NoHosts(f"no network can be made here: {fault}") from None

    @property
    def database(self) -> str:
        """The address of the database."""
        return f"{self._net}.{_DATABASE}"

    @property
    def network(self) -> str:
        return f"{self._net}.0/24"

    def address(self, host: str) -> str:
        return f"{self._net}.{self._number(host)}"

    def within(self, host: str) -> Sequence[str]:
        """What goes before a command line that is to run there."""
        return ("ip", "netns", "exec", self._space(self._number(host)))

    def names(self) -> list[str]:
        return sorted(self._numbers)

    def cut_off(self, host: str) -> None:
        """From all others, without a word to either side."""
        _ip("link", "set", f"{self._tag}v{self._number(host)}", "down")

    def join(self, host: str) -> None:
        _ip("link", "set", f"{self._tag}v{self._number(host)}", "up")

    def cut_off_from_database(self, host: str) -> None:
        self._route(host, "add")

    def join_database(self, host: str) -> None:
        self._route(host, "del")

    def remove(self) -> None:
        for number in self._numbers.values():
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", self._space(number))
        with suppress(subprocess.CalledProcessError):
            _ip("link", "delete", self._tag)

    def _route(self, host: str, change: str) -> None:
        _ip("-n", self._space(self._number(host)), "route", change, "blackhole", f"{self.database}/32")

    def _number(self, host: str) -> int:
        if host not in self._numbers:
            self._numbers[host] = _FIRST + len(self._numbers)
            self._make(self._numbers[host])
        return self._numbers[host]

    def _make(self, number: int) -> None:
        space, here, there = self._space(number), f"{self._tag}v{number}", f"{self._tag}w{number}"
        _ip("netns", "add", space)
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", space)
        _ip("link", "set", here, "master", self._tag, "up")
        _ip("-n", space, "address", "add", f"{self._net}.{number}/24", "dev", there)
        for link in (there, "lo"):
            _ip("-n", space, "link", "set", link, "up")

    def _space(self, number: int) -> str:
        return f"{self._tag}-{number}"


def hosts_possible() -> bool:
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    try:
        hosts = ChaosHosts()
    except NoHosts:
        return False
    try:
        hosts.address("trial")
    except subprocess.CalledProcessError:
        return False
    finally:
        hosts.remove()
    return True


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)  # noqa: S603, S607 - our own arguments

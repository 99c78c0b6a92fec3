"""Which tables of Azure the ledger is kept in, where that is not a file of this machine."""

from typing import Final
from urllib.parse import urlsplit

import msgspec

from lucius.ledger.azure_tables_names import check_prefix

PREFIX: Final = "lucius"
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")


class TablesSettings(msgspec.Struct, frozen=True, kw_only=True):
    """By a connection string, or by the account's address and an identity. Neither: a file."""

    connection_string: str | None = None
    account_url: str | None = None
    prefix: str = PREFIX
    """What all our tables begin with: several installations may share an account."""
    own: bool = False
    """Brought along by this process: nobody else writes there."""

    @property
    def wanted(self) -> bool:
        return self.connection_string is not None or self.account_url is not None

    @property
    def place(self) -> str:
        """Without a key."""
        parts = _parts(self.connection_string or "")
        return parts.get("TableEndpoint") or self.account_url or parts.get("AccountName") or "the emulator"

    def __repr__(self) -> str:
        return f"TablesSettings({self.place if self.wanted else 'no'})"


def tables_of(text: str) -> TablesSettings | None:
    """A connection string as the portal shows it, or the address of an account."""
    if _is_account(text):
        return TablesSettings(account_url=text.rstrip("/"))
    parts = _parts(text)
    keyed = parts.get("AccountName") and parts.get("AccountKey")
    signed = parts.get("TableEndpoint") and parts.get("SharedAccessSignature")
    local = parts.get("UseDevelopmentStorage", "").lower() == "true"
    return TablesSettings(connection_string=text) if keyed or signed or local else None


def prefix_of(text: str) -> str | None:
    try:
        check_prefix(text)
    except ValueError:
        return None
    return text


def _is_account(text: str) -> bool:
    """Over plain HTTP a token would be read by everybody on the way: only on this machine."""
    try:
        parsed = urlsplit(text)
        safe = parsed.scheme == "https" or (parsed.scheme == "http" and parsed.hostname in LOOPBACK)
        return safe and bool(parsed.hostname) and not parsed.username and not parsed.query
    except ValueError:
        return False


def _parts(text: str) -> dict[str, str]:
    return dict(part.partition("=")[::2] for part in text.split(";"))

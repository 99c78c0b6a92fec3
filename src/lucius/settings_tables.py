"""Which tables of Azure the ledger is kept in, where that is not a file of this machine."""

from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lucius.ledger.azure_tables.names import AZURE_TABLE_LENGTH_MAX, check_prefix, table_to_azure
from lucius.ledger.limits import TABLE_LENGTH_MAX, check_table
from lucius.ledger.names import Tables

PREFIX: Final = "lucius"
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
# The tables that can be named, by their member of `Tables`.
VARIABLES: Final[Mapping[str, str]] = {
    "ledger": "LUCIUS_LEDGER_TABLE",
    "jobs": "LUCIUS_JOBS_TABLE",
    "steps": "LUCIUS_STEPS_TABLE",
    "idempotency": "LUCIUS_IDEMPOTENCY_TABLE",
    "job_index": "LUCIUS_JOB_INDEX_TABLE",
    "inflight": "LUCIUS_INFLIGHT_TABLE",
}


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


def tables_fault(tables: Tables, account: TablesSettings) -> str | None:
    """What is wrong with the names of tables, which may come from variables; None: nothing."""
    names, usual = msgspec.structs.asdict(tables), msgspec.structs.asdict(Tables())
    for member, variable in VARIABLES.items():
        if (wanted := _wanted(names[member], account)) is not None:
            return f"{variable} must be {wanted}, such as {usual[member]}"
    taken: dict[str, str] = {}
    for member, name in names.items():
        # Azure tells no capitals from small letters, and neither do people.
        other = taken.setdefault(name.lower(), member)
        if other != member:
            return _one_name(other, member, name, usual)
    return None


def _wanted(name: str, account: TablesSettings) -> str | None:
    try:
        check_table(name)
    except ValueError:
        return (
            f"up to {TABLE_LENGTH_MAX} letters, digits, - and _, beginning with a letter (not with sqlite_)"
        )
    try:
        if account.wanted:
            table_to_azure(account.prefix, name)
    except ValueError:
        return (
            f"a shorter name: Azure takes {AZURE_TABLE_LENGTH_MAX} characters, in which LUCIUS_TABLE_PREFIX "
            "comes first and z, -, _ and capital letters count twice"
        )
    return None


def _one_name(one: str, other: str, name: str, usual: Mapping[str, str]) -> str:
    """At least one of the two comes from a variable: the usual names are all different."""
    named = {VARIABLES[member]: usual[member] for member in (one, other) if member in VARIABLES}
    examples = " and ".join(f"{variable}={example}" for variable, example in named.items())
    if len(named) == 1:
        return f"{next(iter(named))} must not be {name}, a table that Lucius has already; usual is {examples}"
    return f"{' and '.join(named)} must not both be {name}: give each its own, such as {examples}"


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

"""Who may call the API: keys in a file, known by their hashes.

In: a JSON list of `{"name", "sha256", "workspaces", "roles"}`, `["*"]` for all workspaces; roles are
`submit`, `read` and `control`. Out: the principal that a presented key stands for. Without a file every
caller may do everything, which is for loopback alone.
"""

import hashlib
import hmac
from pathlib import Path
from typing import Final

import msgspec

from lucius.lifebook.settings import BadVariable

ROLES: Final = ("submit", "read", "control")
ALL: Final = "*"


class ApiCaller(msgspec.Struct, frozen=True):
    name: str
    workspaces: frozenset[str] | None
    """None: all of them."""
    roles: frozenset[str]

    def sees(self, workspace_id: str) -> bool:
        return self.workspaces is None or workspace_id in self.workspaces


class _KeyEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    sha256: str
    workspaces: tuple[str, ...]
    roles: tuple[str, ...]


EVERY_CALLER: Final = ApiCaller("every caller", None, frozenset(ROLES))


class CallerKeys:
    def __init__(self, kept: tuple[_KeyEntry, ...]) -> None:
        self._kept = kept

    def principal(self, key: str) -> ApiCaller | None:
        presented = key_hash(key)
        found = None
        for each in self._kept:  # all of them, however early one fits
            if hmac.compare_digest(each.sha256, presented):
                found = each
        if found is None:
            return None
        workspaces = None if ALL in found.workspaces else frozenset(found.workspaces)
        return ApiCaller(found.name, workspaces, frozenset(found.roles))


def read_keys(path: str | None) -> CallerKeys | None:
    if path is None:
        return None
    try:
        kept = msgspec.json.decode(Path(path).read_bytes(), type=tuple[_KeyEntry, ...])
    except (OSError, msgspec.MsgspecError) as fault:
        raise BadVariable(f"LIFEBOOK_API_KEYS: {path} is no file of keys: {fault}") from fault
    for each in kept:
        if unknown := sorted(set(each.roles) - set(ROLES)):
            raise BadVariable(f"LIFEBOOK_API_KEYS: {each.name} has the unknown role {unknown[0]!r}.")
    return CallerKeys(kept)


def key_hash(key: str) -> str:
    """Keys are 256 bits of chance, so neither salt nor a slow hash would add anything."""
    return hashlib.sha256(key.encode()).hexdigest()


def key_entry(name: str, key: str, *, workspaces: list[str], roles: list[str]) -> bytes:
    """What to put into the file for a key."""
    kept = _KeyEntry(name=name, sha256=key_hash(key), workspaces=tuple(workspaces), roles=tuple(roles))
    return msgspec.json.encode(kept)

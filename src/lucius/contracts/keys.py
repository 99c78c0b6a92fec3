"""API keys as they cross a wire: the wish for one, the key itself, and what may be shown of it afterwards.

In: documents, and the text that a caller presents. Out: checked values, or a refusal that names every field
at fault. Knows roles and the form of a key; knows nothing of stores, chance or HTTP. `None` for tenants or
services means all of them; outside that is written `*`.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from lucius.contracts.envelope import TENANT_ID_LENGTH_MAX, text_problem
from lucius.contracts.schemas import is_service_name
from lucius.contracts.times import rfc3339, rfc3339_or_none
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.routing import normalise

ALL: Final = "*"
KEY_NAME_LENGTH_MAX: Final = 128
KEY_TENANTS_MAX: Final = 200
KEY_SERVICES_MAX: Final = 100
KEY_PREFIX: Final = "lk_"
KEY_ID_BYTES: Final = 8
KEY_SECRET_BYTES: Final = 32

_MEMBERS: Final = ("name", "tenants", "roles", "services")
_match_key = re.compile(r"lk_([0-9a-f]{16})_([0-9a-f]{64})").fullmatch
_match_key_id = re.compile(r"[0-9a-f]{16}").fullmatch


class Role(StrEnum):
    SUBMIT = "submit"
    READ = "read"
    CONTROL = "control"
    WORK = "work"
    ADMIN = "admin"


ROLES: Final = frozenset(Role)  # also finds a role by its text, which the class itself does only from 3.12 on


class KeyRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A request for a new key. Tenants are in their normalised form."""

    name: str
    tenants: frozenset[str] | None
    roles: frozenset[Role]
    services: frozenset[str] | None


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key as it is kept. Of its secret there is only the hash."""

    key_id: str
    name: str
    secret_sha256: str
    tenants: tuple[str, ...] | None
    roles: tuple[str, ...]
    services: tuple[str, ...] | None
    created_at_ms: int
    revoked_at_ms: int | None = None


def key_text(key_id: str, secret: str) -> str:
    return f"{KEY_PREFIX}{key_id}_{secret}"


def split_key(text: str) -> tuple[str, str] | None:
    """The id and the secret of a key; None for anything that is not one."""
    found = _match_key(text)
    return None if found is None else (found[1], found[2])


def is_key_id(text: str) -> bool:
    return _match_key_id(text) is not None


def secret_hash(secret: str) -> str:
    """The secret is 256 bits of chance, so neither salt nor a slow hash would add anything."""
    return hashlib.sha256(secret.encode()).hexdigest()


def key_view(key: StoredKey) -> dict[str, Json]:
    """What may be shown of a key."""
    return {
        "keyId": key.key_id,
        "name": key.name,
        "tenants": _shown(key.tenants),
        "roles": list(key.roles),
        "services": _shown(key.services),
        "created_at": rfc3339(key.created_at_ms),
        "revoked_at": rfc3339_or_none(key.revoked_at_ms),
    }


def _shown(names: Sequence[str] | None) -> list[Json]:
    return [ALL] if names is None else list(names)


def names_of(values: Iterable[str]) -> frozenset[str] | None:
    """Names, or None for all of them where one is `*`."""
    names = frozenset(values)
    return None if ALL in names else names


def parse_key_wish(doc: Json) -> KeyRequest | Refused:
    if not isinstance(doc, dict):
        return _refused([FieldError("", "must be a JSON object")])
    found = [FieldError(f"/{name}", "is not known here") for name in doc if name not in _MEMBERS]
    name = _name(doc.get("name"), found)
    tenants = _tenants(doc.get("tenants"), found)
    roles = _roles(doc.get("roles"), found)
    services = _services(doc.get("services"), roles, found)
    if Role.WORK in roles and tenants is not None:
        message = f"must be {ALL} with the role work, which takes directives of every tenant"
        found.append(FieldError("/tenants", message))
    if found:
        return _refused(found)
    return KeyRequest(name=name, tenants=tenants, roles=roles, services=services)


def _name(value: Json, found: list[FieldError]) -> str:
    text = value.strip() if isinstance(value, str) else value
    fault = "is required" if text is None else text_problem(text, KEY_NAME_LENGTH_MAX)
    if fault is None and not text:
        fault = "must not be blank"
    if fault is not None:
        found.append(FieldError("/name", fault))
    return str(text)


def _refused(found: list[FieldError]) -> Refused:
    first = f"{found[0].pointer or 'the body'} {found[0].message}"
    return Refused(Code.INVALID_REQUEST, f"the key is not well formed: {first}", tuple(found))


def _texts(value: Json, pointer: str, most: int, found: list[FieldError]) -> list[str]:
    """The strings of an array; [] where there are none or something is wrong with it."""
    if value is None:
        found.append(FieldError(pointer, "is required"))
    elif not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        found.append(FieldError(pointer, "must be an array of strings"))
    elif not 1 <= len(value) <= most:
        found.append(FieldError(pointer, f"must have 1 to {most} items"))
    elif ALL in value and len(value) > 1:
        found.append(FieldError(pointer, f"{ALL} means all and stands alone"))
    else:
        return value
    return []


def _tenants(value: Json, found: list[FieldError]) -> frozenset[str] | None:
    names = [normalise(name) for name in _texts(value, "/tenants", KEY_TENANTS_MAX, found)]
    for name in names:
        fault = text_problem(name, TENANT_ID_LENGTH_MAX) or (None if name else "must not be blank")
        if fault is not None:
            found.append(FieldError("/tenants", fault))
            break
    return names_of(names)


def _roles(value: Json, found: list[FieldError]) -> frozenset[Role]:
    texts = _texts(value, "/roles", len(Role), found)
    if not all(text in ROLES for text in texts):
        found.append(FieldError("/roles", f"must be of {', '.join(Role)}"))
        return frozenset()
    return frozenset(Role(text) for text in texts)


def _services(value: Json, roles: frozenset[Role], found: list[FieldError]) -> frozenset[str] | None:
    if Role.WORK not in roles:
        if value:
            found.append(FieldError("/services", "are only for the role work"))
        return frozenset()
    if not value:
        message = f"is needed with the role work: the services whose directives may be leased ({ALL} for all)"
        found.append(FieldError("/services", message))
        return frozenset()
    names = _texts(value, "/services", KEY_SERVICES_MAX, found)
    if not all(name == ALL or is_service_name(name) for name in names):
        found.append(FieldError("/services", "must be names of services"))
    return names_of(names)

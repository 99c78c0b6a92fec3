"""Who is calling, and what they may do."""

from enum import StrEnum
from typing import Protocol

import msgspec
from starlette.requests import Request

from lucius.core.refusal import Refused


class Role(StrEnum):
    SUBMIT = "submit"
    READ = "read"
    CONTROL = "control"
    WORK = "work"
    ADMIN = "admin"


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """`tenants` and `services`: None means all of them. Tenants are in their normalised form."""

    name: str
    roles: frozenset[Role]
    tenants: frozenset[str] | None = None
    services: frozenset[str] | None = None

    def sees(self, tenant_norm: str) -> bool:
        return self.tenants is None or tenant_norm in self.tenants


class Gate(Protocol):
    async def admit(self, request: Request, role: Role) -> Principal | Refused:
        """The caller, if they may do what the role allows; else why not."""
        ...


EVERYBODY = Principal(name="anybody on this machine", roles=frozenset(Role))


class OpenGate:
    """Lets everybody in: for loopback addresses only."""

    async def admit(self, request: Request, role: Role) -> Principal | Refused:
        return EVERYBODY

"""The registry as other packages see it."""

from collections.abc import Mapping
from typing import Protocol

from lucius.core.flow import ServiceLimits
from lucius.core.model import ProtocolSpec


class Registry(Protocol):
    def resolve(self, request_type: str) -> ProtocolSpec | None:
        """The protocol of a request type, compared exactly after trimming."""
        ...

    def find(self, protocol_id: str) -> ProtocolSpec | None: ...

    def all(self) -> tuple[ProtocolSpec, ...]:
        """Every protocol that some request type leads to, by id."""
        ...

    def request_types(self) -> tuple[str, ...]:
        """Every request type that resolves, sorted."""
        ...

    def problems(self) -> tuple[str, ...]:
        """What is wrong with the sources now, one line each; empty when all is well."""
        ...

    def services(self) -> Mapping[str, ServiceLimits]:
        """What services may have; `*` stands for those that are not named. The same object while nothing
        changed."""
        ...

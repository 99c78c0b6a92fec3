"""A fixed set of protocols, laid over another.

In: protocols in order of precedence and the set below them. Out: lookups, and the claims that were lost.
"""

from collections.abc import Sequence

import msgspec

from lucius.core.model import ProtocolSpec


class Catalogue:
    """Protocols by id and by request type. Immutable once built; the first claim to a name wins."""

    def __init__(
        self, protocols: Sequence[tuple[str, ProtocolSpec]], below: Sequence[ProtocolSpec] = ()
    ) -> None:
        """`protocols` are (source, protocol); a clash among them is a problem. Giving way to them is not: a
        protocol `below` with the same id is replaced, and of the others only the names not taken are left."""
        self._by_id: dict[str, ProtocolSpec] = {}
        self._by_type: dict[str, ProtocolSpec] = {}
        self._sources: dict[str, str] = {}
        self._problems: list[str] = []
        for source, protocol in protocols:
            self._add(source, protocol)
        for protocol in below:
            if protocol.protocol_id not in self._by_id:
                self._by_id[protocol.protocol_id] = protocol
                self._claim(protocol, [name for name in protocol.request_types if name not in self._by_type])
        served = {protocol.protocol_id: protocol for protocol in self._by_type.values()}
        self._all = tuple(served[protocol_id] for protocol_id in sorted(served))
        self._types = tuple(sorted(self._by_type))

    def _add(self, source: str, protocol: ProtocolSpec) -> None:
        if protocol.protocol_id in self._by_id:
            first = self._sources[f"id {protocol.protocol_id}"]
            self._problems.append(
                f"{source}: /protocol_id: {protocol.protocol_id} is taken by {first}; this one is left out"
            )
            return
        self._by_id[protocol.protocol_id] = protocol
        self._sources[f"id {protocol.protocol_id}"] = source
        free = []
        for name in protocol.request_types:
            if name in self._by_type:
                first = self._sources[f"type {name}"]
                self._problems.append(
                    f"{source}: /request_types: {name} is taken by {first}, which serves it"
                )
            else:
                free.append(name)
                self._sources[f"type {name}"] = source
        self._claim(protocol, free)

    def _claim(self, protocol: ProtocolSpec, names: list[str]) -> None:
        if len(names) < len(protocol.request_types):
            protocol = msgspec.structs.replace(protocol, request_types=tuple(names))
            self._by_id[protocol.protocol_id] = protocol
        for name in names:
            self._by_type[name] = protocol

    def resolve(self, request_type: str) -> ProtocolSpec | None:
        return self._by_type.get(request_type.strip())

    def find(self, protocol_id: str) -> ProtocolSpec | None:
        return self._by_id.get(protocol_id)

    def all(self) -> tuple[ProtocolSpec, ...]:
        return self._all

    def request_types(self) -> tuple[str, ...]:
        return self._types

    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)

"""A fixed set of protocols, laid over another.

In: protocols in order of precedence and the set below them. Out: lookups, and the claims that were lost.
"""

from collections.abc import Mapping, Sequence

import msgspec

from lucius.core.flow import ServiceLimits
from lucius.core.model import ProtocolSpec


class Catalogue:
    """Protocols by id and by request type. Immutable once built."""

    def __init__(
        self,
        protocols: Sequence[tuple[str, ProtocolSpec]],
        below: Sequence[ProtocolSpec] = (),
        before: "Catalogue | None" = None,
    ) -> None:
        """`protocols` are (source, protocol); a clash among them is a problem, and the protocol that had the
        name in `before` keeps it, else the first gets it. Giving way to them is no problem: a protocol
        `below` with the same id is replaced, and of the others only the names not taken are left."""
        self._by_id: dict[str, ProtocolSpec] = {}
        self._by_type: dict[str, ProtocolSpec] = {}
        self._problems: list[str] = []
        ids = [(protocol.protocol_id, source) for source, protocol in protocols]
        self._id_holders: dict[str, str] = _holders(ids, {} if before is None else before._id_holders)
        types = [
            (name, source)
            for source, protocol in protocols
            if self._id_holders[protocol.protocol_id] == source
            for name in protocol.request_types
        ]
        self._type_holders: dict[str, str] = _holders(types, {} if before is None else before._type_holders)
        for source, protocol in protocols:
            self._add(source, protocol)
        for protocol in below:
            if protocol.protocol_id not in self._by_id:
                self._by_id[protocol.protocol_id] = protocol
                self._claim(protocol, [name for name in protocol.request_types if name not in self._by_type])
        shown = {protocol.protocol_id: protocol for protocol in self._by_type.values()}
        self._all = tuple(shown[protocol_id] for protocol_id in sorted(shown))
        self._types = tuple(sorted(self._by_type))

    def _add(self, source: str, protocol: ProtocolSpec) -> None:
        holder = self._id_holders[protocol.protocol_id]
        if holder != source:
            self._problems.append(
                f"{source}: /protocol_id: {protocol.protocol_id} is taken by {holder}; this one is left out"
            )
            return
        self._by_id[protocol.protocol_id] = protocol
        free = []
        for name in protocol.request_types:
            if (holder := self._type_holders[name]) == source:
                free.append(name)
            else:
                text = f"{source}: /request_types: {name} is taken by {holder}, which serves it"
                self._problems.append(text)
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

    def services(self) -> Mapping[str, ServiceLimits]:
        return {}

    def problems(self) -> tuple[str, ...]:
        return tuple(self._problems)


def _holders(claims: Sequence[tuple[str, str]], before: Mapping[str, str]) -> dict[str, str]:
    """Who has each name, of all who claim it."""
    found: dict[str, str] = {}
    for name, source in claims:
        if name not in found or before.get(name) == source:
            found[name] = source
    return found

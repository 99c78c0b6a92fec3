"""Which lane a job's directives take: pinned for ever.

In: a tenant, a document, a mode and where the mode came from. Out: a `Routing`, chosen once and stored on
every step. The key of a BURST job has no delimiter between tenant and document: that is part of the contract,
so two different pairs may share a key.
"""

from typing import Final
from zlib import crc32

from lucius.core.model import Routing
from lucius.core.states import Mode

LANES: Final = 16

SOURCE_REQUEST: Final = "REQUEST"
SOURCE_TENANT: Final = "TENANT_CONFIG"
SOURCE_GLOBAL: Final = "GLOBAL_CONFIG"

_MODES: Final = {"DEFAULT": Mode.DEFAULT, "SAFE": Mode.DEFAULT, "BURST": Mode.BURST}


def normalise(text: str) -> str:
    """The one spelling under which a tenant or a document is known."""
    return text.strip().lower()


def parse_mode(text: str) -> Mode | None:
    """`SAFE` is an alias of `DEFAULT`; anything unknown is None."""
    return _MODES.get(text)


def lane_of(routing_key: str) -> int:
    return crc32(routing_key.encode()) % LANES


def topic(lane: int) -> str:
    return f"global-bus-p{lane}"


def reply_topic(lane: int) -> str:
    return f"global-bus-replies-p{lane}"


def resolve_mode(
    *, requested: Mode | None, tenant_mode: Mode | None, global_mode: Mode
) -> tuple[Mode, str, str]:
    """The mode, who decided it, and a short code that says why: request over tenant over global."""
    if requested is not None:
        return requested, SOURCE_REQUEST, "MODE_IN_REQUEST"
    if tenant_mode is not None:
        return tenant_mode, SOURCE_TENANT, "TENANT_DEFAULT"
    return global_mode, SOURCE_GLOBAL, "GLOBAL_DEFAULT"


def route(
    *, tenant_id: str, doc_id: str | None, mode: Mode, decision_source: str, decision_reason: str
) -> Routing:
    """The route of a job. A BURST job without a document was refused when it was submitted, so here it is a
    fault."""
    key = normalise(tenant_id)
    if mode is Mode.BURST:
        doc_norm = normalise(doc_id) if doc_id is not None else ""
        if not doc_norm:
            raise ValueError("BURST needs a doc_id")
        key += doc_norm
    return Routing(
        lane=lane_of(key),
        routing_key_used=key,
        resolved_mode=mode,
        decision_source=decision_source,
        decision_reason=decision_reason,
    )

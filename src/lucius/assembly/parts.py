"""What a process is for, and what it may share with others."""

from enum import Enum

from lucius.bus.port import Bus
from lucius.ledger.memory import MemoryStore
from lucius.ledger.store import TableStore


class Part(Enum):
    """`API` serves requests, `RECONCILER` sees to what time and the outbox ask for, `ALL` does both.

    On the temporal engine the `ORCHESTRATOR` serves requests, and the `INVOKER` sees to all the rest, that
    of jobs of the outbox engine too."""

    ALL = "all"
    API = "api"
    RECONCILER = "reconciler"
    ORCHESTRATOR = "orchestrator"
    INVOKER = "invoker"

    @property
    def reconciles(self) -> bool:
        return self not in (Part.API, Part.ORCHESTRATOR)

    @property
    def siblings(self) -> str:
        """Those who share the lanes with it: a reconciler leaves the rows of temporal jobs alone, so an
        invoker must not leave it any lanes."""
        return "invokers" if self is Part.INVOKER else "reconcilers"


class NotShareable(Exception):
    """A store or bus that lives in one process cannot be that of several."""


def check_shareable(store: TableStore, bus: Bus | None) -> None:
    if isinstance(store, MemoryStore):
        raise NotShareable("a ledger in memory lives in one process, and others would not see its jobs")
    if bus is not None and not bus.shared:
        raise NotShareable("a bus in memory lives in one process, and others would not get its messages")

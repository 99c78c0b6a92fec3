"""Handing out in the same commit.

Where a worker waits at this process and no older directive waits for it, the commit that begins an attempt
may dispatch it, too: one commit instead of two, and the directive still leaves only after the commit. The
engine knows which workers wait. The writer that is about to commit asks it for a waiter, and then gives it
the record, or gives the waiter back.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from lucius.core.decide import decide, is_dispatchable
from lucius.core.draft import Decision
from lucius.core.inputs import HandOut
from lucius.core.model import JobRecord, Outbox


class ReservedWaiter(Protocol):
    @property
    def picked_up(self) -> bool:
        """The service runs in this process: taking is its ACK."""
        ...

    def deliver(self, record: JobRecord) -> None: ...

    def release(self) -> None: ...


ReserveWaiter = Callable[[Outbox], ReservedWaiter | None]


def no_waiter(outbox: Outbox) -> ReservedWaiter | None:
    return None


class DirectDispatch:
    """Offers a waiting worker to a commit. Set once the engine is there; until then none is offered."""

    def __init__(self) -> None:
        self.find: ReserveWaiter = no_waiter

    def reach(
        self, before: JobRecord | None, decision: Decision, now_ms: int
    ) -> tuple[Decision, ReservedWaiter | None]:
        """The decision with the dispatch of the attempt it begins, if a waiter is there for it."""
        after, outbox = decision.record, decision.record.outbox
        if outbox is None or not is_dispatchable(after):
            return decision, None
        if before is not None and before.outbox is not None and before.outbox.lease_id == outbox.lease_id:
            return decision, None
        waiter = self.find(outbox)
        if waiter is None:
            return decision, None
        given = HandOut(
            step_id=outbox.step_id,
            attempt_no=outbox.attempt_no,
            lease_id=outbox.lease_id,
            picked_up=waiter.picked_up,
        )
        more = decide(after, given, now_ms=now_ms, lease_id="")
        if not isinstance(more, Decision):
            waiter.release()
            return decision, None
        events = (*decision.events, *more.events)
        return msgspec.structs.replace(decision, record=more.record, events=events), waiter

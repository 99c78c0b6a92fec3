"""Dispatch in the same commit that begins an attempt.

Where a worker waits at this process and no older row waits for a worker, the commit that begins an attempt
can hand it out as well: one commit instead of two. The directive still leaves only after that commit. The
dispatcher knows its waiters; the job writer reserves one before it commits, and then gives it the record or
releases it.
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


def with_hand_out(
    reserve: ReserveWaiter, before: JobRecord | None, decision: Decision, now_ms: int
) -> tuple[Decision, ReservedWaiter | None]:
    """The decision, extended by the hand-out of the attempt it begins if a waiter could be reserved."""
    after, outbox = decision.record, decision.record.outbox
    if outbox is None or not is_dispatchable(after):
        return decision, None
    if before is not None and before.outbox is not None and before.outbox.lease_id == outbox.lease_id:
        return decision, None
    waiter = reserve(outbox)
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

"""Handing out in the same commit.

Where somebody in reach waits for work and nothing else waits for them, the commit that begins an attempt may
as well hand it out: one commit instead of two, and the directive still leaves only after it. The engine knows
who waits; whoever is about to commit asks it for a hand, and gives the hand the record, or gives it back.
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
    """Who stretches out a hand. Set once the engine is there; until then nobody does."""

    def __init__(self) -> None:
        self.find: ReserveWaiter = no_waiter

    def reach(
        self, before: JobRecord | None, decision: Decision, now_ms: int
    ) -> tuple[Decision, ReservedWaiter | None]:
        """The decision with the hand-out of the attempt it begins, if a hand is there for it."""
        after, outbox = decision.record, decision.record.outbox
        if outbox is None or not is_dispatchable(after):
            return decision, None
        if before is not None and before.outbox is not None and before.outbox.lease_id == outbox.lease_id:
            return decision, None
        hand = self.find(outbox)
        if hand is None:
            return decision, None
        given = HandOut(
            step_id=outbox.step_id,
            attempt_no=outbox.attempt_no,
            lease_id=outbox.lease_id,
            picked_up=hand.picked_up,
        )
        more = decide(after, given, now_ms=now_ms, lease_id="")
        if not isinstance(more, Decision):
            hand.release()
            return decision, None
        events = (*decision.events, *more.events)
        return msgspec.structs.replace(decision, record=more.record, events=events), hand

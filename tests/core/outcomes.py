"""Walks whose trail is kept, so that they can be explained."""

from collections.abc import Sequence
from typing import Any

from tests.core.machine import SECOND_MS, Walk, born

from lucius.core.draft import Decision
from lucius.core.explain import Explanation, explain
from lucius.core.inputs import Cancel, Input, Pause
from lucius.core.model import Event, JobRecord, StepPolicy


class ExplainedWalk(Walk):
    """A walk whose trail is kept."""

    def __init__(self, record: JobRecord) -> None:
        super().__init__(record)
        self.events: list[Event] = []

    def give(self, given: Input) -> Decision:
        decision = super().give(given)
        self.events += decision.events
        return decision

    def explained(self, **changes: Any) -> Explanation:
        return explained(self.record, self.at_ms, self.events, **changes)


def explained(record: JobRecord, now_ms: int, events: Sequence[Event] = (), **changes: Any) -> Explanation:
    """What is said of a job whose service nobody has seen, of a tenant far from its limit."""
    known: dict[str, Any] = {
        "service_asked_at_ms": None,
        "over_bus": False,
        "tenant_in_flight": 1,
        "tenant_max": 1_000,
    }
    return explain(record, events, now_ms=now_ms, **(known | changes))


def begun(count: int = 1, policy: StepPolicy | None = None) -> ExplainedWalk:
    return ExplainedWalk(born(count, policy))


def sent(count: int = 1, policy: StepPolicy | None = None) -> ExplainedWalk:
    walk = begun(count, policy).wait(7 * SECOND_MS)
    assert isinstance(walk, ExplainedWalk)
    walk.hand_out()
    return walk


def unpublished() -> ExplainedWalk:
    walk = begun()
    walk.publish_failed()
    return walk


def pausing() -> ExplainedWalk:
    walk = sent()
    walk.give(Pause())
    return walk


def cancelling() -> ExplainedWalk:
    walk = sent()
    walk.give(Cancel())
    return walk

"""Walks whose trail is kept, so that they can be explained."""

from typing import Any

from tests.core.machine import SECOND_MS, Walk, born

from lucius.core.draft import Decision
from lucius.core.explain import Explanation, explain
from lucius.core.inputs import Input
from lucius.core.model import Event, JobRecord, StepPolicy


class Told(Walk):
    """A walk whose trail is kept."""

    def __init__(self, record: JobRecord) -> None:
        super().__init__(record)
        self.events: list[Event] = []

    def give(self, given: Input) -> Decision:
        decision = super().give(given)
        self.events += decision.events
        return decision

    def explained(self, **changes: Any) -> Explanation:
        known: dict[str, Any] = {
            "now_ms": self.at_ms,
            "service_asked_at_ms": None,
            "over_bus": False,
            "tenant_in_flight": 1,
            "tenant_max": 1_000,
        }
        return explain(self.record, self.events, **(known | changes))


def begun(count: int = 1, policy: StepPolicy | None = None) -> Told:
    return Told(born(count, policy))


def sent(count: int = 1, policy: StepPolicy | None = None) -> Told:
    walk = begun(count, policy).wait(7 * SECOND_MS)
    assert isinstance(walk, Told)
    walk.hand_out()
    return walk

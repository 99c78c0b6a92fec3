"""Sharing one total: nobody gets it all, and those who come later find something."""

import pytest

from lucius.api.memory import UNCOUNTED_BYTES, ConnectionMemory, MemoryBudget
from lucius.api.shares import CallSlots, within_share
from lucius.core.refusal import Code, Refused

MIB = 1024 * 1024


def fill(places: CallSlots, tenant: str | None, caller: str | None) -> tuple[int, Refused]:
    """Takes places until one is refused: how many there were, and why there was no more."""
    count = 0
    while (refused := places.refusal(tenant, caller)) is None:
        places.enter(tenant, caller)
        count += 1
    return count, refused


@pytest.mark.parametrize("total", [1, 2, 3, 10, 1_000])
def test_one_holder_gets_half_and_the_next_ones_always_something(total: int) -> None:
    places = CallSlots(total)
    taken = [fill(places, f"tenant {number}", None)[0] for number in range(3)]
    assert taken[0] == total // 2 + 1
    assert all(taken[number] > 0 for number in range(3) if sum(taken[:number]) < total)
    assert sum(taken) <= total


def test_tenants_and_callers_are_refused_for_different_reasons() -> None:
    places = CallSlots(100)
    count, refused = fill(places, "acme", "key 1")
    assert (count, refused.code) == (51, Code.TENANT_LIMIT)
    count, refused = fill(places, "globex", "key 1")
    assert (count, refused.code) == (0, Code.SYSTEM_SATURATED)
    assert refused.retry_after_seconds
    assert places.refusal("globex", "key 2") is None
    assert places.refusal("globex", None) is None, "who cannot be told from others has no share"
    count, _ = fill(places, None, None)
    assert (count, places.taken) == (49, 100)
    for _ in range(51):
        places.leave("acme", "key 1")
    assert places.taken == 49
    assert places.refusal("acme", "key 1") is None


def test_a_holder_that_has_more_than_is_free_waits() -> None:
    assert within_share(0, 10, 10)
    assert within_share(50, 50, 50)
    assert not within_share(0, 11, 10)
    assert not within_share(51, 1, 50)


class Connections:
    """Of one budget. `cut`: those that were, in their order."""

    def __init__(self, bytes_max: int) -> None:
        self.budget = MemoryBudget(bytes_max)
        self.cut: list[str] = []

    def open(self, name: str, caller: str) -> ConnectionMemory:
        memory = ConnectionMemory(self.budget, "10.0.0.1", lambda: self.cut.append(name), lambda: None)
        memory.belongs_to(caller)
        return memory


def test_a_caller_takes_half_of_the_budget_over_however_many_connections() -> None:
    connections = Connections(64 * MIB)
    taken = [connections.open(str(number), "greedy").take(MIB) for number in range(100)]
    assert taken.count(True) == 33
    other = connections.open("other", "other")
    assert other.take(16 * MIB)
    assert not other.take(16 * MIB)
    other.give_back(16 * MIB)
    assert connections.budget.bytes_held == 33 * MIB


def test_what_exceeds_the_budget_costs_the_largest_holder_its_largest_connection() -> None:
    connections = Connections(10 * MIB)
    small, large = connections.open("small", "greedy"), connections.open("large", "greedy")
    other = connections.open("other", "other")
    small.on_wire(2 * MIB)
    large.on_wire(3 * MIB)
    other.on_wire(4 * MIB)
    assert connections.cut == []
    other.on_wire(int(4.5 * MIB))
    small.on_wire(int(2.6 * MIB))
    assert connections.cut == ["large"]
    assert connections.budget.bytes_held == int(2.6 * MIB) + int(4.5 * MIB)
    other.on_wire(9 * MIB)
    assert connections.cut == ["large", "other"]


def test_what_a_connection_holds_moves_to_its_caller() -> None:
    connections = Connections(10 * MIB)
    memory = ConnectionMemory(connections.budget, "10.0.0.1", lambda: None, lambda: None)
    memory.on_wire(6 * MIB)
    stranger = ConnectionMemory(connections.budget, "10.0.0.1", lambda: None, lambda: None)
    assert not stranger.has_room(UNCOUNTED_BYTES + 1), "the address has more than is free"
    memory.belongs_to("key 1")
    assert stranger.has_room(UNCOUNTED_BYTES + 1)
    assert not connections.open("another", "key 1").has_room(UNCOUNTED_BYTES + 1)
    memory.on_wire(0)
    assert connections.budget.bytes_held == 0

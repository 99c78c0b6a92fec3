"""Which of a tenant's directives leave first."""

import msgspec
from tests.core.machine import START_MS
from tests.core.outcomes import begun, unpublished

from lucius.core.model import Job, Outbox
from lucius.core.priority import LEVEL_MS, PRIORITY_LEAST, PRIORITY_MOST, rank_ms


def waiting(priority: int, at_ms: int) -> tuple[Job, Outbox]:
    record = begun().record
    assert record.outbox is not None
    job = msgspec.structs.replace(record.job, priority=priority)
    return job, msgspec.structs.replace(record.outbox, due_at_ms=at_ms)


def test_a_usual_directive_stands_by_its_time() -> None:
    assert rank_ms(*waiting(5, START_MS)) == START_MS


def test_a_level_is_worth_a_span_of_waiting() -> None:
    for lower, higher in ((0, 1), (5, 6), (8, 9)):
        one, other = rank_ms(*waiting(lower, START_MS)), rank_ms(*waiting(higher, START_MS + LEVEL_MS))
        assert one == other
        assert rank_ms(*waiting(higher, START_MS + LEVEL_MS - 1)) < one


def test_nothing_starves() -> None:
    """What comes nine levels later stands behind, whatever its priority is."""
    old = rank_ms(*waiting(PRIORITY_LEAST, START_MS))
    later_ms = START_MS + (PRIORITY_MOST - PRIORITY_LEAST) * LEVEL_MS
    assert rank_ms(*waiting(PRIORITY_MOST, later_ms - 1)) < old
    assert all(rank_ms(*waiting(priority, later_ms + 1)) > old for priority in range(10))


def test_what_the_bus_refused_stands_behind_all_that_is_ready() -> None:
    record = unpublished().record
    assert record.outbox is not None
    refused = msgspec.structs.replace(record.job, priority=PRIORITY_MOST)
    due_ms = record.outbox.due_at_ms
    assert rank_ms(refused, record.outbox) > rank_ms(*waiting(PRIORITY_LEAST, due_ms - 1))


def test_times_near_the_epoch_have_a_rank() -> None:
    assert rank_ms(*waiting(PRIORITY_MOST, 1)) == 0

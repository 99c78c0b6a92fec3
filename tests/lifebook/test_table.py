"""What every table of jobs must do: the one in memory, DynamoDB Local, ministack."""

import asyncio
from base64 import urlsafe_b64encode
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from tests.lifebook.samples import NOW, POLICY, a_job, guard_for

from lucius.lifebook import machine
from lucius.lifebook.codec import EVENT_PREFIX, SHARDS, shard_of
from lucius.lifebook.failures import MESSAGE_CHARACTERS_MAX, AttemptFailure
from lucius.lifebook.job import AnalyticsEvent, LifebookJob
from lucius.lifebook.states import Status
from lucius.lifebook.table import BadCursor, JobTable
from lucius.lifebook.workflows import (
    CHECKPOINT_BYTES_MAX,
    INPUT_BYTES_MAX,
    RESULT_BYTES_MAX,
    RESULTS_BYTES_MAX,
)

ALL = 200


def _job(found: object) -> LifebookJob:
    assert isinstance(found, LifebookJob)
    return found


def _taken(job: LifebookJob, owner: str = "w1", now_ms: int = NOW) -> LifebookJob:
    verdict = machine._start(job, policy=POLICY, now_ms=now_ms, owner=owner)
    assert isinstance(verdict, machine.Take)
    return verdict.job


async def _create(table: JobTable, job: LifebookJob) -> LifebookJob:
    assert await table.create(job, guard_for(job), now_ms=NOW) is None
    return job


async def test_a_job_comes_back_as_it_was_written(table: JobTable) -> None:
    job = a_job(
        results=('{"text":"s3://b/é"}', "null"),
        credits_spent=Decimal("0.000001"),
        checkpoint='{"page":3}',
        lease_owner="w1",
        lease_expires_at=NOW + 60_000,
        last_error_code="X",
        started_at=NOW,
    )
    await _create(table, job)
    assert await table.get(job.job_id, now_ms=NOW) == job
    assert await table.get("unknown", now_ms=NOW) is None


async def test_a_key_makes_one_job_however_many_ask_at_once(table: JobTable) -> None:
    jobs = [a_job(number, idempotency_key="same") for number in range(1, 9)]
    found = await asyncio.gather(*(table.create(job, guard_for(job), now_ms=NOW) for job in jobs))
    (winner,) = [job for job, guard in zip(jobs, found, strict=True) if guard is None]
    assert {guard.job_id for guard in found if guard is not None} == {winner.job_id}
    there = [await table.get(job.job_id, now_ms=NOW) for job in jobs]
    assert [job for job in there if job is not None] == [winner]


async def test_the_same_creation_twice_is_one(table: JobTable) -> None:
    job = await _create(table, a_job())
    assert await table.create(job, guard_for(job), now_ms=NOW) is None


async def test_an_expired_key_may_be_used_again(table: JobTable) -> None:
    job, later = a_job(1, idempotency_key="k"), a_job(2, idempotency_key="k")
    await table.create(job, guard_for(job, ttl_at=NOW // 1000 + 10), now_ms=NOW)
    found = await table.create(later, guard_for(later), now_ms=NOW + 9_000)
    assert found is not None
    assert found.job_id == job.job_id
    assert await table.create(later, guard_for(later), now_ms=NOW + 11_000) is None


async def test_of_many_writers_one_holds(table: JobTable) -> None:
    job = await _create(table, a_job())
    after = [_taken(job, f"w{number}") for number in range(8)]
    held = await asyncio.gather(*(table.replace(job, each) for each in after))
    assert sum(held) == 1
    assert await table.get(job.job_id, now_ms=NOW) == after[held.index(True)]


async def test_a_write_that_comes_twice_held(table: JobTable) -> None:
    job = await _create(table, a_job())
    after = _taken(job)
    assert await table.replace(job, after)
    assert await table.replace(job, after)
    assert not await table.replace(job, _taken(job, "w2"))


async def test_the_holder_of_the_lease_is_part_of_the_condition(table: JobTable) -> None:
    job = await _create(table, a_job())
    mine, other = _taken(job, "w1"), _taken(job, "w2")
    assert await table.replace(job, mine)
    done = machine.step_done(
        other, index=0, result="1", credits_=Decimal(0), owner="w2", policy=POLICY, now_ms=NOW
    )
    assert not await table.replace(other, _job(done))  # the same version, another holder


async def test_attributes_that_end_are_removed(table: JobTable) -> None:
    job = await _create(table, a_job())
    taken = _taken(job)
    failed = _job(machine.failed(taken, AttemptFailure("X", "x"), owner="w1", policy=POLICY, now_ms=NOW))
    assert await table.replace(job, taken)
    assert await table.replace(taken, failed)
    assert await table.get(job.job_id, now_ms=NOW) == failed
    assert failed.lease_owner is None


async def test_the_end_its_event_and_the_expiry_of_the_key_are_one_write(table: JobTable) -> None:
    job = await _create(table, a_job(steps_total=1))
    taken = _taken(job)
    done = _job(
        machine.step_done(
            taken, index=0, result="1", credits_=Decimal("1.5"), owner="w1", policy=POLICY, now_ms=NOW
        )
    )
    event = AnalyticsEvent(event_id="e1", job_id=job.job_id, body="{}", created_at=NOW, sweep_at=NOW + 1)
    stale = msgspec.structs.replace(done, version=9, lease_owner=None)
    assert not await table.replace(msgspec.structs.replace(taken, version=8), stale, event=event)
    assert await table.event("e1") is None
    assert await table.replace(job, taken)
    assert await table.replace(taken, done, event=event)
    assert await table.event("e1") == event
    assert done.ttl_at is not None
    again = a_job(2, idempotency_key=job.idempotency_key)
    found = await table.create(again, guard_for(again), now_ms=NOW)
    assert found is not None
    assert found.ttl_at == done.ttl_at
    await table.note_sent(event, now_ms=NOW + 5, ttl_at=done.ttl_at)
    sent = await table.event("e1")
    assert sent is not None
    assert (sent.sent_at, sent.sweep_at) == (NOW + 5, None)


async def test_what_has_expired_is_not_shown(table: JobTable) -> None:
    gone = a_job(1, status=Status.COMPLETED, ttl_at=NOW // 1000 + 5, settled_at=NOW)
    kept = a_job(2, status=Status.COMPLETED, ttl_at=NOW // 1000 + 500, settled_at=NOW)
    for job in (gone, kept, a_job(3)):
        await _create(table, job)
    later = NOW + 10_000
    assert await table.get(gone.job_id, now_ms=later) is None
    page = await table.page("ws_1", now_ms=later, rows_max=ALL)
    assert [row.job_id for row in page.rows] == [a_job(3).job_id, kept.job_id]


async def test_a_workspace_is_listed_newest_first_page_by_page(table: JobTable) -> None:
    for number in range(1, 8):
        await _create(table, a_job(number))
    await _create(table, a_job(20, workspace_id="ws_2"))
    seen, cursor = [], None
    for _ in range(5):
        page = await table.page("ws_1", now_ms=NOW, rows_max=3, cursor=cursor)
        seen += [row.created_at - NOW for row in page.rows]
        cursor = page.cursor
        if cursor is None:
            break
    assert seen == [7, 6, 5, 4, 3, 2, 1]
    first = (await table.page("ws_1", now_ms=NOW, rows_max=1)).cursor
    assert first is not None
    with pytest.raises(BadCursor):
        await table.page("ws_2", now_ms=NOW, rows_max=1, cursor=first)
    with pytest.raises(BadCursor):
        await table.page("ws_1", now_ms=NOW, rows_max=1, cursor="%%%")


async def test_a_cursor_that_was_made_up_is_refused(table: JobTable) -> None:
    made_up: tuple[list[Any], ...] = (
        ["ws_1", "", ""],
        ["ws_1", "2026-11-19T20:00:00.000Z", ""],
        ["ws_1", "soon", "x"],
        ["ws_1", "2026-11-19T20:00:00.000Z", "x" * 3000],
    )
    for place in made_up:
        cursor = urlsafe_b64encode(msgspec.json.encode(place)).decode()
        with pytest.raises(BadCursor):
            await table.page("ws_1", now_ms=NOW, rows_max=3, cursor=cursor)


async def test_a_new_job_that_was_not_changed_can_be_taken_back(table: JobTable) -> None:
    job = await _create(table, a_job())
    assert await table.replace(job, _taken(job))
    assert not await table.discard(job)
    other = await _create(table, a_job(2))
    assert await table.discard(other)
    assert await table.get(other.job_id, now_ms=NOW) is None
    again = a_job(3, idempotency_key=other.idempotency_key)
    assert await table.create(again, guard_for(again), now_ms=NOW) is None


async def test_what_is_due_is_found_and_nothing_else(table: JobTable) -> None:
    early = await _create(table, a_job(1, sweep_at=NOW - 5))
    await _create(table, a_job(2, sweep_at=NOW + 5))
    ended = a_job(3, status=Status.COMPLETED, ttl_at=NOW, settled_at=NOW, sweep_at=None)
    await _create(table, ended)
    taken = _taken(early)
    event = AnalyticsEvent(event_id="e9", job_id="x", body="{}", created_at=NOW, sweep_at=NOW - 9)
    assert await table.replace(early, msgspec.structs.replace(taken, sweep_at=NOW - 7), event=event)
    found = [
        item for shard in range(SHARDS) for item in await table.due(str(shard), now_ms=NOW, rows_max=ALL)
    ]
    assert set(found) == {early.job_id, EVENT_PREFIX + "e9"}
    assert await table.due(shard_of(early.job_id), now_ms=NOW - 8, rows_max=ALL) in (
        [],
        [EVENT_PREFIX + "e9"],
    )


async def test_the_largest_job_fits_into_an_item(table: JobTable) -> None:
    """DynamoDB takes 400 KB: input, results and checkpoint are bounded so that they fit together."""
    result = '"' + "é" * (RESULT_BYTES_MAX // 2 - 1) + '"'
    job = await _create(
        table,
        a_job(
            input='"' + "x" * (INPUT_BYTES_MAX - 2) + '"',
            results=(result,) * (RESULTS_BYTES_MAX // len(result.encode())),
            checkpoint='"' + "y" * (CHECKPOINT_BYTES_MAX - 2) + '"',
            last_error_message="m" * MESSAGE_CHARACTERS_MAX,
        ),
    )
    assert await table.get(job.job_id, now_ms=NOW) == job

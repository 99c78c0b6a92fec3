"""What must hold of the rows: at every moment, and once the world is at rest.

In: a `World`. Out: nothing, or an AssertionError. The truth (each job as a fresh process loads it) predicts
every row around it; the rows that are there are compared with that.
"""

from collections import Counter
from typing import NamedTuple

import msgspec
from tests.conformance.ledger_setup import KEEP_MS, Rows, T, World

from lucius.core.decide import is_dispatchable
from lucius.core.inputs import Resume
from lucius.core.model import Event, JobRecord
from lucius.core.states import STEP_ACTIVE, Fact, JobState, OutboxState
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.names import dispatch_key, month_of, newest_first_key, time_key
from lucius.ledger.rows import IdempotencyRow, ListRow, decode_event, decode_job, decode_outbox

ROUNDS_MAX = 60
NAP_MS_MAX = 1_200_000
ENDS = frozenset({Fact.JOB_SUCCEEDED, Fact.JOB_FAILED, Fact.JOB_CANCELLED})


async def run_out(world: World) -> None:
    """Lets time pass, with sweepers, a good worker and somebody who resumes what is paused, until every
    job has ended, nothing is due, and whatever was left over has been looked at."""
    quiet = 0
    for number in range(ROUNDS_MAX):
        deployment = world.deployment()
        await deployment.sweeper.sweep()
        for job_id, record in (await world.records()).items():
            if number > 1 and record.job.state is JobState.PAUSED:
                await deployment.writer.apply(job_id, Resume())
        busy = await deployment.work() + await deployment.retention.look() > 0
        _, rows = await check_always(world)
        due_at_ms = [int(key[:14]) for table, _, key in rows if table == T.due]
        quiet = 0 if due_at_ms or busy else quiet + 1
        if quiet > 2:
            return
        nap_ms = min([NAP_MS_MAX, *(at_ms - world.clock.now_ms for at_ms in due_at_ms)])
        world.clock.now_ms += max(GRACE_MS + 1_000, nap_ms if due_at_ms else 0)
    raise AssertionError(f"still not at rest: {sorted(await world.rows())}")


class Index(NamedTuple):
    """The rows around the truth, by table, in the shape the truth predicts them."""

    slots: set[tuple[str, str]]
    lists: dict[tuple[str, str], str | None]
    dispatch: dict[tuple[str, str], str]
    dlq: set[str]
    retention: set[tuple[str, str]]
    found_by: dict[tuple[str, str], str]


def predicted(records: dict[str, JobRecord]) -> Index:
    index = Index(set(), {}, {}, set(), set(), {})
    for job_id, record in records.items():
        job, lane = record.job, f"{record.job.lane:02d}"
        key, month = newest_first_key(job.created_at_ms, job_id), month_of(job.created_at_ms)
        shown = job.state.value if job.terminal else None
        index.lists[f"tenant#{job.tenant_norm}#{month}", key] = shown
        index.lists[f"lane#{lane}#{month}", key] = shown
        for name in {job.correlation_id.lower(), (job.doc_id or job.correlation_id).lower()}:
            index.found_by[f"search#{lane}", f"{name}\x1f{key}"] = job_id
        if job.state in (JobState.FAILED_FINAL, JobState.CANCELLED):
            index.found_by[f"ended#{job.state}#tenant#{job.tenant_norm}#{month}", key] = job_id
            index.found_by[f"ended#{job.state}#lane#{lane}#{month}", key] = job_id
        if not job.terminal:
            index.slots.add((job.tenant_norm, job_id))
        else:
            index.retention.add((lane, time_key(job.completed_at_ms or 0, job_id)))
        if job.state is JobState.FAILED_FINAL:
            index.dlq.add(job_id)
        if record.outbox is not None and is_dispatchable(record):
            levels = 5 if record.outbox.failures else 5 - job.priority
            waits_at = dispatch_key(job.tenant_norm, record.outbox.due_at_ms + levels * 300_000, job_id)
            index.dispatch[f"{record.outbox.service}#{lane}", waits_at] = record.outbox.lease_id
    return index


def found(rows: Rows) -> Index:
    index = Index(set(), {}, {}, set(), set(), {})
    for (table, partition, key), row in rows.items():
        if table == T.inflight:
            index.slots.add((partition, key))
        elif table == T.job_index and partition.startswith(("ended#", "search#")):
            index.found_by[partition, key] = key.rpartition("#")[2]
        elif table == T.job_index and not partition.startswith("job#"):
            index.lists[partition, key] = msgspec.json.decode(row.body, type=ListRow).state
        elif table == T.dispatch:
            index.dispatch[partition, key] = msgspec.json.decode(row.body)["lease_id"]
        elif table == T.dlq and not partition.startswith("left#"):
            index.dlq.add(key.partition("#")[2])
        elif table == T.retention:
            index.retention.add((partition, key))
    return index


async def check_always(world: World) -> tuple[dict[str, JobRecord], Rows]:
    """What holds at every moment, between any two writes: nothing that is open can be forgotten. Returns
    what it looked at."""
    records, rows = await world.records(), await world.rows()
    expected, there = predicted(records), found(rows)
    assert expected.slots <= there.slots
    assert expected.lists.keys() <= there.lists.keys()
    assert expected.dispatch.keys() <= there.dispatch.keys()
    for job_id, record in records.items():
        job = record.job
        if not job.terminal:
            assert (T.due, f"{job.lane:02d}", time_key(job.due_at_ms or 0, job_id)) in rows, job
        elif (job.completed_at_ms or 0) + KEEP_MS <= world.clock.now_ms:
            continue  # may be half forgotten
        assert sum(step.state in STEP_ACTIVE for step in record.steps) <= 1
        events = await world.events(job_id)
        assert [event.seq for event in events] == list(range(1, len(events) + 1))
        assert len(events) == job.seq or (job.terminal and len(events) > job.seq)
        assert sum(event.type in ENDS for event in events) == int(job.terminal)
    return records, rows


async def check_at_rest(world: World) -> dict[str, JobRecord]:
    """What holds once nothing is under way and everything left over was looked at: rows and truth agree."""
    records, rows = await check_always(world)
    expected, there = predicted(records), found(rows)
    assert there.slots == expected.slots
    assert there.lists == expected.lists
    assert there.found_by.items() <= expected.found_by.items()
    for place, job_id in expected.found_by.items() - there.found_by.items():
        # Where commits may not span, a crash may leave a search row out until the job ends.
        assert not world.store.spans and not records[job_id].job.terminal, place
    assert there.dispatch == expected.dispatch
    assert there.retention == expected.retention
    taken_up = {record.job.rerun_of for record in records.values()}
    assert expected.dlq - taken_up <= there.dlq <= expected.dlq
    open_jobs = {job_id for job_id, record in records.items() if not record.job.terminal}
    assert {key[15:] for table, _, key in rows if table == T.due} == open_jobs
    for record in records.values():
        pending = record.outbox is not None and record.outbox.state is OutboxState.PENDING
        assert not (record.job.terminal and pending)
    counts = Counter(record.job.tenant_norm for record in records.values() if not record.job.terminal)
    admission = world.deployment().admission
    await admission.recount()
    assert admission.by_tenant == counts
    await _check_copies(world, records, rows)
    return records


async def _check_copies(world: World, records: dict[str, JobRecord], rows: Rows) -> None:
    """The other tables of the `table` layout show what the truth says, and nothing else."""
    if world.layout is not LayoutName.TABLE:
        return
    copies = {key: decode_job.of_bytes(row.body) for (table, _, key), row in rows.items() if table == T.jobs}
    assert copies == {job_id: record.job for job_id, record in records.items()}
    shown: dict[str, list[Event]] = {}
    outboxes: dict[str, str] = {}
    for (table, partition, key), row in rows.items():
        if table == T.events:
            shown.setdefault(partition, []).append(decode_event.of_bytes(row.body))
        elif table == T.outbox:
            outboxes[key] = decode_outbox.of_bytes(row.body).state.value
    assert shown == {job_id: await world.events(job_id) for job_id in records}
    attempts = sum(step.attempt_no for record in records.values() for step in record.steps)
    assert len(outboxes) == attempts
    for record in records.values():
        if record.outbox is None:  # it had nothing to run
            assert record.job.terminal and record.job.attempts_total == 0
        else:
            assert outboxes[record.outbox.outbox_id] == record.outbox.state.value
    latest = {record.outbox.outbox_id for record in records.values() if record.outbox is not None}
    assert all(state == "SENT" for outbox_id, state in outboxes.items() if outbox_id not in latest)


async def mentions(world: World, job_id: str) -> list[tuple[str, str, str]]:
    """The rows that speak of a job, in their keys or in what they hold."""
    return [
        place
        for place, row in (await world.rows()).items()
        if any(job_id in part for part in place) or job_id.encode() in row.body
    ]


async def held_keys(world: World) -> dict[str, str]:
    """Idempotency keys and the jobs that hold them."""
    rows = await world.rows()
    return {
        key: msgspec.json.decode(row.body, type=IdempotencyRow).job_id
        for (table, _, key), row in rows.items()
        if table == T.idempotency
    }


async def of_table(world: World, table: str) -> list[tuple[str, str]]:
    return [(partition, key) for name, partition, key in await world.rows() if name == table]

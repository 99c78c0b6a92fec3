"""What the ledger promises of a job's own rows, on every layout over every store that runs in a test."""

import asyncio

import msgspec
import pytest
from tests.conformance.ledger_checks import check_at_rest, mentions, of_table, run_out
from tests.conformance.ledger_setup import (
    KEEP_MS,
    START_MS,
    TENANT,
    Deployment,
    T,
    World,
    envelope,
    submit,
    whose,
)

from lucius.core.attempt import AttemptRef
from lucius.core.decide import create, decide
from lucius.core.draft import Decision
from lucius.core.inputs import Ack, Cancel, Progress, ResultStatus
from lucius.core.model import Event
from lucius.core.refusal import Code, Refused
from lucius.core.replies import EVIDENCE_MAX, PROGRESS_EVIDENCE_MAX
from lucius.core.states import EVIDENCE, Fact, JobState, Mode, StepState
from lucius.jobs.submit import Submitted
from lucius.jobs.writer import Applied
from lucius.ledger.rows import IdempotencyRow, encode
from lucius.ledger.store import Conflict, insert


@pytest.fixture
async def deployment(world: World) -> Deployment:
    ready = world.deployment()
    await ready.warm()
    return ready


async def handed_out(deployment: Deployment, request_type: str = "OCR") -> AttemptRef:
    await submit(deployment, request_type=request_type)
    (attempt,) = await deployment.take("ocr")
    return attempt


async def ended(deployment: Deployment, status: ResultStatus = ResultStatus.SUCCEEDED) -> AttemptRef:
    attempt = await handed_out(deployment)
    await deployment.result(attempt, status, "BROKEN")
    return attempt


# Creating


async def test_what_was_written_is_what_is_read(world: World, deployment: Deployment) -> None:
    job_id = await submit(deployment, request_type="OCR_EMBEDDING")
    for move in (None, "take", "ack", "result", "take", "result"):
        if move == "take":
            (attempt,) = [*await deployment.take("ocr"), *await deployment.take("embedding")]
        elif move == "ack":
            await deployment.ack(attempt)
        elif move == "result":
            await deployment.result(attempt)
        known = await deployment.ledger.load(job_id)
        read = await world.deployment().ledger.load(job_id)
        assert known is not None and read is not None and known.cached and not read.cached
        assert (read.record, read.etag) == (known.record, known.etag)
        await check_at_rest(world)
        world.clock.now_ms += 10
        state = read.record.job.state
    assert state is JobState.SUCCEEDED


async def test_the_same_command_is_the_same_job(world: World, deployment: Deployment) -> None:
    first = await submit(deployment, key="k")
    rows = await world.rows()
    for again in (deployment, world.deployment()):
        second = await again.submitter.submit(envelope(key="k"))
        assert second == Submitted(job_id=first, state=JobState.DISPATCHING, duplicate=True)
    assert await world.rows() == rows
    await run_out(world)
    third = await world.deployment().submitter.submit(envelope(key="k"))
    assert third == Submitted(job_id=first, state=JobState.SUCCEEDED, duplicate=True)


async def test_a_key_belongs_to_one_command(world: World, deployment: Deployment) -> None:
    await submit(deployment, key="k")
    rows = await world.rows()
    refused = await deployment.submitter.submit(envelope(2, key="k"))
    assert isinstance(refused, Refused) and refused.code is Code.IDEMPOTENCY_KEY_REUSED
    assert await world.rows() == rows


async def test_a_claimed_key_without_a_job_is_finished_under_its_id(
    world: World, deployment: Deployment
) -> None:
    resolved = deployment.submitter.resolve(envelope(key="k"))
    assert not isinstance(resolved, Refused)
    identity, lost = resolved.identity, world.ids.new_ids().job_id
    row = IdempotencyRow(job_id=lost, fingerprint=identity.fingerprint, created_at_ms=START_MS - 5)
    await deployment.store.commit([insert(T.idempotency, TENANT, identity.idempotency_hash, encode(row))])
    deployment.store.commits.clear()
    assert await submit(deployment, key="k") == lost
    assert (len(deployment.store.commits) == 1) is world.store.spans
    records = await check_at_rest(world)
    assert records[lost].job.created_at_ms == START_MS - 5
    assert await submit(world.deployment(), key="k") == lost
    assert deployment.admission.by_tenant == {TENANT: 1}
    await run_out(world)
    assert set(await check_at_rest(world)) == {lost}


async def test_two_writers_of_one_job(world: World, deployment: Deployment) -> None:
    attempt = await handed_out(deployment)
    other = world.deployment()
    mine, theirs = await deployment.ledger.load(attempt.job_id), await other.ledger.load(attempt.job_id)
    assert mine is not None and theirs is not None
    ack = Ack(step_id=attempt.step_id, attempt_no=1, lease_id=attempt.lease_id, content=dict)
    first = decide(mine.record, ack, now_ms=START_MS, lease_id="")
    second = decide(theirs.record, Cancel(), now_ms=START_MS, lease_id="")
    assert isinstance(first, Decision) and isinstance(second, Decision)
    await deployment.ledger.commit(mine, first, START_MS)
    rows = await world.rows()
    with pytest.raises(Conflict):
        await other.ledger.commit(theirs, second, START_MS)
    assert await world.rows() == rows
    # Whoever lost decides again upon what is there now.
    applied = await other.writer.apply(attempt.job_id, Cancel())
    assert not isinstance(applied, Refused) and applied.record.job.state is JobState.CANCELLING
    await check_at_rest(world)


async def test_a_job_is_created_once(world: World, deployment: Deployment) -> None:
    job_id = await submit(deployment)
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None
    again = create(
        msgspec.structs.replace(loaded.record.job, state=JobState.QUEUED, seq=0, version=0),
        tuple(msgspec.structs.replace(s, state=StepState.PENDING, attempt_no=0) for s in loaded.record.steps),
        now_ms=START_MS,
        lease_id="another",
    )
    with pytest.raises(Conflict):
        await world.deployment().ledger.finish(again, START_MS)
    await run_out(world)
    records = await check_at_rest(world)
    assert records[job_id].job.state is JobState.SUCCEEDED


# Events and evidence


async def test_the_trail_has_no_gaps_and_can_be_read_in_pages(world: World, deployment: Deployment) -> None:
    job_id = await submit(deployment, request_type="OCR_EMBEDDING_SIS")
    await deployment.work()
    whole = await deployment.ledger.events(job_id, limit=1_000)
    assert [event.seq for event in whole] == list(range(1, len(whole) + 1))
    assert whole[0].type is Fact.JOB_CREATED and whole[-1].type is Fact.JOB_SUCCEEDED
    pages: list[Event] = []
    while page := await deployment.ledger.events(job_id, after_seq=len(pages), limit=4):
        pages += page
    assert pages == whole


async def test_late_answers_are_kept_up_to_a_limit(world: World, deployment: Deployment) -> None:
    attempt = await ended(deployment)
    before = await deployment.ledger.load(attempt.job_id, fresh=True)
    assert before is not None
    sign = Progress(**(whose(attempt) | {"content": lambda: {"type": "PROGRESS"}}), progress=50)
    for _ in range(PROGRESS_EVIDENCE_MAX + 2):
        applied = await deployment.writer.apply(attempt.job_id, sign)
        assert isinstance(applied, Applied) and applied.outcome == "recorded"
    results = EVIDENCE_MAX - PROGRESS_EVIDENCE_MAX
    for _ in range(results + 2):
        assert (await deployment.result(attempt)).outcome == "duplicate"
    events = await world.events(attempt.job_id)
    kept = [event.type for event in events if event.type in EVIDENCE]
    assert kept == [Fact.REPLY_LATE] * PROGRESS_EVIDENCE_MAX + [Fact.REPLY_DUPLICATE] * results
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    after = await deployment.ledger.load(attempt.job_id, fresh=True)
    assert after is not None and after.etag == before.etag
    await check_at_rest(world)


async def test_late_answers_that_come_at_once_are_all_kept(world: World, deployment: Deployment) -> None:
    attempt = await ended(deployment)
    deployments = [deployment, world.deployment(), world.deployment()]
    # The more are at it over a wire, the more often each of them has to try.
    answers = 8 if world.frugal else 60
    await asyncio.gather(*(deployments[n % 3].result(attempt) for n in range(answers)))
    events = await world.events(attempt.job_id)
    assert sum(event.type in EVIDENCE for event in events) == answers
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    await check_at_rest(world)


async def test_a_late_answer_to_a_forgotten_job_leaves_nothing(world: World, deployment: Deployment) -> None:
    attempt = await ended(deployment)
    assert await deployment.ledger.load(attempt.job_id) is not None  # remembered by this process
    world.clock.now_ms += KEEP_MS
    assert await world.deployment().retention.look() == 1
    await deployment.result(attempt)
    assert await mentions(world, attempt.job_id) == []


# Slots


async def test_slots_are_counted(world: World, deployment: Deployment) -> None:
    for number in range(3):
        await submit(deployment, number, mode=Mode.BURST if number else None, doc_id=f"d{number}")
    await submit(deployment, 9, tenant="tenant_b")
    counted, more = await deployment.slots.page(TENANT)
    assert more is None
    assert sorted(counted.values()) == [Mode.BURST, Mode.BURST, Mode.DEFAULT]
    fresh = world.deployment().admission
    await fresh.recount()
    assert fresh.by_tenant == deployment.admission.by_tenant == {TENANT: 3, "tenant_b": 1}
    await run_out(world)
    assert await of_table(world, T.inflight) == []
    await fresh.recount()
    assert fresh.by_tenant == {}

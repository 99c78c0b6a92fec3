"""The watch of a simulation: silent while Lucius does what it promises, loud about each promise broken."""

from collections.abc import Callable

import msgspec
import pytest
from tests.conformance.ledger_setup import DAY_MS, KEEP_MS, Deployment, submit
from tests.lab.watched_simulation import KIND_IDS, KINDS, WatchedWorld

from lucius.bus.port import DirectiveOut, directive_id
from lucius.core.attempt import AttemptRef
from lucius.core.fold import fold
from lucius.core.inputs import Cancel, Pause, Progress, ResultStatus, Resume
from lucius.core.model import Event, Job, JobRecord
from lucius.core.states import Fact, StepState
from lucius.ledger.commit_plan import GRACE_MS
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.names import Tables
from lucius.ledger.rows import Loaded
from lucius.ledger.store import Op, discard, insert
from lucius_lab.sim.watch import Violation

replace = msgspec.structs.replace
T = Tables()
every_kind = pytest.mark.parametrize(("layout", "spans"), KINDS, ids=KIND_IDS)


async def loaded_of(deployment: Deployment, job_id: str) -> Loaded:
    loaded = await deployment.ledger.load(job_id, fresh=True)
    assert loaded is not None
    return loaded


async def change(
    deployment: Deployment, job_id: str, *events: Event, edit: Callable[[JobRecord], JobRecord] | None = None
) -> list[Op]:
    """The ops of a commit with these events, laid into the record and then edited."""
    loaded = await loaded_of(deployment, job_id)
    record = loaded.record
    if edit is None:
        for event in events:
            record = fold(record, event)
    else:
        record = edit(record)
    plan = deployment.ledger.planner.change(loaded, record, events, deployment.clock.now_ms)
    return [*plan.first, *plan.truth, *plan.then]


def tell(world: WatchedWorld, ops: list[Op]) -> None:
    world.watch.committed(ops, now_ms=world.clock.now_ms, by="somebody")


def begun(record: JobRecord, index: int, lease_id: str, *, ahead: int = 1) -> Event:
    step = record.steps[index]
    return Event(
        seq=record.job.seq + 1,
        type=Fact.ATTEMPT_BEGUN,
        at_ms=record.job.updated_at_ms,
        step_id=step.step_id,
        attempt_no=step.attempt_no + ahead,
        data={"lease_id": lease_id},
    )


async def settle(world: WatchedWorld, deployment: Deployment) -> list[Violation]:
    """Lets what is due be done, and looks once more at everything."""
    for _ in range(4):
        world.clock.now_ms += GRACE_MS + 1_000
        await deployment.sweeper.sweep()
        await deployment.work()
    return world.watch.at_rest(world.watched)


# Silence


@every_kind
async def test_a_good_story_passes(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    first = await submit(deployment, 1, request_type="OCR_EMBEDDING_SIS")
    world.watch.answered(first, key="1", duplicate=False)
    again = await submit(deployment, 1, request_type="OCR_EMBEDDING_SIS")
    world.watch.answered(again, key="1", duplicate=True)
    await deployment.work()
    assert await settle(world, deployment) == []


@every_kind
async def test_failures_controls_and_a_rerun_pass(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    failed, cancelled, paused = [await submit(deployment, number) for number in (1, 2, 3)]
    (attempt,) = await deployment.take("ocr", directives_max=1)
    await deployment.ack(attempt)
    await deployment.result(attempt, ResultStatus.FAILED_RETRY, "BUSY")
    for _ in range(4):
        world.clock.now_ms += DAY_MS
        await deployment.sweeper.sweep()
        for attempt in await deployment.take("ocr"):
            if attempt.job_id == failed:
                await deployment.result(attempt, ResultStatus.FAILED_FINAL, "BROKEN")
                await deployment.ack(attempt)  # a duplicate: the RESULT implied it
    for job_id, given in ((cancelled, Cancel()), (paused, Pause()), (paused, Resume())):
        await deployment.writer.apply(job_id, given)
    assert (await loaded_of(deployment, failed)).record.job.terminal
    await deployment.reruns.rerun(failed, from_step=None, key=None)
    await deployment.work()
    world.clock.now_ms += DAY_MS
    assert await settle(world, deployment) == []


@every_kind
async def test_progress_that_is_not_in_the_trail_passes(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    for percent in (10, 20, 15):
        world.clock.now_ms += 1_000
        given = Progress(
            step_id=attempt.step_id,
            attempt_no=attempt.attempt_no,
            lease_id=attempt.lease_id,
            content={"type": "PROGRESS"}.copy,
            progress=percent,
            note=f"{percent} of 100",
        )
        await deployment.writer.apply(job_id, given)
    assert (await loaded_of(deployment, job_id)).record.steps[0].progress == 20
    await deployment.result(attempt)
    assert await settle(world, deployment) == []


@every_kind
async def test_a_job_that_is_forgotten_passes(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    await deployment.work()
    world.clock.now_ms += KEEP_MS + DAY_MS
    await deployment.sweeper.sweep()
    assert await deployment.retention.look() == 1
    assert await settle(world, deployment) == []
    assert world.watch.jobs[job_id].job_deletion


# Noise


@every_kind
async def test_i1_a_job_that_has_ended_does_not_change(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    await deployment.work()
    ops = await change(deployment, job_id, edit=lambda record: replace(record, job=_blamed(record)))
    with pytest.raises(Violation, match=r"^I1: .*JOB changed after its end: .*error_code"):
        tell(world, ops)


def _blamed(record: JobRecord) -> Job:
    return replace(record.job, error_code="X")


@every_kind
async def test_i1_a_step_that_has_ended_does_not_change(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment, request_type="OCR_EMBEDDING")
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt)

    def edit(record: JobRecord) -> JobRecord:
        step = replace(record.steps[0], result_ref={"uri": "s3://elsewhere"})
        return replace(record, steps=(step, *record.steps[1:]))

    with pytest.raises(Violation, match=r"^I10?: .*step_01"):
        tell(world, await change(deployment, job_id, edit=edit))


@every_kind
async def test_i2_two_steps_are_not_active_at_once(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment, request_type="OCR_EMBEDDING")
    await deployment.take("ocr")
    record = (await loaded_of(deployment, job_id)).record
    with pytest.raises(Violation, match=r"^I2: .*step_01 and step_02"):
        tell(world, await change(deployment, job_id, begun(record, 1, "a new lease")))


@every_kind
async def test_i3_a_job_is_not_created_before_its_key(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    world.watched.tamper = lambda ops: [op for op in ops if op.table != T.idempotency]
    with pytest.raises(Violation, match=r"^I3: .*before its idempotency key"):
        await submit(world.deployment())


@every_kind
async def test_i3_what_was_answered_stays(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    first, second = await submit(deployment, 1), await submit(deployment, 2)
    world.watch.answered(first, key="a", duplicate=False)
    with pytest.raises(Violation, match=r"^I3: .*does not exist"):
        world.watch.answered("job_of_dreams", key="b", duplicate=False)
    with pytest.raises(Violation, match=r"^I3: .*second job"):
        world.watch.answered(second, key="a", duplicate=True)
    with pytest.raises(Violation, match=r"^I3: .*two clients"):
        world.watch.answered(first, key="a", duplicate=False)
    with pytest.raises(Violation, match=r"^I3: .*'b' was answered with the job of 'a'"):
        world.watch.answered(first, key="b", duplicate=True)
    key = (await loaded_of(deployment, first)).record.job.idempotency_hash
    with pytest.raises(Violation, match=r"^I3: .*taken away"):
        tell(world, [discard(T.idempotency, "tenant_a", key)])


@every_kind
@pytest.mark.parametrize(
    ("table", "rule"), [(T.inflight, "I5"), (T.due, "I6"), (T.dispatch, "I6"), (T.job_index, "I6")]
)
async def test_i5_i6_an_open_job_keeps_the_rows_it_relies_on(
    layout: LayoutName, spans: bool, table: str, rule: str
) -> None:
    world = WatchedWorld(layout, spans)
    await submit(world.deployment())
    partition = next(name for name in world.watched.partitions(table) if not name.startswith("job#"))
    (row,) = world.watched.rows(table, partition)
    with pytest.raises(Violation, match=f"^{rule}: "):
        tell(world, [discard(table, partition, row.key)])


@every_kind
@pytest.mark.parametrize("table", [T.inflight, T.due, T.dispatch, T.dlq])
async def test_i5_i6_nothing_is_left_of_an_ended_job(layout: LayoutName, spans: bool, table: str) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    await deployment.work()
    key = job_id if table == T.inflight else f"{world.clock.now_ms:014d}#{job_id}"
    await world.watched.reopen().commit(
        [insert(table, "15" if table != T.inflight else "tenant_a", key, b"{}")]
    )
    (violation,) = world.watch.at_rest(world.watched)
    assert violation.name == ("I5" if table == T.inflight else "I6")


@every_kind
async def test_i4_a_job_that_is_open_at_rest_is_told(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    job_id = await submit(world.deployment())
    (violation,) = world.watch.at_rest(world.watched)
    assert (violation.name, violation.job_id) == ("I4", job_id)


async def test_i6_what_is_sent_has_left() -> None:
    world = WatchedWorld(LayoutName.LEDGER, True)
    world.watch.broker = True
    deployment = world.deployment()
    await submit(deployment)
    with pytest.raises(Violation, match=r"^I6: .*SENT before it had left"):
        await deployment.take("ocr")


@every_kind
async def test_i7_attempts_go_one_by_one_each_under_a_new_lease(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_RETRY)
    record = (await loaded_of(deployment, job_id)).record
    assert record.steps[0].state is StepState.FAILED_RETRY
    with pytest.raises(Violation, match=r"^I7: .*was used again"):
        tell(world, await change(deployment, job_id, begun(record, 0, attempt.lease_id)))


@every_kind
async def test_i7_no_attempt_is_left_out(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_RETRY)
    record = (await loaded_of(deployment, job_id)).record
    with pytest.raises(Violation, match=r"^I7: .*went on to attempt 3"):
        tell(world, await change(deployment, job_id, begun(record, 0, "a new lease", ahead=2)))


@every_kind
async def test_i7_an_answer_counts_under_its_own_lease_alone(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt)
    world.watch.replied((job_id, "step_01", 1, attempt.lease_id), "RESULT", "applied", stop=False)
    with pytest.raises(Violation, match=r"^I7: .*under a lease"):
        world.watch.replied((job_id, "step_01", 1, "another lease"), "RESULT", "applied", stop=False)
    with pytest.raises(Violation, match=r"^I7: .*was over"):
        world.watch.replied((job_id, "step_01", 1, attempt.lease_id), "ACK", "applied", stop=False)


@every_kind
async def test_i8_routing_stays(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)

    def edit(record: JobRecord) -> JobRecord:
        step = record.steps[0]
        return replace(record, steps=(replace(step, routing=replace(step.routing, lane=3)),))

    with pytest.raises(Violation, match=r"^I8: .*lane=3"):
        tell(world, await change(deployment, job_id, edit=edit))


async def test_i7_i8_what_leaves_was_begun_and_goes_by_its_lane() -> None:
    world = WatchedWorld(LayoutName.LEDGER, True)
    job_id = await submit(world.deployment())

    def out(lease_id: str, lane: int) -> DirectiveOut:
        named = directive_id(AttemptRef(job_id=job_id, step_id="step_01", attempt_no=1, lease_id=lease_id))
        return DirectiveOut(service="ocr", lane=lane, message_key="tenant_a", message_id=named, body=b"{}")

    world.watch.published(out("lease-1", 15), now_ms=0)
    with pytest.raises(Violation, match=r"^I7: .*never begun"):
        world.watch.published(out("lease-9", 15), now_ms=0)
    with pytest.raises(Violation, match=r"^I8: "):
        world.watch.published(out("lease-1", 4), now_ms=0)


@every_kind
async def test_i10_no_event_is_left_out(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    world.watched.tamper = lambda ops: [op for op in ops if b'"type":"STEP_ACKED"' not in op.body]
    with pytest.raises(Violation, match=r"^I10: .*followed by event 5"):
        await deployment.result(attempt)


@every_kind
async def test_i10_a_row_that_no_event_explains_is_told(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    ops = await change(deployment, job_id, edit=lambda record: replace(record, job=_blamed(record)))
    with pytest.raises(Violation, match=r"^I10: .*error_code None → 'X'"):
        tell(world, ops)


@every_kind
async def test_i11_an_answer_that_did_not_count_is_in_the_trail(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    with pytest.raises(Violation, match=r"^I11: .*does not say so"):
        world.watch.replied((job_id, "step_01", 1, attempt.lease_id), "ACK", "duplicate", stop=False)


async def test_i11_a_reply_is_settled_after_its_commit() -> None:
    world = WatchedWorld(LayoutName.LEDGER, True)
    deployment = world.deployment()
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    said = {"jobId": job_id, "stepId": "step_01", "attempt_no": 1, "lease_id": attempt.lease_id}
    body = msgspec.json.encode({"type": "RESULT", **said})
    with pytest.raises(Violation, match=r"^I11: .*settled before its commit"):
        world.watch.settled(body, now_ms=0)
    await deployment.result(attempt)
    world.watch.settled(body, now_ms=0)


@every_kind
async def test_i12_nothing_begins_while_a_job_is_paused(layout: LayoutName, spans: bool) -> None:
    world = WatchedWorld(layout, spans)
    deployment = world.deployment()
    job_id = await submit(deployment)
    (attempt,) = await deployment.take("ocr")
    await deployment.result(attempt, ResultStatus.FAILED_RETRY)
    await deployment.writer.apply(job_id, Pause())
    record = (await loaded_of(deployment, job_id)).record
    ops = await change(deployment, job_id, begun(record, 0, "a new lease"), edit=lambda unchanged: unchanged)
    with pytest.raises(Violation, match=r"^I12: .*PAUSED"):
        tell(world, ops)

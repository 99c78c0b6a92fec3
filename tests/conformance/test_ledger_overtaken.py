"""A result that comes before the note that its directive was published closes that attempt's outbox row, also
where the same commit begins the next attempt."""

from tests.conformance.ledger_checks import check_at_rest
from tests.conformance.ledger_setup import World, submit

from lucius.core.inputs import Result, ResultStatus
from lucius.core.model import Outbox
from lucius.core.states import OutboxState
from lucius.jobs.writer import Applied
from lucius.ledger.rows import decode_outbox


async def test_no_outbox_row_waits_for_a_note_that_was_overtaken(world: World) -> None:
    deployment = world.deployment()
    await deployment.warm()
    job_id = await submit(deployment, request_type="OCR_EMBEDDING")
    loaded = await deployment.ledger.load(job_id)
    assert loaded is not None and loaded.record.outbox is not None
    first = loaded.record.outbox
    world.clock.now_ms += 10
    overtaking = Result(
        step_id=first.step_id,
        attempt_no=first.attempt_no,
        lease_id=first.lease_id,
        content=dict,
        status=ResultStatus.SUCCEEDED,
        output_ref={"uri": "s3://out/1"},
    )
    assert isinstance(await deployment.writer.apply(job_id, overtaking), Applied)
    written = await outboxes(world)
    assert {key: row.state for key, row in written.items()} == {
        f"{job_id}.00.001": OutboxState.SENT,
        f"{job_id}.01.001": OutboxState.PENDING,
    }
    assert written[first.outbox_id].sent_at_ms == world.clock.now_ms
    await check_at_rest(world)


async def outboxes(world: World) -> dict[str, Outbox]:
    """By id; every copy of a row says the same."""
    found: dict[str, Outbox] = {}
    for (_, _, key), row in (await world.rows()).items():
        if key.startswith("OUTBOX#") or b'"outbox_id"' in row.body:
            outbox = decode_outbox.of_bytes(row.body)
            assert found.setdefault(outbox.outbox_id, outbox) == outbox
    return found

"""Pauses: of a service, a tenant, a request type nothing leaves; what waits loses nothing."""

import asyncio

import pytest
from tests.support.flow_setup import FlowFleet
from tests.support.virtual_time import virtual

from lucius.core.flow import FlowReason
from lucius.ledger.flow import FlowPause, PauseKind


def _pause(kind: PauseKind, name: str) -> FlowPause:
    return FlowPause(kind=kind, name=name, since_ms=0, reason="a test")


@pytest.mark.parametrize(
    ("kind", "name"), [(PauseKind.SERVICE, "ocr"), (PauseKind.TENANT, "acme"), (PauseKind.TYPE, "READ")]
)
def test_nothing_leaves_of_what_is_paused_and_all_of_it_once_it_is_resumed(
    kind: PauseKind, name: str
) -> None:
    @virtual
    async def play() -> None:
        fleet = FlowFleet()
        first, second = fleet.start(), fleet.start()
        waiting = asyncio.create_task(second.take(5, wait_ms=20_000))
        await asyncio.sleep(0.1)
        await first.flow.rows.pause(_pause(kind, name))
        await first.flow.look()
        await asyncio.sleep(1.5)
        (job_id,) = await fleet.submit(1)
        assert await first.take(5, wait_ms=5_000) == []
        assert not waiting.done()
        record = await first.record(job_id)
        held = second.flow.hold_of(record)
        assert held is not None and held.reason is FlowReason.PAUSED
        assert held.pause is not None and (held.pause.kind, held.pause.name) == (kind.value, name)
        await first.flow.rows.resume(kind, name)
        assert len(await waiting) == 1, "every process learns that it goes on"
        await fleet.stop()

    play()


@virtual
async def test_a_pause_holds_no_others_up() -> None:
    fleet = FlowFleet()
    replica = fleet.start()
    await replica.flow.rows.pause(_pause(PauseKind.TENANT, "acme"))
    await replica.flow.rows.pause(_pause(PauseKind.TYPE, "READ_AGAIN"))
    await replica.flow.look()
    for _ in range(300):
        await replica.submit("zeta", "READ_AGAIN")
        await replica.submit("acme", "READ")
    behind = await replica.submit("zeta", "READ")
    taken = await replica.take(1, wait_ms=2_000)
    assert [handed.record.job.job_id for handed in taken] == [behind]
    assert await replica.take(1, wait_ms=2_000) == []
    await fleet.stop()


@virtual
async def test_a_pause_outlives_the_process_and_keeps_its_reason() -> None:
    fleet = FlowFleet()
    first = fleet.start()
    await first.flow.rows.pause(_pause(PauseKind.SERVICE, "ocr"))
    await first.flow.rows.pause(FlowPause(kind=PauseKind.SERVICE, name="ocr", since_ms=9, reason="another"))
    await first.crash()
    second = fleet.start()
    await second.flow.look()
    await fleet.submit(1)
    assert await second.take(1, wait_ms=2_000) == []
    assert [(pause.name, pause.reason) for pause in second.flow.pauses] == [("ocr", "a test")]
    assert await second.flow.rows.resume(PauseKind.SERVICE, "ocr")
    assert not await second.flow.rows.resume(PauseKind.SERVICE, "ocr")
    await fleet.stop()

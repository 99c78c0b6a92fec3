"""Limits of services, breakers and pauses on every store: two processes agree through one row."""

import pytest
from tests.conformance.ledger_setup import REGISTRY, World, submit

from lucius.core.flow import BreakerRule, FlowRequest, ServiceLimits
from lucius.core.inputs import ResultStatus
from lucius.ledger.flow import FlowLedger, FlowPause, PauseKind


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(
        REGISTRY.limits,
        "ocr",
        ServiceLimits(concurrency=2, breaker=BreakerRule(failures_max=1, probe_every_ms=10_000)),
    )


async def test_no_process_takes_a_place_that_another_has(world: World) -> None:
    first, second = world.deployment(), world.deployment()
    for number in range(5):
        await submit(first, number)
    taken = await first.take("ocr", directives_max=1)
    taken += await second.take("ocr")
    assert len(taken) == 2
    assert await first.take("ocr") == []
    await first.result(taken[0])
    await first.kernel.flow.look()
    row = await second.kernel.flow.rows.read("ocr")
    world.clock.now_ms += 5_000
    assert set(row.state.slots) | {taken[0].job_id} >= {taken[1].job_id}
    assert len(await second.take("ocr")) == 1


async def test_a_writer_that_is_late_reads_again(world: World) -> None:
    ledger = world.deployment().ledger
    rows = FlowLedger(ledger.store, ledger.tables.meta, ledger.quarantine)
    first = await rows.write("ocr", (await rows.read("ocr")).state, None)
    assert first is not None
    assert await rows.write("ocr", first.state, None) is None
    second = await rows.write("ocr", first.state, first.etag)
    assert second is not None
    assert await rows.write("ocr", first.state, first.etag) is None
    assert (await rows.all()).flows["ocr"].etag == second.etag


async def test_an_open_breaker_is_read_by_a_process_that_starts(world: World) -> None:
    first = world.deployment()
    for number in range(3):
        await submit(first, number)
    (attempt,) = await first.take("ocr", directives_max=1)
    await first.result(attempt, ResultStatus.FAILED_RETRY, "DOWN")
    asked = [FlowRequest("job", "lease", "t0")]
    assert await first.kernel.flow.admit("ocr", asked) == {}
    second = world.deployment()
    assert await second.take("ocr") == []
    world.clock.now_ms += 10_000
    third = world.deployment()
    (probe,) = await third.take("ocr")
    await third.result(probe)
    assert len(await third.take("ocr")) == 1


async def test_pauses_are_kept_and_listed(world: World) -> None:
    ledger = world.deployment().ledger
    rows = FlowLedger(ledger.store, ledger.tables.meta, ledger.quarantine)
    names = [(PauseKind.SERVICE, "ocr"), (PauseKind.TENANT, "größe/ä#1"), (PauseKind.TYPE, "OCR→EMBEDDING")]
    for kind, name in names:
        await rows.pause(FlowPause(kind=kind, name=name, since_ms=5, reason="a test"))
    assert sorted((pause.kind, pause.name) for pause in await rows.pauses()) == sorted(names)
    for kind, name in names:
        assert await rows.resume(kind, name)
        assert not await rows.resume(kind, name)
    assert await rows.pauses() == []

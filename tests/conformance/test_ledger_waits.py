"""What open jobs wait for, as a process counts them that starts when they are there: on every store."""

from collections import Counter

import pytest
from tests.conformance.ledger_setup import Deployment, World, submit

from lucius.core.attempt import AttemptRef
from lucius.core.explain import WaitsFor
from lucius.core.inputs import Cancel, Pause, ResultStatus
from lucius.engines.outbox.backlog import BacklogMeter
from lucius.telemetry import Metrics


@pytest.fixture
def deployment(world: World) -> Deployment:
    return world.deployment()


async def handed_out(deployment: Deployment, number: int) -> AttemptRef:
    await submit(deployment, number)
    (attempt,) = await deployment.take("ocr")
    return attempt


async def counted(deployment: Deployment) -> Counter[tuple[str, WaitsFor, str]]:
    metrics, kernel = Metrics(lambda name: True), deployment.kernel
    meter = BacklogMeter(
        kernel.ledger, kernel.indexes, kernel.services, kernel.admission, metrics, now_ms=kernel.now_ms
    )
    await meter.census()
    sums: Counter[tuple[str, WaitsFor, str]] = Counter()
    for (tenant, wait), jobs in metrics.open.waits().items():
        sums[tenant, wait.waiting_for, wait.service] += jobs
    return sums


async def test_a_census_says_what_every_open_job_waits_for(world: World, deployment: Deployment) -> None:
    running = await handed_out(deployment, 1)
    await deployment.ack(running)
    failed = await handed_out(deployment, 2)
    await deployment.result(failed, ResultStatus.FAILED_RETRY)
    await handed_out(deployment, 3)
    paused, cancelled = await submit(deployment, 4), await submit(deployment, 5)
    await deployment.writer.apply(paused, Pause())
    await deployment.writer.apply(cancelled, Cancel())
    await submit(deployment, 6)
    await submit(deployment, 7, tenant="other")
    assert await counted(deployment) == {
        ("tenant_a", WaitsFor.RESULT, "ocr"): 1,
        ("tenant_a", WaitsFor.RETRY, "ocr"): 1,
        ("tenant_a", WaitsFor.ACK, "ocr"): 1,
        ("tenant_a", WaitsFor.RESUME, "ocr"): 1,
        ("tenant_a", WaitsFor.WORKER, "ocr"): 1,
        ("other", WaitsFor.WORKER, "ocr"): 1,
    }

"""Why work waits, over a whole installation: what a record waits for, and the groups in words."""

import msgspec
from tests.core.machine import DAY_MS, MINUTE_MS, SECOND_MS, START_MS
from tests.core.outcomes import begun, sent

from lucius.core.explain import WaitsFor
from lucius.core.flow import ActivePause, FlowHold, FlowReason, OpenBreaker
from lucius.core.inputs import Pause, Tick
from lucius.core.model import JobRecord
from lucius.core.states import Engine
from lucius.core.why import FleetFacts, TenantFill, Wait, WaitGroup, WaitingJobs, WorkersSeen, wait_of, why

SERVICE = "service-1"
NOW_MS = START_MS + 20 * MINUTE_MS  # 08:20:00


def waits(record: JobRecord) -> WaitsFor:
    wait = wait_of(record)
    assert wait is not None and wait.service == SERVICE
    return wait.waiting_for


def test_a_job_waits_for_one_thing_at_a_time() -> None:
    walk = begun()
    assert waits(walk.record) is WaitsFor.WORKER
    walk = sent()
    assert waits(walk.record) is WaitsFor.ACK
    walk.ack()
    assert waits(walk.record) is WaitsFor.RESULT
    walk.fail_retry()
    assert waits(walk.record) is WaitsFor.RETRY
    walk.give(Pause())
    assert waits(walk.record) is WaitsFor.RESUME


def test_a_directive_that_the_bus_refused_waits_to_be_published() -> None:
    walk = begun()
    walk.publish_failed()
    wait = wait_of(walk.record)
    assert wait is not None and wait.waiting_for is WaitsFor.PUBLISH and wait.failed


def test_a_workflow_publishes_by_itself() -> None:
    record = begun().record
    job = msgspec.structs.replace(record.job, engine=Engine.TEMPORAL)
    assert waits(msgspec.structs.replace(record, job=job)) is WaitsFor.PUBLISH


def test_an_ended_job_waits_for_nothing_and_a_late_one_is_marked() -> None:
    walk = begun()
    walk.wait(8 * DAY_MS)
    walk.give(Tick())
    wait = wait_of(walk.record)
    assert wait is not None and wait.late
    walk.wait(8 * DAY_MS)
    walk.give(Tick())
    assert walk.record.job.terminal and wait_of(walk.record) is None


def waiting(
    kind: WaitsFor,
    jobs: int,
    *,
    tenant: str | None = "acme",
    lane: int = 3,
    failed: bool = False,
    late: bool = False,
) -> WaitingJobs:
    wait = Wait(kind, "ocr", lane, failed, late)
    return WaitingJobs(wait=wait, tenant=tenant, jobs=jobs)


def groups(*found: WaitingJobs, **facts: object) -> list[WaitGroup]:
    return why(FleetFacts(now_ms=NOW_MS, waiting=found, **facts))  # type: ignore[arg-type]


def test_jobs_without_a_worker_are_one_group_and_come_first() -> None:
    seen = {"ocr": WorkersSeen(asked_at_ms=START_MS + 14 * MINUTE_MS + 5 * SECOND_MS)}
    first, second = groups(
        waiting(WaitsFor.RESULT, 5_000),
        waiting(WaitsFor.WORKER, 400),
        waiting(WaitsFor.WORKER, 12, tenant="other", lane=4),
        workers=seen,
        oldest_ms={"ocr": START_MS},
    )
    assert first.text == "412 jobs wait for a worker of `ocr`; its last worker was seen at 08:14:05"
    assert (first.code, first.severity, first.jobs, first.since_ms) == ("WORKER", "error", 412, START_MS)
    assert (first.lanes, first.tenants) == ({3: 400, 4: 12}, (("acme", 400), ("other", 12)))
    assert second.text == "5,000 jobs are being worked on by `ocr`: their leases run"


def test_workers_that_are_there_are_busy() -> None:
    there = {"ocr": WorkersSeen(asked_at_ms=NOW_MS - SECOND_MS)}
    (group,) = groups(waiting(WaitsFor.WORKER, 1), workers=there)
    assert (group.severity, group.text) == (
        "info",
        "1 job waits for a worker of `ocr`; its workers are there and busy",
    )
    (slow,) = groups(waiting(WaitsFor.WORKER, 1), workers=there, oldest_ms={"ocr": START_MS})
    assert slow.severity == "warning"
    (inside,) = groups(waiting(WaitsFor.WORKER, 1), workers={"ocr": WorkersSeen(inside=True)})
    assert inside.severity == "info"
    (never,) = groups(waiting(WaitsFor.WORKER, 1))
    assert never.text.endswith("none was seen yet: start one")


def test_over_a_bus_the_same_jobs_wait_for_the_publisher() -> None:
    (group,) = groups(waiting(WaitsFor.WORKER, 7), over_bus=True)
    assert group.code == "PUBLISHER" and group.text.startswith("7 jobs wait for the publisher")
    (refused,) = groups(waiting(WaitsFor.PUBLISH, 2, failed=True), over_bus=True)
    assert (refused.code, refused.severity) == ("PUBLISH", "error")


def test_every_kind_of_waiting_is_told() -> None:
    kinds = {
        WaitsFor.ACK: "ACK",
        WaitsFor.RESULT: "RESULT",
        WaitsFor.RETRY: "RETRY",
        WaitsFor.RESUME: "RESUME",
        WaitsFor.ENGINE: "ENGINE",
        WaitsFor.WORKER: "WORKER",
        WaitsFor.PUBLISH: "PUBLISHER",
    }
    held = {WaitsFor.LIMIT, WaitsFor.BREAKER, WaitsFor.PAUSE}  # known of a service, not of a record
    assert kinds.keys() == set(WaitsFor) - held
    for kind, code in kinds.items():
        (group,) = groups(waiting(kind, 1))
        assert (group.code, group.jobs, group.service) == (code, 1, "ocr")


def test_late_jobs_and_full_tenants_are_told_beside_what_they_wait_for() -> None:
    fills = (TenantFill(tenant="acme", in_flight=9, limit=9), TenantFill(tenant="b", in_flight=1, limit=9))
    full, late, running = groups(waiting(WaitsFor.RESULT, 3, late=True), tenants=fills)
    assert full.text == "`acme` has 9 jobs in flight, its limit: new commands are refused"
    assert (late.code, late.jobs, running.jobs) == ("SLA", 3, 3)


def _hold(**changes: object) -> FlowHold:
    hold = FlowHold(reason=FlowReason.SLOTS, service=SERVICE, in_use=20, limit=20)
    return msgspec.structs.replace(hold, **changes)


def test_what_waits_for_a_limit_a_breaker_or_a_pause_waits_for_no_worker() -> None:
    breaker = OpenBreaker(opened_at_ms=NOW_MS, failures=5, probe_at_ms=NOW_MS + 10_000, error="DOWN: away")
    pause = ActivePause(kind="service", name=SERVICE, since_ms=NOW_MS, reason="licence")
    told = {
        "LIMIT": (_hold(), "96 jobs wait for a slot at `service-1`: 20 of 20 in use"),
        "BREAKER": (
            _hold(reason=FlowReason.BREAKER, breaker=breaker),
            "96 jobs wait for `service-1` to answer again: 5 attempts in a row failed (DOWN: away); "
            "one looks at 08:20:10",
        ),
        "PAUSE": (
            _hold(reason=FlowReason.PAUSED, pause=pause),
            "96 jobs wait for `service-1`, which is paused since 08:20:00 (licence)",
        ),
    }
    wait = Wait(WaitsFor.WORKER, SERVICE, 3, failed=False, late=False)
    for code, (hold, text) in told.items():
        facts = FleetFacts(
            now_ms=NOW_MS,
            waiting=(WaitingJobs(wait=wait, tenant="acme", jobs=96),),
            holds={SERVICE: hold},
        )
        assert [(group.code, group.text) for group in why(facts)] == [(code, text)]

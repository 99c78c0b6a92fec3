"""A ledger as a file and in another store: whatever a job was in the middle of, it goes on there, and ends
once."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import msgspec
import pytest
from tests.conformance.ledger_checks import check_always, check_at_rest, held_keys, run_out
from tests.conformance.ledger_plays import PLAYS, late_successes
from tests.conformance.ledger_setup import (
    LAYOUTS,
    Died,
    T,
    Trial,
    World,
    opened_world,
    submit,
)

from lucius.assembly.transfer import (
    ExportSummary,
    ImportSummary,
    LedgerImport,
    TransferFault,
    export_ledger,
    export_lines,
    verify_export,
)
from lucius.contracts.keys import KeyRequest, Role, StoredKey
from lucius.contracts.schedules import ScheduleSpec
from lucius.core.inputs import Cancel, Pause, ResultStatus
from lucius.core.model import Event
from lucius.core.states import Engine, Fact, JobState
from lucius.ledger.api_keys import ApiKeyStore
from lucius.ledger.chained_lines import BadLine
from lucius.ledger.flow import FlowLedger, FlowPause, PauseKind
from lucius.ledger.index_audit import IndexAudit
from lucius.ledger.job_copy import JobCopy, read_job_copy
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.lists import ListFilter
from lucius.ledger.rows import encode
from lucius.ledger.schedules import Schedule, Schedules
from lucius.ledger.store import OPS_MAX, put
from lucius.ledger.usage import DailyUsage, UsageSum, UsageSums, usage_puts
from lucius.ledger.webhooks import WebhookPhase, WebhookRows

MADE_AT = "2027-01-15T08:00:00+00:00"
OTHER = "tenant_b"


def silent(text: str) -> None:
    """Says nothing of how far it is."""


async def exported(world: World, target: Path, **more: object) -> ExportSummary:
    options = {
        "tenant": None,
        "api_keys": False,
        "running": False,
        "accept_damage": False,
        "made_at": MADE_AT,
        "report": silent,
    }
    return await export_ledger(
        JobLedger(world.store, world.layout),
        world.layout,
        target,
        **(options | more),  # type: ignore[arg-type]
    )


async def imported(
    world: World, source: Path, trial: Trial | None = None, *, accept_running: bool = False
) -> ImportSummary:
    ledger = world.deployment(trial).ledger
    work = LedgerImport(ledger, now_ms=world.clock, report=silent)
    return await work.run(source, accept_running=accept_running)


def continued(before: World, after: World) -> World:
    """The second goes on with the time and the ids of the first."""
    after.clock, after.ids = before.clock, before.ids
    return after


async def a_backlog(world: World) -> None:
    """Jobs in every state that there is."""
    deployment = world.deployment()
    await deployment.lists.record_time(world.clock.now_ms)
    for number, key in ((1, "done"), (2, "failed"), (3, "late"), (4, "retry"), (5, "acked"), (6, "paused")):
        await submit(deployment, number, request_type="OCR_EMBEDDING", key=key, doc_id=f"doc-{number}")
    taken = await deployment.take("ocr")
    done, failed, late, retry, begun, paused = taken
    for attempt in (done, failed, late, retry, begun):
        await deployment.ack(attempt)
    await deployment.result(done)
    (rest,) = await deployment.take("embedding")
    await deployment.result(rest)
    await deployment.result(failed, ResultStatus.FAILED_FINAL, "BROKEN")
    await deployment.reruns.rerun(failed.job_id, from_step=None, key=None)
    await deployment.writer.apply(late.job_id, Cancel())
    await deployment.result(retry, ResultStatus.FAILED_RETRY, "BUSY")
    await deployment.writer.apply(paused.job_id, Pause())
    assert begun.attempt_no == 1
    await submit(deployment, 7, request_type="OCR_EMBEDDING", tenant=OTHER)
    await submit(deployment, 8, request_type="OCR", key="waits")
    world.clock.now_ms += 5


@pytest.fixture
async def backlog(tmp_path: Path) -> AsyncIterator[World]:
    async with opened_world("memory", LayoutName.LEDGER, tmp_path) as world:
        await a_backlog(world)
        yield world


@pytest.fixture(params=LAYOUTS, ids=lambda layout: layout.value)
async def target(request: pytest.FixtureRequest, store_kind: str, tmp_path: Path) -> AsyncIterator[World]:
    folder = tmp_path / "target"
    folder.mkdir()
    async with opened_world(store_kind, request.param, folder) as ready:
        yield ready


async def test_a_backlog_goes_on_in_another_store(backlog: World, target: World, tmp_path: Path) -> None:
    target = continued(backlog, target)
    summary = await exported(backlog, tmp_path / "e")
    before = await backlog.records()
    assert summary.end.jobs == len(before) == 9
    done = await imported(target, tmp_path / "e")
    assert (done.jobs_written, done.jobs_there) == (9, 0)
    for job_id, record in before.items():
        copied = await read_job_copy(JobLedger(target.store, target.layout), job_id)
        assert copied is not None and copied.record == record
    assert await held_keys(target) == await held_keys(backlog)
    await check_always(target)
    assert await lost_rows(target) == []
    # The same command again is the same job.
    assert await submit(target.deployment(), 8, request_type="OCR", key="waits") in before
    await run_out(target)
    after = await check_at_rest(target)
    assert after.keys() == before.keys() and all(record.job.terminal for record in after.values())
    assert {job_id for job_id, record in before.items() if record.job.terminal} <= after.keys()


async def lost_rows(world: World) -> list[object]:
    """What the audit finds lacking or wrong around the jobs."""
    ledger = JobLedger(world.store, world.layout)
    audit = IndexAudit(ledger, now_ms=lambda: world.clock.now_ms + 60_000)
    found = [await audit.compare(row) for row in await audit.jobs(None, 1_000)]
    return [finding for each in found if each is not None for finding in each.findings]


@pytest.mark.parametrize("play", PLAYS.values(), ids=PLAYS.keys())
@pytest.mark.parametrize("spans", [True, False], ids=["to-one-commit", "to-single-commits"])
async def test_what_was_about_to_happen_happens_in_the_other_ledger(
    play: object, spans: bool, tmp_path: Path
) -> None:
    play = msgspec.structs.replace(play)  # type: ignore[type-var]
    first, second = ("memory-no-spans", "memory") if spans else ("memory", "memory-no-spans")
    async with (
        opened_world(first, LayoutName.LEDGER, tmp_path) as source,
        opened_world(second, LayoutName.TABLE, tmp_path) as target,
    ):
        act = await play.prepare(source)  # type: ignore[attr-defined]
        await exported(source, tmp_path / "e")
        target = continued(source, target)
        await imported(target, tmp_path / "e")
        await check_always(target)
        await act(target.deployment())
        await run_out(target)
        records = await check_at_rest(target)
        assert {record.job.state for record in records.values()} <= play.ends_when_asked_again  # type: ignore[attr-defined]
        assert records


@pytest.mark.parametrize("store_kind", ["memory", "memory-no-spans"])
async def test_an_import_that_is_cut_off_anywhere_is_gone_on_with(
    store_kind: str, backlog: World, tmp_path: Path
) -> None:
    await exported(backlog, tmp_path / "e")
    deaths = 0
    for number in count():
        async with opened_world(store_kind, LayoutName.TABLE, tmp_path) as fresh:
            target = continued(backlog, fresh)
            backlog_ms = backlog.clock.now_ms
            try:
                await imported(target, tmp_path / "e", Trial(at=number, dies_before=True))
            except Died:
                deaths += 1
                done = await imported(target, tmp_path / "e")
                assert done.jobs_written + done.jobs_there == 9
            else:
                break
            finally:
                backlog.clock.now_ms = backlog_ms
            assert await lost_rows(target) == []
            await check_always(target)
    assert deaths > 9


async def test_a_tenant_moves_into_a_ledger_where_others_are_at_work(backlog: World, tmp_path: Path) -> None:
    async with opened_world("memory-no-spans", LayoutName.LEDGER, tmp_path) as fresh:
        target = continued(backlog, fresh)
        theirs = await submit(target.deployment(), 99, tenant="tenant_c")
        summary = await exported(backlog, tmp_path / "e", tenant=OTHER)
        assert (summary.end.jobs, summary.tenants, summary.head.tenant) == (1, (OTHER,), OTHER)
        await imported(target, tmp_path / "e")
        (moved,) = [line for line in export_lines(tmp_path / "e") if isinstance(line, JobCopy)]
        page = await target.deployment().lists.page(ListFilter(tenant_norm=OTHER), None, 10, target.clock())
        assert page.job_ids == (moved.job.job_id,)
        await run_out(target)
        records = await target.records()
        assert {records[moved.job.job_id].job.state, records[theirs].job.state} == {JobState.SUCCEEDED}


async def test_a_ledger_that_has_jobs_takes_no_second_history(backlog: World, tmp_path: Path) -> None:
    await exported(backlog, tmp_path / "all")
    await exported(backlog, tmp_path / "one", tenant=OTHER)
    async with opened_world("memory", LayoutName.LEDGER, tmp_path) as fresh:
        target = continued(backlog, fresh)
        own = await submit(target.deployment(), 99, tenant=OTHER)
        with pytest.raises(TransferFault, match=f"not empty: it has {own}"):
            await imported(target, tmp_path / "all")
        with pytest.raises(TransferFault, match=f"has jobs of {OTHER} already: {own}"):
            await imported(target, tmp_path / "one")
        assert len(await target.records()) == 1


async def test_an_import_is_done_once(backlog: World, tmp_path: Path) -> None:
    await exported(backlog, tmp_path / "e")
    async with opened_world("memory", LayoutName.LEDGER, tmp_path) as fresh:
        target = continued(backlog, fresh)
        await imported(target, tmp_path / "e")
        with pytest.raises(TransferFault, match="has that export already"):
            await imported(target, tmp_path / "e")


async def test_an_export_beside_processes_is_imported_only_where_that_is_meant(
    backlog: World, tmp_path: Path
) -> None:
    await exported(backlog, tmp_path / "e", running=True)
    async with opened_world("memory", LayoutName.LEDGER, tmp_path) as fresh:
        target = continued(backlog, fresh)
        with pytest.raises(TransferFault, match="--accept-running"):
            await imported(target, tmp_path / "e")
        assert await target.store.scan(T.ledger, limit=1) == []
        assert (await imported(target, tmp_path / "e", accept_running=True)).jobs_written == 9


async def test_a_job_that_moves_meanwhile_is_exported_as_of_one_moment(tmp_path: Path) -> None:
    async with opened_world("memory", LayoutName.LEDGER, tmp_path) as world:
        for number in range(12):
            await submit(world.deployment(), number + 1, request_type="OCR_EMBEDDING")

        async def yields() -> None:
            await asyncio.sleep(0)

        busy = world.deployment(waits=yields)
        work = asyncio.create_task(busy.work())
        calm = world.deployment(waits=yields)
        while all(record.job.seq < 4 for record in (await world.records()).values()):
            await yields()
        await export_ledger(
            calm.ledger,
            world.layout,
            tmp_path / "e",
            tenant=None,
            api_keys=False,
            running=True,
            accept_damage=False,
            made_at=MADE_AT,
            report=silent,
        )
        copies = [line for line in export_lines(tmp_path / "e") if isinstance(line, JobCopy)]
        assert len(copies) == 12 and all(copy.fault is None for copy in copies)
        assert len({copy.job.seq for copy in copies}) > 1, "nothing moved meanwhile"
        await work


async def test_long_jobs_have_more_rows_than_one_commit(tmp_path: Path) -> None:
    async with opened_world("memory", LayoutName.LEDGER, tmp_path) as source:
        attempt, _ = await late_successes(source, times=130)
        await exported(source, tmp_path / "e")
        events = await source.events(attempt.job_id)
        assert len(events) > OPS_MAX
        for spans in ("memory", "memory-no-spans"):
            async with opened_world(spans, LayoutName.TABLE, tmp_path) as fresh:
                target = continued(source, fresh)
                await imported(target, tmp_path / "e")
                assert await target.events(attempt.job_id) == events
                await check_always(target)


async def test_a_job_of_the_temporal_engine_falls_due_at_once(tmp_path: Path) -> None:
    """Its workflow is started by the process that meets its row."""
    async with opened_world("memory", LayoutName.LEDGER, tmp_path) as source:
        source_deployment = source.deployment()
        job_id = await submit(source_deployment)
        loaded = await source_deployment.ledger.load(job_id)
        assert loaded is not None
        job = msgspec.structs.replace(loaded.record.job, engine=Engine.TEMPORAL)
        await source.store.commit([put(T.ledger, job_id, "JOB", encode(job))])
        await exported(source, tmp_path / "e")
        async with opened_world("memory-no-spans", LayoutName.LEDGER, tmp_path) as fresh:
            target = continued(source, fresh)
            await imported(target, tmp_path / "e")
            (due,) = await target.deployment().indexes.due(job.lane, target.clock.now_ms, 10)
            assert due.job_id == job_id


async def test_webhooks_go_on_where_they_were(tmp_path: Path) -> None:
    async with opened_world("memory", LayoutName.LEDGER, tmp_path) as source:
        urls = {"completed": "https://hooks.example.com/jobs"}
        for number in range(3):
            await submit(source.deployment(), number + 1, callback_urls=urls)
        await source.deployment().work()
        rows, now_ms = WebhookRows(source.store, T), source.clock.now_ms
        due = [each for lane in range(16) for each in await rows.due(lane, now_ms, 10)]
        new, sent, dead = sorted(due, key=lambda each: each.job_id)
        held = await rows.claim(sent, None, now_ms, now_ms + 1_000)
        await rows.delivered(sent.lane, sent.job_id, held, now_ms)
        held = await rows.claim(dead, None, now_ms, now_ms + 1_000)
        job = (await source.records())[dead.job_id].job
        await rows.bury(job, held, "410 Gone", now_ms + 7)
        await exported(source, tmp_path / "e")
        async with opened_world("memory-no-spans", LayoutName.TABLE, tmp_path) as fresh:
            target = continued(source, fresh)
            await imported(target, tmp_path / "e")
            there = WebhookRows(target.store, T)
            left = [each.job_id for lane in range(16) for each in await there.due(lane, now_ms, 10)]
            assert left == [new.job_id]
            told = await there.held(sent.lane, sent.job_id)
            assert told is not None and told.state.phase is WebhookPhase.DELIVERED
            assert await there.dead("", 10) == await rows.dead("", 10) != []


async def test_schedules_come_along_and_keys_where_they_are_asked_for(backlog: World, tmp_path: Path) -> None:
    spec = ScheduleSpec(schedule_id="nightly", command={}, tenant_norm=OTHER, every_ms=60_000)
    schedule = Schedule(spec=spec, created_at_ms=1, updated_at_ms=1, look_ms=2, next_ms=2)
    schedules = Schedules(backlog.store, T.meta, backlog.deployment().ledger.quarantine)
    assert await schedules.create(schedule)
    parts: Iterator[tuple[str, str]] = iter([("a" * 16, "s" * 64), ("b" * 16, "t" * 64)])
    keys = ApiKeyStore(backlog.store, T.meta, now_ms=backlog.clock, new_parts=lambda: next(parts))
    roles = frozenset({Role.READ})
    for tenants in (None, frozenset({OTHER})):
        await keys.create(KeyRequest(name="k", tenants=tenants, roles=roles, services=None))
    assert (await exported(backlog, tmp_path / "plain")).end.api_keys == 0
    summary = await exported(backlog, tmp_path / "one", tenant=OTHER, api_keys=True)
    assert (summary.end.schedules, summary.end.api_keys) == (1, 1)
    summary = await exported(backlog, tmp_path / "all", api_keys=True)
    assert (summary.end.schedules, summary.end.api_keys) == (1, 2)
    text = (tmp_path / "all").read_text()
    assert "s" * 64 not in text and "t" * 64 not in text
    async with opened_world("memory-no-spans", LayoutName.LEDGER, tmp_path) as fresh:
        target = continued(backlog, fresh)
        done = await imported(target, tmp_path / "all")
        assert (done.schedules_written, done.api_keys_written) == (1, 2)
        there = Schedules(target.store, T.meta, target.deployment().ledger.quarantine)
        assert [due.schedule_id for due in await there.due(5, 10)] == ["nightly"]
        row = await target.store.get(T.meta, "api-keys", "b" * 16)
        assert row is not None and msgspec.json.decode(row.body, type=StoredKey).tenants == (OTHER,)


@pytest.mark.parametrize("store_kind", ["memory", "memory-no-spans"])
async def test_what_was_used_and_paused_comes_along_once(
    store_kind: str, backlog: World, tmp_path: Path
) -> None:
    used = UsageSums(backlog.store, T.meta, backlog.deployment().ledger.quarantine)
    for tenant, pages in (("tenant_a", 3), (OTHER, 5)):
        (job,) = [each for each in (await backlog.records()).values() if each.job.tenant_norm == tenant][:1]
        told = Event(seq=99, type=Fact.STEP_SUCCEEDED, at_ms=backlog.clock(), step_id="step_01", attempt_no=1)
        told = msgspec.structs.replace(told, data={"usage": {"pages": pages}})
        await backlog.store.commit(usage_puts(T.meta, job, job.job, [told]))
    await used.add_up(OTHER, backlog.clock())  # one is a sum by now, the other a result
    flow = FlowLedger(backlog.store, T.meta, backlog.deployment().ledger.quarantine)
    for kind, name in ((PauseKind.SERVICE, "ocr"), (PauseKind.TENANT, OTHER)):
        await flow.pause(FlowPause(kind=kind, name=name, since_ms=5))
    one = await exported(backlog, tmp_path / "one", tenant=OTHER)
    assert (one.end.pauses, one.end.usage_sums) == (1, 1)
    summary = await exported(backlog, tmp_path / "e")
    assert (summary.end.pauses, summary.end.usage_sums) == (2, 2)
    async with opened_world(store_kind, LayoutName.LEDGER, tmp_path) as fresh:
        target = continued(backlog, fresh)
        with pytest.raises(Died):
            await imported(target, tmp_path / "e", Trial(at=12, dies_before=True))
        await imported(target, tmp_path / "e")
        there = UsageSums(target.store, T.meta, target.deployment().ledger.quarantine)
        assert await there.tenants() == ["tenant_a", OTHER]
        for tenant in ("tenant_a", OTHER):
            assert await there.read(tenant, "0", "9") == await used.read(tenant, "0", "9") != []
        paused = FlowLedger(target.store, T.meta, target.deployment().ledger.quarantine)
        assert await paused.pauses() == await flow.pauses()


async def test_usage_of_two_ledgers_is_not_put_together(backlog: World, tmp_path: Path) -> None:
    await exported(backlog, tmp_path / "one", tenant=OTHER)
    async with opened_world("memory", LayoutName.LEDGER, tmp_path) as fresh:
        target = continued(backlog, fresh)
        there = UsageSums(target.store, T.meta, target.deployment().ledger.quarantine)
        daily = DailyUsage(day="20270115", service="ocr", sum=UsageSum(results=1, usage={"pages": 1}))
        assert await there.bring(OTHER, daily) and not await there.bring(OTHER, daily)
        with pytest.raises(TransferFault, match=f"sums of what {OTHER} used"):
            await imported(target, tmp_path / "one")


async def test_jobs_that_cannot_be_read_end_the_export_or_are_named(backlog: World, tmp_path: Path) -> None:
    broken = next(iter(await backlog.records()))
    await backlog.store.commit([put(T.ledger, broken, "STEP#0#step_01", b"no JSON")])
    with pytest.raises(TransferFault, match=broken):
        await exported(backlog, tmp_path / "e")
    assert list(tmp_path.glob("*e*")) == [] and not (tmp_path / "e").exists()
    summary = await exported(backlog, tmp_path / "e", accept_damage=True)
    assert (summary.end.jobs, len(summary.end.left_out)) == (8, 1)
    assert broken in summary.end.left_out[0]
    assert verify_export(tmp_path / "e") == summary


async def test_a_changed_byte_is_found_at_its_line(backlog: World, tmp_path: Path) -> None:
    path = tmp_path / "e"
    await exported(backlog, path)
    whole = path.read_bytes()
    assert whole.count(b"\n") == 11
    bad = tmp_path / "bad"
    for place in range(0, len(whole), 97):
        for bit in (1, 32):
            changed = bytearray(whole)
            changed[place] ^= bit
            bad.write_bytes(changed)
            with pytest.raises(BadLine) as found:
                verify_export(bad)
            assert found.value.number == whole[:place].count(b"\n") + 1


async def test_lines_that_are_lost_moved_or_made_up_are_found(backlog: World, tmp_path: Path) -> None:
    path, bad = tmp_path / "e", tmp_path / "bad"
    await exported(backlog, path)
    lines = path.read_bytes().splitlines(keepends=True)
    for number, changed in (
        (4, lines[:3] + lines[4:]),
        (4, [*lines[:3], lines[4], lines[3], *lines[5:]]),
        (4, [*lines[:3], lines[2], *lines[3:]]),
        (11, lines[:-1]),
        (11, [*lines[:-1], lines[-1][:-9]]),
        (12, [*lines, lines[-1]]),
        (1, [b"{}\n"]),
        (1, []),
    ):
        bad.write_bytes(b"".join(changed))
        with pytest.raises(BadLine) as found:
            verify_export(bad)
        assert found.value.number == number


async def test_an_export_of_a_later_version_is_left_to_that(backlog: World, tmp_path: Path) -> None:
    from lucius.ledger.chained_lines import ChainReader, ChainWriter

    await exported(backlog, tmp_path / "e")
    bodies = list(ChainReader(tmp_path / "e"))
    with ChainWriter(tmp_path / "later") as file:
        file.write(bodies[0].replace(b'"row_schema":1', b'"row_schema":2'))
        file.finish()
    with pytest.raises(TransferFault, match="later one"):
        verify_export(tmp_path / "later")


async def test_an_export_never_replaces_a_file(backlog: World, tmp_path: Path) -> None:
    (tmp_path / "e").write_text("mine")
    with pytest.raises(FileExistsError):
        await exported(backlog, tmp_path / "e")
    assert (tmp_path / "e").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".e")] == []

"""The audit as a duty: a process whose index rows were lost gets its jobs moving again, and says so."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lucius.assembly import Embedded
from lucius.assembly.clock_and_ids import now_ms
from lucius.contracts.envelope import parse_envelope
from lucius.core.refusal import Refused
from lucius.engines.index_audit import IndexAuditor, audit_rows_per_second
from lucius.jobs.submit import Submitted
from lucius.ledger.index_audit import IndexAudit
from lucius.ledger.job_ledger import JobLedger, LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.names import Tables
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import Scanned, StoreUnavailable, TableStore, discard, put
from lucius.settings import BadSetting, read_settings

T = Tables()
COMMAND = {
    "tenant_id": "acme",
    "request_type": "OCR",
    "input_ref": {"uri": "s3://in/1"},
    "output_ref": {"uri": "s3://out/1"},
    "payload": {},
    "schema_version": "1",
}


@asynccontextmanager
async def embedded(store: TableStore, data: Path) -> AsyncIterator[Embedded]:
    settings = read_settings({"LUCIUS_OUTBOX_RETRY_INTERVAL": "50ms"})
    lucius = Embedded(
        store, settings, layout=LayoutName.TABLE, data=data, base_url="http://l", protocols=None
    )
    lucius.audit = IndexAuditor(
        IndexAudit(JobLedger(store, LayoutName.TABLE), now_ms=now_ms),
        rows_per_second=10_000,
        pass_every_seconds=0.05,
    )
    await lucius.start({})
    try:
        yield lucius
    finally:
        await lucius.stop()


async def submitted(lucius: Embedded) -> str:
    parsed = parse_envelope(COMMAND)
    assert not isinstance(parsed, Refused)
    accepted = await lucius.deployment.submitter.submit(parsed)
    assert isinstance(accepted, Submitted)
    return accepted.job_id


async def lose(store: TableStore, *tables: str) -> None:
    for table in tables:
        for row in await store.scan(table, limit=100):
            await store.commit([discard(table, row.partition, row.key)])


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
async def test_a_job_whose_rows_were_lost_is_handed_out_by_the_same_process(
    tmp_path: Path, kind: str
) -> None:
    store: TableStore = MemoryStore() if kind == "memory" else await SqliteStore.open(tmp_path / "lucius.db")
    async with embedded(store, tmp_path) as lucius:
        job_id = await submitted(lucius)
        await lose(store, T.due, T.dispatch, T.inflight, T.job_index)
        async with asyncio.timeout(20):
            (handed,) = await lucius.dispatcher.take("ocr", directives_max=1, wait_ms=15_000)
        assert handed.record.job.job_id == job_id
        assert {index for index, _ in lucius.audit.repairs} >= {"due", "dispatch", "slot", "list", "pointer"}


async def test_repairs_are_told_to_prometheus(tmp_path: Path) -> None:
    store = MemoryStore()
    settings = read_settings({})
    lucius = Embedded(
        store, settings, layout=LayoutName.LEDGER, data=tmp_path, base_url="http://l", protocols=None
    )
    await submitted(lucius)
    await lose(store, T.due)
    assert await lucius.audit.look() == 1
    text, _ = lucius.metrics.text("text/plain", tenants=True)
    assert b'lucius_index_repairs_total{fault="lost",index="due"} 1.0' in text
    assert b"lucius_audit_passes_total 1" in text


async def test_a_job_that_cannot_be_read_hides_no_other(tmp_path: Path) -> None:
    store = MemoryStore()
    lucius = Embedded(
        store,
        read_settings({}),
        layout=LayoutName.LEDGER,
        data=tmp_path,
        base_url="http://l",
        protocols=None,
    )
    await store.commit([put(T.ledger, "job_000", "JOB", b'{"job_id":1}')])
    await submitted(lucius)
    await lose(store, T.due)
    assert await lucius.audit.look() == 1
    assert lucius.audit.unreadable == 1


async def test_an_audit_that_cannot_read_goes_on_later() -> None:
    class Away(MemoryStore):
        away = True

        async def scan(
            self, table: str, *, after: tuple[str, str] | None = None, limit: int, key: str | None = None
        ) -> list[Scanned]:
            if self.away:
                raise StoreUnavailable("away")
            return await super().scan(table, after=after, limit=limit, key=key)

    store = Away()
    audit = IndexAudit(JobLedger(store, LayoutName.LEDGER), now_ms=now_ms)
    duty = IndexAuditor(audit, rows_per_second=1_000, pass_every_seconds=0.01)
    running = asyncio.create_task(duty.run())
    await asyncio.sleep(0.05)
    assert duty.passes == 0 and not running.done()
    store.away = False
    async with asyncio.timeout(10):
        while not duty.passes:
            await asyncio.sleep(0.01)
    running.cancel()


async def test_none_at_all_reads_nothing() -> None:
    audit = IndexAudit(JobLedger(MemoryStore(), LayoutName.LEDGER), now_ms=now_ms)
    running = asyncio.create_task(IndexAuditor(audit, rows_per_second=0, pass_every_seconds=0).run())
    await asyncio.sleep(0.02)
    assert audit.rows_read == 0 and not running.done()
    running.cancel()


def test_how_fast_it_reads() -> None:
    assert audit_rows_per_second(None, spans=True) == 2_000
    assert audit_rows_per_second(None, spans=False) == 100
    assert read_settings({}).audit_rows_per_second is None
    assert read_settings({"LUCIUS_AUDIT_ROWS_PER_SECOND": "0"}).audit_rows_per_second == 0
    with pytest.raises(BadSetting, match="LUCIUS_AUDIT_ROWS_PER_SECOND"):
        read_settings({"LUCIUS_AUDIT_ROWS_PER_SECOND": "many"})


async def test_rows_of_a_job_that_cannot_be_read_are_left_alone(tmp_path: Path) -> None:
    store = MemoryStore()
    settings = read_settings({})
    lucius = Embedded(
        store, settings, layout=LayoutName.LEDGER, data=tmp_path, base_url="http://l", protocols=None
    )
    job_id = await submitted(lucius)
    await store.commit([put(T.ledger, job_id, "STEP#0#step_01", b'{"v":1,"step_id":7}')])
    before = [await store.scan(table, limit=100) for table in (T.due, T.dispatch, T.inflight, T.job_index)]
    for _ in range(2):
        assert await lucius.audit.look() == 0
    after = [await store.scan(table, limit=100) for table in (T.due, T.dispatch, T.inflight, T.job_index)]
    assert after == before and lucius.audit.unreadable == 2

"""How a process is put together: which part runs what, what may be shared, and where a broker comes in."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from lucius.assembly import Embedded, NotShareable, Part
from lucius.assembly import embedded as embedding
from lucius.assembly.clock_and_ids import new_lease_id, now_ms
from lucius.assembly.secrets import rotate_signing_keys
from lucius.assembly.stores import claim_layout, layout_fault
from lucius.assembly.wiring import make_registry
from lucius.bus.memory import MemoryBus
from lucius.bus.port import Delivery, ReplyOut
from lucius.contracts.envelope import parse_envelope
from lucius.core.attempt import AttemptRef
from lucius.core.inputs import Cancel
from lucius.core.model import JobRecord
from lucius.core.refusal import Refused
from lucius.jobs.submit import Submitted
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.memory import MemoryStore
from lucius.ledger.names import Tables
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import StoreUnavailable, TableStore
from lucius.settings import read_settings
from lucius_lab.emulators import own_azurite
from lucius_lab.emulators.azurite import AzuriteFailed

COMMAND = {
    "tenant_id": "acme",
    "request_type": "OCR",
    "input_ref": {"uri": "s3://in/1"},
    "output_ref": {"uri": "s3://out/1"},
    "payload": {},
    "schema_version": "1",
}
RECONCILING = {"sweeper", "retention", "webhooks", "depths", "audit"}


def embedded(store: TableStore, data: Path, **more: Any) -> Embedded:
    usual = read_settings(
        {"LUCIUS_OUTBOX_RETRY_INTERVAL": "500ms", "LUCIUS_MAX_INFLIGHT_PER_TENANT": "100000"}
    )
    return Embedded(
        store,
        more.pop("settings", usual),
        layout=LayoutName.LEDGER,
        data=data,
        base_url="http://house",
        protocols=None,
        **more,
    )


async def submitted(lucius: Embedded) -> str:
    parsed = parse_envelope({**COMMAND, "idempotency_key": new_lease_id()})
    assert not isinstance(parsed, Refused)
    accepted = await lucius.deployment.submitter.submit(parsed)
    assert isinstance(accepted, Submitted)
    return accepted.job_id


def test_a_store_or_bus_of_one_process_refuses_to_be_shared(tmp_path: Path) -> None:
    with pytest.raises(NotShareable, match="ledger in memory"):
        embedded(MemoryStore(), tmp_path, shared=True)


def test_a_protocol_that_is_wrong_from_the_start_is_logged(tmp_path: Path) -> None:
    (tmp_path / "none.yaml").write_text("protocol_id: none_v1\nrequest_types: [NONE]\nsteps: []\n")
    with capture_logs() as lines:
        make_registry(read_settings({}), tmp_path)
    assert [(line["event"], line["log_level"], line["problem"]) for line in lines] == [
        ("protocol_refused", "warning", "none.yaml: /steps: must be a list of 1 to 32 steps")
    ]


async def test_a_bus_of_one_process_refuses_to_be_shared(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "lucius.db")
    try:
        with pytest.raises(NotShareable, match="bus in memory"):
            embedded(store, tmp_path, shared=True, bus=MemoryBus(now_ms=now_ms))
    finally:
        await store.close()


@pytest.mark.parametrize("part", Part)
async def test_a_part_runs_what_it_is_for(tmp_path: Path, part: Part) -> None:
    store = await SqliteStore.open(tmp_path / "lucius.db")
    lucius = embedded(store, tmp_path, shared=part is not Part.ALL, part=part)
    await lucius.start({})
    running = {task.get_name().removeprefix("lucius ") for task in asyncio.all_tasks()}
    await lucius.stop()
    assert {"recount", "protocols"} <= running
    assert running & RECONCILING == (set() if part in (Part.API, Part.ORCHESTRATOR) else RECONCILING)
    assert ("lanes" in running) is (part in (Part.RECONCILER, Part.INVOKER))


async def test_processes_take_tokens_of_a_key_that_others_sign_with_already(tmp_path: Path) -> None:
    attempt = AttemptRef(job_id="job_1", step_id="step_01", attempt_no=1, lease_id="lease")
    old = embedded(await SqliteStore.open(tmp_path / "lucius.db"), tmp_path, shared=True, part=Part.API)
    await old.start({})
    rotate_signing_keys(tmp_path / "keys")
    new = embedded(await SqliteStore.open(tmp_path / "lucius.db"), tmp_path, shared=True, part=Part.API)
    token = new.deployment.tokens.mint(attempt)
    try:
        async with asyncio.timeout(20):
            while old.deployment.tokens.read(token) != attempt:
                await asyncio.sleep(0.05)
        assert new.deployment.tokens.read(old.deployment.tokens.mint(attempt)) == attempt
    finally:
        await new.stop()
        await old.stop()


async def test_a_busy_dispatcher_still_hands_out_what_another_process_wrote(tmp_path: Path) -> None:
    """Takers that are always served by commits of their own process must not keep others' rows waiting."""
    busy, other = [
        embedded(await SqliteStore.open(tmp_path / "lucius.db"), tmp_path, shared=True, part=Part.API)
        for _ in range(2)
    ]
    try:
        taken = await busy.dispatcher.take("ocr", directives_max=1, wait_ms=0)
        assert taken == []
        wanted = await submitted(other)
        async with asyncio.timeout(20):
            while wanted not in [one.record.job.job_id for one in taken]:
                taking = asyncio.create_task(busy.dispatcher.take("ocr", directives_max=1, wait_ms=5_000))
                await asyncio.sleep(0)
                await submitted(busy)
                taken = await taking
    finally:
        await other.stop()
        await busy.stop()


async def test_a_job_that_another_process_has_ended_is_not_waited_for(tmp_path: Path) -> None:
    one, other = [
        embedded(await SqliteStore.open(tmp_path / "lucius.db"), tmp_path, shared=True, part=Part.API)
        for _ in range(2)
    ]
    try:
        job_id = await submitted(one)  # which remembers it as it is now
        await other.writer.apply(job_id, Cancel())
        loop = asyncio.get_running_loop()
        looks: list[float] = []
        load = one.deployment.ledger.load

        async def counted(*arguments: Any, **more: Any) -> Any:
            looks.append(loop.time())
            return await load(*arguments, **more)

        one.deployment.ledger.load = counted  # type: ignore[method-assign]
        record = await one.waiting.job(job_id, 20_000)
        assert isinstance(record, JobRecord) and record.job.state == "CANCELLED"
        assert len(looks) == 1
    finally:
        await other.stop()
        await one.stop()


async def test_over_a_bus_directives_are_published_and_replies_applied(tmp_path: Path) -> None:
    bus = MemoryBus(now_ms=now_ms)
    lucius = embedded(MemoryStore(), tmp_path, bus=bus)
    await lucius.start({})
    try:
        job_id = await submitted(lucius)
        delivery, directive = await first_directive(bus)
        assert directive["jobId"] == job_id
        names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
        result = {name: directive[name] for name in names} | {
            "type": "RESULT",
            "status": "SUCCEEDED",
            "timestamp": "2026-01-02T03:04:05Z",
        }
        body = msgspec.json.encode(result)
        reply = ReplyOut(lane=delivery.lane, message_key=delivery.message_key, message_id="r", body=body)
        await bus.publish_reply(reply)
        record = await lucius.waiting.job(job_id, 20_000)
        assert isinstance(record, JobRecord) and record.job.state == "SUCCEEDED"
        checks = {name: await check() for name, check in lucius.deployment.checks.items()}
        assert checks == dict.fromkeys(("ledger", "ledger_rows", "protocols", "duties", "bus"))
        bus.down = True
        assert await lucius.deployment.checks["bus"]() is not None
        bus.down = False
    finally:
        await lucius.stop()


async def first_directive(bus: MemoryBus) -> tuple[Delivery, dict[str, Any]]:
    receivers = [await bus.directives("ocr", lane) for lane in range(16)]
    waits = [asyncio.create_task(one.receive(messages_max=1, wait_ms=20_000)) for one in receivers]
    done, left = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in left:
        wait.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    delivery = done.pop().result()[0]
    return delivery, msgspec.json.decode(delivery.body)


async def test_tables_that_many_share_keep_the_layout_they_were_made_with() -> None:
    """Who came with the other would find no job behind any row, and clear them all away."""
    store, tables = MemoryStore(spans=False), Tables()
    for _ in range(2):
        await claim_layout(store, tables, LayoutName.LEDGER)
    with pytest.raises(StoreUnavailable, match="was made with --storage ledger"):
        await claim_layout(store, tables, LayoutName.TABLE)
    await claim_layout(store, tables, LayoutName.LEDGER)


async def test_tables_of_another_layout_leave_no_mark_on_a_new_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say how to go on, which the folder must then not refuse."""
    settings = read_settings({"LUCIUS_TABLE_CONNECTION": "UseDevelopmentStorage=true"})

    async def opened(*_: object) -> TableStore:
        store = await SqliteStore.open(tmp_path / "somewhere else")
        await claim_layout(store, settings.tables, LayoutName.TABLE)
        return store

    monkeypatch.setattr(embedding, "open_store", opened)
    usual: dict[str, Any] = {"data": tmp_path, "base_url": "http://house", "protocols": None}
    with pytest.raises(StoreUnavailable, match="go on with --storage table"):
        await embedding.open_embedded(settings, storage="ledger", **usual)
    assert layout_fault(tmp_path, "table") is None
    lucius = await embedding.open_embedded(settings, storage="table", **usual)
    assert "Go on with --storage table" in str(layout_fault(tmp_path, "ledger"))
    await lucius.stop()


def test_an_azurite_that_ended_is_not_started_elsewhere(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody:
        tables = own_azurite._Server(tmp_path)
        tables.note = own_azurite._Note(pid=0, port=somebody.getsockname()[1])
        with pytest.raises(AzuriteFailed, match="is taken"):
            tables.start_again()
    assert not (tmp_path / "azurite").exists()

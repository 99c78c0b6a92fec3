"""Damage of a ledger's file, and of Azure's entities: never a wrong answer, and each damage is named.

Bits are flipped, pages zeroed and files cut short at places that a seed chooses. What a process answers then
is compared with what it answered before.
"""

import random
import shutil
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from azure.data.tables.aio import TableClient, TableServiceClient
from tests.conformance.azurite_setup import azurite, new_prefix, open_store
from tests.conformance.damage import Failed, answers, go_on, jobs_in_every_state, wrong
from tests.conformance.ledger_setup import T, World, opened_world

from lucius.ledger.azure_tables.entity import row_of
from lucius.ledger.azure_tables.names import key_from_azure, table_from_azure
from lucius.ledger.job_ledger import LayoutName
from lucius.ledger.row_check import check_row
from lucius.ledger.sqlite.file import PAGE_BYTES
from lucius.ledger.sqlite.integrity import file_findings
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import StoreUnavailable

TRIALS = 500
AZURE_TRIALS = 25  # over the wire; the others ask the codec alone
FLIP, ZERO, CUT = "flipped bit", "zeroed page", "truncation"


def damaged(content: bytes, seed: int) -> tuple[str, bytes]:
    chance = random.Random(seed)
    kind = chance.choices((FLIP, ZERO, CUT), (6, 2, 2))[0]
    if kind == CUT:
        return kind, content[: chance.randrange(len(content))]
    changed = bytearray(content)
    if kind == FLIP:
        changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    else:
        at = chance.randrange(len(changed) // PAGE_BYTES) * PAGE_BYTES
        changed[at : at + PAGE_BYTES] = bytes(PAGE_BYTES)
    return kind, bytes(changed)


async def _after(path: Path, layout: LayoutName, world: World) -> dict[str, Any] | None:
    """What a process answers on the damaged file, before and after it goes on; None if it refused to open."""
    try:
        store = await SqliteStore.open(path)
    except StoreUnavailable as fault:
        assert "SQLite" in str(fault)
        return None
    try:
        again = World(store, layout)
        again.clock.now_ms, again.ids = world.clock.now_ms, world.ids
        found = await answers(again, again.deployment())
        await go_on(again, again.deployment())
        return found
    finally:
        await store.close()


@pytest.mark.parametrize("layout", LayoutName)
async def test_damage_of_the_file_is_never_served_and_always_named(
    layout: LayoutName, tmp_path: Path
) -> None:
    async with opened_world("sqlite", layout, tmp_path) as world:
        await jobs_in_every_state(world)
        before = await answers(world, world.deployment())
    content = (tmp_path / "ledger.db").read_bytes()
    assert not any(isinstance(answer, Failed) for answer in before.values())
    assert file_findings(tmp_path / "ledger.db", rest_seconds=0) == []
    seen: Counter[str] = Counter()
    trials = range(TRIALS // 2) if layout is LayoutName.LEDGER else range(TRIALS // 2, TRIALS)
    for seed in trials:
        folder = tmp_path / "damaged"
        folder.mkdir()
        kind, changed = damaged(content, seed)
        path = folder / "ledger.db"
        path.write_bytes(changed)
        findings = file_findings(path, rest_seconds=0)
        after = await _after(path, layout, world)
        shutil.rmtree(folder)
        if after is None:
            assert findings, (seed, kind)
            seen["refused"] += 1
            continue
        assert wrong(before, after) == [], (seed, kind)
        assert findings or after == before, (seed, kind)
        seen[f"{kind}, named" if findings else f"{kind}, in unused bytes"] += 1
        seen["answered as before"] += after == before
    assert seen[f"{FLIP}, named"] > TRIALS // 20 and seen[f"{ZERO}, named"] and seen["refused"], seen


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE lucius_ledger SET body = ? WHERE pk = ? AND rk = 'JOB'",
        "UPDATE lucius_ledger SET body = ? WHERE pk = ? AND rk LIKE 'STEP%'",
        "UPDATE lucius_ledger SET body = ? WHERE pk = ? AND rk LIKE 'EVENT%1'",
        "UPDATE lucius_ledger SET body = ? WHERE pk = ? AND rk LIKE 'OUTBOX%'",
        "UPDATE lucius_due SET body = ? WHERE rk LIKE '%' || ?",
        "UPDATE lucius_dispatch SET body = ? WHERE rk LIKE '%' || ?",
        "UPDATE lucius_inflight SET body = ? WHERE rk = ?",
        "UPDATE lucius_job_index SET body = ? WHERE rk LIKE '%' || ?",
        'UPDATE "job-idempotency" SET body = ? WHERE instr(body, ?) > 0',
    ],
)
@pytest.mark.parametrize("body", [b'{"v":2,"state":"FROZEN"}', b'{"v":1,"version":"x"}', b"\xff", b""])
@pytest.mark.parametrize("sealed", [True, False])
async def test_one_unreadable_row_stops_only_its_job(
    statement: str, body: bytes, sealed: bool, tmp_path: Path
) -> None:
    """`sealed`: the row had a checksum, and else is of a time when rows had none."""
    async with opened_world("sqlite", LayoutName.LEDGER, tmp_path) as world:
        states = await jobs_in_every_state(world)
        before = await answers(world, world.deployment())
        hit = states["DISPATCHING"]
        writer = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None, timeout=5)
        if not sealed:
            table = statement.split()[1]
            writer.execute(f"UPDATE {table} SET etag = substr(etag, 1, instr(etag, '-') - 1)")
        assert writer.execute(statement, (body, hit)).rowcount >= 1
        deployment = world.deployment()
        after = await answers(world, deployment)
        assert wrong(before, after) == []
        told = {name for name, answer in after.items() if isinstance(answer, Failed)}
        assert all(hit in name for name in told)
        await go_on(world, deployment)
        if b'"v":2' in body and "lucius_ledger" in statement:
            kept = writer.execute("SELECT count(*) FROM lucius_ledger WHERE body = ?", (body,)).fetchall()
            assert kept[0][0] >= 1  # neither changed nor removed
        writer.close()
        others = {job_id: record for job_id, record in (await _readable(world)).items() if job_id != hit}
        assert len(others) == len(world.ids.jobs) - 1


async def _readable(world: World) -> dict[str, Any]:
    deployment, found = world.deployment(), {}
    for job_id in world.ids.jobs:
        answer = (await answers(world, deployment))[f"job {job_id}"]
        if answer is not None and not isinstance(answer, Failed):
            found[job_id] = answer
    return found


async def _entities(prefix: str) -> list[tuple[str, str, dict[str, Any]]]:
    """Every entity of a store: Azure's table, the port's, and the entity."""
    found: list[tuple[str, str, dict[str, Any]]] = []
    connection_string = azurite().connection_string
    async with TableServiceClient.from_connection_string(connection_string) as service:
        async for table in service.list_tables():
            logical = table_from_azure(prefix, table.name)
            if logical is not None:
                entities = service.get_table_client(table.name).list_entities()
                found += [(table.name, logical, entity) async for entity in entities]
    return found


def _flipped(entity: dict[str, Any], chance: random.Random) -> dict[str, Any]:
    """With one bit flipped in one of the columns that hold the row; a string stays one that Azure takes."""
    name = chance.choice([name for name in ("Body", "Part00", "Write", "Sum") if name in entity])
    raw = bytearray(entity[name] if isinstance(entity[name], bytes) else entity[name].encode())
    while True:
        at, bit = chance.randrange(len(raw)), 1 << chance.randrange(8)
        if isinstance(entity[name], bytes) or 32 <= raw[at] ^ bit < 127:
            raw[at] ^= bit
            break
    return {**entity, name: bytes(raw) if isinstance(entity[name], bytes) else raw.decode()}


@pytest.mark.xdist_group("azurite")
async def test_damage_of_entities_is_never_served_and_always_named() -> None:
    prefix = new_prefix()
    store = await open_store(prefix=prefix)
    world = World(store, LayoutName.LEDGER, frugal=True)
    await jobs_in_every_state(world)
    before = await answers(world, world.deployment())
    assert not any(isinstance(answer, Failed) for answer in before.values())
    entities = await _entities(prefix)
    for seed in range(TRIALS):
        chance = random.Random(seed)
        name, table, entity = chance.choice(entities)
        partition = key_from_azure(entity["PartitionKey"])
        hurt = _flipped(entity, chance)
        row = row_of(table, partition, hurt, 'W/"1"')
        assert check_row(T, table, partition, row), (seed, table, row)
        if seed >= AZURE_TRIALS:
            continue
        connection_string = azurite().connection_string
        async with TableClient.from_connection_string(connection_string, name) as client:
            await client.upsert_entity(hurt, mode="replace")
            after = await answers(world, world.deployment())
            assert wrong(before, after) == [], (seed, table)
            await client.upsert_entity(entity, mode="replace")
    assert await answers(world, world.deployment()) == before
    await go_on(world, world.deployment())
    await store.close()

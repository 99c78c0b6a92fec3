"""Columns for people on Azurite, read with Microsoft's library alone: clear text, types, and what is cut."""

import datetime
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
from azure.data.tables import EdmType, EntityProperty
from tests.conformance.azurite_setup import new_prefix, open_store
from tests.conformance.columns_read import entities

from lucius.core.model import Event, Job, Step, StepPolicy
from lucius.core.routing import route
from lucius.core.states import Engine, Fact, JobState, Mode
from lucius.ledger.azure_tables.entity import ENTITY_BYTES_MAX, TEXT_CHARACTERS_MAX, wire_bytes
from lucius.ledger.azure_tables.names import table_to_azure
from lucius.ledger.azure_tables.shown import COLUMNS_CUT, CUT_MARK, shown_properties, units
from lucius.ledger.azure_tables.store import AzureTablesStore
from lucius.ledger.columns import shown_event, shown_job, shown_step
from lucius.ledger.layout import OnePartition
from lucius.ledger.rows import decode_job, encode
from lucius.ledger.store import Op, put

pytestmark = pytest.mark.xdist_group("azurite")
T, P = "lucius_ledger", "job_1"
AT_MS = 1_800_000_000_123
ROUTING = route(
    tenant_id="Zürich", doc_id=None, mode=Mode.DEFAULT, decision_source="REQUEST", decision_reason="X"
)
TIES = "".join(chr(0x4E00 + n) for n in range(1_000))
FACES = "\U0001f600" * 20_000


def _job(**more: Any) -> Job:
    return Job(
        **{
            "job_id": P,
            "tenant_id": "Zürich",
            "tenant_norm": "zürich",
            "request_type": "OCR→EMBEDDING",
            "protocol_id": "p",
            "engine": Engine.OUTBOX,
            "mode": Mode.DEFAULT,
            "lane": 2,
            "created_at_ms": AT_MS,
            "updated_at_ms": AT_MS,
            "sla_ms": 1,
            "output_uri": "s3://out",
            "idempotency_hash": "h",
            "fingerprint": "f",
            "correlation_id": "c",
            "traceparent": "t",
            **more,
        }
    )


def _step(index: int = 0, **more: Any) -> Step:
    return Step(
        **{
            "step_id": f"step_{index + 1:02d}",
            "step_index": index,
            "step_type": "OCR",
            "service": "ocr",
            "policy": StepPolicy(),
            "routing": ROUTING,
            "input_ref": {"uri": "s3://in"},
            "workspace_ref": {"uri": "s3://work"},
            "output_ref": {"uri": "s3://out"},
            "payload": {},
            "created_at_ms": AT_MS,
            "updated_at_ms": AT_MS,
            **more,
        }
    )


LAYOUT = OnePartition(T)


@pytest.fixture
async def store() -> AsyncIterator[AzureTablesStore]:
    opened = await open_store(prefix=new_prefix())
    yield opened
    await opened.close()


async def _shown(store: AzureTablesStore, query: str = "") -> list[dict[str, Any]]:
    return await entities(table_to_azure(store._prefix, T), query)


async def _one(store: AzureTablesStore, op: Op) -> dict[str, Any]:
    """The entity that an op leaves; the row comes back whole."""
    await store.commit([op])
    row = await store.get(op.table, op.partition, op.key)
    assert row is not None and row.body == op.body and not row.damage
    (entity,) = await _shown(store)
    return entity


async def test_a_row_is_clear_and_typed(store: AzureTablesStore) -> None:
    entity = await _one(store, LAYOUT.job_write(_job(), None))
    assert (entity["tenant_id"], entity["request_type"]) == ("Zürich", "OCR→EMBEDDING")
    assert json.loads(entity["Body"])["tenant_id"] == "Zürich" and "OCR→EMBEDDING" in entity["Body"]
    assert entity["state"] == "QUEUED" and json.loads(entity["Body"])["state"] == "QUEUED"
    assert entity["attempts_total"] == EntityProperty(0, EdmType.INT64)
    assert entity["created_at"] == datetime.datetime(2027, 1, 15, 8, 0, 0, 123_000, datetime.UTC)
    assert "completed_at" not in entity and COLUMNS_CUT not in entity
    assert all("-" not in name for name in entity) and len(entity) < 252


async def test_rows_are_found_by_their_columns(store: AzureTablesStore) -> None:
    await store.commit(
        [LAYOUT.job_write(_job(state=JobState.SUCCEEDED), None), LAYOUT.step_write(_job(), _step())]
    )
    for query in (
        "state eq 'SUCCEEDED' and tenant_id eq 'Zürich'",
        "lane eq 2L and RowKey eq 'JOB'",
        "created_at ge datetime'2027-01-15T00:00:00Z' and request_type eq 'OCR→EMBEDDING'",
    ):
        (entity,) = await _shown(store, query)
        assert entity["RowKey"] == "JOB"
    assert [entity["step_id"] for entity in await _shown(store, "state eq 'PENDING'")] == ["step_01"]


async def test_a_row_of_an_older_version_gets_its_columns_at_its_next_write(store: AzureTablesStore) -> None:
    old = encode(_job()).replace(b',"state":"QUEUED"', b"")
    assert b"state" not in old
    (etag,) = await store.commit([put(T, P, "JOB", old)])
    row = await store.get(T, P, "JOB")
    assert row is not None and decode_job(row) == _job()
    (before,) = await _shown(store)
    assert "state" not in before
    await store.commit([LAYOUT.job_write(_job(), etag)])
    (after,) = await _shown(store)
    assert after["state"] == "QUEUED"


@pytest.mark.parametrize(
    "text", ["x" * 40_000, "ä\n" * 30_000, TIES * 40, FACES], ids=["x", "ä", "ties", "faces"]
)
async def test_what_is_too_long_is_cut_in_its_column_alone(store: AzureTablesStore, text: str) -> None:
    entity = await _one(store, LAYOUT.step_write(_job(), _step(payload={"text": text}, service="Größe")))
    assert entity[COLUMNS_CUT] == "payload"
    shown = entity["payload"]
    assert units(shown) in (TEXT_CHARACTERS_MAX, TEXT_CHARACTERS_MAX - 1) and shown.endswith(CUT_MARK)
    whole = json.dumps({"text": text}, ensure_ascii=False, separators=(",", ":"))
    assert whole.startswith(shown.removesuffix(CUT_MARK))
    assert (entity["service"], entity["input_ref"]) == ("Größe", '{"uri":"s3://in"}')


async def test_characters_that_azure_may_refuse_are_replaced_in_the_column_alone(
    store: AzureTablesStore,
) -> None:
    data = {"text": "a\x7fb\uffffc"}
    event = Event(seq=1, type=Fact.JOB_CREATED, at_ms=AT_MS, data=data)
    entity = await _one(store, LAYOUT.event_write(_job(), event))
    assert entity["payload"] == '{"text":"a\ufffdb\ufffdc"}' and entity[COLUMNS_CUT] == "payload"
    assert "Body" not in entity and "Part00" in entity


async def test_columns_never_make_a_row_or_a_commit_too_large(store: AzureTablesStore) -> None:
    """Both fitted before there were columns: the body is what matters."""
    chance = random.Random(7)
    noise = chance.randbytes(560_000).hex()
    wide = {f"part{n}": TIES * 10 for n in range(4)}
    step = _step(
        payload={"noise": noise}, input_ref=wide, output_ref=wide, result_ref=wide, last_error_message=TIES
    )
    entity = await _one(store, LAYOUT.step_write(_job(), step))
    assert entity[COLUMNS_CUT] == "input_ref,output_ref,payload,result_ref"
    assert entity["last_error_message"] == TIES and entity["state"] == "PENDING"
    # Thirty steps of 30,000 characters that take six bytes each on the wire.
    steps = [_step(n, payload={"text": TIES * 30}) for n in range(30)]
    ops = [LAYOUT.step_write(_job(), step) for step in steps]
    await store.commit(ops)
    rows = {row.key: row.body for row in await store.query(T, P, limit=100)}
    assert all(rows[op.key] == op.body for op in ops)
    found = await _shown(store, "step_index ge 1L")
    assert len(found) == 29 and {each[COLUMNS_CUT] for each in found} == {"payload"}
    assert {each["state"] for each in found} == {"PENDING"}


def test_the_room_of_an_entity_is_kept_to() -> None:
    step = _step(payload={"a": TIES * 40}, result_ref={"b": "x" * 60_000}, last_error_message="ß" * 40_000)
    for bytes_max in (20_000, 60_000, 200_000, 900_000):
        found = shown_properties(
            shown_step(_job(), step), P, "K", texts_max=TEXT_CHARACTERS_MAX, bytes_max=bytes_max
        )
        assert wire_bytes(found) <= bytes_max + 1_024 and found["state"] == "PENDING"
        assert sum(2 * len(value) for value in found.values() if isinstance(value, str)) <= bytes_max
    assert bytes_max < ENTITY_BYTES_MAX


def test_the_longest_names_of_a_job_fit() -> None:
    job = _job(tenant_id="ü" * 5_000, error_message="\x00" * 40_000, output_uri="s3://" + "x" * 2_000)
    found = shown_properties(shown_job(job), P, "JOB", texts_max=64, bytes_max=60_000)
    assert found[COLUMNS_CUT] == "tenant_id,tenant_bucket,error_message".replace(",tenant_bucket", "")
    assert units(found["tenant_id"]) == units(found["error_message"]) == 64
    event = Event(seq=1, type=Fact.JOB_CREATED, at_ms=AT_MS)
    assert shown_properties(shown_event(job, event), P, "E", texts_max=64, bytes_max=9_000)["payload"] == "{}"

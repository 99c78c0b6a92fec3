"""The same scripts on both engines, on a real Temporal server: rows, trails and answers are the same."""

import time

import pytest
from tests.conformance.postgres_setup import open_store

from lucius.core.inputs import Cancel
from lucius.core.model import JobRecord, Json
from lucius.core.refusal import Refused
from lucius.engines.temporal.client import TemporalTarget
from lucius.jobs.writer import Applied
from lucius_lab.equivalence import compare as equivalence
from lucius_lab.equivalence.compare import compare_on, report_text
from lucius_lab.equivalence.generated import generated
from lucius_lab.equivalence.script import Reply, Say, Script, patient
from lucius_lab.equivalence.scripted import SCRIPTED
from lucius_lab.equivalence.temporal import TemporalSide

pytestmark = pytest.mark.xdist_group("temporal")

SCRIPTED_MIN = 40
GENERATED = 24
ACKED = Script(
    name="one step", policy=patient(), moves=(Reply(say=Say.ACK), Reply(say=Say.DONE), Reply(say=Say.ACK))
)


def real_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_every_script_goes_alike(temporal: TemporalTarget) -> None:
    assert len({script.name for script in SCRIPTED}) == len(SCRIPTED) >= SCRIPTED_MIN
    report = await compare_on(temporal, SCRIPTED, real_ms=real_ms)
    assert not report.differences, report_text(report)
    assert report.scenarios == len(SCRIPTED)
    assert report.jobs > report.scenarios  # reruns are compared as well


async def test_generated_scripts_go_alike(temporal: TemporalTarget) -> None:
    report = await compare_on(temporal, [generated(seed) for seed in range(GENERATED)], real_ms=real_ms)
    assert not report.differences, report_text(report)
    assert report.scenarios == GENERATED


async def test_scripts_go_alike_on_postgresql(temporal: TemporalTarget) -> None:
    """Every script there is, on databases that are emptied in between."""
    report = await compare_on(temporal, SCRIPTED, real_ms=real_ms, at_once=8, new_store=open_store)
    assert not report.differences, report_text(report)
    assert report.scenarios == len(SCRIPTED)


class Careless(TemporalSide):
    """Loses every reply that comes after the end."""

    async def reply(self, message: dict[str, Json]) -> Applied | Refused:
        record = await self.record(message["jobId"])
        if record.job.terminal:
            return await self.control(record.job.job_id, Cancel())
        return await super().reply(message)


class Endless(TemporalSide):
    """Claims that the workflow does not end with its job."""

    async def ended(self, record: JobRecord) -> str | None:
        return "still open"


async def test_an_engine_that_differs_is_found(
    temporal: TemporalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "TemporalSide", Careless)
    report = await compare_on(temporal, [ACKED], real_ms=real_ms)
    text = report_text(report)
    assert [each.script for each in report.differences] == [ACKED]
    assert '-  "ack: duplicate, stop"' in text
    assert "REPLY_DUPLICATE" in text
    assert "  3. reply say=ack" in text
    assert text.splitlines()[-1].startswith("1 scenarios, 1 differences")


async def test_a_workflow_that_outlives_its_job_is_found(
    temporal: TemporalTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(equivalence, "TemporalSide", Endless)
    report = await compare_on(temporal, [ACKED], real_ms=real_ms)
    assert any("still open" in line for line in report.differences[0].lines)

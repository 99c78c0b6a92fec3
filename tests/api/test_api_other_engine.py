"""`lucius dev` on a folder with open jobs of the temporal engine says at its start that they wait."""

from pathlib import Path

import msgspec
import pytest
from tests.support.api_setup import Callers, Deployment
from tests.support.log_lines import caught
from tests.support.reasons_setup import temporal_job

from lucius.assembly import workflow_engine
from lucius.assembly.workflow_engine import LeftOpen, temporal_jobs_left
from lucius.cli import dev
from lucius.cli.options import DevOptions
from lucius.core.inputs import Cancel
from lucius.ledger.store import StoreUnavailable
from lucius.settings import read_settings

WHAT_TO_DO = "stop this and start `lucius dev --engine temporal` on this folder"


async def introduced(deployment: "Deployment", tmp_path: Path) -> list[str]:
    """What the log says beside the lines on the terminal."""
    with caught("info") as lines:
        await dev._introduce(options(tmp_path), read_settings({}), deployment.lucius, "http://house")
    return [f"{line['level']} {line['jobs']}" for line in lines.all("temporal_jobs_wait")]


def options(data: Path) -> DevOptions:
    return DevOptions(host="127.0.0.1", port=0, data=data, storage="ledger", services=(), bus="memory")


async def test_the_start_names_jobs_that_wait_for_the_other_engine(
    callers: "Callers", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = await callers.open(alone=True)
    await deployment.submit()
    assert await introduced(deployment, tmp_path) == []
    assert "temporal" not in capsys.readouterr().err
    job_id = await temporal_job(deployment)
    assert await introduced(deployment, tmp_path) == ["warning 1"]
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "temporal" in line)
    assert line.startswith("  1 open job is of the temporal engine, which does not run here: ")
    assert line.endswith(WHAT_TO_DO)
    await deployment.lucius.writer.apply(job_id, Cancel())
    assert await introduced(deployment, tmp_path) == [], "it has ended"


async def test_the_look_is_bounded_and_says_so(
    deployment: "Deployment", monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(3):
        await temporal_job(deployment)
    assert await temporal_jobs_left(deployment.lucius.deployment.ledger) == LeftOpen(3, more=False)
    monkeypatch.setattr(workflow_engine, "LANE_ROWS_MAX", 2)
    left = await temporal_jobs_left(deployment.lucius.deployment.ledger)
    assert left == LeftOpen(2, more=True)
    assert left.words.startswith("at least 2 open jobs are of the temporal engine")
    assert LeftOpen(3, more=False).words.startswith("3 open jobs are ")


async def test_where_others_may_run_the_engine_or_the_ledger_is_away_nothing_is_said(
    deployment: "Deployment", capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await temporal_job(deployment)
    await dev.warn_of_other_engine(msgspec.structs.replace(deployment.lucius.deployment, alone=False))

    async def away(ledger: object) -> LeftOpen:
        raise StoreUnavailable("the disk is gone")

    monkeypatch.setattr(dev, "temporal_jobs_left", away)
    await dev.warn_of_other_engine(deployment.lucius.deployment)
    assert capsys.readouterr().err == ""

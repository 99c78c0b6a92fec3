"""The parts of `lucius bench` about PostgreSQL measure the real thing, and round trips do not creep up."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lucius.cli.options import BenchOptions
from lucius_lab.bench import postgres
from lucius_lab.bench.filled_ledger import fill
from lucius_lab.bench.load import accept_batches
from lucius_lab.bench.main import CLIENTS_BATCH, HOST, WAITING, Bench

pytestmark = pytest.mark.xdist_group("postgres")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(BenchOptions(jobs=40, in_flight=8, quick=True, ledger_jobs=1_000), tmp_path)


async def test_a_job_asks_as_little_as_it_can(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone: one commit for its creation and the first hand-out, and two for each step."""
    monkeypatch.setattr(postgres, "HAND_OVERS", 10)
    await postgres.measure_postgres(bench)
    found = {figure.name: figure.value for figure in bench.figures}
    assert found["PostgreSQL: completed, three external HTTP workers"] > 0
    assert found["PostgreSQL: lone job p50"] > 0
    assert found["PostgreSQL: commit to the worker at another replica p50"] > 0
    assert 10_000 < found["PostgreSQL: WAL, alone"] < 100_000
    alone = [figure for figure in bench.figures if figure.unit == "a job"]
    commits = next(figure.value for figure in alone if figure.name.endswith("commits"))
    assert commits == pytest.approx(7, abs=0.5)
    assert found["PostgreSQL: round trips, alone"] < 14


async def test_a_ledger_of_copies_is_as_good_as_one_of_jobs_that_came_in(
    bench: Bench, tmp_path: Path
) -> None:
    async with postgres.database() as made:
        async with bench.server((), made.env) as server:
            await accept_batches(HOST, server.port, 100, CLIENTS_BATCH, WAITING, "waiting")
        await fill(made.url, 1_050)
        doctor = [sys.executable, "-m", "lucius", "doctor", "--data", str(tmp_path / "none")]
        ended = await asyncio.to_thread(
            subprocess.run, doctor, env={**os.environ, **made.env}, capture_output=True, text=True
        )
        assert ended.returncode == 0, ended.stdout
        assert "1,050 jobs compared" in ended.stdout


async def test_a_full_ledger_is_measured_beside_an_empty_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LEDGER_JOBS_FEW", 100)
    monkeypatch.setattr(postgres, "FLATNESS_ROUNDS", 2)
    await postgres.measure_flatness(bench)
    ratios = [figure for figure in bench.figures if "ratio" in figure.name]
    assert len(ratios) == 2
    assert all(figure.value > 0 for figure in ratios)

"""The parts of `lucius bench` about PostgreSQL measure the real thing, and round trips do not creep up."""

from pathlib import Path

import pytest

from lucius.cli.options import BenchOptions
from lucius_lab.bench import postgres
from lucius_lab.bench.main import Bench

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


async def test_a_full_ledger_is_measured_beside_an_empty_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres, "LEDGER_JOBS_FEW", 100)
    monkeypatch.setattr(postgres, "FLATNESS_ROUNDS", 2)
    await postgres.measure_flatness(bench)
    ratios = [figure for figure in bench.figures if "ratio" in figure.name]
    assert len(ratios) == 2
    assert all(figure.value > 0 for figure in ratios)

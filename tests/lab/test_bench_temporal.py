"""The part of `lucius bench` about the temporal engine: it measures the real thing, or says what it lacks."""

import importlib.util
from pathlib import Path

import pytest

from lucius.cli.options import BenchOptions
from lucius.engines.temporal import dev_server as server
from lucius_lab.bench import main as bench
from lucius_lab.bench import temporal as bench_temporal
from lucius_lab.bench.main import NotMeasured
from lucius_lab.bench.temporal import Beside, TemporalFigures, TemporalLoad, measure_temporal

pytestmark = pytest.mark.xdist_group("temporal")

LOAD = TemporalLoad(jobs=4, in_flight=2, lone=2, rounds=1)


async def test_lucius_is_measured_beside_a_bare_workflow(tmp_path: Path) -> None:
    found = await measure_temporal(LOAD, tmp_path)
    for each in (found.bare, found.bare_local, found.workflow, found.lucius):
        assert each.per_second > 0
        assert each.lone_p50_ms > 0


def test_bare_workflows_have_the_shape_of_ours() -> None:
    plain = bench_temporal.BARE
    assert (plain.bare, plain.local_calls, plain.acks) == (True, False, False)
    for acks in (True, False):
        local, job = bench_temporal.BARE_LOCAL[acks], bench_temporal.JOB[acks]
        assert (local.bare, local.local_calls, local.acks) == (True, True, acks)
        assert (job.bare, job.local_calls, job.acks) == (False, True, acks)


async def test_without_the_program_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise server.NoTemporalProgram("the program `temporal` is not installed")

    monkeypatch.setattr(server, "find_program", missing)
    with pytest.raises(NotMeasured, match="not installed"):
        await measure_temporal(LOAD, tmp_path)


async def test_without_the_library_nothing_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    measured = bench.Bench(BenchOptions(), tmp_path)
    await bench.measure_temporal_engine(measured)
    assert measured.figures == []
    assert "lucius[temporal]" in capsys.readouterr().err


async def test_the_goals_are_about_the_whole_of_lucius(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def measured(load: TemporalLoad, folder: Path) -> TemporalFigures:
        slow, fast = Beside(per_second=5.0, lone_p50_ms=300.0), Beside(per_second=10.0, lone_p50_ms=100.0)
        return TemporalFigures(bare=fast, bare_local=fast, workflow=fast, lucius=slow)

    monkeypatch.setattr(bench_temporal, "measure_temporal", measured)
    run = bench.Bench(BenchOptions(), tmp_path)
    await bench.measure_temporal_engine(run)
    judged = [(figure.value, figure.goal, figure.met) for figure in run.figures if figure.goal]
    assert judged == [(0.5, "≥ 0.7", False), (3.0, "≤ 1.5", False)] * 2

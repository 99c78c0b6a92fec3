"""The part of `lucius bench` about the console: its ledger is one as Lucius writes it, and what it asks is
answered."""

import asyncio
from pathlib import Path

import pytest

from lucius.cli.options import BenchOptions
from lucius_lab import forks
from lucius_lab.bench import console
from lucius_lab.bench.main import Bench

JOBS = 3_000


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    options = BenchOptions(jobs=1, in_flight=1, json_out=None, quick=True, only="console", ledger_jobs=JOBS)
    return Bench(options, tmp_path)


async def test_what_pages_ask_is_measured_on_a_ledger_as_lucius_writes_it(
    bench: Bench, tmp_path: Path
) -> None:
    await console.measure_console(bench)
    figures = {figure.name: figure.value for figure in bench.figures}
    assert figures["events that came in meanwhile"] > 0
    for asked in (
        "list, the newest",
        "list, two weeks back",
        "search, document id",
        "overview",
        "failed jobs",
    ):
        assert figures[f"{asked}: p99"] >= figures[f"{asked}: p50"] > 0
    data = tmp_path / f"console-{JOBS}"
    looked = await asyncio.to_thread(forks.run, "doctor", "--data", str(data), "--json", seconds=120)
    assert looked.returncode == 0, looked.stdout[-2_000:] + looked.stderr[-2_000:]

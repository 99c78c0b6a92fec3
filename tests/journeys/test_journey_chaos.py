"""Processes are killed at random under load: every accepted job ends once, and nothing is left over."""

from pathlib import Path

import pytest

from lucius.lab.chaos import Plan, run

# Each takes about a minute on two cores, and the limit leaves room for others that use them too.
pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(600)]


async def test_thirty_kills_of_apis_reconcilers_and_services(tmp_path: Path) -> None:
    report = await run(Plan(kills=30, seed=11), tmp_path)
    assert report.findings == []
    assert sum(report.killed.values()) == 30
    assert {name.partition("-")[0] for name in report.killed} == {"api", "reconciler", "chaos_a", "chaos_b"}
    assert report.jobs > 30


async def test_fifteen_kills_of_one_process_for_everything(tmp_path: Path) -> None:
    report = await run(Plan(kills=15, seed=12, dev=True), tmp_path)
    assert report.findings == []
    assert report.killed["dev"] > 3
    assert report.jobs > 15

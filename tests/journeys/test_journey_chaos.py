"""Processes are killed at random under load: every accepted job ends once, and nothing is left over."""

from pathlib import Path

import pytest

from lucius_lab.chaos.run import ChaosPlan, run

# Thirty kills in all; `make soak` makes a thousand. The limit leaves room for others on the same cores.
pytestmark = [pytest.mark.xdist_group("heavy"), pytest.mark.timeout(600)]


async def test_kills_of_apis_reconcilers_and_services(tmp_path: Path) -> None:
    report = await run(ChaosPlan(kills=20, seed=11), tmp_path)
    assert report.findings == []
    assert sum(report.killed.values()) == 20
    assert {name.partition("-")[0] for name in report.killed} == {"api", "reconciler", "chaos_a", "chaos_b"}
    assert report.jobs > 20


async def test_kills_of_one_process_for_everything(tmp_path: Path) -> None:
    report = await run(ChaosPlan(kills=10, seed=12, dev=True), tmp_path)
    assert report.findings == []
    assert report.killed["dev"] > 2
    assert report.jobs > 10

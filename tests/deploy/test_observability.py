"""Dashboard and alerts: every alert fires and keeps quiet as its tests say, has a runbook, and speaks of
metrics that Lucius shows."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.deploy.chart import of_kind, rendered
from tests.deploy.tools import DEPLOY, TOP

FOLDER = DEPLOY / "observability"
RUNBOOKS = TOP / "docs" / "guides" / "runbooks"
ALERTS: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((FOLDER / "alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
SECTIONS = ["## How to look", "## What to do"]


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("promtool")
    assert program is not None, "promtool is of Debian's package prometheus"
    return subprocess.run([program, *words], capture_output=True, text=True, timeout=120)


def expressions() -> list[str]:
    board = json.loads((FOLDER / "dashboard.json").read_text())
    return [target["expr"] for panel in board["panels"] for target in panel.get("targets", [])]


def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", FOLDER / "alerts.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {len(ALERTS)} rules found" in done.stdout


def test_every_alert_fires_and_keeps_quiet_as_its_tests_say() -> None:
    done = promtool("test", "rules", FOLDER / "alerts-test.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_firing_and_a_quiet_case() -> None:
    fires, quiet = set[str](), set[str]()
    for test in yaml.safe_load((FOLDER / "alerts-test.yaml").read_text())["tests"]:
        for case in test["alert_rule_test"]:
            (fires if case["exp_alerts"] else quiet).add(case["alertname"])
    names = {rule["alert"] for rule in ALERTS}
    assert len(names) == len(ALERTS) >= 10
    assert fires == quiet == names


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_runbook(rule: dict[str, Any]) -> None:
    page = (RUNBOOKS / rule["annotations"]["runbook"]).read_text()
    assert page.startswith(f"# {rule['alert']}\n\n")
    assert [line for line in page.splitlines() if line.startswith("## ")] == SECTIONS
    assert rule["annotations"]["runbook"] in (RUNBOOKS / "README.md").read_text()
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}


def test_there_is_no_runbook_without_an_alert() -> None:
    named = {rule["annotations"]["runbook"] for rule in ALERTS} | {"README.md"}
    assert {path.name for path in RUNBOOKS.iterdir()} == named


def test_panels_that_runbooks_name_are_on_the_dashboard() -> None:
    board = json.loads((FOLDER / "dashboard.json").read_text())
    titles = {panel["title"] for panel in board["panels"]}
    named = {
        name
        for page in RUNBOOKS.iterdir()
        for name in re.findall(r"(?<!\*)\*([A-Z][^*\n]+)\*(?!\*)", page.read_text())
    }
    assert named and named <= titles


def test_alerts_and_panels_speak_of_documented_metrics() -> None:
    documented = (TOP / "docs" / "reference" / "observability.md").read_text()
    texts = [*expressions(), *(rule["expr"] for rule in ALERTS)]
    named = {name for text in texts for name in re.findall(r"lucius_[a-z_]+", text)}
    for name in named:
        assert re.sub(r"_(bucket|count|sum)$", "", name) in documented, name


def test_the_chart_brings_both_along() -> None:
    settings = (
        "--set=monitoring.prometheusRule.enabled=true,monitoring.dashboards.enabled=true",
        "--set=monitoring.prometheusRule.runbooks=https://docs.example.com/runbooks/",
    )
    objects = rendered("azure", *settings)
    (rule,) = of_kind(objects, "PrometheusRule").values()
    given = [alert for group in rule["spec"]["groups"] for alert in group["rules"]]
    assert [(alert["alert"], alert["expr"]) for alert in given] == [
        (alert["alert"], alert["expr"]) for alert in ALERTS
    ]
    for alert, ours in zip(given, ALERTS, strict=True):
        page = ours["annotations"]["runbook"]
        assert alert["annotations"]["runbook_url"] == f"https://docs.example.com/runbooks/{page}"
        assert alert["annotations"]["summary"] == ours["annotations"]["summary"]
    board = of_kind(objects, "ConfigMap")["lucius-dashboard"]
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["lucius.json"]) == json.loads((FOLDER / "dashboard.json").read_text())

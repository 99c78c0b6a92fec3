"""Renders the chart, as `helm install` would."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from tests.deploy.tools import DEPLOY, check

CHART = DEPLOY / "helm" / "lucius"
PROFILES = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*.yaml"))}

Object = dict[str, Any]


@cache
def rendered_text(profile: str, *settings: str) -> str:
    done = check(
        "helm", "template", "lucius", CHART, "--namespace=jobs", "--values", PROFILES[profile], *settings
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rendered(profile: str, *settings: str) -> list[Object]:
    return [each for each in yaml.safe_load_all(rendered_text(profile, *settings)) if each]


def rendered_with(values: Object) -> list[Object]:
    """From these values, over the chart's own."""
    done = check("helm", "template", "lucius", CHART, "--values=-", text=yaml.safe_dump(values))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def refused(values: Object) -> str:
    done = check("helm", "template", "lucius", CHART, "--values=-", text=yaml.safe_dump(values))
    assert done.returncode != 0
    return done.stderr


def refusal(profile: str, *settings: str) -> str:
    done = check("helm", "template", "lucius", CHART, "--values", PROFILES[profile], *settings)
    assert done.returncode != 0
    return done.stderr


def of_kind(objects: list[Object], kind: str) -> dict[str, Object]:
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def workloads(objects: list[Object]) -> list[Object]:
    return [each for each in objects if each["kind"] in {"Deployment", "StatefulSet", "Job", "ScaledJob"}]


def pod_of(workload: Object) -> Object:
    spec = workload["spec"]
    found = spec["jobTargetRef"]["template"] if workload["kind"] == "ScaledJob" else spec["template"]
    assert isinstance(found, dict)
    return found


def container_of(workload: Object) -> Object:
    (container,) = pod_of(workload)["spec"]["containers"]
    assert isinstance(container, dict)
    return container


def environment(workload: Object) -> dict[str, str]:
    """The variables that stand there as plain text."""
    return {each["name"]: each["value"] for each in container_of(workload)["env"] if "value" in each}


def from_secrets(workload: Object) -> dict[str, str]:
    """Variables, each with the Secret that it comes from."""
    found = {}
    for each in container_of(workload)["env"]:
        if "valueFrom" in each:
            reference = each["valueFrom"]["secretKeyRef"]
            found[each["name"]] = reference["name"]
    return found


def written(folder: Path) -> list[Path]:
    """A file for each profile with what is rendered from it."""
    made = []
    for profile in PROFILES:
        path = folder / f"{profile}.yaml"
        path.write_text(rendered_text(profile), encoding="utf-8")
        made.append(path)
    return made

"""deploy/compose: what it says fits Lucius, and the same topology runs the sample without Docker."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.compose import COMPOSE, LUCIUS_IMAGE, PROFILES, SERVICES, ComposedFleet, in_order, until
from tests.deploy.tools import TOP

from lucius.services.sample import sample_document
from lucius.settings.names import VARIABLES

OURS = {name: one for name, one in SERVICES.items() if one["image"] == LUCIUS_IMAGE}


def test_every_variable_is_one_of_ours() -> None:
    given = {key for one in OURS.values() for key in one.get("environment", {})}
    assert given <= VARIABLES


def test_no_secret_stands_in_it_and_no_port_is_open_to_others() -> None:
    for name, one in SERVICES.items():
        secret = re.compile(r"PASSWORD|SECRET|KEYS")
        assert all(key.endswith("_FILE") for key in one.get("environment", {}) if secret.search(key)), name
        assert all(port.startswith("127.0.0.1:") for port in one.get("ports", ())), name


def test_images_are_pinned_and_ours_write_nowhere_but_to_their_volumes() -> None:
    for name, one in SERVICES.items():
        assert re.fullmatch(r"[\w/-]+:[\w.-]*\d[\w.-]*|lucius:local", one["image"]), name
    for name, one in OURS.items():
        assert name == "keys" or one["read_only"]
        targets = {mount.split(":")[1] for mount in one["volumes"]}
        assert targets == {"/run/lucius", "/documents"}
    assert (TOP / "deploy" / "compose" / OURS["keys"]["build"]["context"]).resolve() == TOP


@pytest.mark.parametrize("profile", PROFILES)
def test_volumes_and_dependencies_are_there(profile: str) -> None:
    names = in_order(profile)
    for name in names:
        assert set(SERVICES[name].get("depends_on", ())) <= set(names), name
        for mount in SERVICES[name].get("volumes", ()):
            assert mount.split(":")[0] in COMPOSE["volumes"]
        for config in SERVICES[name].get("configs", ()):
            assert config["source"] in COMPOSE["configs"]


@pytest.fixture
def fleet(profile: str, tmp_path: Path) -> Iterator[ComposedFleet]:
    made = ComposedFleet(tmp_path, profile)
    try:
        made.start()
        yield made
    finally:
        made.remove()


@pytest.mark.xdist_group("compose")
@pytest.mark.parametrize("profile", PROFILES)
def test_the_same_without_docker_runs_the_sample(fleet: ComposedFleet, profile: str) -> None:
    """As docs/guides/compose.md says it."""
    part = "api" if profile == "outbox" else "orchestrator"
    roles = ("--role", "submit", "--role", "read")
    made = fleet.run(part, "keys", "create", "me", "--tenant", "*", *roles, "--data", "/tmp/first-key")
    assert made.returncode == 0, made.stderr
    key = made.stdout.strip()
    (fleet.documents / "sample.pdf").write_bytes(sample_document())
    client = {"LUCIUS_URL": fleet.url, "LUCIUS_API_KEY": key}
    until(lambda: _asked(fleet, part, client, "jobs", "list").returncode == 0, "the API answers", fleet)
    done = _asked(
        fleet,
        part,
        client,
        *("run", "OCR_EMBEDDING_SIS", "file:///documents/sample.pdf", "--tenant", "acme"),
        *("--output", "file:///documents/answer.json", "--json"),
        *("--payload", '{"sis": {"prompt": "When was the lighthouse lit for the first time?"}}'),
    )
    assert done.returncode == 0, done.stderr + "".join(fleet.fallen())
    answers = json.loads((fleet.documents / "answer.json").read_bytes())["answers"]
    assert answers[0]["answer"]
    job: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert job["state"] == "SUCCEEDED"
    assert not list(fleet.fallen())
    assert set(fleet.stop().values()) == {0}


def _asked(fleet: ComposedFleet, part: str, client: dict[str, str], *arguments: str) -> Any:
    return fleet.run(part, *arguments, env=client)

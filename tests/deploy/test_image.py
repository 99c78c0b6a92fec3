"""The container image: its recipe and its bill of materials. `make image` builds and runs it."""

import json
import re
import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest
from tests.deploy.tools import DEPLOY, TOP, check

from lucius import __version__

IMAGE = DEPLOY / "image"
RECIPE = (IMAGE / "Dockerfile").read_text(encoding="utf-8")
STAGES = re.split(r"^FROM ", RECIPE, flags=re.MULTILINE)
RUNTIME = STAGES[-1]
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2:2.36-9+deb12u10

Package: gone
Status: deinstall ok config-files
Architecture: amd64
Version: 1
"""


def load_sbom() -> ModuleType:
    spec = spec_from_file_location("sbom", IMAGE / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_hadolint_finds_nothing() -> None:
    done = check("hadolint", IMAGE / "Dockerfile")
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", ["build", "make-bases", "trial"])
def test_shellcheck_finds_nothing(script: str) -> None:
    done = check("shellcheck", "--severity=warning", IMAGE / script)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_base_is_an_argument() -> None:
    assert len(STAGES) == 3
    assert STAGES[0].count("ARG BASE=") == 1
    assert [stage.split()[0] for stage in STAGES[1:]] == ["${BUILD_BASE}", "${BASE}"]


def test_it_runs_as_a_user_by_number_that_is_not_root() -> None:
    (user,) = re.findall(r"^USER (\d+):0$", RUNTIME, re.MULTILINE)
    assert int(user) > 0


def test_every_part_has_the_same_entry_point() -> None:
    assert re.findall(r"^ENTRYPOINT (.*)$", RUNTIME, re.MULTILINE) == ['["lucius"]']


def test_the_settings_of_pip_stay_out_of_the_image() -> None:
    for name in ("pip.conf", "ca.pem"):
        assert f"--mount=type=secret,id={name}" in RECIPE
    assert not re.search(r"^(ARG|ENV) .*PIP", RECIPE, re.MULTILINE)


def test_labels_name_version_revision_and_time() -> None:
    for name in ("title", "description", "licenses", "version", "revision", "created"):
        assert f"org.opencontainers.image.{name}=" in RUNTIME


def test_only_what_is_needed_is_sent_to_the_build() -> None:
    lines = (IMAGE / "Dockerfile.dockerignore").read_text(encoding="utf-8").split("\n")
    assert lines[1] == "*"
    sent = [line[1:] for line in lines if line.startswith("!")]
    assert all((TOP / path).exists() for path in sent)
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", RECIPE, re.MULTILINE)
    assert {path for line in copied for path in line.split()} - {"src"} <= set(sent)


def test_debian_packages_are_named_by_their_url() -> None:
    (component,) = load_sbom().debian_components(STATUS, "bookworm")
    assert component["purl"] == "pkg:deb/debian/libc6@2%3A2.36-9%2Bdeb12u10?arch=amd64&distro=bookworm"
    assert component["version"] == "2:2.36-9+deb12u10"


def test_the_bill_of_materials_is_cyclonedx(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["sbom.py", "2026-01-31T12:00:00Z"])
    load_sbom().main()
    text = capsys.readouterr().out
    components = {each["name"]: each for each in json.loads(text)["components"]}
    assert components["lucius"]["version"] == __version__
    assert components["starlette"]["purl"].startswith("pkg:pypi/starlette@")
    # The validator comes with checkov.
    program = (
        "import sys; from cyclonedx.schema import SchemaVersion; from cyclonedx.validation.json import "
        "JsonStrictValidator as V; print(V(SchemaVersion.V1_6).validate_str(sys.stdin.read()))"
    )
    done = check("python", "-c", program, text=text)
    assert (done.stdout, done.returncode) == ("None\n", 0), done.stderr


def test_the_same_content_has_the_same_serial_number() -> None:
    made = load_sbom()
    components = [made.described("pkg:pypi/lucius@1", "lucius", "1")]
    one, same = (made.document("2026-01-31T12:00:00Z", components)["serialNumber"] for _ in range(2))
    other = made.document("2026-01-31T12:00:01Z", components)["serialNumber"]
    assert one == same != other

"""The reference services and every generated skeleton keep the whole contract, over HTTP and over a bus."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from tests.certify.runs import LUCIUS, PATIENCE, failures, options, rules

from lucius.certify.values import Certificate, Judgement
from lucius.cli.certifying import CertifyOptions
from lucius.cli.service_new import LANGUAGES, SKELETON_BUSES, write_skeleton

pytestmark = [pytest.mark.xdist_group("certify"), pytest.mark.timeout(900)]

REFERENCE = ("OCR", "EMBEDDING", "SIS")
HEAVY = frozenset(REFERENCE)
SECONDS_MAX = 240
QUIET = ("--log-level", "error")
BUSES = tuple(bus for bus in SKELETON_BUSES if bus != "http")
# Those that work in threads of one interpreter keep their own signs of life waiting for a moment.
BUSY = msgspec.structs.replace(PATIENCE, lease_seconds=3.5)


def words(command: str) -> list[str]:
    """The command of a skeleton's README, with this Lucius and this Python."""
    first, *rest = command.split()
    return {"lucius": [*LUCIUS, *rest], "pytest": [sys.executable, "-m", "pytest", "-q", *rest]}.get(
        first, [first, *rest]
    )


def done(command: list[str], folder: Path) -> str:
    ended = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=SECONDS_MAX
    )
    assert ended.returncode == 0, ended.stdout
    return ended.stdout


@pytest.fixture(scope="module")
def skeletons(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return written(tmp_path_factory.mktemp("skeletons"))


def written(folder: Path) -> dict[str, Path]:
    for lang in LANGUAGES:
        write_skeleton(folder / lang, name="hello", step_type="HELLO", lang=lang)
    return {lang: folder / lang for lang in LANGUAGES}


def on_bus(folder: Path, bus: str) -> Path:
    write_skeleton(folder / bus, name="hello", step_type="HELLO", lang="python", bus=bus)
    return folder / bus


def readme_command(folder: Path, first: str) -> str:
    """The command that the table of the README gives for this."""
    found = re.search(rf"^\| {first} \| `(.*)` \|$", (folder / "README.md").read_text(), re.MULTILINE)
    assert found is not None
    return found[1]


def wanted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, CertifyOptions]:
    folders = written(tmp_path_factory.mktemp("certified"))
    done(["go", "build", "-o", "service", "."], folders["go"])

    def skeleton(lang: str) -> CertifyOptions:
        start = ("env", "-C", str(folders[lang]), *words(LANGUAGES[lang].start))
        return options("HELLO", *start, sample=folders[lang] / "certify.json")

    def own_memory() -> tuple[str, str]:
        """Else services of one name would send what another was about to."""
        return "--data", str(tmp_path_factory.mktemp("memory"))

    def over_nats(folder: Path) -> CertifyOptions:
        run = (*words(readme_command(folder, "run it")), *QUIET, *own_memory())
        sample = folder / "certify.json"
        return options("HELLO", "env", "-C", str(folder), *run, bus="nats", sample=sample)

    def reference(step_type: str) -> CertifyOptions:
        start = (*LUCIUS, "service", "run", step_type.lower(), *QUIET, *own_memory())
        return options(step_type, *start, timeouts=BUSY)

    return {
        **{lang: skeleton(lang) for lang in LANGUAGES},
        **{step_type: reference(step_type) for step_type in REFERENCE},
        "nats": over_nats(on_bus(tmp_path_factory.mktemp("on-a-bus"), "nats")),
    }


@pytest.mark.parametrize("name", [*REFERENCE, *LANGUAGES])
def test_every_rule_holds_over_http(found: dict[str, Certificate], name: str) -> None:
    certificate = found[name]
    assert failures(certificate) == {}
    assert rules(certificate, Judgement.NOT_TRIED) == set()
    assert rules(certificate, Judgement.NOT_APPLICABLE) == {"all-lanes"}
    assert certificate.passed


def test_every_rule_holds_over_a_bus(found: dict[str, Certificate]) -> None:
    certificate = found["nats"]
    assert failures(certificate) == {}
    assert rules(certificate, Judgement.NOT_TRIED) == set()
    assert rules(certificate, Judgement.NOT_APPLICABLE) == {"result-repeated", "crash-unanswered"}


@pytest.mark.parametrize("bus", BUSES)
def test_a_skeleton_for_a_bus_brings_what_it_needs(tmp_path: Path, bus: str) -> None:
    folder = on_bus(tmp_path, bus)
    extra = {"nats": "nats", "servicebus": "azure"}[bus]
    assert (folder / "requirements.txt").read_text() == f"lucius[{extra}]>=0.1\n"
    start = readme_command(folder, "run it")
    assert start == f"lucius service run service:handle --bus {bus}"
    assert f"CMD {json.dumps(start.split())}" in (folder / "Dockerfile").read_text()
    assert f'--bus {bus} --start "{start}"' in readme_command(folder, "certify it")
    done(words(LANGUAGES["python"].test), folder)


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_skeleton_passes_its_own_tests(skeletons: dict[str, Path], lang: str) -> None:
    folder = skeletons[lang]
    done(words(LANGUAGES[lang].test), folder)
    assert (folder / LANGUAGES[lang].work).is_file()


@pytest.mark.parametrize("lang", ["shell", "node"])
def test_a_skeleton_that_is_told_to_end_leaves_no_lease_behind(skeletons: dict[str, Path], lang: str) -> None:
    """Else the next directive would go to nobody, and cost an attempt."""
    with socket.create_server(("127.0.0.1", 0)) as side:
        side.settimeout(20)
        env = {**os.environ, "LUCIUS_URL": f"http://127.0.0.1:{side.getsockname()[1]}"}
        service = subprocess.Popen(words(LANGUAGES[lang].start), cwd=skeletons[lang], env=env)
        try:
            lease, _ = side.accept()
            with lease:
                lease.settimeout(5)
                assert b"directives:lease" in lease.recv(65_536)
                service.terminate()
                assert service.wait(20) == 0
                while lease.recv(65_536):
                    pass  # the rest of what it asked; then it has hung up
        finally:
            service.kill()
            service.wait()


def test_protocols_of_skeletons_are_read_whatever_the_names_are(tmp_path: Path) -> None:
    for name in ("on", "yes", "null", "no"):
        folder = tmp_path / name
        write_skeleton(folder, name=name, step_type=name.upper(), lang="python")
        done([*LUCIUS, "protocols", "check", f"protocols/{name}.yaml"], folder)


def test_the_skeletons_are_well_written(skeletons: dict[str, Path]) -> None:
    assert done(["gofmt", "-l", "."], skeletons["go"]) == ""
    done(["go", "vet", "./..."], skeletons["go"])
    for script in ("service.sh", "work.sh", "test.sh"):
        done(["bash", "-n", script], skeletons["shell"])
    ruff = [sys.executable, "-m", "ruff"]
    done([*ruff, "check", "--isolated", "."], skeletons["python"])
    done([*ruff, "format", "--isolated", "--line-length", "110", "--check", "."], skeletons["python"])


@pytest.mark.parametrize("lang", LANGUAGES)
def test_a_dockerfile_starts_the_service_as_the_readme_does(skeletons: dict[str, Path], lang: str) -> None:
    folder, start = skeletons[lang], LANGUAGES[lang].start
    lines = (folder / "Dockerfile").read_text().splitlines()
    command = json.loads(lines[-1].removeprefix("CMD "))
    assert [word.removeprefix("/") for word in command] == start.removeprefix("./").split() or (
        command == start.split()
    )
    assert start in (folder / "README.md").read_text()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    assert copied
    for name in copied:
        assert name.startswith(("--", "/")) or list(folder.glob(name)), name


def test_the_user_of_an_image_may_write_where_its_service_does(skeletons: dict[str, Path]) -> None:
    """In an image WORKDIR is root's, and the SDK keeps its answers in `.lucius` there."""
    lines = (skeletons["python"] / "Dockerfile").read_text().splitlines()
    user = next(line for line in lines if line.startswith("USER ")).split()[1]
    made = f"RUN install --directory --owner={user} .lucius"
    assert lines.index(made) < lines.index(f"USER {user}")


def test_no_word_of_a_template_is_left_unfilled(tmp_path: Path) -> None:
    written(tmp_path)
    for bus in BUSES:
        on_bus(tmp_path, bus)
    texts = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(texts) > 20
    assert [path for path, text in texts.items() if re.search(r"@[A-Z_]+@", text + path.name)] == []

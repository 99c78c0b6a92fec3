"""A new request type from an empty folder to a finished job, as docs/tutorials/first-service.md says."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.certify.runs import LUCIUS

from lucius_lab.processes import PartProcess

pytestmark = [pytest.mark.xdist_group("certify"), pytest.mark.timeout(900)]

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "first-service.md"
SECONDS_MAX = 120
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"


def block(journey: str) -> str:
    found = re.search(rf"<!-- journey: {journey} -->\n```bash\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert found is not None
    return found[1]


def pasted(text: str, folder: Path, **env: str) -> str:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env={**os.environ, "PATH": PATH, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture
def ends() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def test_the_page_from_its_first_command_to_its_last(tmp_path: Path, ends: ExitStack) -> None:
    pasted(block("begin"), tmp_path)
    hello = tmp_path / "hello"
    described = re.search(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert described is not None
    assert (hello / "protocols" / "hello.yaml").read_text() == described[1]
    assert len(described[1].splitlines()) == 5
    server = PartProcess(hello, "server", *words("server"), "--no-sample", port_option="--port")
    ends.callback(server.kill)
    server.start()
    service = PartProcess(hello, "service", *words("service"), env={"LUCIUS_URL": server.url})
    ends.callback(service.kill)
    service.start()
    assert pasted(block("job"), hello, LUCIUS_URL=server.url).splitlines()[-1] == "Hello, Ada!"
    assert service.stop() == 0
    assert server.stop() == 0
    report = pasted(block("certify").strip() + " --rule result-once --rule failure-final", hello)
    assert report.splitlines()[-1] == "hello (HELLO) over http: 2 passed"


def test_its_tests_run_in_the_folder_of_another_project_too(tmp_path: Path) -> None:
    settings = '[tool.pytest.ini_options]\naddopts = "--strict-config"\nof_a_plugin = "that is not there"\n'
    (tmp_path / "pyproject.toml").write_text(settings)
    pasted(block("begin"), tmp_path)
    installed, run = block("tests").splitlines()
    assert installed == "python -m pip install pytest"
    assert " passed" in pasted(run, tmp_path / "hello")


def words(journey: str) -> list[str]:
    command, *rest = block(journey).split()
    assert command == "lucius"
    return rest


def test_curl_and_a_shell_are_enough(tmp_path: Path, ends: ExitStack) -> None:
    new = [*LUCIUS, "service", "new", "hello", "--step-type", "HELLO", "--lang", "shell"]
    subprocess.run(new, cwd=tmp_path, check=True, timeout=SECONDS_MAX)
    hello = tmp_path / "hello"
    server = PartProcess(hello, "server", *words("server"), "--no-sample", port_option="--port")
    ends.callback(server.kill)
    server.start()
    service = subprocess.Popen(["./service.sh"], cwd=hello, env={**os.environ, "LUCIUS_URL": server.url})
    ends.callback(service.wait, SECONDS_MAX)
    ends.callback(service.terminate)
    assert pasted(block("job"), hello, LUCIUS_URL=server.url).splitlines()[-1] == "Hello, Ada!"

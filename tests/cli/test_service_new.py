"""Where a skeleton has the package from: a wheel, a folder of sources, an index."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.played_api import Done

WHEEL = "lucius-0.1.0-py3-none-any.whl"
# A build of nothing, which needs no network.
BACKEND = f"""
import zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(folder + "/{WHEEL}", "w") as wheel:
        info = "lucius-0.1.0.dist-info/"
        wheel.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: lucius\\nVersion: 0.1.0\\n")
        wheel.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "RECORD", "")
    return "{WHEEL}"
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""
NEW = ("service", "new", "hello", "--step-type", "HELLO")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _requirement() -> str:
    return Path("hello/requirements.txt").read_text()


def test_a_wheel_lies_beside_the_service_and_goes_into_its_image(command_line: "Callable[..., Done]") -> None:
    Path(WHEEL).write_bytes(b"a wheel")
    assert command_line(*NEW, "--lucius", WHEEL, "--bus", "nats").code == 0
    assert _requirement() == f"./vendor/{WHEEL}[nats]\n"
    assert Path("hello/vendor", WHEEL).read_bytes() == b"a wheel"
    lines = Path("hello/Dockerfile").read_text().splitlines()
    assert lines.index("COPY vendor ./vendor") < lines.index(
        "RUN pip install --no-cache-dir -r requirements.txt"
    )


def test_a_folder_of_sources_is_made_a_wheel_of(command_line: "Callable[..., Done]") -> None:
    Path("sources").mkdir()
    Path("sources/backend.py").write_text(BACKEND)
    Path("sources/pyproject.toml").write_text(PROJECT)
    done = command_line(*NEW, "--lucius", "sources")
    assert done.code == 0, done.err
    assert _requirement() == f"./vendor/{WHEEL}\n"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", "there"]
    lines = [*install, "-r", "requirements.txt"]
    subprocess.run(lines, cwd="hello", check=True, timeout=120)
    assert Path("hello/there/lucius-0.1.0.dist-info").is_dir()


@pytest.mark.parametrize(
    ("asked", "requirement"), [("lucius==0.1.0", "lucius[nats]==0.1.0\n"), (None, "lucius[nats]>=0.1\n")]
)
def test_an_index_has_it(command_line: "Callable[..., Done]", asked: str | None, requirement: str) -> None:
    more = () if asked is None else ("--lucius", asked)
    assert command_line(*NEW, "--bus", "nats", *more).code == 0
    assert _requirement() == requirement


@pytest.mark.parametrize("asked", ["nowhere.whl", "./nowhere", "empty", "lucius; rm -rf /", "other==1"])
def test_what_it_cannot_be_had_from_is_refused(command_line: "Callable[..., Done]", asked: str) -> None:
    Path("empty").mkdir()
    done = command_line(*NEW, "--lucius", asked)
    assert done.code == 2 and "--lucius" in done.err


def test_it_is_the_wheel_that_the_command_came_from(
    command_line: "Callable[..., Done]", here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(WHEEL).write_bytes(b"a wheel")

    class Installed:
        def read_text(self, name: str) -> str:
            return f'{{"url": "{(here / WHEEL).as_uri()}", "archive_info": {{}}}}'

    monkeypatch.setattr("lucius.cli.service_new.distribution", lambda name: Installed())
    assert command_line(*NEW).code == 0
    assert _requirement() == f"./vendor/{WHEEL}\n"

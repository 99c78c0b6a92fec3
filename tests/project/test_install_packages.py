"""`tools/install-packages`: uv where it can be had and succeeds, pip everywhere else."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "install-packages"


class Environment:
    """A stand-in for a virtual environment, whose interpreter notes what it is asked to do."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "bin").mkdir(parents=True)

    def with_python(self, *, config: str = "", uv: str = "can be had", uv_installs: bool = True) -> None:
        python = self.folder / "bin" / "python"
        python.write_text(
            f"""#!/bin/sh
echo "$*" >> {self.folder}/asked
case "$*" in
    *"pip "*"config list") echo "{config}" ;;
    *"uv --version") [ "{uv}" = there ] ;;
    *"pip "*"install uv") [ "{uv}" = "can be had" ] ;;
    *"uv --quiet pip install"*) exit {0 if uv_installs else 1} ;;
esac
"""
        )
        python.chmod(python.stat().st_mode | stat.S_IXUSR)

    def installs(self, *arguments: str) -> list[str]:
        """Who was asked to install it, in this order."""
        done = subprocess.run(
            ["sh", TOOL, self.folder, *arguments], capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        asked = (self.folder / "asked").read_text().splitlines()
        return [line.split()[1] for line in asked if line.endswith(" ".join(arguments))]


@pytest.fixture
def environment(tmp_path: Path) -> Environment:
    return Environment(tmp_path / "venv")


@pytest.mark.parametrize("uv", ["there", "can be had"])
def test_uv_installs_where_it_is_there_or_can_be_had(environment: Environment, uv: str) -> None:
    environment.with_python(uv=uv, config="global.extra-index-url='file:///more'")
    assert environment.installs("--editable", ".[dev]") == ["uv"]


def test_pip_installs_where_uv_cannot_be_had(environment: Environment) -> None:
    environment.with_python(uv="cannot be had")
    assert environment.installs("--editable", ".") == ["pip"]


def test_pip_installs_what_uv_could_not(environment: Environment) -> None:
    environment.with_python(uv_installs=False)
    assert environment.installs("--editable", ".") == ["uv", "pip"]


@pytest.mark.parametrize("config", ["global.index-url='file:///own'", ":env:.no-index='1'"])
def test_who_told_pip_where_packages_come_from_gets_them_from_there(
    environment: Environment, config: str
) -> None:
    environment.with_python(config=config)
    assert environment.installs("--editable", ".") == ["pip"]


def test_the_real_pip_tells_of_an_index_of_its_own(tmp_path: Path) -> None:
    """And does what is asked: here nothing, for want of packages."""
    none = tmp_path / "none.txt"
    none.touch()
    done = subprocess.run(
        ["sh", "-x", TOOL, sys.prefix, "--requirement", none],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PIP_INDEX_URL": "file:///nowhere"},
    )
    assert done.returncode == 0, done.stderr
    assert "-m pip" in done.stderr and "-m uv" not in done.stderr

"""Tests of one group are run by one worker: they share a server, or need the machine for themselves."""

import os
import re
import subprocess
import sys
from pathlib import Path

TESTS = """
import pytest

@pytest.mark.parametrize("number", range(8))
@pytest.mark.xdist_group("together")
def test_one(number: int) -> None:
    assert number >= 0
"""


def test_a_group_stays_with_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_grouped.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "-c", "/dev/null"]
    command += ["-p", "xdist", "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    command += ["--rootdir", str(tmp_path)]
    env = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = subprocess.run([*command, str(tmp_path)], capture_output=True, text=True, cwd=tmp_path, env=env)
    workers = re.findall(r"\[(gw\d)\].* PASSED test_grouped\.py::test_one", ran.stdout)
    assert len(workers) == 8, ran.stdout
    assert len(set(workers)) == 1

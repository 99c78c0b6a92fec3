"""`make mutation` runs the tests of core elsewhere, with few plugins: they must be found there."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

TOP = Path(__file__).parents[2]
TOOLS = TOP / "tools"


def test_the_tests_of_core_are_found_where_mutants_are_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    mutation, mutation_data = import_module("mutation"), import_module("mutation_data")
    mutation._prepare(tmp_path)
    environment = {**os.environ, **mutation_data.FEW_PLUGINS, "PYTHONPATH": str(tmp_path / "src")}
    command = [sys.executable, "-m", "pytest", *mutation_data.PLUGINS, "--collect-only", "-q", "tests/core"]
    found = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert "test_decide_exhaustive.py" in found.stdout
    assert "test_decide_properties.py" not in found.stdout, "the long walks are left out"

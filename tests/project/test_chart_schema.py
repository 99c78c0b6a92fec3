"""What the Helm chart takes from the table of settings is current."""

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parents[2]


def test_schema_and_variables_of_the_chart_are_those_of_the_settings_table() -> None:
    command = [sys.executable, "tools/chart_schema.py", "--check"]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

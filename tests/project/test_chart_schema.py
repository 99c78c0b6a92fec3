"""What is written by a program from a table is current: the chart's schema, the dashboard."""

import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).parents[2]


def test_schema_and_variables_of_the_chart_are_those_of_the_settings_table() -> None:
    command = [sys.executable, "tools/chart_schema.py", "--check"]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_the_dashboard_is_that_of_its_table() -> None:
    command = [sys.executable, "tools/dashboard.py", "--check"]
    done = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr

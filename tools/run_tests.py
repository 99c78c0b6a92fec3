"""Runs pytest; the few tests that fail beside others are run once more, by themselves.

Six workers share two cores, with servers, browsers and simulations of their own: a bound of time or a race
between two processes may fail there that holds elsewhere. Such a test is named at the end and in
build/unstable-tests.txt, because it is a defect until its reason is known. Where more than a handful fail, or
one fails again, the run has failed.

Usage: run_tests.py PYTEST [ARGUMENT ...]
"""
# ruff: noqa: S603, T201

import json
import re
import subprocess
import sys
from pathlib import Path

AGAIN_MAX = 5
TESTS_FAILED = 1  # pytest's exit code where tests ran and some failed
FAILED = Path(".pytest_cache/v/cache/lastfailed")
UNSTABLE = Path("build/unstable-tests.txt")


def main(command: list[str]) -> int:
    FAILED.unlink(missing_ok=True)
    code = subprocess.run(command, check=False).returncode
    if code != TESTS_FAILED or not FAILED.exists():
        return code
    # Workers of xdist write the group of a test behind its name.
    failed = sorted(re.sub(r"@[\w-]+$", "", name) for name in json.loads(FAILED.read_text()))
    if not 0 < len(failed) <= AGAIN_MAX:
        return code
    _list("Failed beside others; once more, each by itself", failed)
    for name in failed:
        code = subprocess.run([command[0], "-q", name], check=False).returncode
        if code != 0:
            return code
    UNSTABLE.parent.mkdir(exist_ok=True)
    with UNSTABLE.open("a") as file:
        file.writelines(f"{name}\n" for name in failed)
    _list("Unstable: failed beside others and passed alone", failed)
    return 0


def _list(heading: str, names: list[str]) -> None:
    print(f"\n{heading}:", *names, sep="\n  ", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The programs that look over deploy/, in an environment of their own."""

import subprocess
from pathlib import Path

TOP = Path(__file__).parents[2]
DEPLOY = TOP / "deploy"
CHECKS = TOP / ".venv-checks" / "bin"
CHECK_SECONDS_MAX = 200


def check(program: str, *arguments: str | Path, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CHECKS / program, *arguments],
        input=text,
        capture_output=True,
        text=True,
        check=False,
        cwd=TOP,
        timeout=CHECK_SECONDS_MAX,
    )

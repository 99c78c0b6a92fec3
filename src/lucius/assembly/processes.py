"""What can be told of a process that is not ours by its number alone."""

import subprocess
from pathlib import Path

PS_SECONDS_MAX = 10.0


def arguments_of(pid: int) -> str:
    """The command line of a process; empty if there is none, or if it has ended and nobody was told."""
    if Path("/proc/self").exists():
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            return ""
    line = ["ps", "-ww", "-o", "args=", "-p", str(pid)]
    done = subprocess.run(line, capture_output=True, timeout=PS_SECONDS_MAX, check=False)  # noqa: S603
    return done.stdout.decode(errors="replace")

"""Lets processes that share a SQLite file write in turns.

In: the file's path. Out: whether this process may try to write now. SQLite's lock goes to the process that
tries at the right moment. A process that writes all the time begins its next group a fraction of a
millisecond after the last, while one that waits looks only now and then: on a slow disk it might wait for
seconds.

So a process that found the lock taken holds a lock of its own beside the file until its turn has come, and
others that are about to write let it go first. The system lets go of the lock of a process that dies, and one
that stands still is passed by after `PATIENCE_SECONDS`.
"""

import fcntl
import os
from pathlib import Path

SUFFIX = "-turn"
PATIENCE_SECONDS = 1.0


class WriteLock:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path.with_name(path.name + SUFFIX), os.O_RDWR | os.O_CREAT, 0o600)
        self._waiting = False
        self._refused_since: float | None = None

    def may_go(self, now: float) -> bool:
        """Whether no other process has waited for longer. `now`: seconds on a clock that never goes back."""
        if self._waiting or self._take():
            if not self._waiting:
                self._give()
            self._refused_since = None
            return True
        if self._refused_since is None:
            self._refused_since = now
        return now - self._refused_since >= PATIENCE_SECONDS

    def wait(self) -> None:
        """The lock was taken: the next turn is ours, unless another waits for it already."""
        self._waiting = self._waiting or self._take()

    def passed(self) -> None:
        """The turn has come, or is given up."""
        self._refused_since = None
        if self._waiting:
            self._waiting = False
            self._give()

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _take(self) -> bool:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _give(self) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)

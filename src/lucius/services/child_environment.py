"""The environment of programs that a service starts.

In: the environment of this process. Out: the part of it that a program needs to run. They read documents of
clients, so the keys and addresses among our variables are not for them.
"""

import os
from collections.abc import Mapping
from typing import Final

_NEEDED: Final = (
    "HOME",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "PATH",
    "PYTHONHOME",
    "PYTHONPATH",
    "SYSTEMROOT",
    "TEMP",
    "TESSDATA_PREFIX",
    "TMPDIR",
)


def child_environment(ours: Mapping[str, str] | None = None) -> dict[str, str]:
    known = os.environ if ours is None else ours
    return {name: known[name] for name in _NEEDED if name in known}

"""What Lucius keeps for itself in its data folder, where clients and services may keep files too.

In: a path below the data folder. Out: whether it is Lucius's own: the ledger, signing keys, locks, what the
servers that it brings along keep. No reference leads there, neither to read nor to write.
"""

import re
from collections.abc import Sequence
from typing import Final

SAMPLES: Final = "sample"  # documents to try the installation with
WORKSPACES: Final = "workspace"  # the folder of all jobs' artifacts, unless a setting names another

_OWN: Final = re.compile(
    r"\..*|lucius\..*|.*\.lock|results-.*\.db.*|storage|ledger-made|keys|nats|temporal|azurite"
    r"|before-restore-.*|app-configuration.*",
    re.IGNORECASE,
)


def is_own(parts: Sequence[str]) -> bool:
    """`parts`: the names on the way from the data folder. The folder itself is Lucius's own, too."""
    return not parts or _OWN.fullmatch(parts[0]) is not None

"""The names of all variables, and which names around look like a misspelt one.

In: names of the environment. Out: names. A name that is far from every variable of Lucius is left alone:
Kubernetes sets such names (`…_PORT`, `…_SERVICE_HOST`) for a service that is called lucius.
"""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

from lucius.settings.table import TABLE

CLOSE: Final = 0.9
PREFIX: Final = "LUCIUS_"
SMOKE_PREFIX: Final = "LUCIUS_SMOKE_"  # for `make smoke-azure` alone
VARIABLES: Final = frozenset(declared.name for declared in TABLE)


def misspelt(names: Iterable[str]) -> dict[str, str]:
    """Those that no process reads, each with the one that was probably meant."""
    found: dict[str, str] = {}
    for name in sorted(names):
        if name.startswith(PREFIX) and name not in VARIABLES and not name.startswith(SMOKE_PREFIX):
            for meant in get_close_matches(name, sorted(VARIABLES), n=1, cutoff=CLOSE):
                found[name] = meant
    return found

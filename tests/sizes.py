"""How much a test takes on: what CI has time for, or all of it where LUCIUS_SOAK=1 (`make soak`)."""

import os

SOAKING = os.environ.get("LUCIUS_SOAK") == "1"


def size(usual: int, soaking: int) -> int:
    return soaking if SOAKING else usual

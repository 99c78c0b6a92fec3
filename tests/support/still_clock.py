"""A clock that stands still until it is told to go on, and ids that are the same in every run.

To be loaded before anything of Lucius, which takes the system's clock and its source of chance as it loads.
"""

import random
import secrets
import time

START_NS = 1_795_078_800_000_000_000  # 19 November 2026, 09:00 UTC
SECOND_NS = 1_000_000_000


class StillClock:
    def __init__(self) -> None:
        self.now_ns = START_NS

    @property
    def now_ms(self) -> int:
        return self.now_ns // 1_000_000

    def go_to(self, at_ms: int) -> None:
        self.now_ns = max(self.now_ns, at_ms * 1_000_000)


clock = StillClock()
_chance = random.Random(1)


def _wall_ns() -> int:
    return clock.now_ns


def _steady_ns(_: int = 0) -> int:
    return clock.now_ns


def _token_hex(nbytes: int | None = None) -> str:
    return _chance.randbytes(nbytes or secrets.DEFAULT_ENTROPY).hex()


time.time_ns = _wall_ns
time.clock_gettime_ns = _steady_ns
secrets.token_hex = _token_hex

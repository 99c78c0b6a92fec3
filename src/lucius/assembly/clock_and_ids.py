"""The part of the composition root that brings in time and chance: the clock, and ids.

In: the system's clock and its source of randomness. Out: what `assembly` hands to every part that needs the
time or a new name. No other module asks the system for either.
"""

import secrets
import sys
import time
from collections.abc import Callable
from functools import partial

import structlog

from lucius.core.clock import SteadyClock
from lucius.jobs.new_job import NewIds
from lucius.telemetry.traces import span_id_of

_ULID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ULID_PAIRS = [first + second for first in _ULID_ALPHABET for second in _ULID_ALPHABET]
_ULID_SHIFTS = range(120, -10, -10)


log = structlog.get_logger("lucius.clock")


def _steady() -> Callable[[], int]:
    """A counter that cannot be set and that goes on while the machine sleeps, as far as the system has one:
    Linux calls it boot time, and what macOS calls monotonic is one too."""
    boot_time = getattr(time, "CLOCK_BOOTTIME", None)
    if boot_time is None and sys.platform == "darwin":
        boot_time = time.CLOCK_MONOTONIC
    if boot_time is None:
        return time.monotonic_ns
    return partial(time.clock_gettime_ns, boot_time)


def _was_set(by_ms: int) -> None:
    """Logged, because the reader of a log wonders why its times are not those of the system."""
    log.warning(
        "clock_was_set",
        by_seconds=round(by_ms / 1000),
        hint="This process follows by 6 s a minute, so that no deadline fails. A restart follows at once.",
    )


clock = SteadyClock(time.time_ns, _steady(), on_set=_was_set)
"""What time it is for this process: every deadline, index row and id of it comes from here."""

now_ms = clock.now_ms


def wall_ms() -> int:
    """What the system says the time is: for what others compare with clocks of their own, such as the time
    stamp of a signature. It may jump."""
    return time.time_ns() // 1_000_000


def time_ordered_id(at_ms: int) -> str:
    """26 characters: 48 bits of time, 80 of chance; later ids sort after earlier ones."""
    number = (at_ms << 80) | int(_chance.hex(10), 16)
    return "".join([_ULID_PAIRS[(number >> shift) & 1023] for shift in _ULID_SHIFTS])


class _SystemIds:
    """Random hex from the system, fetched in blocks: a call into the kernel for each id adds up."""

    BLOCK_BYTES = 4_096

    def __init__(self) -> None:
        self._block = ""
        self._at = 0

    def hex(self, count_bytes: int) -> str:
        end = self._at + 2 * count_bytes
        if end > len(self._block):
            self._block = secrets.token_hex(self.BLOCK_BYTES)
            self._at, end = 0, 2 * count_bytes
        drawn = self._block[self._at : end]
        self._at = end
        return drawn


_chance = _SystemIds()


def new_ids() -> NewIds:
    job_id = f"job_{time_ordered_id(now_ms())}"
    return NewIds(
        job_id=job_id,
        # A correlation id that no client gave is found with the job, and needs no row of its own.
        correlation_id=job_id.removeprefix("job_"),
        # A trace that begins here begins with the job's own span.
        traceparent=f"00-{_chance.hex(16)}-{span_id_of(job_id)}-01",
    )


def new_lease_id() -> str:
    return _chance.hex(12)


def new_hex(count_bytes: int) -> str:
    return _chance.hex(count_bytes)


def new_write_id() -> str:
    """Marks one commit on a store whose answers may get lost."""
    return _chance.hex(8)

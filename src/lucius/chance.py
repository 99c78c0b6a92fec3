"""The part of the composition root that brings in time and chance: the clock, and ids.

In: the system's clock and its source of randomness. Out: what `assembly` hands to everybody who needs to know
the time or a new name. Nobody else asks the system for either.
"""

import secrets
import time

from lucius.intake.build import NewIds
from lucius.telemetry.traces import span_id_of

_ULID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_ULID_PAIRS = [first + second for first in _ULID_ALPHABET for second in _ULID_ALPHABET]
_ULID_SHIFTS = range(120, -10, -10)


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def time_ordered_id(at_ms: int) -> str:
    """26 characters: 48 bits of time, 80 of chance; later ids sort after earlier ones."""
    number = (at_ms << 80) | int(_chance.hex(10), 16)
    return "".join([_ULID_PAIRS[(number >> shift) & 1023] for shift in _ULID_SHIFTS])


class _Chance:
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


_chance = _Chance()


def new_ids() -> NewIds:
    job_id = f"job_{time_ordered_id(now_ms())}"
    return NewIds(
        job_id=job_id,
        correlation_id=_chance.hex(12),
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

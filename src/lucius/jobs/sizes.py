"""Whether a command is too large to be carried: by the bus, step by step, or by the ledger, as one job.

In: the command and the payload of each step. Out: nothing, or a refusal, before anything is written; later it
would fail only once the step's turn comes, or once it is cancelled.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lucius.contracts.envelope import Envelope
from lucius.contracts.messages import REF_BYTES_MAX
from lucius.core.model import Json
from lucius.core.refusal import Code, FieldError, Refused

# Of the largest message: for ids, the token, and what earlier steps made. These may be many, and need more.
DIRECTIVE_ROOM_BYTES: Final = 16_384
DIRECTIVE_HEAD_BYTES: Final = 4_096
UPSTREAM_BYTES_MAX: Final = REF_BYTES_MAX + 256
# Of a job: for what each of its steps may come to hold beside its payload.
STEP_ROOM_BYTES: Final = 16_384


class SizeLimits:
    def __init__(
        self, *, directive_bytes_max: Callable[[], int] | None = None, job_bytes_max: int | None = None
    ) -> None:
        """The largest directive that can be sent, and the most that one commit can hold of a job whose steps
        all change at once (it is cancelled, say); None: there is no such bound."""
        self._directive_bytes_max = directive_bytes_max
        self._job_bytes_max = job_bytes_max

    def refusal(self, envelope: Envelope, payloads: Sequence[Json]) -> Refused | None:
        if self._directive_bytes_max is None and self._job_bytes_max is None:
            return None
        refs_bytes = _json_bytes(envelope.input_ref) + _json_bytes(envelope.output_ref)
        steps_bytes = [_json_bytes(payload) for payload in payloads]
        return self._unsendable(refs_bytes, steps_bytes) or self._unkeepable(refs_bytes, steps_bytes)

    def _unsendable(self, refs_bytes: int, steps_bytes: Sequence[int]) -> Refused | None:
        if self._directive_bytes_max is None:
            return None
        largest = self._directive_bytes_max()
        for index, step_bytes in enumerate(steps_bytes):
            room = max(DIRECTIVE_ROOM_BYTES, DIRECTIVE_HEAD_BYTES + index * UPSTREAM_BYTES_MAX)
            found, most = refs_bytes + step_bytes, largest - room
            if found > most:
                message = f"payload and references of a step have {found} bytes, and {most} can be sent"
                return _too_large(message, "is too large to be sent")
        return None

    def _unkeepable(self, refs_bytes: int, steps_bytes: Sequence[int]) -> Refused | None:
        if self._job_bytes_max is None:
            return None
        found, most = refs_bytes + sum(steps_bytes), self._job_bytes_max - STEP_ROOM_BYTES * len(steps_bytes)
        if found <= most:
            return None
        message = f"the payloads of all {len(steps_bytes)} steps have {found} bytes, and {most} can be kept"
        return _too_large(message, "is too large for this many steps")


def _too_large(message: str, fault: str) -> Refused:
    return Refused(Code.BODY_TOO_LARGE, message, (FieldError("/payload", fault),))


def _json_bytes(value: Json) -> int:
    return len(msgspec.json.encode(value))

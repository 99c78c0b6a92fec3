"""How one total is shared among those who use it, without a bound for each of them.

In: who takes how much. Out: yes or no. The rule: as long as a holder has no more than what is still free, it
may take more. A holder that is alone gets half of the total, two greedy ones get a third each, and what is
left is for those that come later. So a bound that is far away restrains no holder, and where it is near the
holder of the most is refused first. Switches share their buffers among ports in this way.
"""

from collections.abc import Iterable

from lucius.core.refusal import Code, Refused
from lucius.telemetry import Metrics

RETRY_AFTER_SECONDS = 5

_FULL = Refused(
    Code.SYSTEM_SATURATED,
    "this process holds as many calls of this kind open as it may; ask without waiting, or again later",
    retry_after_seconds=RETRY_AFTER_SECONDS,
)
_TENANT_FULL = Refused(
    Code.TENANT_LIMIT,
    "the tenant's share of the calls that may be held open is taken; close some, or ask again later",
    retry_after_seconds=RETRY_AFTER_SECONDS,
)
_CALLER_FULL = Refused(
    Code.SYSTEM_SATURATED,
    "the caller's share of the calls that may be held open is taken; close some, or ask again later",
    retry_after_seconds=RETRY_AFTER_SECONDS,
)

Holder = tuple[str, str]


def within_share(held: int, count: int, free: int) -> bool:
    """Whether a holder that has `held` may take `count` of what is `free`."""
    return count <= free and held <= free


class Holdings:
    """What each holder has. A holder that has nothing is forgotten."""

    def __init__(self) -> None:
        self.total = 0
        self._held: dict[Holder, int] = {}

    def of(self, holder: Holder) -> int:
        return self._held.get(holder, 0)

    def change(self, holder: Holder, count: int) -> None:
        left = self._held.get(holder, 0) + count
        if left:
            self._held[holder] = left
        else:
            self._held.pop(holder, None)
        self.total += count

    def largest(self) -> Holder | None:
        return max(self._held, key=self._held.__getitem__, default=None)


class CallSlots:
    """Calls that are held open, such as streams: so many in all, and a share for each tenant and caller."""

    def __init__(self, places_max: int) -> None:
        self._places_max = places_max
        self._held = Holdings()
        self.taken = 0

    def refusal(self, tenant_norm: str | None, caller: str | None) -> Refused | None:
        """Why there is no place now; None if there is one. None for the tenant: the call is about none. None
        for the caller: it cannot be distinguished from others."""
        free = self._places_max - self.taken
        if free < 1:
            return _FULL
        if tenant_norm is not None and not within_share(self._held.of(("tenant", tenant_norm)), 1, free):
            return _TENANT_FULL
        if caller is not None and not within_share(self._held.of(("caller", caller)), 1, free):
            return _CALLER_FULL
        return None

    def enter(self, tenant_norm: str | None, caller: str | None) -> None:
        self._change(tenant_norm, caller, 1)

    def leave(self, tenant_norm: str | None, caller: str | None) -> None:
        self._change(tenant_norm, caller, -1)

    def _change(self, tenant_norm: str | None, caller: str | None, count: int) -> None:
        self.taken += count
        for holder in _holders(tenant_norm, caller):
            self._held.change(holder, count)


def follow_calls(metrics: Metrics, streams: CallSlots, waits: CallSlots) -> None:
    """Adds to the metrics how many calls are held open."""
    metrics.follow_now("streams_open", "Open streams of events", (), lambda: [((), streams.taken)])
    text = "Calls that wait for a job's end or for directives"
    metrics.follow_now("waits_open", text, (), lambda: [((), waits.taken)])


def _holders(tenant_norm: str | None, caller: str | None) -> Iterable[Holder]:
    if tenant_norm is not None:
        yield ("tenant", tenant_norm)
    if caller is not None:
        yield ("caller", caller)

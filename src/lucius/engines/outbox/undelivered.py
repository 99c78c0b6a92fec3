"""Attempts whose hand-out is committed, and those of them that reached nobody."""

from collections.abc import Callable, Iterable

import msgspec

from lucius.core.model import JobRecord, Step


class HandedOut(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An attempt that may leave: its hand-out is committed."""

    record: JobRecord
    step: Step


class Undelivered:
    """Attempts that were handed out to workers who were gone by then. Nobody has seen them, so the next one
    who asks may have them, for as long as their ACK is waited for."""

    __slots__ = ("_now_ms", "_waiting")

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._waiting: list[HandedOut] = []

    def add(self, handed: Iterable[HandedOut]) -> None:
        self._waiting += handed
        self._forget_late()

    def take(self, lanes: frozenset[int], directives_max: int) -> list[HandedOut]:
        if not self._waiting:
            return []
        self._forget_late()
        taken: list[HandedOut] = []
        left: list[HandedOut] = []
        for handed in self._waiting:
            wanted = handed.step.routing.lane in lanes and len(taken) < directives_max
            (taken if wanted else left).append(handed)
        self._waiting = left
        return taken

    def _forget_late(self) -> None:
        """Those whose time is over begin again as another attempt; those that have no clock yet are published
        again."""
        now_ms = self._now_ms()
        self._waiting = [
            handed for handed in self._waiting if (handed.step.lease_expires_at_ms or 0) > now_ms
        ]

"""Telling other processes that a lane has work or a job has moved, so that they need not wait for their
next look.

In: commits of this process. Out: notes that name (service, lane) and jobs, to everybody on the bus who
listens; and from others' notes, nudges for the relay and for those who wait. A note may get lost, or come
twice: the regular look finds the same thing later. What happens within a few milliseconds goes into one note.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import msgspec
import structlog

from lucius.bus.port import BusError
from lucius.core.decide import is_dispatchable
from lucius.core.model import Event, JobRecord

GATHER_SECONDS = 0.003
NAMED_MAX = 1_000  # of each kind in one note; what is more is found by the regular look

log = structlog.get_logger("lucius.nudges")


class Notification(msgspec.Struct, frozen=True, omit_defaults=True):
    places: list[tuple[str, int]] = []
    jobs: list[str] = []
    asked: list[str] = []


@runtime_checkable
class NotificationBus(Protocol):
    """A bus that also carries notes which may get lost."""

    async def nudge(self, note: bytes) -> None: ...

    async def on_nudge(self, heard: Callable[[bytes], None]) -> None: ...


class NotificationListener(Protocol):
    """Is notified of jobs, by this process or another."""

    def moved(self, job_id: str) -> None: ...

    def asked(self, job_id: str) -> None: ...


class Notifications:
    def __init__(
        self, bus: NotificationBus, *, own_lanes: Callable[[], frozenset[int]], now_ms: Callable[[], int]
    ) -> None:
        """`own_lanes`: those whose work this process sees to itself, and tells no other process of."""
        self._bus = bus
        self._own_lanes = own_lanes
        self._now_ms = now_ms
        self._places: set[tuple[str, int]] = set()
        self._jobs: list[str] = []
        self._asked: list[str] = []
        self._news = asyncio.Event()

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if after.job.terminal and (before is None or not before.job.terminal):
            self.moved(after.job.job_id)
            return
        outbox = after.outbox
        if outbox is None or not is_dispatchable(after) or outbox.due_at_ms > self._now_ms():
            return
        known = before is not None and before.outbox is outbox and is_dispatchable(before)
        if known or outbox.lane in self._own_lanes() or len(self._places) >= NAMED_MAX:
            return
        self._places.add((outbox.service, outbox.lane))
        self._news.set()

    def moved(self, job_id: str) -> None:
        """Something happened to this job that others may wait for."""
        self._name(job_id, self._jobs)

    def asked(self, job_id: str) -> None:
        """The job's workflow asks here, so it does not wait for an answer elsewhere."""
        self._name(job_id, self._asked)

    def _name(self, job_id: str, jobs: list[str]) -> None:
        if len(jobs) < NAMED_MAX:
            jobs.append(job_id)
            self._news.set()

    async def run(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._news.clear()
            note = msgspec.json.encode(Notification(sorted(self._places), self._jobs, self._asked))
            self._places.clear()
            self._jobs, self._asked = [], []
            try:
                await self._bus.nudge(note)
            except BusError as fault:
                log.debug("nudge_lost", error=str(fault))

    async def listen(self, nudge: Callable[[str, int], None], hears: NotificationListener) -> None:
        """`nudge` is called for every place that a message names. Raises `BusUnavailable`."""

        def heard(note: bytes) -> None:
            try:
                named = msgspec.json.decode(note, type=Notification)
            except msgspec.DecodeError:
                return
            for service, lane in named.places[:NAMED_MAX]:
                nudge(service, lane)
            for job_id in named.jobs[:NAMED_MAX]:
                hears.moved(job_id)
            for job_id in named.asked[:NAMED_MAX]:
                hears.asked(job_id)

        await self._bus.on_nudge(heard)

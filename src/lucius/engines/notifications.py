"""Telling other processes that a lane has work, a deadline is near or a job has moved, so that they need not
wait for their next look.

In: commits of this process. Out: notes that name what moved, to every process that listens; and from the
notes of others, calls to the parts of this process that wait for it. A note may get lost, or come twice: the
regular look finds the same thing later. The first note leaves at once; what happens within the next few
milliseconds goes into one note.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec
import structlog

from lucius.bus.port import BusError
from lucius.core.decide import is_dispatchable
from lucius.core.model import Event, JobRecord
from lucius.ledger.store import StoreError

GATHER_SECONDS = 0.003
# How long a note may wait that no worker and no caller of an end waits for.
EVENTS_SECONDS = 0.025
NAMED_MAX = 1_000  # of each kind in one note; what is more is found by the regular look

log = structlog.get_logger("lucius.nudges")


class Notification(msgspec.Struct, frozen=True, omit_defaults=True):
    """`places`: services and lanes with work. `due`: lanes, and when the earliest of their new rows is due.
    `jobs` have ended or have news for their workflow, `events` has jobs with new events, `asked` those whose
    workflow asks."""

    places: list[tuple[str, int]] = []
    due: list[tuple[int, int]] = []
    jobs: list[str] = []
    events: list[str] = []
    asked: list[str] = []


@runtime_checkable
class NotificationChannel(Protocol):
    """A bus or a store that also carries notes which may get lost."""

    @property
    def note_bytes_max(self) -> int: ...

    async def nudge(self, note: bytes) -> None:
        """Raises `BusError` or `StoreError`."""
        ...

    async def on_nudge(self, on_note: Callable[[bytes], None]) -> None: ...


class NotificationListener(Protocol):
    """Is notified of jobs, by this process or another."""

    def moved(self, job_id: str) -> None: ...

    def asked(self, job_id: str) -> None: ...


class ProcessListener(NotificationListener, Protocol):
    """The same, for all that a process may wait for."""

    def work_waits(self, service: str, lane: int) -> None: ...

    def due_soon(self, lane: int, at_ms: int) -> None: ...

    def has_events(self, job_id: str) -> None: ...


class Notifications:
    def __init__(
        self,
        channel: NotificationChannel,
        *,
        own_lanes: Callable[[], frozenset[int]],
        now_ms: Callable[[], int],
        look_every_ms: int,
    ) -> None:
        """`own_lanes`: those whose work this process sees to itself, and tells no other process of."""
        self._channel = channel
        self._own_lanes = own_lanes
        self._now_ms = now_ms
        self._look_every_ms = look_every_ms
        self._places: set[tuple[str, int]] = set()
        self._due: dict[int, int] = {}
        self._jobs: list[str] = []
        self._events: dict[str, None] = {}
        self._asked: list[str] = []
        self._news = asyncio.Event()
        self._later: asyncio.TimerHandle | None = None

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        job = after.job
        if job.terminal and (before is None or not before.job.terminal):
            self.moved(job.job_id)
            return
        if events and len(self._events) < NAMED_MAX:
            self._events[job.job_id] = None
            self._notify_later()
        now_ms = self._now_ms()
        self._watch_due(before, after, now_ms)
        outbox = after.outbox
        if outbox is None or not is_dispatchable(after) or outbox.due_at_ms > now_ms:
            return
        known = before is not None and before.outbox is outbox and is_dispatchable(before)
        if known or outbox.lane in self._own_lanes() or len(self._places) >= NAMED_MAX:
            return
        self._places.add((outbox.service, outbox.lane))
        self._news.set()

    def _watch_due(self, before: JobRecord | None, after: JobRecord, now_ms: int) -> None:
        """What is due later than the next look is found by that look, and in time."""
        due_at_ms, lane = after.job.due_at_ms, after.job.lane
        if due_at_ms is None or due_at_ms >= now_ms + self._look_every_ms:
            return
        if before is not None and before.job.due_at_ms == due_at_ms:
            return
        if due_at_ms < self._due.get(lane, due_at_ms + 1):
            self._due[lane] = due_at_ms
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

    def _notify_later(self) -> None:
        if self._later is None and not self._news.is_set():
            self._later = asyncio.get_running_loop().call_later(EVENTS_SECONDS, self._news.set)

    async def run(self) -> None:
        while True:
            await self._news.wait()
            await asyncio.sleep(0)  # commits of the same group are told of in the same round of the loop
            for note in _notes(self._take(), self._channel.note_bytes_max):
                try:
                    await self._channel.nudge(note)
                except (BusError, StoreError) as fault:
                    log.debug("nudge_lost", error=str(fault))
            await asyncio.sleep(GATHER_SECONDS)

    def _take(self) -> Notification:
        self._news.clear()
        if self._later is not None:
            self._later.cancel()
            self._later = None
        taken = Notification(
            places=sorted(self._places),
            due=sorted(self._due.items()),
            jobs=self._jobs,
            events=list(self._events),
            asked=self._asked,
        )
        self._places.clear()
        self._due.clear()
        self._events.clear()
        self._jobs, self._asked = [], []
        return taken

    async def listen(self, listener: ProcessListener) -> None:
        """`listener` is called for all that a note of another process names. Raises `BusUnavailable`."""

        def on_note(note: bytes) -> None:
            try:
                named = msgspec.json.decode(note, type=Notification)
            except msgspec.DecodeError:
                return
            for service, lane in named.places[:NAMED_MAX]:
                listener.work_waits(service, lane)
            for lane, at_ms in named.due[:NAMED_MAX]:
                listener.due_soon(lane, at_ms)
            for job_id in named.jobs[:NAMED_MAX]:
                listener.moved(job_id)
            for job_id in named.events[:NAMED_MAX]:
                listener.has_events(job_id)
            for job_id in named.asked[:NAMED_MAX]:
                listener.asked(job_id)

        await self._channel.on_nudge(on_note)


def _notes(named: Notification, bytes_max: int) -> Iterator[bytes]:
    """One, or as many as the channel needs. A name that fits into none is left to the regular look."""
    note = msgspec.json.encode(named)
    if len(note) <= bytes_max:
        yield note
        return
    lists: dict[str, list[Any]] = {
        kind: names for kind, names in msgspec.structs.asdict(named).items() if names
    }
    for kind, names in lists.items():
        middle = 0 if len(lists) > 1 else len(names) // 2
        if middle or len(lists) > 1:
            for part in (names[:middle], names[middle:]):
                if part:
                    yield from _notes(Notification(**{kind: part}), bytes_max)

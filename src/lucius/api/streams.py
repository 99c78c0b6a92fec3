"""A job's events as they happen: server-sent events.

In: a job, and the number of the last event that the caller has. Out: the events after it, each with its
number as `id`, until the job has ended and all was said. A stream keeps nothing but that number: what is to
be sent is read from the ledger, a small page at a time, and the next page only once the last was taken. So a
stream costs little, a slow reader costs no more, and a caller who comes back, to this process or another,
misses nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lucius.api.gate import ASK_AGAIN_SECONDS
from lucius.api.parameters import header_text, refuse
from lucius.api.problems import problem
from lucius.api.shares import CallSlots
from lucius.contracts.views import event_view
from lucius.core.model import Event, JobRecord
from lucius.core.refusal import Code, Refused
from lucius.core.states import Fact
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.store import StoreError

MEDIA_TYPE = "text/event-stream"
STREAMS_MAX = 2_000
RETRY_AFTER_SECONDS = 5
# This process is not notified of what others wrote: it looks this often as well.
LOOK_EVERY_SECONDS = 1.0
KEEP_ALIVE_SECONDS = 15.0
# After this a caller comes back and shows anew who they are.
STREAM_SECONDS_MAX = 3_600.0
# A reader who takes nothing for so long is let go, and may come back for what is left.
SEND_SECONDS_MAX = 60.0
EVENTS_PER_PAGE_MAX = 32
ACCEPT_LENGTH_MAX = 1_024

MayListen = Callable[[], Awaitable[bool]]

_ENDS = frozenset({Fact.JOB_SUCCEEDED, Fact.JOB_FAILED, Fact.JOB_CANCELLED})
HELLO = b"retry: 1000\n\n"
KEEP_ALIVE = b": still here\n\n"
_CLOSED = Refused(
    Code.SYSTEM_SATURATED,
    "this process is about to end; the stream can be opened at another one, or here once it is back",
    retry_after_seconds=RETRY_AFTER_SECONDS,
)
EVENT_STREAM_HEADERS = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",  # a proxy that gathers what it passes on would hold events back
    "vary": "accept",
}


def wants_stream(request: Request) -> bool:
    """Whether the caller asked for a stream by name, and likes plain JSON no better."""
    stream_q, json_q = 0.0, 0.0
    for part in request.headers.get("accept", "")[:ACCEPT_LENGTH_MAX].lower().split(","):
        media, _, rest = part.partition(";")
        if media.strip() == MEDIA_TYPE:
            stream_q = _quality(rest)
        elif media.strip() == "application/json":
            json_q = _quality(rest)
    return stream_q > 0 and stream_q >= json_q


def _quality(parameters: str) -> float:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip() == "q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


def last_event_id(request: Request, otherwise: int, seq_max: int) -> int | Refused:
    """The last event that the caller has. The header is newer than what is in the URL: a browser that comes
    back asks the same URL again and says in the header how far it got."""
    text = header_text(request, "last-event-id")
    if text is None or not text.strip():
        return otherwise
    text = text.strip()
    if not text.isascii() or not text.isdecimal() or len(text) > 18 or int(text) > seq_max:
        return refuse("Last-Event-ID", f"must be a whole number from 0 to {seq_max}")
    return int(text)


class Streams:
    """All streams of this process."""

    def __init__(
        self, ledger: JobLedger, *, clock: Callable[[], float], streams_max: int = STREAMS_MAX
    ) -> None:
        """`clock` gives seconds, of which only differences count."""
        self.ledger = ledger
        self.clock = clock
        self.places = CallSlots(streams_max)
        self._wakes: dict[str, set[asyncio.Event]] = {}
        self.closed = False

    @property
    def open_count(self) -> int:
        return self.places.taken

    def watch(self, before: JobRecord | None, after: JobRecord, events: Sequence[Event]) -> None:
        if events and self._wakes:
            self.look_again(after.job.job_id)

    def look_again(self, job_id: str) -> None:
        """This job has new events, here or in another process."""
        for wake in self._wakes.get(job_id, ()):
            wake.set()

    async def answer(
        self, record: JobRecord, after_seq: int, may_listen: MayListen, caller: str | None = None
    ) -> Response:
        """A stream of what comes after; nothing at all, if nothing will. It ends once the caller may no
        longer listen. `record` is as new as the question. `caller`: whose share of the streams it takes."""
        job = record.job
        if not job.terminal:
            # A caller that has seen more than there is has seen another ledger, such as one that a copy
            # replaced. Waiting for that number it would miss all that happens, and the end of the job.
            after_seq = min(after_seq, job.seq)
        if job.terminal and not await self.ledger.events(job.job_id, after_seq=after_seq, limit=1):
            return Response(
                status_code=204, headers=EVENT_STREAM_HEADERS
            )  # a browser does not come back after it
        stream = _Stream(self, record, after_seq, may_listen, caller)
        refused = stream.refusal()
        return stream if refused is None else problem(refused)

    def refusal(self, tenant_norm: str | None, caller: str | None) -> Refused | None:
        """Why no stream can begin for them now; None if one can."""
        return _CLOSED if self.closed else self.places.refusal(tenant_norm, caller)

    def close(self) -> None:
        """Ends every stream; the callers come back to the process that is there then."""
        self.closed = True
        for wakes in self._wakes.values():
            for wake in wakes:
                wake.set()

    def enter(self, job_id: str) -> asyncio.Event:
        """An event that is set at commits of this job."""
        wake = asyncio.Event()
        self._wakes.setdefault(job_id, set()).add(wake)
        return wake

    def leave(self, job_id: str, wake: asyncio.Event) -> None:
        wakes = self._wakes[job_id]
        wakes.discard(wake)
        if not wakes:
            del self._wakes[job_id]


class _Stream(Response):
    """One caller's stream."""

    def __init__(
        self, streams: Streams, record: JobRecord, after_seq: int, may_listen: MayListen, caller: str | None
    ) -> None:
        super().__init__(headers=EVENT_STREAM_HEADERS, media_type=MEDIA_TYPE)
        # The length is not known beforehand.
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._streams = streams
        self._job_id = record.job.job_id
        self._after_seq = after_seq
        self._may_listen = may_listen
        self._ended = record.job.terminal  # then its trail holds no end that is still to come
        self._holders = (record.job.tenant_norm, caller)

    def refusal(self) -> Refused | None:
        """Why it cannot begin; None if it can."""
        return self._streams.refusal(*self._holders)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self.refusal()
        if refused is not None:
            await problem(refused)(scope, receive, send)
            return
        self._streams.places.enter(*self._holders)
        wake = self._streams.enter(self._job_id)
        left = asyncio.create_task(until_left(receive, wake))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if await self._run(send, wake, left):
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            return
        finally:
            self._streams.leave(self._job_id, wake)
            self._streams.places.leave(*self._holders)
            left.cancel()

    async def _run(self, send: Send, wake: asyncio.Event, left: asyncio.Task[None]) -> bool:
        """Whether the stream came to its end with a caller who still listens."""
        clock, loop = self._streams.clock, asyncio.get_running_loop()
        until = clock() + STREAM_SECONDS_MAX
        spoke_at = asked_at = clock()
        chunk = HELLO
        while True:
            if chunk:
                async with asyncio.timeout(SEND_SECONDS_MAX):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                spoke_at = clock()
            # The event is cleared before the look: a commit in between sets it again.
            wake.clear()
            if left.done():
                return False
            if self._streams.closed or clock() >= until:
                return True
            if clock() - asked_at >= ASK_AGAIN_SECONDS:
                if not await self._may_listen():
                    return True
                asked_at = clock()
            chunk = await self._next()
            if chunk:
                continue
            if self._ended:
                return True
            timer = loop.call_later(LOOK_EVERY_SECONDS, wake.set)
            await wake.wait()
            timer.cancel()
            if clock() - spoke_at >= KEEP_ALIVE_SECONDS:
                chunk = KEEP_ALIVE
                await self._look_whether_ended()

    async def _next(self) -> bytes:
        """The next events, ready to be sent; nothing, if there are none, or none can be read now."""
        try:
            events = await self._streams.ledger.events(
                self._job_id, after_seq=self._after_seq, limit=EVENTS_PER_PAGE_MAX
            )
        except StoreError:
            return b""
        if not events:
            return b""
        self._after_seq = events[-1].seq
        self._ended = self._ended or any(event.type in _ENDS for event in events)
        return b"".join(map(_written, events))

    async def _look_whether_ended(self) -> None:
        """For a job that was forgotten, with its end."""
        try:
            loaded = await self._streams.ledger.load(self._job_id, fresh=True)
        except StoreError:
            return
        self._ended = loaded is None or loaded.record.job.terminal


async def until_left(receive: Receive, wake: asyncio.Event) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    wake.set()


def _written(event: Event) -> bytes:
    data = msgspec.json.encode(event_view(event))
    return b"id: %d\nevent: %b\ndata: %b\n\n" % (event.seq, event.type.value.encode(), data)

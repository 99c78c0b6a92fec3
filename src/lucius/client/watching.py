"""Following one job's events until it ends.

In: a wire, a job id, the last event that is known. Out: every event after it, once and in order, up to the
job's end. Where the server offers an event stream it is read, and read again from the last event after a
break; else the job is asked for again and again. Either way the trail itself decides: whenever a stream
ends, the pages of events fill what it may have left out.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final
from urllib.parse import quote

import msgspec

from lucius.client.errors import LuciusError, Unreachable
from lucius.client.models import Event, Job, Page
from lucius.client.wire import FOR_NOW, HttpConnection, NoStream, decoded
from lucius.core.states import Fact

ENDS: Final = frozenset({Fact.JOB_SUCCEEDED, Fact.JOB_FAILED, Fact.JOB_CANCELLED})
GAP_SECONDS: Final = 0.2
GAP_SECONDS_MAX: Final = 5.0
POLL_SECONDS_MAX: Final = 5
QUIET_POLLS_PER_SECOND_MORE: Final = 10


def job_path(job_id: str, rest: str = "") -> str:
    return f"/v1/jobs/{quote(job_id, safe='')}{rest}"


async def job_of(wire: HttpConnection, job_id: str, wait_seconds: float = 0) -> Job:
    params = {"wait": f"{wait_seconds:g}"} if wait_seconds else None
    return decoded(await wire.call("GET", job_path(job_id), params=params, wait_seconds=wait_seconds), Job)


async def events_after(wire: HttpConnection, job_id: str, after: int) -> AsyncGenerator[Event, None]:
    """The events there are, page by page."""
    while True:
        answer = await wire.call("GET", job_path(job_id, "/events"), params={"after": str(after)})
        page = decoded(answer, Page[Event])
        for event in page.items:
            if event.seq > after:
                after = event.seq
                yield event
        # A page without news cannot lead further, whatever its cursor says.
        if page.next_cursor is None or not page.items:
            return


async def watch(wire: HttpConnection, job_id: str, after: int) -> AsyncGenerator[Event, None]:
    streams, seq, quiet_rounds = True, after, 0
    while True:
        before = seq
        if streams:
            try:
                # Closed at once when the caller leaves early: every open stream counts against a limit of the
                # server.
                async with aclosing(_streamed(wire, job_id, seq)) as stream:
                    async for event in stream:
                        seq = event.seq
                        yield event
            except NoStream:
                streams = False
            except LuciusError as error:
                # The questions below are asked with patience; if they fail too, the watch ends with that.
                if not (isinstance(error, Unreachable) or error.status in FOR_NOW):
                    raise
        wait_seconds = 0 if streams or quiet_rounds == 0 else _poll_seconds(quiet_rounds)
        # First the job, then its events: an end that is seen here has all its events below.
        job = await job_of(wire, job_id, wait_seconds)
        async for event in events_after(wire, job_id, seq):
            seq = event.seq
            yield event
        if job.terminal:
            return
        quiet_rounds = 1 if seq > before else quiet_rounds + 1
        await wire.outside.sleep(_gap_seconds(quiet_rounds) if streams else GAP_SECONDS)


async def _streamed(wire: HttpConnection, job_id: str, after: int) -> AsyncGenerator[Event, None]:
    """The events of one stream, until it ends, the job does, or one is missing."""
    async with aclosing(wire.stream(job_path(job_id, "/events"), after)) as messages:
        async for data in messages:
            try:
                event = msgspec.json.decode(data, type=Event)
            except msgspec.DecodeError:
                continue  # a message of another kind, such as a greeting or a farewell
            if event.seq <= after:
                continue
            if event.seq != after + 1:
                return
            after = event.seq
            yield event
            if event.type in ENDS:
                return


def _poll_seconds(quiet_rounds: int) -> int:
    """A busy job is asked for often, a quiet one is held for longer."""
    return min(1 + quiet_rounds // QUIET_POLLS_PER_SECOND_MORE, POLL_SECONDS_MAX)


def _gap_seconds(quiet_rounds: int) -> float:
    return min(GAP_SECONDS * float(2 ** min(quiet_rounds, 10)), GAP_SECONDS_MAX)

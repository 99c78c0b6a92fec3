"""Jobs as they move: server-sent events for a list that is looked at.

In: the commits of this process, and the names of jobs that moved in others. Out: for each caller the newest
state of each job, a bounded number a second, and what an overview shows of this moment. Nothing is kept for a
caller who is away: after a reconnect a page reads its list again.
"""

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from lucius.api.fleet import CHART_WINDOWS, FigureScope, figure_scope, figures
from lucius.api.gate import ASK_AGAIN_SECONDS
from lucius.api.job_feed import MESSAGES_PER_SECOND_MAX, OVERVIEW_SECONDS_MIN, MovedJobs, sse_message
from lucius.api.parameters import refuse, stray
from lucius.api.problems import problem
from lucius.api.routing import Call, Result
from lucius.api.streams import (
    EVENT_STREAM_HEADERS,
    HELLO,
    KEEP_ALIVE,
    KEEP_ALIVE_SECONDS,
    MEDIA_TYPE,
    SEND_SECONDS_MAX,
    STREAM_SECONDS_MAX,
    until_left,
    wants_stream,
)
from lucius.contracts.times import rfc3339
from lucius.core.model import Job, Json
from lucius.core.refusal import Code, Refused
from lucius.ledger.store import StoreError

# How often it comes while nothing moves.
OVERVIEW_SECONDS_MAX = 10.0


async def stream_jobs(call: Call) -> Result:
    refused = stray(call.request, "tenant_id")
    scope = figure_scope(call)
    if refused is not None:
        return refused
    if isinstance(scope, Refused):
        return scope
    if not wants_stream(call.request):
        return refuse("Accept", f"must name {MEDIA_TYPE}: this call answers with a stream alone")
    stream = _JobStream(call, scope)
    return stream.refusal() or stream


class _JobStream(Response):
    """One caller's stream."""

    def __init__(self, call: Call, scope: FigureScope) -> None:
        super().__init__(headers=EVENT_STREAM_HEADERS, media_type=MEDIA_TYPE)
        self.raw_headers = [pair for pair in self.raw_headers if pair[0] != b"content-length"]
        self._moved = MovedJobs(scope.has)
        self._call = call
        self._feed = call.deps.feed
        self._scope = scope
        only = scope.names is not None and len(scope.names) == 1
        self._holders = (next(iter(scope.names)) if only and scope.names else None, call.caller.holder)

    def refusal(self) -> Refused | None:
        return self._feed.streams.refusal(*self._holders)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self.refusal()
        if refused is not None:
            await problem(refused)(scope, receive, send)
            return
        places = self._feed.streams.places
        places.enter(*self._holders)
        self._feed.enter(self._moved)
        left = asyncio.create_task(until_left(receive, self._moved.wake))
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if await self._run(send, left):
                await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            return
        finally:
            self._feed.leave(self._moved)
            places.leave(*self._holders)
            left.cancel()

    async def _run(self, send: Send, left: asyncio.Task[None]) -> bool:
        """Whether the stream came to its end with a caller who still listens."""
        clock, pause = self._feed.clock, 1 / MESSAGES_PER_SECOND_MAX
        began_at = spoke_at = asked_at = clock()
        overview_at = began_at - OVERVIEW_SECONDS_MAX
        chunk, stale = HELLO, False
        while True:
            if chunk:
                async with asyncio.timeout(SEND_SECONDS_MAX):
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                spoke_at = clock()
                await asyncio.sleep(pause)
            self._moved.wake.clear()
            if left.done():
                return False
            now = clock()
            if self._feed.streams.closed or now - began_at >= STREAM_SECONDS_MAX:
                return True
            if now - asked_at >= ASK_AGAIN_SECONDS:
                if not await self._may_listen():
                    return True
                asked_at = now
            waits = OVERVIEW_SECONDS_MIN if stale or self._moved.waiting else OVERVIEW_SECONDS_MAX
            if now - overview_at >= waits:
                overview_at, stale = now, False
                chunk = self._missed_message() + await self._overview()
            elif (job := self._moved.take()) is not None:
                chunk, stale = sse_message(b"job", _job_view(job)), True
            elif now - spoke_at >= KEEP_ALIVE_SECONDS:
                chunk = KEEP_ALIVE
            else:
                chunk = b""
                await self._wait(min(waits - (now - overview_at), ASK_AGAIN_SECONDS))

    async def _wait(self, seconds: float) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, self._moved.wake.set)
        await self._moved.wake.wait()
        timer.cancel()

    async def _may_listen(self) -> bool:
        try:
            caller = await self._call.admit_again()
        except StoreError:
            return True  # no refusal is known
        if isinstance(caller, Refused):
            return caller.code not in (Code.UNAUTHENTICATED, Code.FORBIDDEN)
        if self._scope.names is None:
            return caller.tenants is None
        return all(caller.sees(name) for name in self._scope.names)

    def _missed_message(self) -> bytes:
        missed = self._moved.take_missed()
        return sse_message(b"missed", {"jobs": missed}) if missed else b""

    async def _overview(self) -> bytes:
        deps, window, names = self._call.deps, CHART_WINDOWS["15m"], self._scope.names

        async def make() -> dict[str, Json]:
            now_ms = deps.now_ms()
            begins_ms = window.begins_ms(now_ms)
            tally = await deps.fleet.activity.sums(window.length, self._scope.sums, begins_ms, now_ms)
            shown = await figures(deps, self._call.caller, names, tally, now_ms)
            return {"window_seconds": window.span_ms // 1000, **shown}

        try:
            return await self._feed.overview((names, self._call.caller.tenants), make)
        except StoreError:
            return b""


def _job_view(job: Job) -> dict[str, Json]:
    return {
        "job_id": job.job_id,
        "tenant_id": job.tenant_id,
        "state": job.state.value,
        "request_type": job.request_type,
        "current_step_id": job.current_step_id,
        "created_at": rfc3339(job.created_at_ms),
        "updated_at": rfc3339(job.updated_at_ms),
    }

"""The life of a service process: lease, acknowledge, work, answer; and a quiet end.

In: a service, a transport, a workspace, a clock. Out: replies.
Each directive is one asyncio task. Signs of life for long work come from one timer for the whole runner, so
that a short directive pays nothing for them. Knows nothing of how directives travel or where jobs are kept.
"""

import asyncio
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import msgspec
import structlog

from lucius.sdk import messages
from lucius.sdk.dedupe import MemoryDedupe
from lucius.sdk.directive import Directive, Json, parse_directive
from lucius.sdk.errors import SHUTDOWN, STOPPED, UNEXPECTED, Final, Retryable, Stopped, kind_and_place
from lucius.sdk.ports import Answer, Dedupe, Log, Mark, Transport, Undelivered, Workspace
from lucius.sdk.task import Service, Task

LEASE_DIRECTIVES_MAX = 100
HEARTBEAT_SECONDS_MIN = 0.08
# Signs of life that are due within this time go together.
PULSE_SECONDS = 0.02
BACKOFF_SECONDS_MIN = 0.2
BACKOFF_SECONDS_MAX = 15.0
# An empty answer that came at once means a transport that does not wait: lease more slowly then.
EMPTY_AT_ONCE_SECONDS = 0.01
EMPTY_AT_ONCE_MAX = 3

# Outcomes of an ACK after which nobody would look at a RESULT.
_NOT_OURS = frozenset({"stale", "recorded", "refused"})
_UNKNOWN = Answer("unknown")


class RunnerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """For health checks."""

    service: str
    leasing: bool
    under_way: int
    capacity: int
    lease_failures: int  # in a row; 0 means that the orchestrator answered last time


class Runner:
    """Runs one service until `stop` is called."""

    def __init__(
        self,
        service: Service,
        transport: Transport,
        workspace: Workspace,
        *,
        now_ms: Callable[[], int],
        concurrency: int = 8,
        dedupe: Dedupe | None = None,
        log: Log | None = None,
        wait_seconds: float = 20.0,
        drain_seconds: float = 30.0,
        farewell_seconds: float = 2.0,
        heartbeat_seconds: float = 60.0,
        progress_interval_seconds: float = 1.0,
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._service = service
        self._transport = transport
        self._workspace = workspace
        self._now_ms = now_ms
        self._concurrency = concurrency
        self._dedupe = dedupe if dedupe is not None else MemoryDedupe()
        self._log: Log = log if log is not None else structlog.get_logger("lucius.sdk")
        self._wait_seconds = wait_seconds
        self._drain_seconds = drain_seconds
        self._farewell_seconds = farewell_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._progress_interval_seconds = progress_interval_seconds
        self._jitter = jitter
        self._stop = asyncio.Event()
        self._freed = asyncio.Event()
        self._pulse: asyncio.TimerHandle | None = None
        self._context: Context | None = None  # of the runner: signs of life belong to no directive's own
        self._running: set[asyncio.Task[None]] = set()
        self._active: dict[Task, None] = {}  # those whose handler runs now, in the order of their beginning
        self._beats: dict[Task, asyncio.Task[None]] = {}
        self._leasing = False
        self._lease_failures = 0
        self._loop_time: Callable[[], float] = lambda: 0.0

    def stop(self) -> None:
        """Asks `run` to lease no more, finish what is under way, and return."""
        self._stop.set()

    def status(self) -> RunnerStatus:
        return RunnerStatus(
            service=self._service.name,
            leasing=self._leasing,
            under_way=len(self._running),
            capacity=self._concurrency,
            lease_failures=self._lease_failures,
        )

    async def run(self) -> None:
        """Returns after `stop`, once everything under way is finished or was given up."""
        self._loop_time = asyncio.get_running_loop().time
        self._context = copy_context()
        leasing = asyncio.create_task(self._lease_for_ever())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({stopping, leasing}, return_when=asyncio.FIRST_COMPLETED)
            self._leasing = False
            await _put_down([leasing], self._farewell_seconds)
            if leasing in done:
                leasing.result()  # it does not end by itself unless something is broken: say what
            await self._drain()
        finally:
            self._stop.set()
            left = [stopping, leasing, *self._beats.values(), *self._running]
            await _put_down(left, self._farewell_seconds)
            if self._pulse is not None:
                self._pulse.cancel()

    # -- leasing -------------------------------------------------------------------------------------------

    async def _lease_for_ever(self) -> None:
        self._leasing = True
        empty_at_once = 0
        while not self._stop.is_set():
            free = self._concurrency - len(self._running)
            if free <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            asked_at = self._loop_time()
            leased = await self._lease(min(free, LEASE_DIRECTIVES_MAX))
            if leased:
                empty_at_once = 0
                for message in leased:
                    self._begin(message)
            elif leased is not None:
                quick = self._loop_time() - asked_at < EMPTY_AT_ONCE_SECONDS
                empty_at_once = empty_at_once + 1 if quick else 0
                if empty_at_once > EMPTY_AT_ONCE_MAX:
                    await asyncio.sleep(min(self._wait_seconds, BACKOFF_SECONDS_MIN))

    async def _lease(self, directives_max: int) -> list[dict[str, Json]] | None:
        """None when the orchestrator could not be asked; then some time has passed already."""
        try:
            leased = await self._transport.lease(
                max_directives=directives_max, wait_seconds=self._wait_seconds
            )
        except Exception as fault:
            self._lease_failures += 1
            doubled = BACKOFF_SECONDS_MIN * 2 ** min(self._lease_failures - 1, 10)
            pause = min(BACKOFF_SECONDS_MAX, doubled) * self._jitter()
            if isinstance(fault, Undelivered):
                pause = max(pause, fault.retry_after_seconds)
            self._log.warning(
                "lease_failed", service=self._service.name, reason=_reason(fault), again_in=pause
            )
            await asyncio.sleep(pause)
            return None
        self._lease_failures = 0
        return leased

    def _begin(self, message: dict[str, Json]) -> None:
        directive = parse_directive(message)
        if directive is None:
            # Nothing in it can be trusted to answer with; its ACK timeout reports it.
            self._log.warning("directive_unreadable", service=self._service.name)
            return
        beat = self._heartbeat_seconds
        if directive.lease_seconds is not None:
            beat = min(beat, max(directive.lease_seconds / 3, HEARTBEAT_SECONDS_MIN))
        task = Task(directive, self._workspace, self._report, heartbeat_seconds=beat)
        running = asyncio.create_task(self._carry_out(task))
        self._running.add(running)
        running.add_done_callback(self._ended)

    def _ended(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._freed.set()
        if not running.cancelled() and (fault := running.exception()) is not None:
            self._log.warning("directive_lost", service=self._service.name, reason=_reason(fault))

    # -- one directive -------------------------------------------------------------------------------------

    async def _carry_out(self, task: Task) -> None:
        directive = task.directive
        key = directive.key
        known = await self._dedupe.begin(key)
        if known is Mark.RUNNING:
            return
        if isinstance(known, dict):
            await self._reply(directive, known)
            return
        result = None
        try:
            result = await self._attempt(task)
            if result is not None:
                await self._dedupe.finish(key, result)
        finally:
            if result is None:
                await self._dedupe.forget(key)
        if result is not None:
            await self._reply(directive, result)

    async def _attempt(self, task: Task) -> dict[str, Json] | None:
        """The RESULT to send; None when nobody waits for one."""
        directive = task.directive
        # Should the ACK not get through, the work is done all the same: a RESULT implies its ACK.
        answer = await self._reply(directive, messages.ack(directive, self._now_ms())) or _UNKNOWN
        if answer.outcome in _NOT_OURS:
            return None
        if answer.stop:
            return self._failed(directive, STOPPED, "stopped before the work began")
        task.sent_at = self._loop_time()
        self._active[task] = None
        self._expect(_due(task))
        try:
            output_ref = await self._service.handler(task)
        except Retryable as failure:
            return self._failed(directive, failure.code, failure.message)
        except Final as failure:
            return self._failed(directive, failure.code, failure.message, final=True)
        except Stopped:
            return self._failed(directive, STOPPED, "stopped at the orchestrator's word")
        except asyncio.CancelledError:
            if not self._stop.is_set():
                raise
            # The process ends before the work did: say so now rather than let the lease run out.
            if (current := asyncio.current_task()) is not None:
                current.uncancel()
            return self._failed(directive, SHUTDOWN, "the service was shut down during the work")
        except Exception as fault:
            place = kind_and_place(fault)
            self._log.warning("handler_failed", reason=place, **_names(directive))
            return self._failed(directive, UNEXPECTED, place)
        finally:
            self._active.pop(task, None)
            if (beat := self._beats.pop(task, None)) is not None:
                beat.cancel()  # a sign of life that arrives after the RESULT is only noise
        return messages.succeeded(directive, self._now_ms(), output_ref)

    def _failed(self, directive: Directive, code: str, text: str, *, final: bool = False) -> dict[str, Json]:
        return messages.failed(directive, self._now_ms(), final=final, code=code, text=text)

    async def _reply(self, directive: Directive, message: dict[str, Json]) -> Answer | None:
        """None when it could not be delivered, which is logged and must not end the work."""
        try:
            answer = await self._transport.reply(directive, message)
        except Exception as fault:
            self._log.warning(
                "reply_undelivered", type=message["type"], reason=_reason(fault), **_names(directive)
            )
            return None
        if answer.outcome == "refused":
            self._log.warning("reply_refused", type=message["type"], **_names(directive))
        return answer

    # -- signs of life -------------------------------------------------------------------------------------

    async def _report(self, task: Task) -> None:
        """Sends the first progress at once and later ones at most every `progress_interval_seconds`."""
        silent = self._loop_time() - (task.sent_at or 0.0)
        if not task.reported or silent >= self._progress_interval_seconds:
            await self._beat(task)

    async def _beat(self, task: Task) -> None:
        task.sent_at = self._loop_time()
        task.reported = True
        message = messages.progress(task.directive, self._now_ms(), task.percent, task.note)
        answer = await self._reply(task.directive, message)
        if answer is not None and (answer.stop or answer.outcome in _NOT_OURS):
            task.stop_requested = True

    def _expect(self, due: float) -> None:
        """The pulse comes at that time at the latest. While nothing is worked on, there is none."""
        if self._pulse is not None:
            if self._pulse.when() <= due:
                return
            self._pulse.cancel()
        self._pulse = asyncio.get_running_loop().call_at(due, self._beat_all, context=self._context)

    def _beat_all(self) -> None:
        self._pulse = None
        now = self._loop_time()
        for task in self._active:
            if task.stop_requested or task in self._beats:
                continue
            if (due := _due(task)) > now + PULSE_SECONDS:
                self._expect(due)
                continue
            beat = asyncio.create_task(self._beat(task))
            self._beats[task] = beat
            beat.add_done_callback(partial(self._beaten, task))

    def _beaten(self, task: Task, _: "asyncio.Task[None]") -> None:
        if self._beats.pop(task, None) is not None and task in self._active:
            self._expect(max(_due(task), self._loop_time() + PULSE_SECONDS))

    # -- the end -------------------------------------------------------------------------------------------

    async def _drain(self) -> None:
        if self._running:
            await asyncio.wait(set(self._running), timeout=self._drain_seconds)
        if self._running:
            self._log.warning("drain_gave_up", service=self._service.name, under_way=len(self._running))
            await _put_down(self._running, self._farewell_seconds)


async def _put_down(tasks: Iterable["asyncio.Task[Any]"], seconds_max: float) -> None:
    """Cancels twice: a directive answers the first time with a farewell, which itself may not get through."""
    left = {task for task in tasks if not task.done()}
    for _ in range(2):
        for task in left:
            task.cancel()
        if left:
            _, left = await asyncio.wait(left, timeout=seconds_max)


def _due(task: Task) -> float:
    """When the next sign of life is due, on the loop's clock."""
    return (task.sent_at or 0.0) + task.heartbeat_seconds


def _reason(fault: BaseException) -> str:
    return str(fault) if isinstance(fault, Undelivered) else kind_and_place(fault)


def _names(directive: Directive) -> dict[str, object]:
    return {
        "jobId": directive.job_id,
        "stepId": directive.step_id,
        "tenant_id": directive.tenant_id,
        "attempt_no": directive.attempt_no,
        "lease_id": directive.lease_id,
        "correlation_id": directive.correlation_id,
    }

"""The life of a service process: lease, acknowledge, work, answer; and a quiet end.

In: a service, a transport, a workspace, a clock. Out: replies.
Each directive is one asyncio task. A RESULT is kept before it is sent; one that was not delivered, by this
process or one before it, is sent again while nothing better is to be done. Knows nothing of how
directives travel or where jobs are kept.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import msgspec
import structlog

from lucius.sdk import messages
from lucius.sdk.dedupe import MemoryDedupe, NewestAttempts, UndeliveredResults
from lucius.sdk.directive import Directive, Json, parse_directive
from lucius.sdk.errors import SHUTDOWN, STOPPED, Failure, Final, Retryable, Stopped, kind_and_place, meaning
from lucius.sdk.heartbeat import Heartbeat
from lucius.sdk.ports import (
    AttemptListener,
    Dedupe,
    DeliveryFailed,
    DirectiveSeen,
    Log,
    ReplyAnswer,
    Transport,
    Workspace,
)
from lucius.sdk.task import Service, Task

LEASE_DIRECTIVES_MAX = 100
HEARTBEAT_SECONDS_MIN = 0.08
BACKOFF_SECONDS_MIN = 0.2
# Over a bus the clock of an ACK runs even while no worker asks: a worker that was away must ask again at
# once.
BACKOFF_SECONDS_MAX = 1.0
LOGGED_EVERY_FAILURES = 15
# An empty answer that came at once means a transport that does not wait: lease more slowly then.
EMPTY_AT_ONCE_SECONDS = 0.01
EMPTY_AT_ONCE_MAX = 3
UNDELIVERED_PAUSE_SECONDS = 30.0
# With nothing under way there is rarely a queue, and the operator who stops an idle service waits for it.
IDLE_ANSWER_SHARE = 4

_UNKNOWN, _TAKEN = ReplyAnswer("unknown"), ReplyAnswer("applied")
_OUTCOMES: Mapping[str | None, str] = {STOPPED: "stopped", SHUTDOWN: "shut_down"}


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
        watch: AttemptListener | None = None,
        wait_seconds: float = 20.0,
        drain_seconds: float = 30.0,
        idle_seconds_max: float | None = None,
        farewell_seconds: float = 2.0,
        answer_seconds: float = 2.0,
        heartbeat_seconds: float = 60.0,
        progress_interval_seconds: float = 1.0,
        undelivered_pause_seconds: float = UNDELIVERED_PAUSE_SECONDS,
        jitter: Callable[[], float] = lambda: 1.0,
        acknowledges: bool = True,
    ) -> None:
        """`idle_seconds_max`: `run` returns once there was nothing to do for so long; None: never.
        `answer_seconds`: so long after it was made a lease may be answered though the runner was stopped.
        `acknowledges`: False where the transport's lease is the ACK already, so that none is sent."""
        self._service = service
        self._transport = transport
        self._workspace = workspace
        self._now_ms = now_ms
        self._concurrency = concurrency
        self._dedupe = dedupe if dedupe is not None else MemoryDedupe()
        self._log: Log = log if log is not None else structlog.get_logger("lucius.sdk")
        self._watch: AttemptListener = watch if watch is not None else _Unwatched()
        self._idle_seconds_max = idle_seconds_max
        self._wait_seconds = wait_seconds if idle_seconds_max is None else min(wait_seconds, idle_seconds_max)
        self._drain_seconds = drain_seconds
        self._farewell_seconds = farewell_seconds
        self._answer_seconds = answer_seconds
        self._heartbeat_seconds = heartbeat_seconds
        self._undelivered = UndeliveredResults(
            service.name, self._dedupe, self._deliver, self._log, pause_seconds=undelivered_pause_seconds
        )
        self._jitter = jitter
        self._acknowledges = acknowledges
        self._stop = asyncio.Event()
        self._freed = asyncio.Event()
        self._heartbeat = Heartbeat(self._reply, now_ms=now_ms, interval_seconds=progress_interval_seconds)
        self._latest = NewestAttempts()
        self._running: set[asyncio.Task[None]] = set()
        self._leasing = False
        self._asked_at: float | None = None
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
        """Returns after `stop`, or when there was nothing to do for long, once everything under way is
        finished or was given up."""
        self._loop_time = asyncio.get_running_loop().time
        self._heartbeat.start()
        leasing = asyncio.create_task(self._lease_for_ever())
        owing = asyncio.create_task(self._undelivered.run())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            done, _ = await asyncio.wait({stopping, leasing}, return_when=asyncio.FIRST_COMPLETED)
            drained_at = self._loop_time() + self._drain_seconds
            await self._end_leasing(leasing)
            if leasing in done:
                leasing.result()  # it ends when idle, or because something is broken: say what
            await self._drain(drained_at)
        finally:
            self._stop.set()
            left = [stopping, leasing, owing, *self._heartbeat.beats(), *self._running]
            await _put_down(left, self._farewell_seconds)
            self._heartbeat.stop()

    # -- leasing -------------------------------------------------------------------------------------------

    async def _lease_for_ever(self) -> None:
        self._leasing = True
        empty_at_once = 0
        busy_at = self._loop_time()
        while not self._stop.is_set():
            free = self._concurrency - len(self._running)
            if free <= 0:
                self._freed.clear()
                await self._freed.wait()
                continue
            asked_at = self._loop_time()
            if self._running:
                busy_at = asked_at
            leased = await self._lease(min(free, LEASE_DIRECTIVES_MAX))
            if leased:
                empty_at_once, busy_at = 0, self._loop_time()
                for message in leased:
                    self._begin(message)
            elif leased is not None:
                if self._is_idle_since(busy_at):
                    self._log.info("service_idle", service=self._service.name)
                    return
                quick = self._loop_time() - asked_at < EMPTY_AT_ONCE_SECONDS
                empty_at_once = empty_at_once + 1 if quick else 0
                if empty_at_once > EMPTY_AT_ONCE_MAX:
                    await asyncio.sleep(min(self._wait_seconds, BACKOFF_SECONDS_MIN))

    async def _end_leasing(self, leasing: "asyncio.Task[None]") -> None:
        """A lease that was asked for just now may be on its way here, answered: its directives would wait for
        their ACK in vain, and cost an attempt. One that was asked for long ago has nothing to bring."""
        if self._asked_at is not None:
            answer_seconds = self._answer_seconds / (1 if self._running else IDLE_ANSWER_SHARE)
            left = self._asked_at + min(answer_seconds, self._drain_seconds) - self._loop_time()
            if left > 0:
                await asyncio.wait({leasing}, timeout=left)
        self._leasing = False
        await _put_down([leasing], self._farewell_seconds)

    def _is_idle_since(self, busy_at: float) -> bool:
        if self._idle_seconds_max is None or self._running:
            return False
        return self._loop_time() - busy_at >= self._idle_seconds_max

    async def _lease(self, directives_max: int) -> list[dict[str, Json]] | None:
        """None when the orchestrator could not be asked; then some time has passed already."""
        self._asked_at = self._loop_time()
        try:
            leased = await self._transport.lease(
                max_directives=directives_max, wait_seconds=self._wait_seconds
            )
        except Exception as fault:
            self._asked_at = None  # not while it pauses
            self._lease_failures += 1
            doubled = BACKOFF_SECONDS_MIN * 2 ** min(self._lease_failures - 1, 10)
            pause = min(BACKOFF_SECONDS_MAX, doubled) * self._jitter()
            if isinstance(fault, DeliveryFailed):
                pause = max(pause, fault.retry_after_seconds)
            if self._lease_failures <= 3 or self._lease_failures % LOGGED_EVERY_FAILURES == 0:
                self._log.warning(
                    "lease_failed",
                    service=self._service.name,
                    reason=_reason(fault),
                    failures=self._lease_failures,
                    again_in=pause,
                )
            await asyncio.sleep(pause)
            return None
        finally:
            self._asked_at = None
        self._lease_failures = 0
        return leased

    def _begin(self, message: dict[str, Json]) -> None:
        directive = parse_directive(message)
        if directive is None:
            # Nothing in it can be trusted to answer with; its ACK timeout reports it.
            self._log.warning("directive_unreadable", service=self._service.name)
            return
        known = self._latest.note(directive)
        if known > directive.attempt_no:
            self._watch.left(directive, "overtaken")
            self._log.info("directive_overtaken", latest_attempt_no=known, **_names(directive))
            return
        if 0 < known < directive.attempt_no:
            self._stop_earlier(directive)
        beat = self._heartbeat_seconds
        if directive.lease_seconds is not None:
            beat = min(beat, max(directive.lease_seconds / 3, HEARTBEAT_SECONDS_MIN))
        task = Task(
            directive,
            self._workspace,
            self._heartbeat.report,
            heartbeat_seconds=beat,
            confirm=self._heartbeat.confirm,
        )
        running = asyncio.create_task(self._carry_out(task))
        self._running.add(running)
        running.add_done_callback(partial(self._ended, directive))

    def _stop_earlier(self, directive: Directive) -> None:
        """The orchestrator has begun a new attempt, so it has given up those that are still at work here."""
        for task in self._heartbeat.active():
            earlier = task.directive
            same_step = (earlier.job_id, earlier.step_id) == (directive.job_id, directive.step_id)
            if same_step and earlier.attempt_no < directive.attempt_no:
                task.stop_requested = True

    def _ended(self, directive: Directive, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._freed.set()
        if not running.cancelled() and (fault := running.exception()) is not None:
            self._log.warning(
                "directive_lost", service=self._service.name, reason=_reason(fault), **_names(directive)
            )

    # -- one directive -------------------------------------------------------------------------------------

    async def _carry_out(self, task: Task[Any]) -> None:
        directive = task.directive
        # So that what a handler logs names its attempt; the context is this directive's own.
        structlog.contextvars.bind_contextvars(**_names(directive))
        known = await self._recalled(directive)
        if known is DirectiveSeen.RUNNING:
            self._watch.left(directive, "running")
            return
        if isinstance(known, dict):
            self._watch.left(directive, "repeated")
            await self._deliver(directive, known)
            return
        result, outcome = None, "lost"
        if (traceparent := self._watch.began(directive)) is not None:
            directive = task.directive = msgspec.structs.replace(directive, traceparent=traceparent)
        try:
            result = await self._attempt(task)
            if result is not None and task.usage:
                result["usage"] = dict(task.usage)
            outcome = "not_ours" if result is None else _outcome(result)
        finally:
            self._watch.ended(directive, outcome, None if result is None else _code(result))
            if result is None:
                await self._dedupe.forget(directive.key)
        if result is not None:
            await self._deliver(directive, await self._kept(directive, result))

    async def _recalled(self, directive: Directive) -> DirectiveSeen | dict[str, Json]:
        """A memory that fails must not keep the work from being done: the orchestrator counts one RESULT."""
        try:
            return await self._dedupe.begin(directive.key)
        except Exception as fault:
            self._log.warning("dedupe_failed", reason=_reason(fault), **_names(directive))
            return DirectiveSeen.NEW

    async def _kept(self, directive: Directive, result: dict[str, Json]) -> dict[str, Json]:
        try:
            return await self._dedupe.finish(directive, result)
        except Exception as fault:
            self._log.warning("result_not_kept", reason=_reason(fault), **_names(directive))
            return result

    async def _deliver(self, directive: Directive, result: dict[str, Json]) -> bool:
        key = directive.key
        self._undelivered.under_way.add(key)
        try:
            if await self._reply(directive, result) is None:
                self._undelivered.one_more()
                return False
            await self._dedupe.delivered(key)
        except Exception as fault:
            # It is sent once more later, and counts once.
            self._log.warning("dedupe_failed", reason=_reason(fault), **_names(directive))
        finally:
            self._undelivered.under_way.discard(key)
        return True

    async def _attempt(self, task: Task[Any]) -> dict[str, Json] | None:
        """The RESULT to send; None when none is expected."""
        directive = task.directive
        answer = _TAKEN if not self._acknowledges else await self._ack(directive)
        if answer.not_ours:
            return None
        if answer.stop:
            return self._failed(directive, STOPPED, "stopped before the work began")
        current = asyncio.current_task()
        self._heartbeat.began(task)
        try:
            if self._service.read_payload is not None:
                task.payload = self._service.read_payload(directive.payload)
            output_ref = await self._service.handler(task)
        except Retryable as failure:
            return self._failure(directive, failure)
        except Final as failure:
            return self._failure(directive, failure)
        except Stopped:
            return self._failed(directive, STOPPED, "stopped at the orchestrator's word")
        except KeyboardInterrupt:
            raise
        except BaseException as fault:
            if isinstance(fault, GeneratorExit) and not _is_running(current):
                raise
            if isinstance(fault, asyncio.CancelledError) and current is not None and current.cancelling():
                if not self._stop.is_set():
                    raise
                # The process ends before the work did: say so now rather than let the lease run out.
                current.uncancel()
                return self._failed(directive, SHUTDOWN, "the service was shut down during the work")
            mapped = meaning(fault, self._service.errors)
            self._log.warning("handler_failed", code=mapped.code, reason=_reason(fault), **_names(directive))
            return self._failure(directive, mapped)
        finally:
            self._heartbeat.ended(task)
        return messages.succeeded(directive, self._now_ms(), output_ref, task.written)

    async def _ack(self, directive: Directive) -> ReplyAnswer:
        """Should it not get through, the work is done all the same: a RESULT implies its ACK."""
        return await self._reply(directive, messages.ack(directive, self._now_ms())) or _UNKNOWN

    def _failed(self, directive: Directive, code: str, text: str) -> dict[str, Json]:
        return messages.failed(directive, self._now_ms(), final=False, code=code, text=text)

    def _failure(self, directive: Directive, failure: Failure) -> dict[str, Json]:
        final = isinstance(failure, Final)
        result = messages.failed(
            directive, self._now_ms(), final=final, code=failure.code, text=failure.message
        )
        if isinstance(failure, Retryable):
            if failure.retry_after_seconds is not None:
                result["retry_after"] = max(0.0, failure.retry_after_seconds)
            if failure.slow_down:
                result["slow_down"] = True
        return result

    async def _reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer | None:
        """None when it could not be delivered, which is logged and must not end the work."""
        try:
            answer = await self._transport.reply(directive, message)
        except Exception as fault:
            self._watch.undelivered(directive, message["type"])
            self._log.warning(
                "reply_undelivered", type=message["type"], reason=_reason(fault), **_names(directive)
            )
            return None
        if answer.outcome == "refused":
            self._log.warning("reply_refused", type=message["type"], **_names(directive))
        return answer

    # -- the end -------------------------------------------------------------------------------------------

    async def _drain(self, until: float) -> None:
        if self._running:
            await asyncio.wait(set(self._running), timeout=max(0.0, until - self._loop_time()))
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


def _is_running(task: "asyncio.Task[Any] | None") -> bool:
    """Not while the interpreter closes its coroutine, which will not be resumed: no handler has failed."""
    try:
        return task is not None and asyncio.current_task() is task
    except RuntimeError:  # no loop runs any more
        return False


class _Unwatched:
    def began(self, directive: Directive) -> str | None:
        return None

    def ended(self, directive: Directive, outcome: str, code: str | None) -> None: ...

    def left(self, directive: Directive, reason: str) -> None: ...

    def undelivered(self, directive: Directive, kind: str) -> None: ...


def _code(result: dict[str, Json]) -> str | None:
    error = result.get("error")
    return None if error is None else error["code"]


def _outcome(result: dict[str, Json]) -> str:
    if (code := _code(result)) in _OUTCOMES:
        return _OUTCOMES[code]
    status: str = result["status"]
    return status.lower()


def _reason(fault: BaseException) -> str:
    return str(fault) if isinstance(fault, DeliveryFailed) else kind_and_place(fault)


def _names(directive: Directive) -> dict[str, object]:
    return {
        "jobId": directive.job_id,
        "stepId": directive.step_id,
        "tenant_id": directive.tenant_id,
        "attempt_no": directive.attempt_no,
        "lease_id": directive.lease_id,
        "correlation_id": directive.correlation_id,
    }

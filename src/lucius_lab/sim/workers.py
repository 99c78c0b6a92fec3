"""Platform services of a simulation: the real sdk, and handlers whose behaviour the seed decides."""

from collections import deque

import msgspec

from lucius.sdk.directive import Directive, Json, Key
from lucius.sdk.errors import Final, Retryable
from lucius.sdk.ports import ReplyAnswer, Transport
from lucius.sdk.runner import Runner
from lucius.sdk.task import Service, Task
from lucius_lab.sim.context import SimContext
from lucius_lab.sim.faults import FaultKind, Site
from lucius_lab.sim.loop import Process
from lucius_lab.sim.watch import Violation

SEEN_MAX = 64
CONCURRENCY = 4
RESULTS = "s3://results/"
BUSY = "SIM_BUSY"  # the code of a failure that may pass
_OUTCOMES = frozenset({"applied", "duplicate", "recorded", "stale"})
# Looked up once: the members of an enum are slow to reach.
_SILENT, _CRASH, _SLOW = FaultKind.WORKER_SILENT, FaultKind.CRASH_BEFORE, FaultKind.WORKER_SLOW
FINAL_FAILURE = "SIM_BROKEN"  # the code of a service that fails a job for good
_RETRYABLE, _FINAL = FaultKind.WORKER_RETRYABLE, FaultKind.WORKER_FINAL


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How a simulated service works, beside what goes wrong with it."""

    work_seconds_min: float = 0.05
    work_seconds_max: float = 1.5
    retryable_rate: float = 0.0
    final_rate: float = 0.0
    progress_rate: float = 0.3


class SimTransport:
    """A transport whose service may keep silent, answer twice, or lose its voice for a while."""

    def __init__(
        self,
        context: SimContext,
        inner: Transport,
        process: Process,
        seen: "deque[dict[str, Json]]",
        *,
        answered: frozenset[str],
    ) -> None:
        """`seen`: replies that were sent, for forgers to repeat. `answered`: the kinds of replies that the
        orchestrator itself answers: none of them on a bus, no ACK where taking a directive is one."""
        self._context = context
        self._inner = inner
        self._process = process
        self._seen = seen
        self._answered = answered
        self._muted: dict[Key, None] = {}
        self.resulted: set[Key] = set()
        """Attempts whose RESULT this process has sent, or tried to."""

    def mute(self, key: Key) -> None:
        self._muted[key] = None

    async def lease(self, *, max_directives: int, wait_seconds: float) -> list[dict[str, Json]]:
        leased = await self._inner.lease(max_directives=max_directives, wait_seconds=wait_seconds)
        messages: list[dict[str, Json]] = []
        for message in leased:
            kind = self._context.faults.at(Site.TAKEN, self._process)
            what = f"{message['jobId']} {message['stepId']} #{message['attempt_no']}"
            self._context.trace.act(self._process, "took", what)
            if kind is _SILENT:
                self._context.fault(kind, self._process, what)
            else:
                messages.append(message)
        return messages

    async def reply(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        if message["type"] == "PROGRESS" and directive.key in self._muted:
            return ReplyAnswer("applied")
        twice = None
        if message["type"] != "PROGRESS":
            twice = self._context.faults.at(Site.REPLY, self._process)
            number = self._context.faults.number
            self._seen.append(message)
            if message["type"] == "RESULT":
                self.resulted.add(directive.key)
        answer = await self._sent(directive, message)
        if twice is not None:
            what = f"{message['type']} of {directive.job_id} {directive.step_id} #{directive.attempt_no}"
            self._context.fault(twice, self._process, what, number)
            answer = await self._sent(directive, message)
        return answer

    async def _sent(self, directive: Directive, message: dict[str, Json]) -> ReplyAnswer:
        answer = await self._inner.reply(directive, message)
        watch = self._context.watch
        if watch is not None and answer.outcome in _OUTCOMES and message["type"] in self._answered:
            try:
                watch.replied(directive.key, message["type"], answer.outcome, stop=answer.stop)
            except Violation as violation:
                self._context.broken(violation)
        return answer


def run_service(
    context: SimContext, process: Process, name: str, transport: SimTransport, behaviour: Behaviour
) -> "Runner":
    async def work(task: Task) -> dict[str, Json] | None:
        key = task.directive.key
        if key in running or key in transport.resulted:
            what = f"{name} ran {task.directive.step_id} #{task.directive.attempt_no} twice"
            context.broken(Violation("I14", task.directive.job_id, what))
        running.add(key)
        try:
            return await _work(context, process, transport, behaviour, task)
        finally:
            running.discard(key)

    running: set[Key] = set()

    return Runner(
        Service(name, work),
        transport,
        _Nowhere(),
        now_ms=process.now_ms,
        concurrency=CONCURRENCY,
        wait_seconds=20.0,
        log=_Quiet(context, process),
    )


async def _work(
    context: SimContext, process: Process, transport: SimTransport, behaviour: Behaviour, task: Task
) -> dict[str, Json] | None:
    faults, loop, directive = context.faults, context.loop, task.directive
    kind = faults.at(Site.WORK, process)
    chance, number = faults.entropy, faults.number
    low, high = behaviour.work_seconds_min, behaviour.work_seconds_max
    seconds = low + (high - low) * (chance & 1023) / 1023
    what = f"{directive.job_id} {directive.step_id} #{directive.attempt_no}"
    await loop.pause(seconds / 2)
    if kind is _CRASH:
        await context.crash_here(kind, process, f"working on {what}", number)
    if kind is not None:
        context.fault(kind, process, what, number)
    if kind is _SLOW:
        transport.mute(directive.key)
        await loop.pause((directive.lease_seconds or 1.0) * (0.8 + (chance >> 10 & 1023) / 1023))
    elif (chance >> 20 & 1023) < behaviour.progress_rate * 1024:
        await task.progress(50, "half way")
    await loop.pause(seconds / 2)
    if kind is _RETRYABLE or (chance >> 30 & 1023) < behaviour.retryable_rate * 1024:
        raise Retryable(BUSY, "not now")
    if kind is _FINAL or (chance >> 34 & 1023) < behaviour.final_rate * 1024:
        raise Final(FINAL_FAILURE, "never")
    return {"uri": result_uri(directive.job_id, directive.step_id, directive.attempt_no)}


def result_uri(job_id: str, step_id: str, attempt_no: int) -> str:
    """Names the attempt that made it, so that a result of another is seen."""
    return f"{RESULTS}{job_id}/{step_id}/{attempt_no}"


class _Nowhere:
    """A workspace that no simulated handler uses."""

    def artifact_uri(self, workspace_uri: str, step_type: str, attempt_no: int, name: str) -> str:
        return f"{workspace_uri}{step_type}/{attempt_no}/{name}"

    async def read(self, uri: str) -> bytes:
        raise FileNotFoundError(uri)

    async def write_new(self, uri: str, data: bytes) -> None:
        pass

    async def write(self, uri: str, data: bytes) -> None:
        pass


class _Quiet:
    """The runner's log: lines for the timeline, and a violation where a handler or a directive broke."""

    def __init__(self, context: SimContext, process: Process) -> None:
        self._context = context
        self._process = process

    def info(self, event: str, **fields: object) -> None:
        pass

    def warning(self, event: str, **fields: object) -> None:
        if self._context.trace.record:
            self._context.trace.line(self._process.name, f"{event} {fields.get('reason', '')}")
        if event in ("handler_failed", "directive_lost", "directive_unreadable"):
            self._context.broken(Violation("UNEXPECTED", str(fields.get("jobId", "")), f"{event} {fields}"))

"""The worker: what becomes of one delivery. Two shells use it, the Lambda handler and the worker process.

In: a delivery. Out: what is to become of its message. The record of the job rules: a worker takes the job
under a lease of its own, renews it while it works, writes every step's end under it, and is stopped as soon
as another worker holds the job. Whatever a step does, the attempt ends with a status, a code and a log line.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from threading import Thread
from typing import Any, Final

import msgspec
import structlog

from lucius.lifebook import machine
from lucius.lifebook.chores import Chores
from lucius.lifebook.codec import BadItem
from lucius.lifebook.failures import AttemptFailure, NotYet, StepFailed, failure
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.machine import Bury, Drop, Poison, Postpone, Take, Write
from lucius.lifebook.message import JobMessage, UnreadableBody, message_for, parse_body
from lucius.lifebook.queue import DELAY_MS_MAX, JobDelivery, JobQueue
from lucius.lifebook.refusals import RunCode, RunRefused
from lucius.lifebook.states import Status
from lucius.lifebook.workflows import (
    RESULT_BYTES_MAX,
    RESULTS_BYTES_MAX,
    BadStepValue,
    StepRun,
    WorkflowRegistry,
    WorkflowStep,
    encoded,
    is_async,
)
from lucius.lifebook.writer import LifebookWriter

log = structlog.get_logger("lucius.lifebook")

JUDGED_MAX: Final = 20
BEATS_A_LEASE: Final = 3
NOT_YET_SECONDS_MAX: Final = 43_000


class Done(msgspec.Struct, frozen=True):
    """The message is no longer needed."""


class Later(msgspec.Struct, frozen=True):
    """The message is to come again after this long."""

    wait_ms: int


class Buried(msgspec.Struct, frozen=True):
    """The message is to go to the dead-letter queue: by failing until the queue moves it, or at once."""

    reason: str
    at_once: bool


class Left(msgspec.Struct, frozen=True):
    """Another worker has the job, and decides about the message: it is left as it is."""


DeliveryOutcome = Done | Later | Buried | Left


class LostLease(Exception):
    """The job is no longer held by this run of the worker."""


class Holding:
    """A job that this worker holds. The heartbeat and the steps write through it, one at a time."""

    def __init__(self, writer: LifebookWriter, job: LifebookJob, owner: str) -> None:
        self.job = job
        self.owner = owner
        self.lost = asyncio.Event()
        self._writer = writer
        self._turn = asyncio.Lock()

    async def change(
        self, decide: Callable[[LifebookJob, int], LifebookJob | RunRefused]
    ) -> LifebookJob | RunRefused:
        async with self._turn:
            after = await self._writer.change(self.job.job_id, decide, known=self.job)
            if isinstance(after, LifebookJob):
                self.job = after
            elif after.code in (RunCode.LEASE_LOST, RunCode.JOB_NOT_FOUND):
                self.lost.set()
                raise LostLease
            return after


class Worker:
    def __init__(
        self,
        *,
        writer: LifebookWriter,
        queue: JobQueue,
        chores: Chores,
        workflows: WorkflowRegistry,
        new_id: Callable[[], str],
        step_timeout_ms: int,
        name: str,
    ) -> None:
        self._writer = writer
        self._queue = queue
        self._chores = chores
        self._workflows = workflows
        self._new_id = new_id
        self._step_timeout_ms = step_timeout_ms
        self._name = name
        self._policy = writer.policy
        self.stopping = False
        """Set once no further step is to begin."""

    @property
    def visibility_ms(self) -> int:
        """A message comes again when the lease of a worker that died can be taken over."""
        return self._policy.lease_ms + self._policy.skew_ms

    async def handle(self, delivery: JobDelivery, *, deadline_ms: int | None = None) -> DeliveryOutcome:
        """Runs what the delivery stands for. `deadline_ms`: when this process must have ended."""
        message = parse_body(delivery.body)
        if isinstance(message, UnreadableBody):
            return self._poison(delivery, message.reason)
        with structlog.contextvars.bound_contextvars(
            job_id=message.job_id, workspace_id=message.workspace_id, trace_id=message.trace_id
        ):
            try:
                return await self._handle(delivery, message, deadline_ms)
            except BadItem as fault:
                # Perhaps of a later version, which another worker reads; a sweeper looks at what is buried.
                log.warning("item_unreadable", why=str(fault))
                return Buried(str(fault), at_once=False)

    async def settle(self, delivery: JobDelivery, outcome: DeliveryOutcome) -> None:
        """Does to the message what was decided. For shells without a way of their own."""
        match outcome:
            case Done():
                await self._queue.delete(delivery)
            case Later(wait_ms):
                await self._queue.set_visibility(delivery, wait_ms)
            case Buried(reason, at_once=True):
                await self._queue.bury(delivery, reason)
            case Buried():
                await self._queue.set_visibility(delivery, 0)
            case Left():
                pass

    async def _handle(
        self, delivery: JobDelivery, message: JobMessage, deadline_ms: int | None
    ) -> DeliveryOutcome:
        taken = await self._take(delivery, message)
        if not isinstance(taken, Holding):
            return taken
        heart = _Heart(self, taken, delivery)
        try:
            wait_ms = await self._run(taken, deadline_ms)
        except LostLease:
            log.warning("lease_lost", owner=taken.owner)
            return Left()
        finally:
            # Before anything is done to the message, or a late beat would undo it.
            await heart.stop()
        job = taken.job
        if job.terminal:
            log.info("job_ended", status=job.status, attempts=job.attempts, code=job.last_error_code)
            await self._chores.after_end(job)
            return Done() if job.status is not Status.DEAD else Buried("The job is dead.", at_once=False)
        return await self._later(delivery, job, wait_ms, fresh=job.status is Status.QUEUED)

    async def _take(self, delivery: JobDelivery, message: JobMessage) -> Holding | DeliveryOutcome:
        owner = f"{self._name}/{self._new_id()}"
        for _ in range(JUDGED_MAX):
            now_ms = self._writer.now_ms()
            job = await self._writer.table.get(message.job_id, now_ms=now_ms)
            verdict = machine.judge(job, message, policy=self._policy, now_ms=now_ms, owner=owner)
            if job is not None and isinstance(verdict, Take):
                # A message may be left from before a redrive, whose credits are not held yet.
                if job.status is Status.PENDING and not await self._chores.held(job):
                    return Later(self._policy.pending_grace_ms)
                if await self._writer.write(job, verdict.job):
                    log.info("job_started", attempt=verdict.job.attempts + 1, step=verdict.job.step_cursor)
                    return Holding(self._writer, verdict.job, owner)
            elif job is not None and isinstance(verdict, Write):
                if await self._writer.write(job, verdict.job):
                    log.warning("attempt_lost", attempts=verdict.job.attempts, status=verdict.job.status)
                    if verdict.job.terminal:
                        await self._chores.after_end(verdict.job)
            else:
                return await self._without_work(delivery, message, job, verdict)
        return Later(1_000)

    async def _without_work(
        self,
        delivery: JobDelivery,
        message: JobMessage,
        job: LifebookJob | None,
        verdict: machine.Judgement | RunRefused,
    ) -> DeliveryOutcome:
        match verdict:
            case Postpone(wait_ms, reason) if job is not None:
                log.debug("delivery_waits", reason=reason, wait_ms=wait_ms)
                return await self._later(delivery, job, wait_ms)
            case Drop(reason):
                log.info("delivery_dropped", reason=reason, attempt=message.attempt)
                return Done()
            case Bury(reason):
                log.info("delivery_buried", reason=reason)
                return Buried(reason, at_once=False)
            case Poison(reason):
                return self._poison(delivery, reason)
            case RunRefused():
                log.error("illegal_move", why=verdict.message)
                return Buried(verdict.message, at_once=True)
            case _:
                return Later(1_000)

    def _poison(self, delivery: JobDelivery, reason: str) -> Buried:
        log.error("poison_message", message_id=delivery.message_id, reason=reason)
        return Buried(reason, at_once=True)

    async def _later(
        self, delivery: JobDelivery, job: LifebookJob, wait_ms: int, *, fresh: bool = False
    ) -> DeliveryOutcome:
        """The message comes again; where it would have been received too often then, a new one takes its
        place."""
        if not fresh and delivery.receives < self._policy.receives_max:
            return Later(wait_ms)
        message = message_for(job)
        await self._queue.send(message, delay_ms=min(wait_ms, DELAY_MS_MAX))
        policy = self._policy
        await self._writer.change(
            job.job_id,
            lambda now, at: machine.enqueued(now, message.attempt, policy=policy, now_ms=at),
            known=job,
        )
        return Done()

    async def _run(self, holding: Holding, deadline_ms: int | None) -> int:
        """Step after step, until the job is no longer running. How long its message is to wait then."""
        policy, owner = self._policy, holding.owner
        while holding.job.status is Status.RUNNING:
            if holding.job.cancel_requested_at is not None:
                await holding.change(
                    lambda now, at: machine.canceled_by_worker(now, owner=owner, policy=policy, now_ms=at)
                )
            elif self.stopping or self._is_short(deadline_ms):
                await self._give_back(holding, 0)
            elif (holding.job.lease_expires_at or 0) <= self._writer.now_ms():
                # This process stood still: before it goes on, it must know that no other worker has.
                await holding.change(
                    lambda now, at: machine.renewed(now, owner=owner, policy=policy, now_ms=at)
                )
            else:
                await self._step(holding, deadline_ms)
        due_ms = holding.job.next_attempt_at or 0
        return max(due_ms - self._writer.now_ms(), 0)

    def _is_short(self, deadline_ms: int | None) -> bool:
        return deadline_ms is not None and self._writer.now_ms() >= deadline_ms

    async def _step(self, holding: Holding, deadline_ms: int | None) -> None:
        job = holding.job
        try:
            step, run = self._prepared(holding, deadline_ms)
            value = await self._called(step, run, holding)
            result = _kept(value, step, job)
            policy, cost = self._policy, step.credits + run.credits
        except NotYet as pause:
            await self._give_back(holding, round(min(pause.seconds, NOT_YET_SECONDS_MAX) * 1000))
            return
        except Exception as fault:
            if isinstance(fault, LostLease):
                raise
            await self._fail(holding, self._failure_of(fault, holding.job))
            return
        done = await holding.change(
            lambda now, at: machine.step_done(
                now,
                index=job.step_cursor,
                result=result,
                credits_=cost,
                owner=holding.owner,
                policy=policy,
                now_ms=at,
            )
        )
        if isinstance(done, RunRefused):
            if done.code is not RunCode.CREDITS_INSUFFICIENT:
                raise LostLease
            await self._fail(holding, AttemptFailure("CREDITS_EXCEEDED", done.message, final=True))

    def _prepared(self, holding: Holding, deadline_ms: int | None) -> tuple[WorkflowStep, StepRun]:
        job, policy, owner = holding.job, self._policy, holding.owner
        known = self._workflows.get(job.workflow_id)
        if known is None:
            raise StepFailed("UNKNOWN_WORKFLOW", "This worker does not know the workflow.")
        if len(known.steps) != job.steps_total:
            raise StepFailed("WORKFLOW_CHANGED", "The workflow has another number of steps than the job.")
        step = known.steps[job.step_cursor]
        if step.credits > job.credits_reserved - job.credits_spent:
            raise StepFailed("CREDITS_EXCEEDED", "The step costs more than what is left.", final=True)

        async def save(note: str) -> None:
            await holding.change(
                lambda now, at: machine.checkpointed(now, note, owner=owner, policy=policy, now_ms=at)
            )

        until_ms = self._writer.now_ms() + self._timeout_ms(step, deadline_ms)
        return step, StepRun(job, save=save, seconds_left=lambda: (until_ms - self._writer.now_ms()) / 1000)

    def _timeout_ms(self, step: WorkflowStep, deadline_ms: int | None) -> int:
        own_ms = self._step_timeout_ms if step.timeout_ms is None else step.timeout_ms
        return own_ms if deadline_ms is None else max(min(own_ms, deadline_ms - self._writer.now_ms()), 1)

    async def _called(self, step: WorkflowStep, run: StepRun, holding: Holding) -> Any:
        """The step's value. The step is broken off when its time is up or the lease is lost; one that is no
        coroutine runs in a thread, which goes on until it ends by itself: its writes are fenced like any
        other."""
        working = asyncio.ensure_future(_in_loop(step, run) if is_async(step) else _in_thread(step, run))
        losing = asyncio.ensure_future(holding.lost.wait())
        seconds = run.seconds_left()
        try:
            await asyncio.wait((working, losing), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            return _ended(working, losing, step, seconds)
        finally:
            for task in (working, losing):
                task.cancel()

    def _failure_of(self, fault: Exception, job: LifebookJob) -> AttemptFailure:
        hidden = (job.user_id,)
        match fault:
            case StepFailed():
                return failure(fault.code, fault.message, final=fault.final, secrets=hidden)
            case BadStepValue():
                return failure("BAD_RESULT", str(fault), secrets=hidden)
            case _:
                where = _place_of(fault)
                log.error("step_raised", fault=type(fault).__name__, where=where, step=job.step_cursor)
                log.debug("step_raised_with", exc_info=fault)
                return failure("STEP_RAISED", f"Step {job.step_cursor} raised {type(fault).__name__}.")

    async def _fail(self, holding: Holding, why: AttemptFailure) -> None:
        policy, owner = self._policy, holding.owner
        after = await holding.change(
            lambda now, at: machine.failed(now, why, owner=owner, policy=policy, now_ms=at)
        )
        log.warning("attempt_failed", code=why.code, why=why.message, attempts=holding.job.attempts)
        if isinstance(after, RunRefused):
            raise LostLease

    async def _give_back(self, holding: Holding, wait_ms: int) -> None:
        policy, owner = self._policy, holding.owner
        await holding.change(
            lambda now, at: machine.yielded(
                now, owner=owner, again_at_ms=at + wait_ms, policy=policy, now_ms=at
            )
        )
        log.info("job_given_back", step=holding.job.step_cursor, wait_ms=wait_ms)

    async def beat(self, holding: Holding, delivery: JobDelivery) -> None:
        """Renews the lease, and the visibility of the message with it."""
        policy, owner = self._policy, holding.owner
        await holding.change(lambda now, at: machine.renewed(now, owner=owner, policy=policy, now_ms=at))
        await self._queue.set_visibility(delivery, self.visibility_ms)

    @property
    def beat_seconds(self) -> float:
        return self._policy.lease_ms / BEATS_A_LEASE / 1000


class _Heart:
    """Beats while a job is held. Stopped in good order: a beat that is under way is waited for, since its
    call could not be taken back."""

    def __init__(self, worker: Worker, holding: Holding, delivery: JobDelivery) -> None:
        self._worker = worker
        self._holding = holding
        self._delivery = delivery
        self._stopped = asyncio.Event()
        self._task = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        self._stopped.set()
        await self._task

    async def _beat(self) -> None:
        while not await self._is_stopped_within(self._worker.beat_seconds):
            try:
                if self._holding.job.status is Status.RUNNING:
                    await self._worker.beat(self._holding, self._delivery)
            except LostLease:
                return
            except Exception as fault:
                log.warning("heartbeat_failed", fault=type(fault).__name__)

    async def _is_stopped_within(self, seconds: float) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._stopped.wait()
        except TimeoutError:
            return False
        return True


async def _in_loop(step: WorkflowStep, run: StepRun) -> Any:
    try:
        return await step.call(run)
    except SystemExit:
        raise StepFailed("STEP_EXITED", f"Step {step.name} wanted to end the process.") from None


def _in_thread(step: WorkflowStep, run: StepRun) -> asyncio.Future[Any]:
    """The step in a thread of its own. In a pool, steps that hang would take the places of others, and the
    process could not end before them."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Any] = loop.create_future()
    context = copy_context()

    def settle(value: Any, fault: Exception | None) -> None:
        if result.done():
            return
        if fault is None:
            result.set_result(value)
        else:
            result.set_exception(fault)

    def work() -> None:
        value: Any = None
        fault: Exception | None = None
        try:
            value = context.run(step.call, run)
        except Exception as raised:
            fault = raised
        except BaseException:
            fault = StepFailed("STEP_EXITED", f"Step {step.name} wanted to end the process.")
        with suppress(RuntimeError):  # the process has ended its loop
            loop.call_soon_threadsafe(settle, value, fault)

    Thread(target=work, name=f"step-{step.name}", daemon=True).start()
    return result


def _ended(
    working: asyncio.Future[Any], losing: asyncio.Future[Any], step: WorkflowStep, seconds: float
) -> Any:
    """The value of a step that was waited for, or why there is none."""
    if losing.done() and not working.done():
        raise LostLease
    if not working.done():
        raise StepFailed("STEP_TIMEOUT", f"Step {step.name} ran longer than {seconds:.0f} s.")
    if working.cancelled():
        raise StepFailed("STEP_CANCELLED", f"Step {step.name} cancelled itself.")
    return working.result()


def _kept(value: Any, step: WorkflowStep, job: LifebookJob) -> str:
    """The result of a step as it is stored."""
    result = encoded(value, RESULT_BYTES_MAX, f"The result of step {step.name}")
    if sum(len(each.encode()) for each in (*job.results, result)) > RESULTS_BYTES_MAX:
        raise BadStepValue("The results of all steps are too large together; refer to them instead.")
    return result


def _place_of(fault: Exception) -> str:
    """Where it was raised: the innermost line."""
    at = fault.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    return "?" if at is None else f"{at.tb_frame.f_code.co_filename.rpartition('/')[2]}:{at.tb_lineno}"

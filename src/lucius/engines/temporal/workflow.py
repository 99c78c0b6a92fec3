"""The workflow of one job: it sequences, times and retries, and the ledger guards every move it asks for.

All it knows is where the job stands: the newest position of those it was started with, heard in signals and
read in answers, unless the ledger itself was put back. From there it does one thing at a time: wait until a
move is due, ask the invoker for it, adopt what the answer says. So it may begin in the middle of a job, and a
signal that is lost, doubled or late does no harm.

Everything that would change the commands of a running workflow is pinned in its assignment when it starts.
"""

import asyncio
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from temporalio import workflow
from temporalio.common import RetryPolicy, SearchAttributeKey
from temporalio.exceptions import ApplicationError, FailureError, is_cancelled_exception

with workflow.unsafe.imports_passed_through():
    import msgspec

    from lucius.contracts.internal import Verdict
    from lucius.core.states import STEP_ACTIVE, JobState
    from lucius.engines.temporal.moves import (
        InvokerReply,
        Move,
        MoveKind,
        ReceivedSignal,
        WorkflowPosition,
        next_move,
        pause_after_ms,
    )

WORKFLOW_NAME = "LuciusJob"
ACTIVITY_NAMES = {
    MoveKind.BEGIN: "begin_attempt",
    MoveKind.PUBLISH: "publish_directive",
    MoveKind.EXPIRE: "expire_attempt",
}
JOB_FAILED = "JOB_FAILED"
JOB_NOT_FOUND = "JOB_NOT_FOUND"
ASK_FIRST = "ask-first"  # a worker from before this patch may have begun where another goes on
PUT_BACK = "ledger-put-back"  # the same of what was heard from a ledger that is older than the workflow
ASK_HEARD = "ask-heard"  # the same of an attempt that was only heard of
SAME = Move(ask=MoveKind.BEGIN)  # the attempt that is under way: asking for it again changes nothing
STATE_ATTRIBUTE = SearchAttributeKey.for_keyword("LuciusState")

LEASE_BITS = 96
SIGNALS_KEPT_MAX = 16
HISTORY_EVENTS_MAX = 4_000

# A local activity is tried once, for less than a workflow task lasts; then the server takes the retries over.
# Those leave no trace in the history, however many there are; and where the library itself tries a local
# activity again, timers of earlier tries stay behind and may end a later one (temporalio/sdk-rust#1454).
CALL_SECONDS_MAX = 5
LOCAL_ONCE = RetryPolicy(maximum_attempts=1)
REMOTE_RETRY = RetryPolicy(
    initial_interval=timedelta(milliseconds=500),
    maximum_interval=timedelta(seconds=30),
    non_retryable_error_types=[JOB_NOT_FOUND],
)


class Assignment(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a workflow is started with."""

    jobId: str  # noqa: N815
    position: WorkflowPosition
    tenant_id: str | None = None  # shown with every question; unknown to a workflow from before it was given
    created_with: dict[str, Any] | None = None  # settings of the orchestrator, for processes that compare
    local_calls: bool = True
    ask_first: bool = False  # whether another workflow may have asked for the attempt that is under way
    show_state: bool = False  # whether LuciusState is registered, and to be kept up to date
    history_events_max: int = HISTORY_EVENTS_MAX


@workflow.defn(name=WORKFLOW_NAME)
class JobWorkflow:
    @workflow.init
    def __init__(self, given: dict[str, Any]) -> None:
        self._given = msgspec.convert(given, Assignment)
        self._at = self._given.position
        self._shown = self._at.job_state
        self._in_vain = 0
        self._seed: int | None = None
        self._asks_first = self._given.ask_first
        self._asked = _attempt_of(self._at)
        self._signals: dict[str, list[str]] = {}
        self._alarm: asyncio.Task[None] | None = None
        self._alarm_ms = 0

    @workflow.run
    async def run(self, given: dict[str, Any]) -> str:
        """Ends with the job, in the state in which the job ended; a failed job fails its workflow."""
        while not self._at.terminal:
            self._show_state()
            if self._history_is_long():
                workflow.continue_as_new(self._successor())
            await self._advance()
        self._show_state()
        if self._at.job_state == JobState.FAILED_FINAL:
            raise ApplicationError("the job has failed", type=JOB_FAILED, non_retryable=True)
        return self._at.job_state

    @workflow.signal
    def step_ack(self, *arguments: Any) -> None:
        self._receive("step_ack", arguments)

    @workflow.signal
    def step_result(self, *arguments: Any) -> None:
        self._receive("step_result", arguments)

    @workflow.signal
    def pause(self, *arguments: Any) -> None:
        self._receive("pause", arguments)

    @workflow.signal
    def resume(self, *arguments: Any) -> None:
        self._receive("resume", arguments)

    @workflow.signal
    def cancel(self, *arguments: Any) -> None:
        self._receive("cancel", arguments)

    @workflow.query
    def position(self) -> dict[str, Any]:
        """Where this workflow believes the job to stand, what it will ask for and when, and what it heard."""
        move = next_move(self._at)
        return {
            "jobId": self._given.jobId,
            "position": msgspec.to_builtins(self._at),
            "next": None if move.ask is None else move.ask.value,
            "next_at_ms": None if move.ask is None else move.from_ms,
            "in_vain": self._in_vain,
            "signals": self._signals,
        }

    async def _advance(self) -> None:
        """One thing: a rest, or a question and what follows from its answer."""
        at, move = self._at, next_move(self._at)
        asks_first, self._asks_first = self._asks_first, False
        if asks_first and at is self._given.position and workflow.patched(ASK_FIRST):
            # The last to ask is told: the RESULT may have been the answer to a workflow that is no more.
            self._learn(at, await self._ask(at, SAME))
        elif self._only_heard(at) and workflow.patched(ASK_HEARD):
            self._learn(at, await self._ask(at, SAME))
        elif move.ask is None:
            await self._rest(at, None)
        elif move.from_ms > _now_ms():
            await self._rest(at, move.from_ms)
        else:
            answer = await self._ask(at, move)
            self._learn(at, answer)
            pause_ms = pause_after_ms(at, answer, in_vain=self._in_vain)
            self._in_vain = self._in_vain + 1 if pause_ms else 0
            news = self._at.version > max(at.version, answer.position.version)
            if pause_ms and not news and not self._at.terminal:
                await self._rest(self._at, _now_ms() + pause_ms)

    def _only_heard(self, at: WorkflowPosition) -> bool:
        """Whether the attempt under way was begun by a workflow task that failed after its question: its
        RESULT may have been the answer, which is lost with the task. The server lets a task fail that would
        end the workflow while a signal waits for it."""
        return (
            at.step_state in STEP_ACTIVE
            and at.job_state != JobState.PAUSED
            and _attempt_of(at) != self._asked
        )

    def _adopt(self, position: WorkflowPosition) -> None:
        if position.version > self._at.version:
            self._at = position

    def _learn(self, at: WorkflowPosition, answer: InvokerReply) -> None:
        """The ledger was put back if its answer is older than what it was asked from, or as old and another:
        unless something was heard meanwhile, the answer counts."""
        if self._at is at and self._differs(answer.position) and workflow.patched(PUT_BACK):
            self._at = answer.position
        else:
            self._adopt(answer.position)

    def _differs(self, position: WorkflowPosition) -> bool:
        """It is no news, and not what is known either."""
        return position.version <= self._at.version and position != self._at

    def _receive(self, name: str, arguments: tuple[Any, ...]) -> None:
        try:
            (signal,) = msgspec.convert(arguments, tuple[ReceivedSignal])
        except msgspec.ValidationError as fault:
            # Raised, it would stop the workflow for good; unheard, it costs one question at most.
            workflow.logger.warning("signal %s makes no sense: %s", name, fault)
            return
        kept = self._signals.setdefault(f"{signal.stepId}/{signal.attempt_no}", [])
        if name not in kept:
            kept.append(name)
        while len(self._signals) > SIGNALS_KEPT_MAX:
            del self._signals[next(iter(self._signals))]
        if signal.alarm and self._differs(signal.position) and workflow.patched(PUT_BACK):
            # So stands the ledger; or so it stood a moment ago, and the next question or alarm tells.
            self._at = signal.position
        self._adopt(signal.position)

    async def _rest(self, at: WorkflowPosition, until_ms: int | None) -> None:
        """Until something newer is known, or the alarm rings: at the time given, or before it."""
        if until_ms is None:
            await workflow.wait_condition(lambda: self._at is not at)
            return
        alarm = self._armed(until_ms)
        await workflow.wait_condition(lambda: self._at is not at or alarm.done())

    def _armed(self, until_ms: int) -> asyncio.Task[None]:
        """One timer serves the whole job. One that rings too early finds nothing due and is set again, which
        is rarer than a deadline that moves later: that costs nothing here."""
        alarm = self._alarm
        if alarm is None or alarm.done() or self._alarm_ms > until_ms:
            if alarm is not None:
                alarm.cancel()
            span = timedelta(milliseconds=max(1, until_ms - _now_ms()))
            alarm = self._alarm = asyncio.create_task(workflow.sleep(span))
            self._alarm_ms = until_ms
        return alarm

    async def _ask(self, at: WorkflowPosition, move: Move) -> InvokerReply:
        assert move.ask is not None
        question = self._question(at, move)
        answer = await self._answer_to(ACTIVITY_NAMES[move.ask], question)
        self._asked = (question["stepId"], question["attempt_no"])
        return answer

    async def _answer_to(self, name: str, question: dict[str, Any]) -> InvokerReply:
        call_max = timedelta(seconds=CALL_SECONDS_MAX)
        if self._given.local_calls:
            try:
                answer = await workflow.execute_local_activity(
                    name, question, start_to_close_timeout=call_max, retry_policy=LOCAL_ONCE
                )
                return msgspec.convert(answer, InvokerReply)
            except FailureError as fault:
                if is_cancelled_exception(fault) or _is_final(fault):
                    raise
        call = workflow.start_activity(
            name, question, start_to_close_timeout=call_max, retry_policy=REMOTE_RETRY
        )
        # The invoker may be away for long, and the job may end meanwhile: then nothing waits for the answer,
        # and the call ends with the workflow.
        await workflow.wait_condition(lambda: call.done() or self._at.terminal)
        if not call.done():
            return InvokerReply(verdict=Verdict.STOP, position=self._at)
        return msgspec.convert(await call, InvokerReply)

    def _question(self, at: WorkflowPosition, move: Move) -> dict[str, Any]:
        question: dict[str, Any] = {"jobId": self._given.jobId, "stepId": at.stepId}
        if self._given.tenant_id is not None:
            question["tenant_id"] = self._given.tenant_id
        match move.ask:
            case MoveKind.BEGIN if move is SAME:
                question["publish"] = True
            case MoveKind.BEGIN:
                attempt_no = at.attempt_no + 1
                lease_id = self._lease_for(at.stepId, attempt_no)
                if self._given.created_with is not None:
                    question["created_with"] = self._given.created_with
                return {**question, "attempt_no": attempt_no, "lease_id": lease_id, "publish": True}
            case MoveKind.EXPIRE if move.reason is not None:
                question["reason"] = move.reason.value
        return {**question, "attempt_no": at.attempt_no, "lease_id": at.lease_id}

    def _lease_for(self, step_id: str | None, attempt_no: int) -> str:
        """The same lease however often this attempt is asked for, and of no other attempt.

        One number is drawn for the whole workflow. A number for each attempt would depend on how many were
        drawn before: a worker that is killed in the middle of a call leaves no trace of it in the history,
        and the next one might give the lease of that attempt to another, which the ledger refuses."""
        if self._seed is None:
            self._seed = workflow.random().getrandbits(LEASE_BITS)
        name = f"{self._seed}/{step_id}/{attempt_no}".encode()
        return blake2b(name, digest_size=LEASE_BITS // 8).hexdigest()

    def _show_state(self) -> None:
        if self._given.show_state and self._shown != self._at.job_state:
            self._shown = self._at.job_state
            workflow.upsert_search_attributes([STATE_ATTRIBUTE.value_set(self._shown)])

    def _history_is_long(self) -> bool:
        info = workflow.info()
        return (
            info.is_continue_as_new_suggested()
            or info.get_current_history_length() >= self._given.history_events_max
        )

    def _successor(self) -> dict[str, Any]:
        given = msgspec.structs.replace(self._given, position=self._at, ask_first=False)
        built: dict[str, Any] = msgspec.to_builtins(given)
        return built


def _attempt_of(position: WorkflowPosition) -> tuple[str | None, int]:
    return position.stepId, position.attempt_no


def _is_final(fault: FailureError) -> bool:
    """A local activity's failure comes bare, another's wrapped."""
    raised = fault if isinstance(fault, ApplicationError) else fault.cause
    return isinstance(raised, ApplicationError) and raised.type == JOB_NOT_FOUND


def _now_ms() -> int:
    return round(workflow.now().timestamp() * 1000)

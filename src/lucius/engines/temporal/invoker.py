"""The directive of an attempt, as it goes out over the bus."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from lucius.bus.port import BusError, DirectiveOut, DirectiveSender, directive_id
from lucius.contracts.credentials import blank_credentials
from lucius.contracts.internal import (
    AttemptRequest,
    ControlRequest,
    ExpireRequest,
    InternalAnswer,
    JobDefaults,
    PublishRequest,
    Verdict,
)
from lucius.contracts.messages import directive
from lucius.contracts.times import parse_rfc3339
from lucius.core.attempt import AttemptRef
from lucius.core.decide import OTHER_TENANTS_JOB
from lucius.core.draft import Outcome
from lucius.core.inputs import BeginAttempt, Expire, Published, PublishFailed, Wish
from lucius.core.model import JobRecord, Step
from lucius.core.refusal import Code, FieldError, Refused
from lucius.core.replies import is_of_another_tenant
from lucius.core.states import Engine
from lucius.engines.flow_control import FlowGate, UnlimitedFlow
from lucius.engines.temporal.flow_queue import FlowQueue
from lucius.engines.temporal.held_calls import Gone
from lucius.engines.temporal.job_defaults import DefaultsCheck
from lucius.engines.temporal.lane_window import LaneWindow
from lucius.engines.temporal.notifier import WorkflowNotifier
from lucius.engines.temporal.verdicts import answer, on_attempt, on_expiry, on_publish
from lucius.jobs.reply_backlog import AGAIN_IN_MS, ReplyBacklog
from lucius.jobs.tokens import CallbackTokens
from lucius.jobs.writer import Applied, InputHandler
from lucius.ledger.job_ledger import JobLedger
from lucius.telemetry.context import Subject


class DirectiveBuilder:
    def __init__(self, tokens: CallbackTokens, *, callback_base: str) -> None:
        self._tokens = tokens
        self._callback_base = callback_base

    def of(self, record: JobRecord, step: Step, now_ms: int) -> DirectiveOut:
        attempt = AttemptRef.of(record.job.job_id, step)
        # The ACK deadline is set by the note that follows; the service is told where it will be.
        answered = msgspec.structs.replace(step, lease_expires_at_ms=now_ms + step.policy.ack_timeout_ms)
        message = directive(
            record, answered, callback_base=self._callback_base, callback_token=self._tokens.mint(attempt)
        )
        return DirectiveOut(
            service=step.service,
            lane=step.routing.lane,
            message_key=step.routing.routing_key_used,
            message_id=directive_id(attempt),
            body=msgspec.json.encode(message),
        )


ERROR_LENGTH_MAX = 500

log = structlog.get_logger("lucius.invoker")


class InvokerLimits(msgspec.Struct, frozen=True, kw_only=True):
    publish_timeout_ms: int = 4_000  # shorter than the caller's timeout


class Invoker:
    def __init__(
        self,
        ledger: JobLedger,
        writer: InputHandler,
        notifier: WorkflowNotifier,
        bus: DirectiveSender,
        directives: DirectiveBuilder,
        window: LaneWindow,
        limits: InvokerLimits,
        *,
        now_ms: Callable[[], int],
        reply_backlog: ReplyBacklog | None = None,
        own_defaults: JobDefaults | None = None,
        flow: FlowGate | None = None,
    ) -> None:
        """`window` must hear of commits (`LaneWindow.watch`). `reply_backlog`: how far replies were read.
        `own_defaults`: of variables that are set for this process, which cannot change a job.
        `flow`: says what may leave; None: everything."""
        self._queue = FlowQueue(flow or UnlimitedFlow(), now_ms=now_ms)
        self._defaults = DefaultsCheck(own_defaults or JobDefaults())
        self._reply_backlog = reply_backlog
        self._ledger = ledger
        self._writer = writer
        self._notifier = notifier
        self._bus = bus
        self._directives = directives
        self._window = window
        self._limits = limits
        self._now_ms = now_ms
        self.verdicts: Counter[tuple[str, str]] = Counter()
        """How often which call was answered with which verdict, or refused with which code."""

    async def attempt(self, ask: AttemptRequest, gone: Gone | None = None) -> InternalAnswer | Refused:
        """`gone` returns when the caller no longer waits."""
        self._defaults.compare(ask.created_with, ask.jobId)
        expected_ms = None if ask.lease_expires_at is None else parse_rfc3339(ask.lease_expires_at)
        begin = BeginAttempt(**_whose(_asked(ask)), tenant_id=ask.tenant_id, lease_expires_at_ms=expected_ms)
        begun = await self._writer.apply(ask.jobId, begin)
        if not ask.wait or isinstance(begun, Refused) or begun.outcome is not Outcome.APPLIED:
            self._notifier.take_over(ask.jobId)
            return self._counted("attempt", (await self._begun(ask, begun))[0])
        async with self._notifier.questions.ask(ask.jobId, gone) as question:
            answered, record = await self._begun(ask, begun)
            if record is not None and _says(answered, Verdict.GO):
                record = await self._notifier.questions.hold(question, record)
            for newer in (record, question.answer):
                if newer is not None and _is_newer(newer, answered):
                    answered = on_publish(newer, _asked(ask), self._now_ms())
            question.version = answered.position.version if isinstance(answered, InternalAnswer) else 0
        return self._counted("attempt", answered)

    def traceparent_of(self, job_id: str) -> str | None:
        """Of a job that was just asked about: the caller's spans belong to its trace."""
        record = self._ledger.remembered(job_id)
        return None if record is None else record.job.traceparent

    async def publish(self, ask: PublishRequest) -> InternalAnswer | Refused:
        self._notifier.take_over(ask.jobId)
        loaded = await self._ledger.load(ask.jobId, fresh=True)
        if loaded is None:
            return self._counted("publish", Refused(Code.JOB_NOT_FOUND, "there is no such job"))
        refused = _not_its_own(loaded.record, ask)
        if refused is not None:
            return self._counted("publish", refused)
        answered, _ = await self._publish(loaded.record, _asked(ask))
        return self._counted("publish", answered)

    async def expire(self, ask: ExpireRequest) -> InternalAnswer | Refused:
        self._notifier.take_over(ask.jobId)
        asked = _asked(ask)
        later = await self._put_off(ask)
        if later is not None:
            return self._counted("expire", later)
        expire = Expire(**_whose(asked), reason=ask.reason, tenant_id=ask.tenant_id)
        expired = await self._writer.apply(ask.jobId, expire)
        answered = _word(expired, lambda record: on_expiry(record, asked, ask.reason, self._now_ms()))
        return self._counted("expire", answered)

    async def _put_off(self, ask: ExpireRequest) -> InternalAnswer | None:
        """While replies are still to be read, one of which may be the answer that is missed."""
        if self._reply_backlog is None or self._reply_backlog.complete:
            return None
        loaded = await self._ledger.load(ask.jobId, fresh=True)
        if loaded is None or is_of_another_tenant(loaded.record.job, ask.tenant_id):
            return None  # the writer says so
        if not self._reply_backlog.puts_off(loaded.record, self._now_ms()):
            return None
        return answer(loaded.record, Verdict.WAIT, again_in_ms=AGAIN_IN_MS)

    async def control(
        self, job_id: str, wish: Wish, ask: ControlRequest | None = None
    ) -> InternalAnswer | Refused:
        if ask is not None and ask.tenant_id is not None:
            loaded = await self._ledger.load(job_id)
            if loaded is not None and is_of_another_tenant(loaded.record.job, ask.tenant_id):
                return self._counted("control", OTHER_TENANTS_JOB)
        done = await self._notifier.apply(job_id, wish)
        return self._counted("control", _word(done, lambda record: answer(record, Verdict.GO)))

    async def _begun(
        self, ask: AttemptRequest, begun: Applied | Refused
    ) -> tuple[InternalAnswer | Refused, JobRecord | None]:
        """What to say, and the job whose directive is out."""
        asked = _asked(ask)
        answered = _word(begun, lambda record: on_attempt(record, asked, self._now_ms()))
        if not ask.publish or not isinstance(begun, Applied) or not _says(answered, Verdict.GO):
            return answered, None
        return await self._publish(begun.record, asked)

    async def _publish(
        self, record: JobRecord, asked: AttemptRef
    ) -> tuple[InternalAnswer | Refused, JobRecord | None]:
        now_ms, step, outbox = self._now_ms(), record.current, record.outbox
        answered = on_publish(record, asked, now_ms)
        if (
            answered.verdict is not Verdict.WAIT
            or step is None
            or outbox is None
            or outbox.due_at_ms > now_ms
        ):
            return answered, record
        place, job_id = (outbox.service, outbox.lane), record.job.job_id
        again_in_ms = await self._window.enter(place, job_id)
        if again_in_ms is not None:
            return answer(record, Verdict.WAIT, again_in_ms=again_in_ms), None
        grant = await self._queue.enter(record.job, outbox)
        if isinstance(grant, int):
            self._window.leave(place, job_id)
            return answer(record, Verdict.WAIT, again_in_ms=grant), None
        fault = await self._send(record, step)
        if fault is None:
            done = await self._writer.apply(job_id, Published(**_whose(asked), probe=grant.probe))
        else:
            self._window.leave(place, job_id)
            ids = Subject(job_id, step, record.job).ids()
            log.warning("publish_failed", **ids, lane=outbox.lane, error=fault)
            failed = PublishFailed(**_whose(asked), error_message=blank_credentials(fault)[:ERROR_LENGTH_MAX])
            done = await self._writer.apply(job_id, failed)
        if isinstance(done, Refused):
            return done, None
        answered = on_publish(done.record, asked, self._now_ms())
        if fault is None or answered.verdict is Verdict.GO:  # another process has sent it meanwhile
            return answered, done.record
        return _not_published(fault, answered), None

    async def _send(self, record: JobRecord, step: Step) -> str | None:
        """None if the bus took it, else why not."""
        try:
            out = self._directives.of(record, step, self._now_ms())
            await asyncio.wait_for(self._bus.publish_directive(out), self._limits.publish_timeout_ms / 1000)
        except TimeoutError:
            return f"the bus gave no answer within {self._limits.publish_timeout_ms} ms"
        except (BusError, ValueError) as fault:
            return str(fault)
        except BaseException:
            self._window.leave((step.service, step.routing.lane), record.job.job_id)
            raise
        return None

    def _counted(self, call: str, answered: InternalAnswer | Refused) -> InternalAnswer | Refused:
        outcome = answered.code.value if isinstance(answered, Refused) else answered.verdict.value
        self.verdicts[call, outcome] += 1
        return answered


def _asked(ask: AttemptRequest | PublishRequest | ExpireRequest) -> AttemptRef:
    return AttemptRef(job_id=ask.jobId, step_id=ask.stepId, attempt_no=ask.attempt_no, lease_id=ask.lease_id)


def _whose(asked: AttemptRef) -> dict[str, Any]:
    return {"step_id": asked.step_id, "attempt_no": asked.attempt_no, "lease_id": asked.lease_id}


def _not_its_own(record: JobRecord, ask: PublishRequest) -> Refused | None:
    """Why this job's directive is not what the caller wants to be sent."""
    if is_of_another_tenant(record.job, ask.tenant_id):
        return OTHER_TENANTS_JOB
    if record.job.engine is not Engine.TEMPORAL:
        return Refused(Code.STALE_ATTEMPT, "the outbox engine publishes by itself")
    step = record.step(ask.stepId)
    if step is not None and ask.lane is not None and ask.lane != step.routing.lane:
        message = f"the lane of this job is {step.routing.lane}"
        return Refused(Code.INVALID_ENVELOPE, message, (FieldError("/lane", message),))
    return None


def _not_published(fault: str, answered: InternalAnswer) -> Refused:
    """It is recorded, with the time of the next try. A caller that comes before that is told to wait."""
    again_in_ms = answered.again_in_ms or 1
    return Refused(
        Code.PUBLISH_FAILED,
        f"the bus did not take the directive: {blank_credentials(fault)[:ERROR_LENGTH_MAX]}",
        retry_after_seconds=-(-again_in_ms // 1000),
    )


def _says(answered: InternalAnswer | Refused, verdict: Verdict) -> bool:
    return isinstance(answered, InternalAnswer) and answered.verdict is verdict


def _is_newer(record: JobRecord, answered: InternalAnswer | Refused) -> bool:
    return isinstance(answered, InternalAnswer) and record.job.version > answered.position.version


def _word(
    done: Applied | Refused, verdict: Callable[[JobRecord], InternalAnswer]
) -> InternalAnswer | Refused:
    return done if isinstance(done, Refused) else verdict(done.record)

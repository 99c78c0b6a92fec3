"""The directive of an attempt, as it goes out over the bus."""

import msgspec

from lucius.bus.port import DirectiveOut, directive_id
from lucius.contracts.messages import directive
from lucius.core.model import JobRecord, Step
from lucius.progress.tokens import Attempt, CallbackTokens


class Directives:
    def __init__(self, tokens: CallbackTokens, *, callback_base: str) -> None:
        self._tokens = tokens
        self._callback_base = callback_base

    def of(self, record: JobRecord, step: Step, now_ms: int) -> DirectiveOut:
        attempt = Attempt(
            job_id=record.job.job_id,
            step_id=step.step_id,
            attempt_no=step.attempt_no,
            lease_id=step.lease_id or "",
        )
        # The ACK deadline is set by the note that follows; the service is told where it will be.
        told = msgspec.structs.replace(step, lease_expires_at_ms=now_ms + step.policy.ack_timeout_ms)
        message = directive(
            record, told, callback_base=self._callback_base, callback_token=self._tokens.mint(attempt)
        )
        return DirectiveOut(
            service=step.service,
            lane=step.routing.lane,
            message_key=step.routing.routing_key_used,
            message_id=directive_id(**msgspec.structs.asdict(attempt)),
            body=msgspec.json.encode(message),
        )

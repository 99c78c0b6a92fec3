"""The directive as a service sees it.

In: a decoded message. Out: a frozen value with the members a service uses; others are ignored, so a newer
orchestrator may add some.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from lucius.contracts.times import parse_rfc3339
from lucius.core.attempt import AttemptRef

Json = Any

Key = tuple[str, str, int, str]


class Upstream(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A step that ran before this one, and what it made."""

    step_id: str = msgspec.field(name="stepId")
    step_type: str = ""
    result_ref: dict[str, Json] | None = None

    @property
    def uri(self) -> str | None:
        return uri_of(self.result_ref)

    @property
    def artifacts(self) -> tuple[str, ...]:
        """Where all that it made lies, the first at `uri`."""
        others = (self.result_ref or {}).get("artifacts")
        uris = (
            [self.uri, *(uri_of(ref) for ref in others if isinstance(ref, dict))]
            if isinstance(others, list)
            else [self.uri]
        )
        return tuple(dict.fromkeys(uri for uri in uris if uri is not None))


class Directive(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    job_id: str = msgspec.field(name="jobId")
    step_id: str = msgspec.field(name="stepId")
    tenant_id: str
    step_type: str
    attempt_no: int
    lease_id: str
    protocol_id: str = ""
    input_ref: dict[str, Json] = {}
    workspace_ref: dict[str, Json] = {}
    output_ref: dict[str, Json] = {}
    payload: Json = None
    upstream: tuple[Upstream, ...] = ()
    correlation_id: str | None = None
    traceparent: str | None = None
    reply_topic: str | None = None
    routing_key_used: str | None = None
    callback_urls: dict[str, str] | None = None
    callback_token: str | None = None
    # How long the orchestrator waits for a sign of life, where it says so.
    lease_seconds: float | None = None
    # Until when the ACK is waited for, where a clock runs already.
    lease_expires_at: Json = None

    @property
    def ack_due_ms(self) -> int | None:
        text = self.lease_expires_at
        return parse_rfc3339(text) if isinstance(text, str) else None

    def reply_to(self) -> "Directive":
        """What a transport needs to send replies, and nothing else."""
        return Directive(
            job_id=self.job_id,
            step_id=self.step_id,
            tenant_id=self.tenant_id,
            step_type=self.step_type,
            attempt_no=self.attempt_no,
            lease_id=self.lease_id,
            correlation_id=self.correlation_id,
            traceparent=self.traceparent,
            reply_topic=self.reply_topic,
            routing_key_used=self.routing_key_used,
            callback_urls=self.callback_urls,
            callback_token=self.callback_token,
            lease_seconds=self.lease_seconds,
        )

    @property
    def attempt(self) -> AttemptRef:
        return AttemptRef(
            job_id=self.job_id, step_id=self.step_id, attempt_no=self.attempt_no, lease_id=self.lease_id
        )

    @property
    def key(self) -> Key:
        """What makes this piece of work one: redeliveries share it, attempts do not."""
        return (self.job_id, self.step_id, self.attempt_no, self.lease_id)

    def __repr__(self) -> str:
        # Without the token, which a log or a traceback would otherwise show.
        return f"Directive({self.job_id}, {self.step_id}, attempt {self.attempt_no}, {self.step_type})"


def uri_of(ref: Mapping[str, Json] | None) -> str | None:
    uri = ref.get("uri") if ref else None
    return uri if isinstance(uri, str) and uri else None


def parse_directive(message: Mapping[str, Json]) -> Directive | None:
    """None for a message that is no directive: a required member is missing or of another type."""
    try:
        return msgspec.convert(message, Directive)
    except msgspec.ValidationError:
        return None

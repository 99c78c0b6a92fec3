"""The body of a queue message, version 1: a thin envelope with eight fields; the job record holds the
rest."""

from typing import Final

import msgspec

from lucius.lifebook.codec import may_be_id
from lucius.lifebook.job import LifebookJob
from lucius.lifebook.states import Trigger

VERSION: Final = 1
BODY_BYTES_MAX: Final = 64 * 1024
FIELDS: Final = (
    "v",
    "job_id",
    "workspace_id",
    "trigger_type",
    "attempt",
    "max_attempts",
    "trace_id",
    "idempotency_key",
)


class JobMessage(msgspec.Struct, frozen=True, kw_only=True):
    v: int
    job_id: str
    workspace_id: str
    trigger_type: Trigger
    attempt: int
    max_attempts: int
    trace_id: str
    idempotency_key: str


class UnreadableBody(msgspec.Struct, frozen=True):
    """A body that is no message of this version, and why."""

    reason: str


_decode = msgspec.json.Decoder(JobMessage).decode


def message_for(job: LifebookJob) -> JobMessage:
    """The message for the next attempt of the job."""
    return JobMessage(
        v=VERSION,
        job_id=job.job_id,
        workspace_id=job.workspace_id,
        trigger_type=job.trigger_type,
        attempt=job.attempts + 1,
        max_attempts=job.max_attempts,
        trace_id=job.trace_id,
        idempotency_key=job.idempotency_key,
    )


def body_of(message: JobMessage) -> str:
    return msgspec.json.encode(message).decode()


def parse_body(body: str) -> JobMessage | UnreadableBody:
    """The message. Members that are not known are ignored: later versions of the contract may add some."""
    if len(body) > BODY_BYTES_MAX:
        return UnreadableBody(f"The body has more than {BODY_BYTES_MAX} characters.")
    try:
        message = _decode(body.encode())
    except (msgspec.DecodeError, UnicodeEncodeError) as fault:
        return UnreadableBody(f"The body is no message: {fault}")
    if message.v != VERSION:
        return UnreadableBody(f"The body has version {message.v}; this worker reads version {VERSION}.")
    if not may_be_id(message.job_id) or not message.workspace_id:
        return UnreadableBody("The body names no job or no workspace.")
    if message.attempt < 1 or message.max_attempts < 1:
        return UnreadableBody("attempt and max_attempts count from 1.")
    return message

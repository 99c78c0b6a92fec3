"""What can happen to a job from outside: replies, notes of the publisher, wishes of users, the clock, and
what a workflow asks."""

from collections.abc import Callable
from enum import StrEnum

import msgspec

from lucius.core.model import Json


class ResultStatus(StrEnum):
    SUCCEEDED = "SUCCEEDED"
    FAILED_RETRY = "FAILED_RETRY"
    FAILED_FINAL = "FAILED_FINAL"


Content = Callable[[], dict[str, Json]]
"""The message as it came, fit to be kept: asked for only where it is not applied and becomes evidence."""


class Ack(msgspec.Struct, frozen=True, kw_only=True):
    """`tenant_id`, here and in the other replies: as the message names it, and compared with the job's. None:
    the reply was made in this process, from the directive itself."""

    step_id: str
    attempt_no: int
    lease_id: str
    content: Content
    tenant_id: str | None = None


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    step_id: str
    attempt_no: int
    lease_id: str
    content: Content
    tenant_id: str | None = None
    progress: int | None = None
    note: str | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    step_id: str
    attempt_no: int
    lease_id: str
    content: Content
    status: ResultStatus
    tenant_id: str | None = None
    output_ref: dict[str, Json] | None = None
    error_code: str | None = None
    error_message: str | None = None
    retry_after_ms: int | None = None
    """Replaces the backoff where another attempt follows."""
    slow_down: bool = False
    """The service wants to be given less for a while."""
    usage: dict[str, int | float] = {}


class HandOut(msgspec.Struct, frozen=True, kw_only=True):
    """A service in reach asks for this attempt's directive. It leaves only once this is committed.

    `picked_up`: the service runs in this very process, so that taking the directive is its ACK.
    `not_after_ms`: until when it may leave by the limits of its service.
    `probe`: it looks whether the service answers again, and costs the step no attempt.
    """

    step_id: str
    attempt_no: int
    lease_id: str
    picked_up: bool = False
    not_after_ms: int | None = None
    probe: bool = False


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The directive of this attempt has left: a broker took it. `probe`: as in `HandOut`."""

    step_id: str
    attempt_no: int
    lease_id: str
    probe: bool = False


class PublishFailed(msgspec.Struct, frozen=True, kw_only=True):
    step_id: str
    attempt_no: int
    lease_id: str
    error_message: str


class BeginAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """The workflow that sequences the job asks for this attempt under this lease. The outbox engine begins
    attempts by itself and takes no such input. `tenant_id`: compared with the job's if it is given.
    `lease_expires_at_ms`: the deadline that it expects, which no clock goes by."""

    step_id: str
    attempt_no: int
    lease_id: str
    tenant_id: str | None = None
    lease_expires_at_ms: int | None = None


class ExpireReason(StrEnum):
    ACK_TIMEOUT = "ACK_TIMEOUT"
    LEASE_EXPIRED = "LEASE_EXPIRED"
    PUBLISH_FAILED = "PUBLISH_FAILED"


class Expire(msgspec.Struct, frozen=True, kw_only=True):
    """The workflow that sequences the job says that this attempt has had its time. The ledger's own clock is
    asked too: an attempt that was acknowledged, extended or finished meanwhile is not expired."""

    step_id: str
    attempt_no: int
    lease_id: str
    reason: ExpireReason
    tenant_id: str | None = None


class DispatchNow(msgspec.Struct, frozen=True, kw_only=True):
    """Do not wait out the publish backoff."""


class Cancel(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Pause(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    pass


class Tick(msgspec.Struct, frozen=True, kw_only=True):
    """Time has passed: do what is due. `passed_ms`: a deadline at this time has passed too, though the clock
    does not say so: a clock that ran ahead set it, and the attempt was given its time since then."""

    passed_ms: int = 0


Reply = Ack | Progress | Result
Note = HandOut | Published | PublishFailed | DispatchNow
Control = Cancel | Pause | Resume
Wish = Control | DispatchNow
Ask = BeginAttempt | Expire
Input = Reply | Note | Control | Ask | Tick

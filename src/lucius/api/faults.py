"""What a caller is answered when a handler raises: a refusal, and a line in the log with the reason."""

from typing import Final

import structlog

from lucius.api.problems import unreadable
from lucius.core.refusal import Code, Refused
from lucius.jobs.workflows import InvokerUnavailable, WorkflowsUnavailable
from lucius.ledger.store import StoreError, StoreUnavailable, Unreadable

RETRY_AFTER_SECONDS: Final = 1

log = structlog.get_logger("lucius.api")


def refusal_of(fault: Exception, path: str) -> Refused:
    match fault:
        case Unreadable():
            return unreadable(fault)
        case StoreError():
            log.warning("store_fault", path=path, error=str(fault))
            message = "the ledger did not answer, and may have taken it: send it again, with the same key"
            if isinstance(fault, StoreUnavailable):
                message = "the ledger cannot take this now; nothing was accepted"
        case WorkflowsUnavailable():
            log.warning("workflow_fault", path=path, error=str(fault))
            message = (
                "it is written, but the job's workflow could not be told; send it again, which does no harm"
            )
            if isinstance(fault, InvokerUnavailable):
                message = fault.message
        case _:
            log.error("request_failed", path=path, exc_info=fault)
            return Refused(Code.INTERNAL, "an unexpected fault; the log has it")
    return Refused(Code.SYSTEM_SATURATED, message, retry_after_seconds=RETRY_AFTER_SECONDS)

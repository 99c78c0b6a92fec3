"""Workflows whose directives wait for a limit of their service, and when each is to come again.

The more wait, the later each is told to come, so that a long queue costs no more questions than a short one.
One that does not come again in time is not counted any more.
"""

from collections.abc import Callable
from typing import Final

from lucius.core.flow import FlowRequest
from lucius.core.model import Job, Outbox
from lucius.engines.flow_control import FREE, FlowGate, Grant, await_time
from lucius.ledger.names import tenant_group

AGAIN_MS: Final = 500
AGAIN_MS_MAX: Final = 60_000
TOGETHER: Final = 64  # questions that may come within one span
LATE_TIMES: Final = 2
WAITING_MAX: Final = 10_000


class FlowQueue:
    def __init__(self, flow: FlowGate, *, now_ms: Callable[[], int]) -> None:
        self._flow = flow
        self._now_ms = now_ms
        self._waiting: dict[str, dict[str, int]] = {}  # by service: until when each job is expected again

    async def enter(self, job: Job, outbox: Outbox) -> Grant | int:
        """A grant, or after how many ms to ask again."""
        service, group = outbox.service, tenant_group(job.tenant_norm)
        flow = self._flow
        if flow.is_direct(service):
            return FREE
        grant: Grant | None = None
        if not flow.holds(group, job.request_type):
            grant = FREE
            if flow.governs(service):
                asked = FlowRequest(job.job_id, outbox.lease_id, group)
                grant = (await flow.admit(service, [asked])).get(outbox.lease_id)
        waiting = self._waiting.setdefault(service, {})
        if grant is not None:
            await await_time([grant], self._now_ms)
            waiting.pop(job.job_id, None)
            return grant
        return self._again_in_ms(waiting, service, job.job_id)

    def _again_in_ms(self, waiting: dict[str, int], service: str, job_id: str) -> int:
        now_ms = self._now_ms()
        for late in [each for each, until_ms in waiting.items() if until_ms < now_ms]:
            del waiting[late]
        turns = 1 + len(waiting) // TOGETHER
        again_in_ms = min(AGAIN_MS_MAX, max(turns * AGAIN_MS, self._flow.again_in_ms(service)))
        if len(waiting) < WAITING_MAX or job_id in waiting:
            waiting[job_id] = now_ms + LATE_TIMES * again_in_ms
        return again_in_ms

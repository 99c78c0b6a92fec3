"""Repair: an open job of the temporal engine without a workflow gets one, wherever the job stands.

In: rows of the due index that have come due. Out: workflows. Writes nothing: the process that tells workflows
where jobs stand moves the rows, and leaves those whose workflow is not there. So a row that stays due for a
while is a sign that one may be missing, and starting one that is there changes nothing.
"""

from collections import OrderedDict
from collections.abc import Callable

import structlog

from lucius.contracts.internal import position_of
from lucius.core.states import Engine, JobState
from lucius.jobs.due import DueOutcome
from lucius.jobs.workflows import StartOutcome, WorkflowLabels, WorkflowStarter, WorkflowsUnavailable
from lucius.ledger.indexes import DueEntry
from lucius.ledger.job_ledger import JobLedger
from lucius.telemetry.context import Subject

# How long a due row is left to those who tell workflows, before one is started.
ANSWER_GRACE_MS = 2_000
# A job is not asked for again sooner, while its row stays due: the others may be away.
ASK_EVERY_MS = 30_000
ASKED_JOBS_MAX = 10_000

log = structlog.get_logger("lucius.repair")


class WorkflowRepair:
    def __init__(self, ledger: JobLedger, starter: WorkflowStarter, *, now_ms: Callable[[], int]) -> None:
        self._ledger = ledger
        self._starter = starter
        self._now_ms = now_ms
        self._asked_at_ms: OrderedDict[str, int] = OrderedDict()

    async def meet(self, entry: DueEntry) -> DueOutcome:
        now_ms, job_id = self._now_ms(), entry.job_id
        if now_ms - max(entry.at_ms, entry.row.written_at_ms) < ANSWER_GRACE_MS:
            return DueOutcome.WAITING
        asked_at_ms = self._asked_at_ms.get(job_id)
        if asked_at_ms is not None and now_ms - asked_at_ms < ASK_EVERY_MS:
            return DueOutcome.WAITING
        loaded = await self._ledger.load(job_id, fresh=True)
        if loaded is None or loaded.record.job.terminal or loaded.record.job.engine is not Engine.TEMPORAL:
            return DueOutcome.NOT_OURS
        job = loaded.record.job
        ids = Subject(job_id, loaded.record.current, job).ids()
        labels = WorkflowLabels(tenant=job.tenant_norm, request_type=job.request_type, priority=job.priority)
        try:
            # While it is paused no workflow is missed; and one that was started for a job which ended
            # meanwhile would wait for ever, where any other asks and learns of the end.
            asks = job.state is not JobState.PAUSED
            started = await self._starter.start(job_id, position_of(loaded.record), labels, is_open=asks)
        except WorkflowsUnavailable as fault:
            log.warning("workflow_not_started", **ids, error=str(fault))
            return DueOutcome.WAITING
        self._remember(job_id, now_ms)
        if started is StartOutcome.RUNNING:
            return DueOutcome.WAITING
        log.info("workflow_started_again", **ids)
        return DueOutcome.ACTED

    def _remember(self, job_id: str, now_ms: int) -> None:
        self._asked_at_ms[job_id] = now_ms
        self._asked_at_ms.move_to_end(job_id)
        if len(self._asked_at_ms) > ASKED_JOBS_MAX:
            self._asked_at_ms.popitem(last=False)

"""Which job adopted which late success, where no key was given: a caller that asks again gets that job,
unless it came to nothing.

In: the row `rerun#jobId`, which knows who was meant to adopt what. Out: who did. A job may have been finished
as another rerun than it was meant to be, and a row may be older than such knowledge: the first event of a job
has the last word.
"""

from lucius.core.model import JobRecord, Json
from lucius.core.states import JOB_TERMINAL, JobState
from lucius.ledger.job_ledger import JobLedger
from lucius.ledger.rows import IdempotencyRow


def came_to_nothing(state: JobState) -> bool:
    return state in JOB_TERMINAL and state is not JobState.SUCCEEDED


def adoption_name(adopted: dict[str, Json]) -> str:
    return f"{adopted['stepId']}#{adopted['seq']}"


class Adoptions:
    def __init__(self, ledger: JobLedger) -> None:
        self._ledger = ledger

    async def find(self, row: IdempotencyRow, name: str) -> JobRecord | None:
        """The job that began with this late success, however long ago, and goes on or has succeeded."""
        for job_id in dict.fromkeys((row.adoptions.get(name, row.job_id), row.job_id)):
            if await self._adopted_by(job_id) == name:
                loaded = await self._ledger.load(job_id, fresh=True)
                if loaded is not None and not came_to_nothing(loaded.record.job.state):
                    return loaded.record
        return None

    async def known(self, row: IdempotencyRow) -> dict[str, str]:
        """What the row that takes the place of this one is to know, the truth about its job included."""
        others = {name: job_id for name, job_id in row.adoptions.items() if job_id != row.job_id}
        last = await self._adopted_by(row.job_id)
        return others if last is None else {**others, last: row.job_id}

    async def _adopted_by(self, job_id: str) -> str | None:
        for first in await self._ledger.events(job_id, limit=1):
            if "adopted" in first.data:
                return adoption_name(first.data["adopted"])
        return None

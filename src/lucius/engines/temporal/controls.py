"""Controls as the orchestrator gives them: those of temporal jobs go to the invoker, which alone writes them.

In: inputs of a job, as `JobWriter` takes them. Out: what became of each. The controls of jobs of the temporal
engine are sent to the invoker; every other input is applied here.
"""

import ssl

import httpx2

from lucius.contracts.internal import read_problem
from lucius.core.draft import Outcome
from lucius.core.inputs import Cancel, DispatchNow, Input, Pause, Resume, Wish
from lucius.core.model import Job
from lucius.core.refusal import Code, Refused
from lucius.core.states import Engine
from lucius.jobs.workflows import InvokerUnavailable
from lucius.jobs.writer import Applied, InputHandler
from lucius.ledger.job_ledger import JobLedger

CALL_SECONDS_MAX = 5.0
CONNECTIONS_MAX = 64
IDLE_SECONDS_MAX = 3.0  # the invoker closes idle connections after 15 s: never send into one that is closing

NOT_TAKEN = "the invoker cannot be reached, so this was not taken; send it again"
UNKNOWN = (
    "the invoker did not confirm this, and whether it was taken is not known; look at the job, and send it "
    "again if it was not, which does no harm"
)
_UNSENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)

_VERBS: dict[type, str] = {Cancel: "cancel", Pause: "pause", Resume: "resume", DispatchNow: "hurry"}
_CODES = {code.value: code for code in (Code.JOB_NOT_FOUND, Code.JOB_TERMINAL, Code.JOB_CANCELLING)}


class RemoteControls:
    def __init__(self, ledger: JobLedger, others: InputHandler, client: httpx2.AsyncClient) -> None:
        """`client` knows the invoker's address and shows the secret (see `invoker_client`)."""
        self._ledger = ledger
        self._others = others
        self._client = client

    async def apply(self, job_id: str, given: Input) -> Applied | Refused:
        """Raises `InvokerUnavailable` if the invoker gives no answer that makes sense."""
        if not isinstance(given, Cancel | Pause | Resume | DispatchNow):
            return await self._others.apply(job_id, given)
        loaded = await self._ledger.load(job_id)
        if loaded is None or loaded.record.job.engine is not Engine.TEMPORAL:
            return await self._others.apply(job_id, given)
        refused = await self._pass_on(loaded.record.job, given)
        if refused is not None:
            return refused
        loaded = await self._ledger.load(job_id, fresh=True)
        if loaded is None:
            return Refused(Code.JOB_NOT_FOUND, f"there is no job {job_id}")
        return Applied(record=loaded.record, outcome=Outcome.APPLIED, stop=False)

    async def _pass_on(self, job: Job, given: Wish) -> Refused | None:
        path = f"/v1/internal/jobs/{job.job_id}:{_VERBS[type(given)]}"
        try:
            response = await self._client.post(path, json={"tenant_id": job.tenant_id})
        except _UNSENT as fault:
            raise InvokerUnavailable(
                f"the invoker is away: {type(fault).__name__}", message=NOT_TAKEN
            ) from None
        except (httpx2.HTTPError, ssl.SSLError) as fault:
            raise InvokerUnavailable(
                f"the invoker gave no answer: {type(fault).__name__}", message=UNKNOWN
            ) from None
        if response.status_code == 200:
            return None
        problem = read_problem(response.content)
        if problem.code not in _CODES:
            raise InvokerUnavailable(f"the invoker answered {response.status_code}", message=UNKNOWN)
        return Refused(_CODES[problem.code], problem.detail)


def invoker_client(url: str, secret: str, tls: ssl.SSLContext | None = None) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        base_url=url.rstrip("/"),
        headers={"authorization": f"Bearer {secret}"},
        timeout=CALL_SECONDS_MAX,
        limits=httpx2.Limits(
            max_connections=CONNECTIONS_MAX,
            max_keepalive_connections=CONNECTIONS_MAX,
            keepalive_expiry=IDLE_SECONDS_MAX,
        ),
        verify=True if tls is None else tls,
        trust_env=False,
        follow_redirects=False,
    )

"""Plans, explanations and late successes, as a client sees them."""

from typing import Any

import httpx2
import msgspec
from starlette.requests import Request
from tests.support.api_setup import Deployment, envelope

from lucius.api.app import make_app
from lucius.api.gate import Principal
from lucius.assembly.kernel import Kernel
from lucius.contracts.envelope import Envelope, parse_envelope
from lucius.contracts.keys import Role
from lucius.core.refusal import Code, Refused
from lucius.core.states import Engine
from lucius.jobs.submit import Submitted

# Two steps without a second chance: the first must be acknowledged at once.
BRITTLE = """
protocol_id: brittle_v1
request_types: [BRITTLE]
steps:
  - {step_type: FIRST, service: first, payload_key: a, max_attempts: 1, ack_timeout: 300ms}
  - {step_type: SECOND, service: second, payload_key: b, max_attempts: 1, ack_timeout: 300ms}
"""
# Its first answer is given up quickly, and its second attempt never begins by itself in a test's time.
PATIENT = """
protocol_id: patient_v1
request_types: [PATIENT]
steps:
  - {step_type: ONLY, service: only, ack_timeout: 300ms, backoff: {ack: [1h]}}
"""
ROWS_MAX = 1_000
LATE_REF = {"uri": "s3://w/late", "etag": "7"}


async def rows(deployment: "Deployment") -> list[Any]:
    """Everything in the store."""
    ledger = deployment.lucius.kernel.ledger
    found: list[Any] = []
    for table in msgspec.structs.astuple(ledger.tables):
        page = await ledger.store.scan(table, limit=ROWS_MAX)
        assert len(page) < ROWS_MAX
        found += [(table, row) for row in page]
    return found


async def planned(deployment: "Deployment", command: Any, **headers: str) -> dict[str, Any]:
    before = await rows(deployment)
    response = await deployment.post("/v1/orchestrate:plan", command, **headers)
    assert response.status_code == 200, response.text
    assert await rows(deployment) == before, "a plan writes nothing"
    plan: dict[str, Any] = response.json()
    return plan


async def explained(deployment: "Deployment", job_id: str) -> dict[str, Any]:
    response = await deployment.http.get(f"/v1/jobs/{job_id}:explain")
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()
    assert told["jobId"] == job_id
    return told


async def adopted(deployment: "Deployment", job_id: str, step_id: str, seq: int, **headers: str) -> Any:
    return await deployment.post(f"/v1/jobs/{job_id}:adopt", {"stepId": step_id, "seq": seq}, **headers)


async def late_first(deployment: "Deployment", **changes: Any) -> tuple[str, int]:
    """A job that failed at its first step, and the number of the event with that step's late success."""
    job_id = await deployment.submit(request_type="BRITTLE", **changes)
    directive = await deployment.directive(job_id, "first")
    await deployment.reach(job_id, "FAILED_FINAL")
    assert await deployment.reply(directive, "RESULT", output_ref=LATE_REF) == {
        "outcome": "recorded",
        "stop": True,
    }
    return job_id, (await deployment.events(job_id))[-1]["seq"]


async def late_last(deployment: "Deployment") -> tuple[str, int]:
    """As above, at its last step."""
    job_id = await deployment.submit(request_type="BRITTLE")
    await deployment.finish(job_id, "first", output_ref={"uri": "s3://w/1"})
    directive = await deployment.directive(job_id, "second")
    await deployment.reach(job_id, "FAILED_FINAL")
    await deployment.reply(directive, "RESULT", output_ref=LATE_REF)
    return job_id, (await deployment.events(job_id))[-1]["seq"]


class OneCaller:
    """A gate at which everybody is the same caller."""

    def __init__(self, tenant: str, *roles: Role) -> None:
        self._caller = Principal(name="somebody", roles=frozenset(roles), tenants=frozenset({tenant}))

    async def identify(self, request: Request) -> Principal | Refused:
        return self._caller

    async def admit(self, request: Request, role: Role) -> Principal | Refused:
        if role in self._caller.roles:
            return self._caller
        return Refused(Code.FORBIDDEN, f"this needs the role {role.value}")


def seen_by(deployment: "Deployment", tenant: str, *roles: Role) -> httpx2.AsyncClient:
    guarded = msgspec.structs.replace(deployment.lucius.deployment, gate=OneCaller(tenant, *roles))
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(make_app(guarded)), base_url="http://house")


async def temporal_job(deployment: "Deployment") -> str:
    """A job of the other engine on this deployment's ledger, as one that ran there before has left it."""
    kernel = deployment.lucius.kernel
    options = msgspec.structs.replace(kernel.options, engine=Engine.TEMPORAL)
    other = Kernel(kernel.ledger.store, options, now_ms=kernel.now_ms, ids=kernel.ids)
    command = parse_envelope(envelope())
    assert isinstance(command, Envelope)
    accepted = await other.submitter.submit(command)
    assert isinstance(accepted, Submitted)
    return accepted.job_id

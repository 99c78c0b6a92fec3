"""For operators: the outbox, the finally failed, the protocols, health."""

from fastapi import APIRouter, Request, Response

from lucius.api.dead import dead_jobs
from lucius.api.dependencies import ApiDependencies
from lucius.api.health import alive, ready
from lucius.api.jobs import PAGE_ITEMS_MAX, find_job, rerun_answer
from lucius.api.pages import page_of_jobs
from lucius.api.parameters import stray, whole_number
from lucius.api.problems import answer, problem
from lucius.contracts.keys import Role
from lucius.core.model import Json, ProtocolSpec
from lucius.core.refusal import Code, Refused
from lucius.core.states import JobState


def routes(deps: ApiDependencies) -> APIRouter:
    router = APIRouter()
    _admin_routes(router, deps)
    _protocol_routes(router, deps)
    _health_routes(router, deps)
    return router


def _admin_routes(router: APIRouter, deps: ApiDependencies) -> None:
    @router.post("/v1/admin/outbox/retry", operation_id="retryOutbox")
    async def retry_outbox(request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.ADMIN)
        if isinstance(caller, Refused):
            return problem(caller)
        if caller.tenants is not None:
            message = "this concerns the rows of every tenant, and the caller is limited to some"
            return problem(Refused(Code.FORBIDDEN, message))
        return answer({"made_due": await deps.retry_now.all_due()})

    @router.get("/v1/admin/dlq", operation_id="listDlq")
    async def list_dlq(request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.ADMIN)
        if isinstance(caller, Refused):
            return problem(caller)
        limit = stray(request, "cursor", "limit") or whole_number(request, "limit", 50, 1, PAGE_ITEMS_MAX)
        if isinstance(limit, Refused):
            return problem(limit)
        cursor = request.query_params.get("cursor")
        return await page_of_jobs(deps, request, lambda: dead_jobs(deps.lists, caller, cursor, limit))

    @router.post("/v1/admin/dlq/{job_id}:redrive", operation_id="redriveJob")
    async def redrive(job_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.ADMIN)
        if isinstance(caller, Refused):
            return problem(caller)
        loaded = await find_job(deps, job_id, caller)
        if isinstance(loaded, Refused) or loaded.record.job.state not in (JobState.FAILED_FINAL, *_OPEN):
            return problem(Refused(Code.JOB_NOT_FOUND, "there is no finally failed job of this id"))
        return await rerun_answer(deps, job_id, request, caller)


_OPEN = tuple(
    state
    for state in JobState
    if state not in (JobState.SUCCEEDED, JobState.FAILED_FINAL, JobState.CANCELLED)
)


def _protocol_routes(router: APIRouter, deps: ApiDependencies) -> None:
    @router.get("/v1/protocols", operation_id="listProtocols")
    async def list_protocols(request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.READ)
        if isinstance(caller, Refused):
            return problem(caller)
        items = [_protocol_view(protocol) for protocol in deps.registry.all()]
        return answer({"items": items, "next_cursor": None, "problems": list(deps.registry.problems())})

    @router.get("/v1/protocols/{protocol_id}", operation_id="getProtocol")
    async def get_protocol(protocol_id: str, request: Request) -> Response:
        caller = await deps.gate.admit(request, Role.READ)
        if isinstance(caller, Refused):
            return problem(caller)
        protocol = deps.registry.find(protocol_id)
        if protocol is None:
            return problem(Refused(Code.NOT_FOUND, "there is no protocol of this id"))
        return answer(_protocol_view(protocol))


def _health_routes(router: APIRouter, deps: ApiDependencies) -> None:
    # Load balancers often ask with HEAD.
    @router.head("/livez", include_in_schema=False)
    @router.get("/livez", operation_id="livez")
    async def livez() -> Response:
        return alive()

    @router.head("/readyz", include_in_schema=False)
    @router.get("/readyz", operation_id="readyz")
    async def readyz() -> Response:
        return await ready(deps.checks)


def _protocol_view(protocol: ProtocolSpec) -> dict[str, Json]:
    return {
        "protocol_id": protocol.protocol_id,
        "request_types": list(protocol.request_types),
        "steps": [
            {
                "step_type": step.step_type,
                "service": step.service,
                "payload_key": step.payload_key,
                "payload_schema": step.payload_schema,
                "defaults": step.defaults,
                "max_attempts": step.policy.max_attempts,
                "ack_timeout_seconds": step.policy.ack_timeout_ms / 1000,
                "lease_seconds": step.policy.lease_ms / 1000,
                "max_duration_seconds": step.policy.max_duration_ms / 1000,
                "backoff_seconds": {
                    "publish": [ms / 1000 for ms in step.policy.backoff_publish_ms],
                    "ack": [ms / 1000 for ms in step.policy.backoff_ack_ms],
                    "result": [ms / 1000 for ms in step.policy.backoff_result_ms],
                },
            }
            for step in protocol.steps
        ],
    }

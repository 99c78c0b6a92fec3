"""For operators: the outbox, the finally failed, the protocols, health."""

import asyncio

from fastapi import APIRouter, Request, Response

from lucius.api.describe import body, json_of, object_schema, page_of, problems
from lucius.api.house import House
from lucius.api.jobs import PAGE_ITEMS_MAX, find_job, rerun_answer
from lucius.api.parameters import whole_number
from lucius.api.problems import answer, problem
from lucius.contracts.views import job_view
from lucius.core.model import Json, ProtocolSpec
from lucius.core.refusal import Code, Refused
from lucius.core.states import JobState


def routes(house: House) -> APIRouter:
    router = APIRouter()
    _admin_routes(router, house)
    _protocol_routes(router, house)
    _health_routes(router, house)
    return router


def _admin_routes(router: APIRouter, house: House) -> None:
    @router.post(
        "/v1/admin/outbox/retry",
        operation_id="retryOutbox",
        tags=["admin"],
        summary="Make every waiting outbox row due now",
        response_class=Response,
        responses=problems(401, 403, 503),
    )
    async def retry_outbox() -> Response:
        return answer({"made_due": await house.hurry.all_due()})

    @router.get(
        "/v1/admin/dlq",
        operation_id="listDlq",
        tags=["admin"],
        summary="Finally failed jobs, the newest first",
        response_class=Response,
        responses={**page_of("job", "A page of jobs"), **problems(401, 403, 422)},
    )
    async def list_dlq(request: Request) -> Response:
        limit = whole_number(request, "limit", 50, 1, PAGE_ITEMS_MAX)
        if isinstance(limit, Refused):
            return problem(limit)
        rows = await house.lists.dlq(request.query_params.get("cursor", ""), limit)
        loaded = await asyncio.gather(*(house.ledger.load(row.job_id, fresh=True) for _, row in rows))
        items = [job_view(one.record) for one in loaded if one is not None]
        more = rows[-1][0] if len(rows) == limit else None
        return answer({"items": items, "next_cursor": more})

    @router.post(
        "/v1/admin/dlq/{job_id}:redrive",
        operation_id="redriveJob",
        tags=["admin"],
        summary="Run a finally failed job again",
        status_code=202,
        response_class=Response,
        responses={**json_of("job", 202, "The new job"), **problems(401, 403, 404, 409, 422, 429, 503)},
        openapi_extra=body(object_schema({"from_step": {"type": "string"}}), required=False),
    )
    async def redrive(job_id: str, request: Request) -> Response:
        loaded = await find_job(house, job_id)
        if isinstance(loaded, Refused) or loaded.record.job.state not in (JobState.FAILED_FINAL, *_OPEN):
            return problem(Refused(Code.JOB_NOT_FOUND, "there is no finally failed job of this id"))
        return await rerun_answer(house, job_id, request)


_OPEN = tuple(
    state
    for state in JobState
    if state not in (JobState.SUCCEEDED, JobState.FAILED_FINAL, JobState.CANCELLED)
)


def _protocol_routes(router: APIRouter, house: House) -> None:
    @router.get(
        "/v1/protocols",
        operation_id="listProtocols",
        tags=["protocols"],
        summary="The protocols that this deployment knows",
        response_class=Response,
        responses=problems(401),
    )
    async def list_protocols() -> Response:
        items = [_protocol_view(protocol) for protocol in house.registry.all()]
        return answer({"items": items, "next_cursor": None, "problems": list(house.registry.problems())})

    @router.get(
        "/v1/protocols/{protocol_id}",
        operation_id="getProtocol",
        tags=["protocols"],
        summary="A protocol with the schema of each step's payload",
        response_class=Response,
        responses=problems(401, 404),
    )
    async def get_protocol(protocol_id: str) -> Response:
        protocol = house.registry.find(protocol_id)
        if protocol is None:
            return problem(Refused(Code.NOT_FOUND, "there is no protocol of this id"))
        return answer(_protocol_view(protocol))


def _health_routes(router: APIRouter, house: House) -> None:
    @router.get(
        "/livez",
        operation_id="livez",
        tags=["health"],
        summary="The process is alive",
        response_class=Response,
    )
    async def livez() -> Response:
        return answer({"status": "ok"})

    @router.get(
        "/readyz",
        operation_id="readyz",
        tags=["health"],
        summary="The process can work, one line a dependency",
        response_class=Response,
        responses={503: {"description": "A dependency is not well"}},
    )
    async def readyz() -> Response:
        results = {name: await check() for name, check in house.checks.items()}
        well = all(fault is None for fault in results.values())
        lines = {name: "ok" if fault is None else fault for name, fault in results.items()}
        return answer({"status": "ok" if well else "failing", "checks": lines}, status=200 if well else 503)


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

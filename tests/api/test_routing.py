"""A request finds its route; what every route has in common is done for it."""

from typing import Any, cast

import httpx2
import pytest
from starlette.responses import Response

from lucius.api.dependencies import ApiDependencies, CallbackDependencies
from lucius.api.routes import ROUTES
from lucius.api.routing import CommandsAnswer, Result, Route, Router, without_credential
from lucius.core.refusal import Code, Refused
from lucius.jobs.workflows import InvokerUnavailable, WorkflowsUnavailable
from lucius.ledger.store import StoreError, StoreUnavailable, Unreadable
from lucius.telemetry import Metrics

NO_DEPENDENCIES = cast("CallbackDependencies", None)


def naming_router() -> Router:
    """The routes of the API; each answers with its operation id and the id in the path."""

    def named(route: Route) -> Route:
        async def answer(deps: ApiDependencies, request: Any, path_id: str) -> Result:
            return Response(f"{route.operation_id} {path_id}")

        return Route(
            methods=route.methods,
            path=route.path,
            access=route.access,
            operation_id=route.operation_id,
            answer=answer,
        )

    return Router(map(named, ROUTES), NO_DEPENDENCIES)


async def request(app: Any, method: str, path: str) -> httpx2.Response:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://lucius") as client:
        return await client.request(method, path)


@pytest.mark.parametrize(
    ("method", "path", "found"),
    [
        ("GET", "/v1/jobs", "listJobs "),
        ("GET", "/v1/jobs/job_1", "getJob job_1"),
        ("GET", "/v1/jobs/job_1:explain", "explainJob job_1"),
        ("GET", "/v1/jobs/job_1:cancel", "getJob job_1:cancel"),
        ("GET", "/v1/jobs/:explain", "getJob :explain"),
        ("POST", "/v1/jobs/job_1:cancel", "cancelJob job_1"),
        ("POST", "/v1/jobs/a:pause:cancel", "cancelJob a:pause"),
        ("GET", "/v1/jobs/job_1/steps", "getSteps job_1"),
        ("GET", "/v1/jobs/j%2F1%3A", None),
        ("GET", "/v1/jobs/", None),
        ("GET", "/v1/jobs/job_1/", None),
        ("GET", "/v1/jobs//steps", None),
        ("GET", "/v1/jobs/steps", "getJob steps"),
        ("GET", "/v1/protocols/ocr_v1", "getProtocol ocr_v1"),
        ("POST", "/v1/admin/dlq/job_1:redrive", "redriveJob job_1"),
        ("HEAD", "/livez", ""),
        ("GET", "/v1", None),
    ],
)
async def test_a_path_leads_to_its_operation(method: str, path: str, found: str | None) -> None:
    response = await request(naming_router(), method, path)
    if found is None:
        assert (response.status_code, response.json()["code"]) == (404, "NOT_FOUND")
    else:
        assert response.status_code == 200
        assert method == "HEAD" or response.text == found


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/jobs", "GET"),
        ("PUT", "/v1/jobs/job_1", "GET"),
        ("POST", "/v1/jobs/job_1", "GET"),
        ("PUT", "/v1/jobs/job_1:cancel", "POST"),
        ("POST", "/v1/jobs/job_1:explain", "GET"),
        ("POST", "/v1/jobs/job_1/steps", "GET"),
        ("PUT", "/v1/admin/keys", "GET, POST"),
        ("POST", "/livez", "GET, HEAD"),
        ("HEAD", "/v1/jobs", "GET"),
    ],
)
async def test_an_address_says_which_methods_it_takes(method: str, path: str, allowed: str) -> None:
    response = await request(naming_router(), method, path)
    assert (response.status_code, response.headers["allow"]) == (405, allowed)


class Counted:
    """A route that carries commands, and the counts."""

    def __init__(self, result: Result | Exception) -> None:
        self.metrics = Metrics(lambda name: True)

        async def answer(deps: Any, request: Any, path_id: str) -> Result:
            if isinstance(result, Exception):
                raise result
            return result

        base = without_credential(("POST",), "/commands", answer)  # type: ignore[arg-type]
        route = Route(
            methods=base.methods,
            path=base.path,
            access=base.access,
            operation_id=None,
            answer=answer,
            counts_commands=True,
        )
        self.router = Router([route], NO_DEPENDENCIES, self.metrics)

    def outcomes(self) -> dict[str, float]:
        text, _ = self.metrics.text("", tenants=True)
        lines = [
            line.split('outcome="')[1] for line in text.decode().splitlines() if "commands_total{" in line
        ]
        return {line.split('"')[0]: float(line.split()[-1]) for line in lines}


@pytest.mark.parametrize(
    ("result", "status", "outcomes"),
    [
        (CommandsAnswer(Response(status_code=202), ("accepted",)), 202, {"accepted": 1}),
        (
            CommandsAnswer(Response(), ("accepted", "TENANT_LIMIT", "accepted")),
            200,
            {"accepted": 2, "TENANT_LIMIT": 1},
        ),
        (CommandsAnswer(Response(), ()), 200, {}),
        (Refused(Code.INVALID_ENVELOPE, "no"), 422, {"INVALID_ENVELOPE": 1}),
        (StoreError("disk"), 503, {"SYSTEM_SATURATED": 1}),
        (StoreUnavailable("disk"), 503, {"SYSTEM_SATURATED": 1}),
        (Unreadable("damaged"), 500, {"JOB_UNREADABLE": 1}),
        (WorkflowsUnavailable("gone"), 503, {"SYSTEM_SATURATED": 1}),
        (InvokerUnavailable("gone", message="send it again"), 503, {"SYSTEM_SATURATED": 1}),
        (RuntimeError("secret"), 500, {"INTERNAL": 1}),
    ],
    ids=[
        "accepted",
        "batch",
        "empty batch",
        "refused",
        "store",
        "store unavailable",
        "unreadable",
        "workflows",
        "invoker",
        "fault",
    ],
)
async def test_commands_are_counted_as_their_sender_is_answered(
    result: Result | Exception, status: int, outcomes: dict[str, float]
) -> None:
    counted = Counted(result)
    response = await request(counted.router, "POST", "/commands")
    assert response.status_code == status
    if status >= 400:
        assert {response.json()["code"]: 1} == outcomes
        assert "secret" not in response.text
    assert counted.outcomes() == outcomes

"""Callbacks that reach the orchestrator are answered by the invoker; the invoker's port tells calls apart."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Scope
from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import TENANT, TOKENS, World

from lucius.api.bodies import ENVELOPE_BYTES_MAX
from lucius.api.callback_forwarder import CallbackForwarder, callback_client
from lucius.api.internal import CallbackServices, InvokerApp, make_callback_app, make_internal_app
from lucius.core.attempt import AttemptRef
from lucius.telemetry.health import make_health_app

SECRET = "a-secret-of-many-letters"


async def _own(request: Request) -> Response:
    return PlainTextResponse("the orchestrator's own")


def served(app: ASGIApp, **headers: str) -> httpx2.AsyncClient:
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://lucius.test", headers=headers)


def front(deployment: Deployment) -> InvokerApp:
    async def well() -> str | None:
        return None

    checks = {"ledger": well}
    services = CallbackServices(tokens=TOKENS, inputs=deployment.notifier, ledger=deployment.ledger)
    internal = make_internal_app(deployment.invoker, [SECRET], checks)
    return InvokerApp(internal, make_callback_app(services), make_health_app(checks, None))


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as stack:
        yield stack


@pytest.fixture
async def deployment() -> Deployment:
    return Deployment(World(), Workflows())


@pytest.fixture
async def public(deployment: Deployment, stack: AsyncExitStack) -> httpx2.AsyncClient:
    """The orchestrator's public side."""
    behind = await stack.enter_async_context(served(front(deployment)))
    own = Starlette(routes=[Route("/v1/jobs", _own), Route("/v1/callbacks/ack", _own, methods=["POST"])])
    return await stack.enter_async_context(served(CallbackForwarder(own, behind)))


async def acknowledged(deployment: Deployment, public: httpx2.AsyncClient) -> tuple[str, httpx2.Response]:
    job_id = await deployment.submit()
    await deployment.attempt(job_id)
    token = TOKENS.mint(AttemptRef(job_id=job_id, step_id="step_01", attempt_no=1, lease_id="L1-step_01"))
    message = {"type": "ACK", "jobId": job_id, "stepId": "step_01", "tenant_id": TENANT}
    message |= {"attempt_no": 1, "lease_id": "L1-step_01", "timestamp": "2026-01-02T03:04:05Z"}  # type: ignore[dict-item]
    headers = {"Authorization": f"Bearer {token}"}
    return job_id, await public.post("/v1/callbacks/ack", json=message, headers=headers)


async def test_a_callback_is_written_and_told_by_the_invoker(
    deployment: Deployment, public: httpx2.AsyncClient
) -> None:
    job_id, answer = await acknowledged(deployment, public)
    assert (answer.status_code, answer.json()) == (200, {"outcome": "applied", "stop": False})
    assert await deployment.states(job_id) == ("IN_PROGRESS", "PROCESSING")
    assert deployment.workflows.names(job_id) == ["step_ack"]


async def test_other_calls_stay_where_they_are(public: httpx2.AsyncClient) -> None:
    assert (await public.get("/v1/jobs")).text == "the orchestrator's own"


async def test_refusals_are_the_invokers_words(deployment: Deployment, public: httpx2.AsyncClient) -> None:
    stranger = await public.post("/v1/callbacks/ack", json={})
    assert (stranger.status_code, stranger.json()["code"]) == (401, "UNAUTHENTICATED")
    assert stranger.headers["content-type"] == "application/problem+json"
    assert stranger.headers["www-authenticate"] == "Bearer"
    # The secret opens the internal API and nothing else.
    insider = await public.post("/v1/callbacks/ack", json={}, headers={"Authorization": f"Bearer {SECRET}"})
    assert insider.status_code == 401
    wrong = await public.get("/v1/callbacks/ack")
    assert (wrong.status_code, wrong.json()["code"], wrong.headers["allow"]) == (
        405,
        "METHOD_NOT_ALLOWED",
        "POST",
    )
    assert (await public.get("/v1/callbacks/nothing")).json()["code"] == "NOT_FOUND"
    large = await public.post("/v1/callbacks/ack", content=b" " * (ENVELOPE_BYTES_MAX + 1))
    assert (large.status_code, large.json()["code"]) == (413, "BODY_TOO_LARGE")
    packed = await public.post("/v1/callbacks/ack", content=b"{}", headers={"content-encoding": "gzip"})
    assert (packed.status_code, packed.json()["code"]) == (415, "UNSUPPORTED_ENCODING")
    deployment.workflows.down = True
    _, untold = await acknowledged(deployment, public)
    assert (untold.status_code, untold.headers["retry-after"]) == (503, "1")
    assert untold.json()["detail"].startswith("it is written, but the job's workflow could not be told; ")


@pytest.mark.parametrize(
    "path",
    [
        "/v1/callbacks/../internal/jobs/{job_id}:pause",
        "/v1/callbacks/./../internal/jobs/{job_id}:pause",
        "/v1/callbacks//../../internal/jobs/{job_id}:pause",
        "/v1/callbacks/ack/../../internal/jobs/{job_id}:pause",
        "/v1/callbacks/../../readyz",
        "/v1/callbacks/ack?x=/../../internal/jobs/{job_id}:pause",
    ],
)
async def test_no_path_leads_from_the_callbacks_to_the_internal_calls(
    deployment: Deployment, stack: AsyncExitStack, path: str
) -> None:
    """As a server hands it over: decoded, and with its dots."""
    behind = await stack.enter_async_context(served(front(deployment)))
    job_id = await deployment.submit()
    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        said.append(message)

    scope: Scope = {
        "type": "http",
        "method": "POST",
        "path": path.format(job_id=job_id),
        "headers": [(b"authorization", f"Bearer {SECRET}".encode())],
    }
    await CallbackForwarder(Starlette(), behind)(scope, receive, send)
    assert said[0]["status"] == 404
    assert await deployment.states(job_id) == ("QUEUED", "PENDING")


async def test_an_invoker_that_is_away_is_told_as_such() -> None:
    async with (
        callback_client("http://127.0.0.1:9/") as away,
        served(CallbackForwarder(Starlette(), away)) as public,
    ):
        answer = await public.post("/v1/callbacks/result", json={})
    assert (answer.status_code, answer.json()["code"]) == (503, "SYSTEM_SATURATED")
    assert answer.headers["retry-after"] == "1"
    assert "authorization" not in callback_client("http://127.0.0.1:9/").headers


async def test_the_port_of_the_invoker_tells_its_calls_apart(
    deployment: Deployment, stack: AsyncExitStack
) -> None:
    port = await stack.enter_async_context(served(front(deployment)))
    assert (await port.get("/livez")).json() == {"status": "ok"}
    assert (await port.get("/readyz")).json()["checks"] == {"ledger": "ok"}
    assert (await port.get("/metrics")).status_code == 404  # there are none in this test
    job_id = await deployment.submit()
    path = f"/v1/internal/jobs/{job_id}:pause"
    assert (await port.post(path)).status_code == 401
    known: dict[str, Any] = {"Authorization": f"Bearer {SECRET}"}
    assert (await port.post(path, headers=known)).json()["position"]["job_state"] == "PAUSED"
    assert (await port.get("/v1/callbacks/attempt", headers=known)).status_code == 401

"""The internal API on the wire: the secret, the shapes, the limits; and callbacks of an invoker by itself."""

from typing import Any

import httpx2
import msgspec
import pytest
from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import TOKENS, Worker, World, reply_to

from lucius.api import internal
from lucius.api.internal import CallbackServices, make_callback_app, make_internal_app
from lucius.contracts.internal import InternalAnswer, Verdict
from lucius.core.states import JobState

SECRET, OLD = "a-secret-of-many-letters", "the-one-before-it,-as-long"
CALLS = (
    "steps/attempt",
    "publish",
    "steps/expire",
    "jobs/job_1:cancel",
    "jobs/job_1:pause",
    "jobs/job_1:resume",
)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def deployment(world: World) -> Deployment:
    return Deployment(world, Workflows())


def caller(deployment: Deployment, secret: str | None = SECRET) -> httpx2.AsyncClient:
    async def well() -> str | None:
        return None

    app = make_internal_app(deployment.invoker, [SECRET, OLD], {"ledger": well})
    headers = {} if secret is None else {"authorization": f"Bearer {secret}"}
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx2.AsyncClient(transport=transport, base_url="http://invoker.test", headers=headers)


def ask(job_id: str, **more: Any) -> dict[str, Any]:
    return {"jobId": job_id, "stepId": "step_01", "attempt_no": 1, "lease_id": "L1-step_01", **more}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("secret", [None, "", "wrong", SECRET + "x", SECRET[:-1]])
async def test_nobody_gets_in_without_the_secret(
    deployment: Deployment, call: str, secret: str | None
) -> None:
    async with caller(deployment, secret) as client:
        answer = await client.post(f"/v1/internal/{call}", content=b"{")
    assert (answer.status_code, answer.json()["code"]) == (401, "UNAUTHENTICATED")
    assert SECRET not in answer.text


@pytest.mark.parametrize("secret", [SECRET, OLD])
async def test_an_attempt_is_begun_and_published(deployment: Deployment, secret: str) -> None:
    job_id = await deployment.submit()
    async with caller(deployment, secret) as client:
        # As the seed has it, with members that are not needed here.
        document = ask(job_id, tenant_id="tenant_a", lease_expires_at="2027-01-15T08:00:00Z")
        begun = await client.post("/v1/internal/steps/attempt", json=document)
        assert (begun.status_code, begun.json()["status"], begun.json()["verdict"]) == (200, "ok", "go")
        directive = {**document, "type": "DIRECTIVE", "payload": {}}
        sent = await client.post("/v1/internal/publish", json={"lane": 3, "directive": directive})
        again = await client.post("/v1/internal/publish", json=ask(job_id))
    assert sent.json()["position"]["published"] and sent.json() == again.json()
    assert len(await Worker(deployment.world).take()) == 1


async def test_the_shape_of_an_answer_is_the_contract(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    async with caller(deployment) as client:
        answer = await client.post("/v1/internal/steps/attempt", json=ask(job_id, publish=True))
        told = msgspec.json.decode(answer.content, type=InternalAnswer)
        expire = await client.post("/v1/internal/steps/expire", json=ask(job_id, reason="ACK_TIMEOUT"))
    assert told == await deployment.attempt(job_id)
    assert expire.json()["verdict"] == Verdict.WAIT.value and expire.json()["again_in_ms"] == 1_000


async def test_controls_answer_with_the_position_or_the_problem(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    async with caller(deployment) as client:
        paused = await client.post(f"/v1/internal/jobs/{job_id}:pause")
        resumed = await client.post(f"/v1/internal/jobs/{job_id}:resume")
        cancelled = await client.post(f"/v1/internal/jobs/{job_id}:cancel")
        refused = await client.post(f"/v1/internal/jobs/{job_id}:pause")
        nowhere = await client.post("/v1/internal/jobs/job_nowhere:cancel")
        odd = await client.post("/v1/internal/jobs/a%20b:cancel")
    states = [each.json()["position"]["job_state"] for each in (paused, resumed, cancelled)]
    assert states == ["PAUSED", "QUEUED", "CANCELLED"]
    assert (refused.status_code, refused.json()["code"]) == (409, "JOB_TERMINAL")
    assert {(each.status_code, each.json()["code"]) for each in (nowhere, odd)} == {(404, "JOB_NOT_FOUND")}


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"jobId": "job_1"},
        ask("job_1", attempt_no="1"),
        ask("job_1", attempt_no=0),
        ask("job_1", lease_id=""),
        ask("job_1", lease_id="x" * 65),
        ask("job_1", stepId="../step"),
        ask("job/1"),
    ],
)
async def test_questions_that_make_no_sense_are_refused(deployment: Deployment, body: Any) -> None:
    async with caller(deployment) as client:
        for call in CALLS[:3]:
            answer = await client.post(f"/v1/internal/{call}", json=body)
            assert (answer.status_code, answer.json()["code"]) == (422, "INVALID_ENVELOPE"), call
        answer = await client.post("/v1/internal/steps/expire", json=ask("job_1", reason="BORED"))
        assert answer.status_code == 422


async def test_bodies_and_calls_are_bounded(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await deployment.submit()
    async with caller(deployment) as client:
        large = await client.post("/v1/internal/publish", json=ask(job_id, more="x" * 70_000))
        assert (large.status_code, large.json()["code"]) == (413, "BODY_TOO_LARGE")
        broken = await client.post("/v1/internal/publish", content=b"{")
        assert (broken.status_code, broken.json()["code"]) == (400, "MALFORMED_JSON")
        monkeypatch.setattr(internal, "CALLS_MAX", 0)
        busy = await client.post("/v1/internal/steps/attempt", json=ask(job_id))
        assert (busy.status_code, busy.headers["retry-after"]) == (503, "1")


async def test_a_ledger_that_is_away_is_a_503(deployment: Deployment, world: World) -> None:
    job_id = await deployment.submit()
    async with caller(deployment) as client:
        world.ledger_down = True
        away = await client.post("/v1/internal/steps/attempt", json=ask(job_id))
        assert (away.status_code, away.json()["code"]) == (503, "SYSTEM_SATURATED")
        world.ledger_down = False
        assert (await client.post("/v1/internal/steps/attempt", json=ask(job_id))).status_code == 200


async def test_what_is_not_there_is_said_so(deployment: Deployment) -> None:
    async with caller(deployment, None) as client:
        assert (await client.get("/livez")).status_code == 200
        assert (await client.get("/readyz")).json()["checks"] == {"ledger": "ok"}
        assert (await client.get("/v1/internal/publish")).status_code == 405
        assert (await client.post("/v1/orchestrate")).status_code == 404


@pytest.mark.parametrize(
    "secrets", [[], ["short"], [SECRET, ""], ["a secret of many words"], ["gehe\u00efmnis-und-noch-eins"]]
)
def test_an_internal_api_without_a_real_secret_is_not_made(
    deployment: Deployment, secrets: list[str]
) -> None:
    with pytest.raises(ValueError, match="secret"):
        make_internal_app(deployment.invoker, secrets, {})


async def test_http_callbacks_are_applied_and_told(deployment: Deployment, world: World) -> None:
    job_id = await deployment.submit()
    await deployment.attempt(job_id)
    directive = await Worker(world).take_one()
    app = make_callback_app(
        CallbackServices(tokens=TOKENS, inputs=deployment.notifier, ledger=deployment.ledger)
    )
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"authorization": f"Bearer {directive['callback_token']}"}
    result = reply_to("RESULT", directive, status="SUCCEEDED", output_ref={"uri": "s3://out/1"})
    async with httpx2.AsyncClient(transport=transport, base_url="http://x.test", headers=headers) as client:
        acked = await client.post("/v1/callbacks/ack", json=reply_to("ACK", directive))
        assert acked.json() == {"outcome": "applied", "stop": False}
        assert (await client.get("/v1/callbacks/attempt")).json()["current"] is True
        deployment.workflows.down = True
        away = await client.post("/v1/callbacks/result", json=result)
        assert (away.status_code, away.headers["retry-after"]) == (503, "1")
        deployment.workflows.down = False
        again = await client.post("/v1/callbacks/result", json=result)
        assert again.json()["outcome"] == "duplicate"
        bare = await client.post("/v1/callbacks/result", json=result, headers={"authorization": "x"})
        assert bare.status_code == 401
        assert (await client.post("/v1/internal/publish", json={})).status_code == 404
    assert deployment.workflows.names(job_id) == ["step_ack", "step_result"]
    assert deployment.workflows.newest(job_id).job_state is JobState.SUCCEEDED

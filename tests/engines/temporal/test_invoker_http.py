"""The internal API on the wire: the secret, the shapes, the limits; and callbacks of an invoker by itself."""

from typing import Any

import httpx2
import msgspec
import pytest
from tests.support.invoker_setup import Deployment, Workflows
from tests.support.publisher_setup import TENANT, TOKENS, Worker, World, fates, reply_to

from lucius.api import internal
from lucius.api.internal import CallbackServices, make_callback_app, make_internal_app
from lucius.bus.memory import PublishFault
from lucius.contracts.internal import InternalAnswer, Verdict
from lucius.contracts.times import rfc3339
from lucius.contracts.views import step_view
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
        document = ask(job_id, tenant_id=TENANT, lease_expires_at="2027-01-15T08:00:00Z")
        begun = await client.post("/v1/internal/steps/attempt", json=document)
        assert (begun.status_code, begun.json()["status"], begun.json()["verdict"]) == (200, "ok", "go")
        directive = {**document, "type": "DIRECTIVE", "payload": {}}
        lane = (await deployment.record(job_id)).steps[0].routing.lane
        sent = await client.post("/v1/internal/publish", json={"lane": lane, "directive": directive})
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
        large = await client.post("/v1/internal/steps/attempt", json=ask(job_id, more="x" * 70_000))
        assert (large.status_code, large.json()["code"]) == (413, "BODY_TOO_LARGE")
        large = await client.post("/v1/internal/publish", json=ask(job_id, more="x" * 500_000))
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


async def test_a_directive_that_the_bus_does_not_take_is_no_success(
    deployment: Deployment, world: World
) -> None:
    """Seed 001, 11.5: non-2xx, so that the caller tries again."""
    job_id = await deployment.submit()
    world.bus.on_publish = fates(PublishFault.REFUSED)
    async with caller(deployment) as client:
        begun = await client.post("/v1/internal/steps/attempt", json=ask(job_id))
        failed = await client.post("/v1/internal/publish", json=ask(job_id))
        early = await client.post("/v1/internal/publish", json=ask(job_id))
        world.clock_ms += 30_000
        sent = await client.post("/v1/internal/publish", json=ask(job_id))
    assert begun.json()["status"] == "ok"
    assert (failed.status_code, failed.headers["content-type"]) == (503, "application/problem+json")
    assert (failed.json()["code"], failed.headers["retry-after"]) == ("PUBLISH_FAILED", "30")
    assert "the bus refused the message" in failed.json()["detail"]
    assert (early.json()["status"], early.json()["again_in_ms"]) == ("wait", 30_000)
    assert (sent.status_code, sent.json()["status"], sent.json()["position"]["published"]) == (
        200,
        "ok",
        True,
    )


async def test_only_what_is_done_has_the_status_ok(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    async with caller(deployment) as client:
        post = client.post
        assert (await post(f"/v1/internal/jobs/{job_id}:pause")).json()["status"] == "ok"
        assert (await post("/v1/internal/steps/attempt", json=ask(job_id))).json()["status"] == "hold"
        await post(f"/v1/internal/jobs/{job_id}:resume")
        later = ask(job_id, attempt_no=2)
        assert (await post("/v1/internal/steps/attempt", json=later)).json()["status"] == "moved"
        await post(f"/v1/internal/jobs/{job_id}:cancel")
        assert (await post("/v1/internal/publish", json=ask(job_id))).json()["status"] == "stop"


async def test_the_tenant_of_every_call_is_compared(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    before = await deployment.record(job_id)
    async with caller(deployment) as client:
        other = ask(job_id, tenant_id="somebody-else", reason="ACK_TIMEOUT")
        for call in ("steps/attempt", "publish", "steps/expire"):
            refused = await client.post(f"/v1/internal/{call}", json=other)
            assert (refused.status_code, refused.json()["code"]) == (404, "JOB_NOT_FOUND"), call
        for verb in ("pause", "resume", "cancel", "hurry"):
            path = f"/v1/internal/jobs/{job_id}:{verb}"
            refused = await client.post(path, json={"tenant_id": "somebody-else"})
            assert (refused.status_code, refused.json()["code"]) == (404, "JOB_NOT_FOUND"), verb
            odd = await client.post(path, json={"tenant_id": 7})
            assert (odd.status_code, odd.json()["code"]) == (422, "INVALID_ENVELOPE"), verb
        assert await deployment.record(job_id) == before
        spelt = ask(job_id, tenant_id=f" {TENANT.upper()} ")
        assert (await client.post("/v1/internal/steps/attempt", json=spelt)).json()["status"] == "ok"
        path = f"/v1/internal/jobs/{job_id}:cancel"
        assert (await client.post(path, json={"tenant_id": TENANT})).json()["status"] == "ok"


async def test_the_deadline_that_a_workflow_expects_is_recorded_and_no_clock_goes_by_it(
    deployment: Deployment, world: World
) -> None:
    job_id = await deployment.submit()
    async with caller(deployment) as client:
        bad = await client.post("/v1/internal/steps/attempt", json=ask(job_id, lease_expires_at="soon"))
        assert (bad.status_code, bad.json()["errors"][0]["pointer"]) == (422, "/lease_expires_at")
        expected = ask(job_id, lease_expires_at="2020-01-01T00:00:00.5+01:00")
        begun = await client.post("/v1/internal/steps/attempt", json=expected)
        step = (await deployment.record(job_id)).steps[0]
        assert step_view(step)["lease_expires_at"] == "2019-12-31T23:00:00.500Z"
        assert "deadline_at_ms" not in begun.json()["position"]
        assert (await client.post("/v1/internal/publish", json=ask(job_id))).json()["status"] == "ok"
    step = (await deployment.record(job_id)).steps[0]
    assert step_view(step)["lease_expires_at"] == rfc3339(world.clock_ms + 30_000)


async def test_a_whole_directive_is_taken_and_must_mean_this_job_and_lane(
    deployment: Deployment,
) -> None:
    job_id = await deployment.submit()
    lane = (await deployment.record(job_id)).steps[0].routing.lane
    full = {
        **ask(job_id, tenant_id=TENANT, lane=lane, routing_key_used=TENANT, type="DIRECTIVE"),
        "input_ref": {"uri": "s3://in/1"},
        "payload": {"pages": "x" * 262_000},  # the envelope's limit
    }
    wrong = (lane + 1) % 16
    async with caller(deployment) as client:
        await client.post("/v1/internal/steps/attempt", json=ask(job_id))
        for body, pointer in (
            ({"lane": wrong, "directive": full}, "/lane"),
            ({"directive": {**full, "lane": wrong}}, "/lane"),
            ({"lane": lane, "directive": {**full, "type": "RESULT"}}, "/directive"),
            ({"lane": lane, "directive": "all of it"}, "/directive"),
        ):
            refused = await client.post("/v1/internal/publish", json=body)
            assert (refused.status_code, refused.json()["errors"][0]["pointer"]) == (422, pointer), pointer
        sent = await client.post("/v1/internal/publish", json={"lane": lane, "directive": full})
    assert (sent.status_code, sent.json()["status"]) == (200, "ok")

"""Two ways to the same functions, one answer; and every answer is one that the document announces."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx2
import msgspec
import pytest
from structlog.testing import capture_logs

from lucius.api.app import EXPRESS_JOB, EXPRESS_POSTS, make_api, make_app
from lucius.api.openapi import OPERATIONS
from lucius.core.routing import lane_of
from lucius.ledger.store import StoreError

if TYPE_CHECKING:
    from tests.rooms.api.api_desk import Desk, Desks, House, reply_to
    from tests.rooms.api.api_document import Document
else:
    from api_desk import Desk, reply_to
    from api_document import Document

ENVELOPE = {
    "tenant_id": "acme",
    "request_type": "OCR",
    "input_ref": {"uri": "s3://in/a.pdf"},
    "output_ref": {"uri": "s3://out/a.json"},
    "payload": {},
    "schema_version": "1",
}
BAD_ENVELOPES: dict[str, Any] = {
    "INVALID_ENVELOPE": {**ENVELOPE, "tenant_id": 5},
    "UNSUPPORTED_SCHEMA_VERSION": {**ENVELOPE, "schema_version": "2"},
    "UNKNOWN_REQUEST_TYPE": {**ENVELOPE, "request_type": "NONE"},
    "INVALID_PAYLOAD": {**ENVELOPE, "payload": {"language": 5}},
    "REF_NOT_ALLOWED": {**ENVELOPE, "input_ref": {"uri": "ftp://in/a.pdf"}},
    "DOC_ID_REQUIRED": {**ENVELOPE, "mode": "BURST"},
}
SMALL = {"LUCIUS_MAX_INFLIGHT_PER_TENANT": "3", "LUCIUS_MAX_INFLIGHT": "6"}
# What differs between two runs of the same script: ids, times, traces, tokens, digests.
_CHANGING = re.compile(
    r"job_[0-9a-z]{20,}|\d{4}-\d\d-\d\dT[0-9:.]+Z|00-[0-9a-f]{32}-[0-9a-f]{16}-01|eyJ[\w.-]+"
    r"|\b[0-9a-f]{24,64}\b|\b[0-9]{13}\b|house-\d+"  # an id may begin with 13 digits
)


@asynccontextmanager
async def listening(house: "House", app: Any) -> AsyncIterator[tuple[Desk, list[httpx2.Response]]]:
    """A desk before one way into the house, and everything that was answered there."""
    heard: list[httpx2.Response] = []

    async def hear(response: httpx2.Response) -> None:
        await response.aread()
        heard.append(response)

    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://house", timeout=60, event_hooks={"response": [hear]}
    ) as client:
        yield Desk(client), heard


def told(response: httpx2.Response) -> tuple[Any, ...]:
    """An answer without what is different each time."""
    headers = {
        name: _CHANGING.sub("…", value)
        for name, value in response.headers.items()
        if name not in ("content-length", "x-correlation-id")
    }
    path = _CHANGING.sub("…", response.request.url.path)
    return response.request.method, path, response.status_code, headers, _CHANGING.sub("…", response.text)


async def submitting(desk: Desk) -> None:
    """Both addresses of a command: accepted, repeated, refused in every way that a command can be."""
    for path in ("/v1/orchestrate", "/v1/commands"):
        for _ in range(2):
            await desk.post(path, ENVELOPE, idempotency_key=f"key{path}", traceparent="none")
        await desk.post(path, {**ENVELOPE, "payload": {"language": "de"}}, idempotency_key=f"key{path}")
        await desk.http.post(path, content=b"{")
        await desk.http.post(path, content=b" " * 300_000)
        await desk.post(path, ENVELOPE, content_encoding="gzip")
        for bad in BAD_ENVELOPES.values():
            await desk.post(path, bad)
    await desk.post("/v1/orchestrate:batch", {"commands": [ENVELOPE, BAD_ENVELOPES["DOC_ID_REQUIRED"], 5]})
    for tenant in ("acme", "other", "another"):
        for page in range(4):
            another = {**ENVELOPE, "tenant_id": tenant, "input_ref": {"uri": f"s3://in/{page}.pdf"}}
            await desk.post("/v1/orchestrate", another)
    await desk.post("/v1/orchestrate:batch", {"commands": []})
    await desk.post("/v1/orchestrate:batch", {"commands": [ENVELOPE] * 501})
    await desk.http.post("/v1/orchestrate:batch", content=b"{")
    await desk.http.post("/v1/orchestrate:batch", content=b" " * 17_000_000)


async def working(desk: Desk) -> None:
    """A service's day: leases and callbacks that are taken, repeated, stale, forged, broken."""
    # Of one lane: whose turn it is among several may depend on what else the house did meanwhile.
    ours = {"service": "ocr", "lanes": [lane_of(str(ENVELOPE["tenant_id"]))]}
    wishes: tuple[Any, ...] = (ours, {"service": "none"}, {"service": 5, "max": 0}, [])
    for wish in wishes:
        response = await desk.post("/v1/directives:lease", wish)
        if response.status_code == 200 and response.json()["directives"]:
            (directive,) = response.json()["directives"]
    await desk.http.post("/v1/directives:lease", content=b"{")
    await desk.http.post("/v1/directives:lease", content=b" " * 300_000)
    token = directive["callback_token"]
    said: tuple[tuple[str, dict[str, Any]], ...] = (
        ("ACK", {}),
        ("PROGRESS", {"progress": 10}),
        ("RESULT", {"status": "FAILED_RETRY"}),
    )
    for kind, more in said:
        message = reply_to(directive, kind, **more)
        path = f"/v1/callbacks/{kind.lower()}"
        for document in (message, message, {**message, "attempt_no": "x"}, {**message, "stepId": "step_07"}):
            await desk.send(token, kind, document)
        await desk.send("forged", kind, message)
        await desk.post(path, message)
        await desk.http.post(path, content=b"{", headers={"authorization": f"Bearer {token}"})
        await desk.http.post(path, content=b" " * 300_000, headers={"authorization": f"Bearer {token}"})
    await desk.send(token, "PROGRESS", reply_to(directive, "PROGRESS", progress=20))
    await desk.http.get("/v1/callbacks/attempt", headers={"authorization": f"Bearer {token}"})
    await desk.http.get("/v1/callbacks/attempt")


async def reading(desk: Desk) -> None:
    job_id = (await desk.post("/v1/orchestrate", ENVELOPE, idempotency_key="key/v1/orchestrate")).json()[
        "jobId"
    ]
    for query in ("", "?wait=0", "?wait=61", "?wait=x"):
        await desk.http.get(f"/v1/jobs/{job_id}{query}")
    await desk.http.get("/v1/jobs/job_none")


SCRIPTS: tuple[Callable[[Desk], Awaitable[None]], ...] = (submitting, working, reading)


async def test_both_ways_give_the_same_answers(desks: "Desks") -> None:
    answers: list[list[tuple[Any, ...]]] = []
    for make in (make_app, make_api):
        house = await desks.open(SMALL)
        async with listening(house, make(house.lucius.house)) as (desk, heard):
            for script in SCRIPTS:
                await script(desk)
            answers.append([told(response) for response in heard])
            document = Document(make_api(house.lucius.house).openapi())
            for response in heard:
                document.check(response)
    short, ordinary = answers
    assert len(short) > 70
    assert short == ordinary
    paths = {
        (method, path): {each[2] for each in short if each[:2] == (method, path)}
        for method, path, *_ in short
    }
    for path in EXPRESS_POSTS:
        assert min(paths["POST", path]) < 300 and max(paths["POST", path]) >= 400, path
    assert paths["GET", "/v1/jobs/…"] == {200, 422}
    assert paths["GET", "/v1/jobs/job_none"] == {404}


async def test_the_script_meets_every_refusal_of_a_command(desks: "Desks") -> None:
    house = await desks.open(SMALL)
    async with listening(house, make_app(house.lucius.house)) as (desk, heard):
        for script in SCRIPTS:
            await script(desk)
        seen = {each.json()["code"] for each in heard if each.status_code >= 400}
    assert seen >= {
        *BAD_ENVELOPES,
        "MALFORMED_JSON",
        "BODY_TOO_LARGE",
        "UNSUPPORTED_ENCODING",
        "IDEMPOTENCY_KEY_REUSED",
        "TENANT_LIMIT",
        "SYSTEM_SATURATED",
        "UNAUTHENTICATED",
        "FORBIDDEN",
        "STALE_ATTEMPT",
        "JOB_NOT_FOUND",
        "INVALID_REQUEST",
    }


class Broken:
    """A gate and a reader of tokens that fails."""

    def __init__(self, fault: Exception) -> None:
        self._fault = fault

    async def admit(self, *_: Any) -> Any:
        raise self._fault

    def read(self, *_: Any) -> Any:
        raise self._fault


@pytest.mark.parametrize(("fault", "status"), [(StoreError("disk"), 503), (RuntimeError("secret"), 500)])
async def test_both_ways_give_the_same_answer_to_a_fault(
    house: "House", fault: Exception, status: int
) -> None:
    broken = msgspec.structs.replace(house.lucius.house, gate=Broken(fault), tokens=Broken(fault))
    answers: list[list[tuple[Any, ...]]] = []
    document = Document(make_api(broken).openapi())
    for app in (make_app(broken), make_api(broken)):
        async with listening(house, app) as (desk, heard):
            with capture_logs() as logged:
                for path in sorted(EXPRESS_POSTS):
                    await desk.post(path, ENVELOPE, authorization="Bearer x")
                await desk.http.get(EXPRESS_JOB.format(job_id="job_none"))
            faults = [line for line in logged if line["event"] in ("store_fault", "request_failed")]
            assert len(faults) == len(heard) == len(EXPRESS_POSTS) + 1
            answers.append([told(response) for response in heard])
            for response in heard:
                document.check(response)
    assert answers[0] == answers[1]
    assert {each[2] for each in answers[0]} == {status}
    assert "secret" not in json.dumps(answers)


async def controlling(desk: Desk) -> None:
    """A job under every control, one that failed and is run again, one whose success came too late."""
    job_id = await desk.submit()
    for verb in ("pause", "resume", "cancel", "cancel", "pause", "resume"):
        await desk.control(job_id, verb)
        await desk.control("job_none", verb)
    for verb in ("rerun", "rerun", "adopt"):
        await desk.control(job_id, verb)
    failed = await desk.submit(callback_urls={"completed": "https://hooks.example/x"})
    directive = await desk.directive(failed, "ocr")
    for verb in ("rerun", "adopt"):
        await desk.post(
            f"/v1/jobs/{failed}:{verb}", {"stepId": "step_01", "seq": 2} if verb == "adopt" else None
        )
    await desk.control(failed, "cancel")
    for verb in ("pause", "resume"):
        await desk.control(failed, verb)
    await desk.say(directive, "RESULT", status="FAILED_FINAL")
    await desk.say(directive, "RESULT")
    await desk.http.get(f"/v1/jobs/{failed}:explain")
    for body in ({"from_step": 5}, {"from_step": "step_01"}, {"from_step": "step_01"}):
        await desk.post(f"/v1/jobs/{failed}:rerun", body, idempotency_key="again")
    done = await desk.submit()
    await desk.http.get(f"/v1/jobs/{done}:explain")
    await desk.finish(done, "ocr", status="FAILED_FINAL")
    await desk.http.get("/v1/admin/dlq")
    for _ in range(2):
        await desk.post(f"/v1/admin/dlq/{done}:redrive")
    await desk.post("/v1/admin/dlq/job_none:redrive")
    succeeded = await desk.submit()
    await desk.finish(succeeded, "ocr", output_ref={"uri": "s3://out/x"})
    await desk.control(succeeded, "rerun")
    for path in ("steps", "events", "events?limit=1", "events?limit=0", "events?after=x"):
        await desk.http.get(f"/v1/jobs/{succeeded}/{path}")
    await desk.http.get("/v1/jobs/job_none/steps")
    await desk.http.get("/v1/jobs/job_none/events")
    await desk.http.get(f"/v1/jobs/{succeeded}/events", headers={"accept": "text/event-stream"})
    await desk.http.get(
        f"/v1/jobs/{succeeded}/events", headers={"accept": "text/event-stream", "last-event-id": "99"}
    )


async def adopting(desk: Desk) -> None:
    job_id = await desk.submit(request_type="QUICK")
    first = await desk.directive(job_id, "quick")
    await desk.directive(job_id, "quick")
    await desk.say(first, "RESULT", output_ref={"uri": "s3://out/late"})
    await desk.say(first, "RESULT", output_ref={"uri": "s3://out/late"})
    late = next(event for event in await desk.events(job_id) if event["type"] == "REPLY_STALE")
    await desk.control(job_id, "cancel")
    await desk.reach(job_id, "CANCELLED")
    await desk.http.get(f"/v1/jobs/{job_id}:explain")
    for body in ({"stepId": "step_01", "seq": late["seq"]}, {"stepId": "step_01", "seq": 1}, {"seq": "x"}):
        await desk.post(f"/v1/jobs/{job_id}:adopt", body)
    await desk.post("/v1/jobs/job_none:adopt", {"stepId": "step_01", "seq": 1})


async def operating(desk: Desk) -> None:
    for path in (
        "/livez",
        "/readyz",
        "/metrics",
        "/v1/protocols",
        "/v1/protocols/ocr_v1",
        "/v1/protocols/none",
    ):
        await desk.http.get(path)
    for query in ("", "?tenant_id=acme&limit=1&state=QUEUED", "?state=NONE", "?cursor=x", "?limit=0"):
        await desk.http.get(f"/v1/jobs{query}")
    for document in (ENVELOPE, *BAD_ENVELOPES.values(), 5):
        await desk.post("/v1/orchestrate:plan", document)
    await desk.http.post("/v1/orchestrate:plan", content=b"{")
    await desk.post("/v1/admin/outbox/retry")
    await desk.http.get("/v1/admin/dlq?limit=0")
    wish = {"name": "one", "tenants": ["acme"], "roles": ["read"]}
    made = (await desk.post("/v1/admin/keys", wish)).json()
    refused: tuple[Any, ...] = ({"name": ""}, [])
    for bad in refused:
        await desk.post("/v1/admin/keys", bad)
    await desk.http.get("/v1/admin/keys")
    for key_id in (made["keyId"], "none"):
        await desk.post(f"/v1/admin/keys/{key_id}:revoke")
    for query in ("", "?limit=0", "?cursor=x"):
        await desk.http.get(f"/v1/admin/webhooks/dead{query}")
    hooked = await desk.submit(callback_urls={"completed": "https://hooks.example/x"})
    for job_id in ("job_none", hooked, await desk.submit()):
        await desk.post(f"/v1/admin/webhooks/{job_id}:redeliver")
    await desk.finish(hooked, "ocr")
    await desk.post(f"/v1/admin/webhooks/{hooked}:redeliver")


async def test_every_operation_answers_as_the_document_says(quick_house: "House") -> None:
    document = Document(make_api(quick_house.lucius.house).openapi())
    async with listening(quick_house, make_app(quick_house.lucius.house)) as (desk, heard):
        for script in (controlling, adopting, operating, *SCRIPTS):
            await script(desk)
        succeeded = set()
        for response in heard:
            name = document.check(response)
            if response.status_code < 300:
                succeeded.add(name)
    assert succeeded == set(OPERATIONS)

"""Every answer of the API, in every case that a script can bring about, is one that the document names."""

import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx2
import msgspec
import pytest
from structlog.testing import capture_logs
from tests.support.api_document import Document
from tests.support.api_setup import Caller, Callers, Deployment, reply_to

from lucius.api import openapi
from lucius.api.app import make_app
from lucius.api.openapi import OPERATIONS
from lucius.core.routing import lane_of
from lucius.ledger.store import StoreError

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
# The calls that come most often, beside reading a job.
BUSY_POSTS = (
    "/v1/orchestrate",
    "/v1/commands",
    "/v1/orchestrate:batch",
    "/v1/directives:lease",
    "/v1/callbacks/ack",
    "/v1/callbacks/progress",
    "/v1/callbacks/result",
)
SMALL = {"LUCIUS_MAX_INFLIGHT_PER_TENANT": "3", "LUCIUS_MAX_INFLIGHT": "6"}
# What differs between two runs of the same script: ids, times, traces, tokens, digests.
_CHANGING = re.compile(
    r"job_[0-9a-z]{20,}|\b01[0-9a-z]{24}\b|\d{4}-\d\d-\d\dT[0-9:.]+Z|00-[0-9a-f]{32}-[0-9a-f]{16}-01|eyJ[\w.-]+"
    r"|\b[0-9a-f]{24,64}\b|\b[0-9]{13}\b|house-\d+"  # an id may begin with 13 digits
)


@asynccontextmanager
async def listening(
    deployment: "Deployment", app: Any
) -> AsyncIterator[tuple[Caller, list[httpx2.Response]]]:
    """A client of the application, and every answer it got."""
    heard: list[httpx2.Response] = []

    async def hear(response: httpx2.Response) -> None:
        await response.aread()
        heard.append(response)

    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://house", timeout=60, event_hooks={"response": [hear]}
    ) as client:
        yield Caller(client), heard


def told(response: httpx2.Response) -> tuple[Any, ...]:
    """An answer without what is different each time."""
    headers = {
        name: _CHANGING.sub("…", value)
        for name, value in response.headers.items()
        if name not in ("content-length", "x-correlation-id")
    }
    path = _CHANGING.sub("…", response.request.url.path)
    return response.request.method, path, response.status_code, headers, _CHANGING.sub("…", response.text)


async def submitting(caller: Caller) -> None:
    """Both addresses of a command: accepted, repeated, refused in every way that a command can be."""
    for path in ("/v1/orchestrate", "/v1/commands"):
        for _ in range(2):
            await caller.post(path, ENVELOPE, idempotency_key=f"key{path}", traceparent="none")
        await caller.post(path, {**ENVELOPE, "payload": {"language": "de"}}, idempotency_key=f"key{path}")
        await caller.http.post(path, content=b"{")
        await caller.http.post(path, content=b" " * 300_000)
        await caller.post(path, ENVELOPE, content_encoding="gzip")
        for bad in BAD_ENVELOPES.values():
            await caller.post(path, bad)
    await caller.post("/v1/orchestrate:batch", {"commands": [ENVELOPE, BAD_ENVELOPES["DOC_ID_REQUIRED"], 5]})
    for tenant in ("acme", "other", "another"):
        for page in range(4):
            another = {**ENVELOPE, "tenant_id": tenant, "input_ref": {"uri": f"s3://in/{page}.pdf"}}
            await caller.post("/v1/orchestrate", another)
    await caller.post("/v1/orchestrate:batch", {"commands": []})
    await caller.post("/v1/orchestrate:batch", {"commands": [ENVELOPE] * 501})
    await caller.http.post("/v1/orchestrate:batch", content=b"{")
    await caller.http.post("/v1/orchestrate:batch", content=b" " * 17_000_000)


async def working(caller: Caller) -> None:
    """A service's day: leases and callbacks that are taken, repeated, stale, forged, broken."""
    # Of one lane: whose turn it is among several may depend on what else the process did meanwhile.
    ours = {"service": "ocr", "lanes": [lane_of(str(ENVELOPE["tenant_id"]))]}
    wishes: tuple[Any, ...] = (ours, {"service": "none"}, {"service": 5, "max": 0}, [])
    for wanted in wishes:
        response = await caller.post("/v1/directives:lease", wanted)
        if response.status_code == 200 and response.json()["directives"]:
            (directive,) = response.json()["directives"]
    await caller.http.post("/v1/directives:lease", content=b"{")
    await caller.http.post("/v1/directives:lease", content=b" " * 300_000)
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
            await caller.send(token, kind, document)
        await caller.send("forged", kind, message)
        await caller.post(path, message)
        await caller.http.post(path, content=b"{", headers={"authorization": f"Bearer {token}"})
        await caller.http.post(path, content=b" " * 300_000, headers={"authorization": f"Bearer {token}"})
    await caller.send(token, "PROGRESS", reply_to(directive, "PROGRESS", progress=20))
    await caller.http.get("/v1/callbacks/attempt", headers={"authorization": f"Bearer {token}"})
    await caller.http.get("/v1/callbacks/attempt")


async def reading(caller: Caller) -> None:
    job_id = (await caller.post("/v1/orchestrate", ENVELOPE, idempotency_key="key/v1/orchestrate")).json()[
        "jobId"
    ]
    for query in ("", "?wait=0", "?wait=61", "?wait=x"):
        await caller.http.get(f"/v1/jobs/{job_id}{query}")
    await caller.http.get("/v1/jobs/job_none")


SCRIPTS: tuple[Callable[[Caller], Awaitable[None]], ...] = (submitting, working, reading)


async def test_commands_and_work_are_answered_as_the_document_says(callers: "Callers") -> None:
    answers: list[list[tuple[Any, ...]]] = []
    for _ in range(2):
        deployment = await callers.open(SMALL)
        async with listening(deployment, make_app(deployment.lucius.deployment)) as (caller, heard):
            for script in SCRIPTS:
                await script(caller)
            answers.append([told(response) for response in heard])
            document = Document(openapi.document())
            for response in heard:
                document.check(response)
    first, second = answers
    assert len(first) > 70
    assert first == second
    paths = {
        (method, path): {each[2] for each in first if each[:2] == (method, path)}
        for method, path, *_ in first
    }
    for path in BUSY_POSTS:
        assert min(paths["POST", path]) < 300 and max(paths["POST", path]) >= 400, path
    assert paths["GET", "/v1/jobs/…"] == {200, 422}
    assert paths["GET", "/v1/jobs/job_none"] == {404}


async def test_the_script_meets_every_refusal_of_a_command(callers: "Callers") -> None:
    deployment = await callers.open(SMALL)
    async with listening(deployment, make_app(deployment.lucius.deployment)) as (caller, heard):
        for script in SCRIPTS:
            await script(caller)
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

    async def identify(self, *_: Any) -> Any:
        raise self._fault

    async def admit(self, *_: Any) -> Any:
        raise self._fault

    def read(self, *_: Any) -> Any:
        raise self._fault


@pytest.mark.parametrize(("fault", "status"), [(StoreError("disk"), 503), (RuntimeError("secret"), 500)])
async def test_a_fault_is_answered_as_the_document_says(
    deployment: "Deployment", fault: Exception, status: int
) -> None:
    broken = msgspec.structs.replace(deployment.lucius.deployment, gate=Broken(fault), tokens=Broken(fault))
    document = Document(openapi.document())
    async with listening(deployment, make_app(broken)) as (caller, heard):
        with capture_logs() as logged:
            for path in BUSY_POSTS:
                await caller.post(path, ENVELOPE, authorization="Bearer x")
            await caller.http.get("/v1/jobs/job_none")
        faults = [line for line in logged if line["event"] in ("store_fault", "request_failed")]
        assert len(faults) == len(heard) == len(BUSY_POSTS) + 1
        answers = [told(response) for response in heard]
        for response in heard:
            document.check(response)
    assert {each[2] for each in answers} == {status}
    assert "secret" not in json.dumps(answers)


async def controlling(caller: Caller) -> None:
    """A job under every control, one that failed and is run again, one whose success came too late."""
    job_id = await caller.submit()
    for verb in ("pause", "resume", "cancel", "cancel", "pause", "resume"):
        await caller.control(job_id, verb)
        await caller.control("job_none", verb)
    for verb in ("rerun", "rerun", "adopt"):
        await caller.control(job_id, verb)
    failed = await caller.submit(callback_urls={"completed": "https://hooks.example/x"})
    directive = await caller.directive(failed, "ocr")
    for verb in ("rerun", "adopt"):
        await caller.post(
            f"/v1/jobs/{failed}:{verb}", {"stepId": "step_01", "seq": 2} if verb == "adopt" else None
        )
    await caller.control(failed, "cancel")
    for verb in ("pause", "resume"):
        await caller.control(failed, verb)
    await caller.say(directive, "RESULT", status="FAILED_FINAL")
    await caller.say(directive, "RESULT")
    await caller.http.get(f"/v1/jobs/{failed}:explain")
    for body in ({"from_step": 5}, {"from_step": "step_01"}, {"from_step": "step_01"}):
        await caller.post(f"/v1/jobs/{failed}:rerun", body, idempotency_key="again")
    done = await caller.submit()
    await caller.http.get(f"/v1/jobs/{done}:explain")
    await caller.finish(done, "ocr", status="FAILED_FINAL")
    await caller.http.get("/v1/admin/dlq")
    for _ in range(2):
        await caller.post(f"/v1/admin/dlq/{done}:redrive")
    await caller.post("/v1/admin/dlq/job_none:redrive")
    succeeded = await caller.submit()
    await caller.finish(succeeded, "ocr", output_ref={"uri": "s3://out/x"})
    await caller.control(succeeded, "rerun")
    for path in ("steps", "events", "events?limit=1", "events?limit=0", "events?after=x"):
        await caller.http.get(f"/v1/jobs/{succeeded}/{path}")
    await caller.http.get("/v1/jobs/job_none/steps")
    await caller.http.get("/v1/jobs/job_none/events")
    await caller.http.get(f"/v1/jobs/{succeeded}/events", headers={"accept": "text/event-stream"})
    await caller.http.get(
        f"/v1/jobs/{succeeded}/events", headers={"accept": "text/event-stream", "last-event-id": "99"}
    )


async def adopting(caller: Caller) -> None:
    job_id = await caller.submit(request_type="QUICK")
    first = await caller.directive(job_id, "quick")
    await caller.directive(job_id, "quick")
    await caller.say(first, "RESULT", output_ref={"uri": "s3://out/late"})
    await caller.say(first, "RESULT", output_ref={"uri": "s3://out/late"})
    late = next(event for event in await caller.events(job_id) if event["type"] == "REPLY_STALE")
    await caller.control(job_id, "cancel")
    await caller.reach(job_id, "CANCELLED")
    await caller.http.get(f"/v1/jobs/{job_id}:explain")
    for body in ({"stepId": "step_01", "seq": late["seq"]}, {"stepId": "step_01", "seq": 1}, {"seq": "x"}):
        await caller.post(f"/v1/jobs/{job_id}:adopt", body)
    await caller.post("/v1/jobs/job_none:adopt", {"stepId": "step_01", "seq": 1})


async def operating(caller: Caller) -> None:
    for path in (
        "/livez",
        "/readyz",
        "/metrics",
        "/v1/session",
        "/v1/overview",
        "/v1/why",
        "/v1/usage",
        "/v1/services",
        "/v1/lanes",
        "/v1/tenants",
        "/v1/jobs:counts",
        "/v1/protocols",
        "/v1/protocols/ocr_v1",
        "/v1/protocols/none",
    ):
        await caller.http.get(path)
    for query in ("", "?tenant_id=acme&limit=1&state=QUEUED", "?state=NONE", "?cursor=x", "?limit=0"):
        await caller.http.get(f"/v1/jobs{query}")
    for document in (ENVELOPE, *BAD_ENVELOPES.values(), 5):
        await caller.post("/v1/orchestrate:plan", document)
    await caller.http.post("/v1/orchestrate:plan", content=b"{")
    await caller.post("/v1/admin/outbox/retry")
    for action in ("cancel", "x"):
        await caller.post(
            "/v1/jobs:bulk", {"action": action, "filter": {"tenant_id": "acme"}, "dry_run": True}
        )
    await caller.http.get("/v1/admin/dlq?limit=0")
    wanted = {"name": "one", "tenants": ["acme"], "roles": ["read"]}
    made = (await caller.post("/v1/admin/keys", wanted)).json()
    refused: tuple[Any, ...] = ({"name": ""}, [])
    for bad in refused:
        await caller.post("/v1/admin/keys", bad)
    await caller.http.get("/v1/admin/keys")
    for key_id in (made["keyId"], "none"):
        await caller.post(f"/v1/admin/keys/{key_id}:revoke")
    for query in ("", "?limit=0", "?cursor=x"):
        await caller.http.get(f"/v1/admin/webhooks/dead{query}")
    hooked = await caller.submit(callback_urls={"completed": "https://hooks.example/x"})
    for job_id in ("job_none", hooked, await caller.submit()):
        await caller.post(f"/v1/admin/webhooks/{job_id}:redeliver")
    await caller.finish(hooked, "ocr")
    await caller.post(f"/v1/admin/webhooks/{hooked}:redeliver")


async def looking(caller: Caller) -> None:
    job_id = await caller.submit()
    directive = await caller.directive(job_id, "ocr")
    uri = f"{directive['workspace_ref']['uri'].rstrip('/')}/ocr/1/output.txt"
    path = Path(unquote(urlsplit(uri).path))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("read")
    for name in (job_id, "job_none"):
        await caller.http.get(f"/v1/jobs/{name}/artifacts")
        for params in ({"uri": uri}, {"uri": f"{uri}.not"}, {"uri": "file:///etc/passwd"}, {}):
            await caller.http.get(f"/v1/jobs/{name}/artifacts:preview", params=params)


async def pausing(caller: Caller) -> None:
    wish = {"kind": "type", "name": "NONE", "reason": "nothing"}
    for document in (wish, wish, {**wish, "kind": "lane"}, {"kind": "tenant", "name": " "}):
        await caller.post("/v1/pauses", document)
    for query in ("", "?all=1"):
        await caller.http.get(f"/v1/pauses{query}")
    await caller.http.get("/v1/services")
    for document in ({"kind": "type", "name": "NONE"}, {"kind": "type", "name": "NONE"}, wish):
        await caller.post("/v1/pauses:resume", document)


async def scheduling(caller: Caller) -> None:
    wish = {"schedule_id": "nightly", "command": ENVELOPE, "cron": "0 3 * * *", "timezone": "Europe/Zurich"}
    paths = ("/v1/schedules/nightly", "/v1/schedules/none")
    for document in (
        wish,
        wish,
        {**wish, "cron": "x"},
        {**wish, "command": {**ENVELOPE, "request_type": "NO"}},
    ):
        await caller.post("/v1/schedules", document)
    for query in ("", "?limit=0", "?cursor=a"):
        await caller.http.get(f"/v1/schedules{query}")
    span = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z"}
    for path in paths:
        await caller.http.get(path)
        for verb in ("pause", "resume", "run"):
            await caller.post(f"{path}:{verb}")
        for body in (span, {"from": "x"}):
            await caller.post(f"{path}:backfill", body)
        await caller.post(f"{path}:delete")


async def test_every_operation_answers_as_the_document_says(quick_deployment: "Deployment") -> None:
    document = Document(openapi.document())
    async with listening(quick_deployment, make_app(quick_deployment.lucius.deployment)) as (caller, heard):
        for script in (controlling, adopting, operating, scheduling, pausing, looking, *SCRIPTS):
            await script(caller)
        succeeded = set()
        for response in heard:
            name = document.check(response)
            if response.status_code < 300:
                succeeded.add(name)
    assert succeeded == set(OPERATIONS) - {"streamJobs"}  # its answer does not end

"""Commands over HTTP: what is accepted, what is the same command, and that each refusal says why."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, envelope, pointers

ANY_PAYLOAD = """
protocol_id: any_payload_v1
request_types: [OCR]
steps:
  - {step_type: OCR, service: ocr}
"""
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "idempotency.json").read_text())
DOORS = ("/v1/orchestrate", "/v1/commands")


async def listed(deployment: "Deployment") -> list[dict[str, Any]]:
    response = await deployment.http.get("/v1/jobs", params={"limit": 200})
    items: list[dict[str, Any]] = response.json()["items"]
    return items


@pytest.mark.parametrize("door", DOORS)
async def test_a_command_becomes_a_job_and_says_where_it_is(deployment: "Deployment", door: str) -> None:
    response = await deployment.post(door, envelope())
    assert response.status_code == 202
    body = response.json()
    assert body == {"jobId": body["jobId"], "state": "QUEUED", "duplicate": False}
    assert body["jobId"].startswith("job_")
    assert response.headers["location"] == f"/v1/jobs/{body['jobId']}"
    assert "idempotent-replayed" not in response.headers
    assert (await deployment.http.get(response.headers["location"])).json()["jobId"] == body["jobId"]


async def test_what_references_may_name_is_read_in_any_spelling(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_REF_HOSTS": "Files.Example.COM", "LUCIUS_REF_SCHEMES": "HTTPS"})
    await deployment.submit(
        input_ref={"uri": "https://files.example.com/a"}, output_ref={"uri": "https://FILES.example.com/b"}
    )
    other = envelope(input_ref={"uri": "https://other.example.com/a"})
    check_problem(await deployment.post("/v1/orchestrate", other), 422, "REF_NOT_ALLOWED")


@pytest.mark.parametrize("tenant", ["acme", "Acme/Berlin"])
async def test_a_tenant_goes_on_from_what_lies_in_its_workspace(
    deployment: "Deployment", tenant: str
) -> None:
    directive = await deployment.directive(await deployment.submit(tenant_id=tenant), "ocr")
    result = {"uri": f"{directive['workspace_ref']['uri']}ocr/1/output.txt"}
    await deployment.submit(tenant_id=tenant, input_ref=result)
    command = envelope(tenant_id="other", input_ref=result)
    check_problem(await deployment.post("/v1/orchestrate", command), 422, "REF_NOT_ALLOWED")


async def test_a_type_with_spaces_around_it_is_listed_with_the_others(deployment: "Deployment") -> None:
    for name in ("OCR", " OCR "):
        await deployment.submit(request_type=name)
    listed = (await deployment.http.get("/v1/jobs", params={"request_type": "OCR"})).json()["items"]
    assert sorted(job["request_type"] for job in listed) == [" OCR ", "OCR"]


@pytest.mark.parametrize("door", DOORS)
async def test_the_same_command_again_is_the_same_job(deployment: "Deployment", door: str) -> None:
    command = envelope()
    first = await deployment.post("/v1/orchestrate", command)
    again = await deployment.post(door, dict(reversed(command.items())))
    assert again.status_code == 202
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert again.json() == {"jobId": first.json()["jobId"], "state": "DISPATCHING", "duplicate": True}
    assert len(await listed(deployment)) == 1


async def test_a_duplicate_tells_the_state_of_now(deployment: "Deployment") -> None:
    command = envelope()
    job_id = (await deployment.post("/v1/orchestrate", command)).json()["jobId"]
    await deployment.finish(job_id, "ocr")
    again = (await deployment.post("/v1/orchestrate", command)).json()
    assert again == {"jobId": job_id, "state": "SUCCEEDED", "duplicate": True}


async def test_many_who_send_one_command_at_once_get_one_job(deployment: "Deployment") -> None:
    command = envelope()
    answers = await asyncio.gather(*(deployment.post("/v1/orchestrate", command) for _ in range(40)))
    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["jobId"] for answer in answers}) == 1
    assert sum(not answer.json()["duplicate"] for answer in answers) == 1
    assert len(await listed(deployment)) == 1
    assert deployment.lucius.admission.by_tenant == {"acme": 1}


async def test_the_fingerprint_of_a_command_is_the_pinned_one(callers: "Callers") -> None:
    deployment = await callers.open(protocols={"any_payload.yaml": ANY_PAYLOAD})
    for vector in VECTORS["commands"]:
        body = vector["body"] if "body" in vector else json.dumps(vector["envelope"])
        response = await deployment.http.post("/v1/orchestrate", content=body.encode())
        assert response.status_code == 202, (vector["name"], response.text)
        job = await deployment.job(response.json()["jobId"])
        assert (job["idempotency_hash"], job["idempotency_key"]) == (vector["fingerprint"], None), vector


@pytest.mark.parametrize("place", ["header", "body", "both"])
async def test_a_key_is_the_same_thing_in_header_and_body(callers: "Callers", place: str) -> None:
    for vector in VECTORS["keys"]:
        deployment = await callers.open()
        command = envelope(tenant_id=vector["tenant_id"])
        key = vector["idempotency_key"]
        if place != "header":
            command["idempotency_key"] = key
        headers = [] if place == "body" else [(b"Idempotency-Key", key.encode())]
        response = await deployment.http.post("/v1/orchestrate", content=json.dumps(command), headers=headers)
        assert response.status_code == 202, response.text
        job = await deployment.job(response.json()["jobId"])
        assert (job["idempotency_key"], job["idempotency_hash"]) == (key, vector["idempotency_hash"])


async def test_a_key_decides_what_is_the_same(deployment: "Deployment") -> None:
    command = envelope()
    first = (await deployment.post("/v1/orchestrate", command, idempotency_key="k-1")).json()
    other = (await deployment.post("/v1/orchestrate", command, idempotency_key="k-2")).json()
    assert other["jobId"] != first["jobId"]
    again = await deployment.post("/v1/orchestrate", command | {"idempotency_key": "k-1"})
    assert again.json()["jobId"] == first["jobId"]
    assert again.headers["idempotent-replayed"] == "true"


async def test_a_key_serves_one_command_only(deployment: "Deployment") -> None:
    first = await deployment.submit(idempotency_key="k-1")
    response = await deployment.post("/v1/orchestrate", envelope(idempotency_key="k-1"))
    document = check_problem(response, 422, "IDEMPOTENCY_KEY_REUSED")
    assert pointers(document) == {"/idempotency_key"}
    assert await deployment.submit(idempotency_key="k-1", tenant_id="globex") != first


async def test_header_and_body_must_agree(deployment: "Deployment") -> None:
    response = await deployment.post("/v1/orchestrate", envelope(idempotency_key="a"), idempotency_key="b")
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/idempotency_key"}
    response = await deployment.post("/v1/orchestrate", envelope(), idempotency_key=" ")
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/idempotency_key"}
    assert await listed(deployment) == []


async def test_bodies_that_cannot_be_kept(deployment: "Deployment") -> None:
    for vector in VECTORS["refused"]:
        for door in DOORS:
            response = await deployment.http.post(door, content=vector["body"].encode())
            check_problem(response, 400 if vector["code"] == "MALFORMED_JSON" else 422, vector["code"])
    assert await listed(deployment) == []


async def test_malformed_bodies(deployment: "Deployment") -> None:
    for raw in (b"", b"  ", b"{", b"{'a': 1}", b'{"a":1}x', b"\xff\xfe", b'"\xed\xa0\x80"'):
        check_problem(await deployment.http.post("/v1/orchestrate", content=raw), 400, "MALFORMED_JSON")
        check_problem(await deployment.http.post("/v1/orchestrate:batch", content=raw), 400, "MALFORMED_JSON")
    assert await listed(deployment) == []


async def test_every_field_at_fault_is_named(deployment: "Deployment") -> None:
    command = envelope(tenant_id=..., payload=[], input_ref={}, mode="FAST", colour="red", doc_id=7)
    document = check_problem(await deployment.post("/v1/orchestrate", command), 422, "INVALID_ENVELOPE")
    assert pointers(document) == {
        "/tenant_id",
        "/payload",
        "/input_ref/uri",
        "/mode",
        "/colour",
        "/doc_id",
    }


REFUSED: list[tuple[str, dict[str, Any], int, str, str]] = [
    ("no object", {"schema_version": 1}, 422, "INVALID_ENVELOPE", "/schema_version"),
    ("version", {"schema_version": "2"}, 422, "UNSUPPORTED_SCHEMA_VERSION", "/schema_version"),
    ("type", {"request_type": "PAINT"}, 422, "UNKNOWN_REQUEST_TYPE", "/request_type"),
    ("payload", {"payload": {"language": 7}}, 422, "INVALID_PAYLOAD", "/payload/language"),
    ("secret", {"payload": {"api_key": "x"}}, 422, "INVALID_PAYLOAD", "/payload/api_key"),
    ("input", {"input_ref": {"uri": "file:///etc/passwd"}}, 422, "REF_NOT_ALLOWED", "/input_ref/uri"),
    ("output", {"output_ref": {"uri": "https://u:p@h/x"}}, 422, "REF_NOT_ALLOWED", "/output_ref/uri"),
    (
        "member",
        {"input_ref": {"uri": "s3://in/a.pdf", "password": "hush"}},
        422,
        "REF_NOT_ALLOWED",
        "/input_ref/password",
    ),
    (
        "callback",
        {"callback_urls": {"completed": "http://h/x"}},
        422,
        "REF_NOT_ALLOWED",
        "/callback_urls/completed",
    ),
    ("burst", {"mode": "BURST"}, 422, "DOC_ID_REQUIRED", "/doc_id"),
]


@pytest.mark.parametrize(
    ("changes", "status", "code", "pointer"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
async def test_nothing_is_written_for_a_refused_command(
    deployment: "Deployment", changes: dict[str, Any], status: int, code: str, pointer: str
) -> None:
    for door in DOORS:
        document = check_problem(await deployment.post(door, envelope(**changes)), status, code)
        assert pointers(document) == {pointer}
    assert await listed(deployment) == []
    assert deployment.lucius.admission.by_tenant == {}


async def test_an_unknown_type_is_told_the_nearest_ones(deployment: "Deployment") -> None:
    response = await deployment.post("/v1/orchestrate", envelope(request_type="OCR_EMBEDING"))
    detail = check_problem(response, 422, "UNKNOWN_REQUEST_TYPE")["detail"]
    protocols = (await deployment.http.get("/v1/protocols")).json()["items"]
    known = [name for protocol in protocols for name in protocol["request_types"]]
    assert {"OCR", "EMBEDDING", "SIS", "OCR_EMBEDDING", "EMBEDDING_SIS", "OCR_EMBEDDING_SIS"} <= set(known)
    named = detail.rpartition(": ")[2].split(", ")
    assert len(named) == 3 and set(named) <= set(known)
    assert "OCR_EMBEDDING" in named


@pytest.mark.parametrize("arrow", ["OCR→EMBEDDING", "OCR->EMBEDDING"])
async def test_arrows_are_understood_and_kept_as_sent(deployment: "Deployment", arrow: str) -> None:
    job = await deployment.job(await deployment.submit(request_type=arrow))
    assert (job["request_type"], job["protocol_id"]) == (arrow, "ocr_embedding_v1")


async def test_safe_is_default_and_burst_spreads_by_document(deployment: "Deployment") -> None:
    safe = await deployment.job(await deployment.submit(mode="SAFE"))
    assert (safe["mode"], safe["steps"][0]["routing_key_used"]) == ("DEFAULT", "acme")
    burst = await deployment.job(await deployment.submit(mode="BURST", doc_id=" Doc-1 "))
    assert burst["mode"] == burst["steps"][0]["resolved_mode"] == "BURST"
    assert burst["steps"][0]["routing_key_used"] == "acmedoc-1"


async def test_a_tenant_may_be_denied_burst(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_BURST_DENIED": "Acme"})
    response = await deployment.post("/v1/orchestrate", envelope(mode="BURST", doc_id="d"))
    check_problem(response, 403, "FORBIDDEN")
    assert await listed(deployment) == []


@pytest.mark.parametrize("size", [256 * 1024 + 1, 3 * 1024 * 1024])
async def test_a_body_has_a_largest_size(deployment: "Deployment", size: int) -> None:
    command = json.dumps(envelope())
    padded = command + " " * (size - len(command))
    check_problem(await deployment.http.post("/v1/orchestrate", content=padded), 413, "BODY_TOO_LARGE")
    assert await listed(deployment) == []
    fits = command + " " * (256 * 1024 - len(command))
    assert (await deployment.http.post("/v1/orchestrate", content=fits)).status_code == 202


async def test_a_key_that_is_sent_twice_must_be_the_same(deployment: "Deployment") -> None:
    content = json.dumps(envelope())
    two = [("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    response = await deployment.http.post("/v1/orchestrate", content=content, headers=two)
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/idempotency_key"}
    assert await listed(deployment) == []
    response = await deployment.http.post("/v1/orchestrate", content=content, headers=[two[0], two[0]])
    assert response.status_code == 202
    job_id = response.json()["jobId"]
    assert (await deployment.job(job_id))["idempotency_key"] == "a"
    await deployment.finish(job_id, "ocr")
    for verb, wanted in (("rerun", {}), ("adopt", {"stepId": "step_01", "seq": 1})):
        response = await deployment.http.post(f"/v1/jobs/{job_id}:{verb}", json=wanted, headers=two)
        assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {"/idempotency_key"}
    broken = json.dumps(envelope(payload=3))
    plan = (await deployment.http.post("/v1/orchestrate:plan", content=broken, headers=two)).json()
    assert plan["accepted"] is False
    assert [each["pointer"] for each in plan["problems"]] == ["/idempotency_key", "/payload"]


async def test_blanks_around_a_header_are_not_part_of_it(deployment: "Deployment") -> None:
    content = json.dumps(envelope())
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    found = set()
    for key in (b"k 1", b"k 1 ", b"\tk 1\t", b"  k 1"):
        headers = [(b"idempotency-key", key), (b"traceparent", trace.encode() + b" ")]
        response = await deployment.http.post("/v1/orchestrate", content=content, headers=headers)
        assert response.status_code == 202, response.text
        found.add(response.json()["jobId"])
    (job_id,) = found
    job = await deployment.job(job_id)
    assert (job["idempotency_key"], job["traceparent"].split("-")[1]) == ("k 1", trace.split("-")[1])


async def test_a_tenant_has_a_limit_and_others_have_theirs(callers: "Callers") -> None:
    deployment = await callers.open({"LUCIUS_MAX_INFLIGHT_PER_TENANT": "2"})
    first = envelope()
    job_id = (await deployment.post("/v1/orchestrate", first)).json()["jobId"]
    await deployment.submit(tenant_id=" ACME ")
    response = await deployment.post("/v1/orchestrate", envelope())
    check_problem(response, 429, "TENANT_LIMIT")
    assert int(response.headers["retry-after"]) > 0
    assert (await deployment.post("/v1/orchestrate", first)).json()["duplicate"] is True
    await deployment.submit(tenant_id="globex")
    assert len(await listed(deployment)) == 3
    await deployment.finish(job_id, "ocr")
    await deployment.submit()


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("LUCIUS_MAX_INFLIGHT", {}),
        ("LUCIUS_MAX_INFLIGHT_DEFAULT", {}),
        ("LUCIUS_MAX_INFLIGHT_BURST", {"mode": "BURST", "doc_id": "d"}),
    ],
)
async def test_the_system_has_limits(callers: "Callers", name: str, last: dict[str, Any]) -> None:
    deployment = await callers.open({name: "1"})
    await deployment.submit(**last)
    response = await deployment.post("/v1/orchestrate", envelope(tenant_id="globex", **last))
    check_problem(response, 503, "SYSTEM_SATURATED")
    assert int(response.headers["retry-after"]) > 0
    assert len(await listed(deployment)) == 1


async def test_a_trace_is_continued_and_a_bad_one_begun_anew(deployment: "Deployment") -> None:
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    response = await deployment.post("/v1/orchestrate", envelope(), traceparent=trace)
    assert (await deployment.job(response.json()["jobId"]))["traceparent"] == trace
    job = await deployment.job(await deployment.submit(traceparent="nonsense", correlation_id="c-1"))
    assert job["traceparent"].startswith("00-")
    assert job["correlation_id"] == "c-1"

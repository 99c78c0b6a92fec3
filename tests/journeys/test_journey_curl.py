"""With curl alone, as client and as platform service: from the command to its result."""

from typing import Any

from tests.journeys.harness import Curl

COMMAND = {
    "tenant_id": "curl",
    "request_type": "OCR_EMBEDDING_SIS",
    "input_ref": {"uri": "s3://in/letter.pdf"},
    "output_ref": {"uri": "s3://out/letter.json"},
    "payload": {"sis": {"prompt": "Who wrote it?"}},
    "schema_version": "1",
}


def lease(curl: "Curl", service: str, job_id: str) -> Any:
    for _ in range(10):
        status, answer = curl("/v1/directives:lease", {"service": service, "max": 10, "wait_seconds": 5})
        assert status == 200
        for directive in answer["directives"]:
            if directive["jobId"] == job_id:
                return directive
    raise AssertionError(f"no directive of {service} for {job_id}")


def say(curl: "Curl", directive: Any, kind: str, **more: Any) -> tuple[int, Any]:
    names = ("jobId", "stepId", "tenant_id", "attempt_no", "lease_id")
    message = {name: directive[name] for name in names}
    message |= {"type": kind, "timestamp": "2026-01-02T03:04:05Z", **more}
    token = f"Authorization: Bearer {directive['callback_token']}"
    return curl(f"/v1/callbacks/{kind.lower()}", message, "-H", token)


def test_a_job_from_end_to_end(curl: "Curl") -> None:
    status, accepted = curl("/v1/orchestrate", COMMAND, "-H", "Idempotency-Key: letter-1")
    assert (status, accepted["state"], accepted["duplicate"]) == (202, "QUEUED", False)
    job_id = accepted["jobId"]
    for number, service in enumerate(("ocr", "embedding", "sis"), start=1):
        directive = lease(curl, service, job_id)
        assert (directive["stepId"], len(directive["upstream"])) == (f"step_0{number}", number - 1)
        answers = [
            say(curl, directive, "ACK"),
            say(curl, directive, "PROGRESS", progress=50, note="half way"),
            say(curl, directive, "RESULT", status="SUCCEEDED", output_ref={"uri": f"s3://w/{number}"}),
        ]
        assert answers == [(200, {"outcome": "applied", "stop": False})] * 3
        assert say(curl, directive, "ACK")[1]["outcome"] == "duplicate"
    status, job = curl(f"/v1/jobs/{job_id}?wait=10")
    assert (status, job["state"], job["final_output"]) == (200, "SUCCEEDED", "s3://w/3")
    assert [step["result_ref"]["uri"] for step in job["steps"]] == ["s3://w/1", "s3://w/2", "s3://w/3"]
    status, again = curl("/v1/orchestrate", COMMAND, "-H", "Idempotency-Key: letter-1")
    assert (status, again) == (202, {"jobId": job_id, "state": "SUCCEEDED", "duplicate": True})


def test_what_curl_is_told_when_it_errs(curl: "Curl") -> None:
    status, problem = curl("/v1/orchestrate", {**COMMAND, "request_type": "PAINT"})
    assert (status, problem["code"]) == (422, "UNKNOWN_REQUEST_TYPE")
    status, problem = curl("/v1/jobs/job_unknown")
    assert (status, problem["code"]) == (404, "JOB_NOT_FOUND")
    status, problem = curl("/v1/callbacks/ack", {"type": "ACK"})
    assert (status, problem["code"]) == (401, "UNAUTHENTICATED")
    large = {**COMMAND, "payload": {"sis": {"prompt": "x" * 120_000}}}
    options = ["-H", "Expect:", "--data-binary", "x" * 120_000, "-d", "y" * 120_000, "-d", "z" * 120_000]
    status, problem = curl("/v1/orchestrate", large, *options)
    assert (status, problem["code"]) == (413, "BODY_TOO_LARGE")


def test_a_name_that_somebody_had_lead_here_opens_nothing(curl: "Curl") -> None:
    status, accepted = curl("/v1/orchestrate", COMMAND)
    assert status == 202
    job = f"/v1/jobs/{accepted['jobId']}"
    for path in (job, "/v1/jobs", f"{job}:explain"):
        status, problem = curl(path, None, "-H", "Host: rebound.example:8420")
        assert (status, problem["code"]) == (403, "FORBIDDEN")
        assert "LUCIUS_PUBLIC_URL" in problem["detail"]
    assert curl("/v1/orchestrate", COMMAND, "-H", "Host: rebound.example")[0] == 403
    assert curl("/livez", None, "-H", "Host: rebound.example")[0] == 200
    assert curl("/readyz", None, "-H", "Host: rebound.example")[0] == 200
    assert curl(job, None, "--http1.0", "-H", "Host:")[0] == 200  # without any
    assert curl(job, None, "-H", "Host: lucius")[0] == 200

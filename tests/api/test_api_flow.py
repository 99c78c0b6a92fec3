"""A limit of a service as a client sees it: what waits is explained, and the list of services shows it."""

import pytest
from tests.support.api_setup import Callers, Deployment

from lucius.core.flow import ServiceLimits


@pytest.fixture
def limited(deployment: "Deployment", monkeypatch: pytest.MonkeyPatch) -> "Deployment":
    limits = {"ocr": ServiceLimits(concurrency=2)}
    monkeypatch.setattr(deployment.lucius.kernel.flow, "_limits", lambda: limits)
    return deployment


async def test_a_job_that_waits_for_a_slot_says_so(limited: "Deployment") -> None:
    jobs = [await limited.submit() for _ in range(5)]
    ask = {"service": "ocr", "max": 5, "wait_seconds": 0}
    leased = (await limited.post("/v1/directives:lease", ask)).json()["directives"]
    assert len(leased) == 2
    out = {directive["jobId"] for directive in leased}
    last = [job_id for job_id in jobs if job_id not in out][-1]
    told = (await limited.http.get(f"/v1/jobs/{last}:explain")).json()
    assert told["waiting_for"] == "LIMIT"
    assert told["summary"].startswith("waits for a slot at `ocr`: 2 of 2 in use; 2 before it")
    assert "no clock runs until then" in told["next"]["what"]
    services = (await limited.http.get("/v1/services")).json()["items"]
    (flow,) = [each["flow"] for each in services if each["service"] == "ocr"]
    assert (flow["in_use"], flow["concurrency"]) == (2, 2)


STANDS_IN = """protocol_id: scan_v1
request_types: [SCAN]
steps:
  - {step_type: SCAN, service: scan_a, fallback: [scan_b]}
"""


async def test_a_service_that_only_stands_in_is_listed_with_its_pause(callers: Callers) -> None:
    deployment = await callers.open(protocols={"scan.yaml": STANDS_IN})
    await deployment.post("/v1/pauses", {"kind": "service", "name": "scan_b", "reason": "no licence"})
    services = (await deployment.http.get("/v1/services")).json()["items"]
    (shown,) = [each for each in services if each["service"] == "scan_b"]
    assert shown["protocols"] == ["scan_v1"]
    assert shown["flow"]["pause"]["reason"] == "no licence"

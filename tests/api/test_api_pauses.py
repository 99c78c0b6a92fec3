"""Pauses over HTTP: who may pause what, and where it is seen."""

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, pointers
from tests.support.auth_setup import guarded

from lucius.core.model import Json

PATH = "/v1/pauses"


async def test_a_service_is_paused_seen_and_resumed(deployment: "Deployment") -> None:
    wish: dict[str, Json] = {"kind": "service", "name": "ocr", "reason": "no licence"}
    made = (await deployment.post(PATH, wish)).json()
    assert (made["kind"], made["name"], made["reason"]) == ("service", "ocr", "no licence")
    assert (await deployment.http.get(PATH)).json() == {"items": [made]}
    services = (await deployment.http.get("/v1/services")).json()["items"]
    (shown,) = [each["flow"]["pause"] for each in services if each["service"] == "ocr"]
    assert shown == made
    job_id = await deployment.submit()
    told = (await deployment.http.get(f"/v1/jobs/{job_id}:explain")).json()
    assert told["waiting_for"] == "PAUSE"
    assert told["summary"].startswith("waits, for the service `ocr` is paused since")
    assert told["summary"].count("no licence") == 1
    ask = {"service": "ocr", "max": 1, "wait_seconds": 0}
    assert (await deployment.post("/v1/directives:lease", ask)).json()["directives"] == []
    resumed = await deployment.post(f"{PATH}:resume", {"kind": "service", "name": "ocr"})
    assert resumed.json() == {"kind": "service", "name": "ocr", "was_paused": True}
    assert len((await deployment.post("/v1/directives:lease", ask)).json()["directives"]) == 1
    again = await deployment.post(f"{PATH}:resume", {"kind": "service", "name": "ocr"})
    assert again.json()["was_paused"] is False


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"kind": "lane"}, "/kind"),
        ({"kind": None}, "/kind"),
        ({"name": ""}, "/name"),
        ({"name": "x" * 129}, "/name"),
        ({"name": "ocr, embedding"}, "/name"),
        ({"reason": 5}, "/reason"),
        ({"until": "noon"}, "/until"),
    ],
)
async def test_what_cannot_be_meant_is_told(
    deployment: "Deployment", changes: dict[str, Json], pointer: str
) -> None:
    response = await deployment.post(PATH, {"kind": "service", "name": "ocr", **changes})
    document = check_problem(response, 422, "INVALID_ENVELOPE")
    assert pointer in pointers(document)


async def test_a_caller_of_one_tenant_pauses_no_other_and_no_service(callers: Callers) -> None:
    deployment = await guarded(callers)
    own = await deployment.holding("control", "read", tenants=("a",))
    everything = await deployment.holding("control", "read", tenants=("*",))
    assert (await own.post(PATH, {"kind": "tenant", "name": " A "})).status_code == 200
    check_problem(await own.post(PATH, {"kind": "tenant", "name": "b"}), 403, "FORBIDDEN")
    check_problem(await own.post(PATH, {"kind": "service", "name": "ocr"}), 403, "FORBIDDEN")
    assert (await everything.post(PATH, {"kind": "tenant", "name": "b"})).status_code == 200
    seen = [(each["kind"], each["name"]) for each in (await own.http.get(PATH)).json()["items"]]
    assert seen == [("tenant", "a")]

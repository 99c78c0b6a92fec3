"""One action for many jobs: a preview changes nothing, and each job answers for itself."""

from typing import Any

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, pointers
from tests.support.auth_setup import guarded

from lucius.api import bulk
from lucius.ledger import lists

BROKEN = {"code": "BROKEN", "message": "the page is blank"}


async def act(deployment: Any, action: str, **more: Any) -> dict[str, Any]:
    response = await deployment.post("/v1/jobs:bulk", {"action": action, **more})
    assert response.status_code == 200, response.text
    document: dict[str, Any] = response.json()
    assert document["action"] == action
    return document


async def states(deployment: Deployment, jobs: list[str]) -> list[str]:
    return [await deployment.state(job_id) for job_id in jobs]


async def test_a_preview_says_what_the_action_does_then(deployment: Deployment) -> None:
    done = await deployment.submit()
    await deployment.finish(done, "ocr")
    waiting = [await deployment.submit() for _ in range(3)]
    other = await deployment.submit(request_type="EMBEDDING")
    for extra in ({}, {"dry_run": True}):
        preview = await act(deployment, "pause", filter={"request_type": "OCR"}, **extra)
        assert (preview["matched"], preview["affected"], preview["dry_run"]) == (4, 3, True)
        assert preview["sample"] == [*waiting[::-1], done]
        assert (preview["next_cursor"], preview["partial"]) == (None, False)
        (refused,) = preview["refused"]
        assert (refused["job_id"], refused["code"], preview["refused_count"]) == (done, "JOB_TERMINAL", 1)
        assert "PAUS" not in "".join(await states(deployment, waiting))
    paused = await act(deployment, "pause", filter={"request_type": "OCR"}, dry_run=False)
    assert {**paused, "dry_run": True} == preview
    assert set(await states(deployment, waiting)) == {"PAUSED"}
    assert await deployment.state(other) == "DISPATCHING"
    again = await act(deployment, "pause", job_ids=waiting, dry_run=False)
    assert (again["matched"], again["affected"], again["refused"]) == (3, 0, [])
    resumed = await act(deployment, "resume", filter={"state": ["PAUSED", "PAUSING"]}, dry_run=False)
    assert resumed["affected"] == 3
    cancelled = await act(deployment, "cancel", filter={"state": "DISPATCHING"}, dry_run=False)
    assert cancelled["affected"] == 4
    assert set(await states(deployment, [*waiting, other])) == {"CANCELLED"}


async def test_failed_jobs_are_run_again(deployment: Deployment) -> None:
    failed = []
    for _ in range(3):
        failed.append(await deployment.submit())
        await deployment.finish(failed[-1], "ocr", status="FAILED_FINAL", error=BROKEN)
    preview = await act(deployment, "redrive", filter={"error_code": "BROKEN"})
    assert (preview["matched"], preview["affected"]) == (3, 3)
    assert len((await deployment.http.get("/v1/jobs")).json()["items"]) == 3
    redriven = await act(deployment, "redrive", filter={"error_code": "BROKEN"}, dry_run=False)
    assert (redriven["affected"], redriven["refused"]) == (3, [])
    made = (await deployment.http.get("/v1/jobs?state=DISPATCHING")).json()["items"]
    assert {job["rerun_of"] for job in made} == set(failed)
    assert (await deployment.http.get("/v1/admin/dlq")).json()["items"] == []
    once_more = await act(deployment, "rerun", job_ids=failed, dry_run=False)
    assert (once_more["affected"], once_more["refused"]) == (0, [])  # each has one open rerun at most
    open_ones = [job["jobId"] for job in made]
    refused = (await act(deployment, "rerun", job_ids=[*open_ones, "job_absent"]))["refused"]
    assert {each["code"] for each in refused} == {"JOB_NOT_TERMINAL", "JOB_NOT_FOUND"}
    await deployment.finish(open_ones[0], "ocr")
    for action, code in (("redrive", "JOB_NOT_FOUND"), ("rerun", "NOTHING_TO_RERUN")):
        for dry_run in (True, False):
            done = await act(deployment, action, job_ids=open_ones[:1], dry_run=dry_run)
            assert [each["code"] for each in done["refused"]] == [code]


async def test_more_jobs_than_a_call_takes_go_on_with_the_cursor(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = [await deployment.submit() for _ in range(7)]
    monkeypatch.setattr(bulk, "PAGE_JOBS", 2)
    wanted = {"tenant_id": "acme"}
    first = await act(deployment, "cancel", filter=wanted, max=3, dry_run=False)
    assert (first["affected"], first["sample"], first["partial"]) == (3, made[:3:-1], False)
    cursor = first["next_cursor"]
    rest = await act(deployment, "cancel", filter=wanted, cursor=cursor, dry_run=False)
    assert (rest["affected"], rest["sample"], rest["next_cursor"]) == (4, made[3::-1], None)
    monkeypatch.setattr(bulk, "PAGES_MAX", 2)
    monkeypatch.setattr(lists, "LOOK_ROWS_MAX", 3)
    looked = await act(deployment, "cancel", filter={"tenant_id": "acme", "request_type": "SIS"})
    assert (looked["matched"], looked["partial"]) == (0, True) and looked["next_cursor"]
    searched = await act(deployment, "cancel", filter={"q": made[2]})
    assert searched["sample"] == [made[2]]


async def test_a_job_that_is_named_twice_is_one_job(deployment: Deployment) -> None:
    job_id = await deployment.submit()
    done = await act(deployment, "cancel", job_ids=[job_id, job_id, "job_absent"], dry_run=False)
    assert (done["matched"], done["affected"], done["refused_count"]) == (2, 1, 1)


async def test_others_jobs_are_as_if_they_were_not_there(callers: Callers) -> None:
    deployment = await guarded(callers)
    root = await deployment.holding("submit", "read", "control")
    ours, theirs = await root.submit(tenant_id="acme"), await root.submit(tenant_id="blue")
    acme = await deployment.holding("control", tenants=("acme",))
    done = await act(acme, "cancel", job_ids=[ours, theirs, "job_absent"])
    assert (done["affected"], {each["code"] for each in done["refused"]}) == (1, {"JOB_NOT_FOUND"})
    texts = {each["message"].replace(each["job_id"], "") for each in done["refused"]}
    assert len(texts) == 1  # another's job is refused like one that is absent
    everything = await act(acme, "cancel", filter={"state": "DISPATCHING"}, dry_run=False)
    assert everything["sample"] == [ours]
    assert await root.state(theirs) == "DISPATCHING"
    foreign = await acme.post("/v1/jobs:bulk", {"action": "cancel", "filter": {"tenant_id": "blue"}})
    check_problem(foreign, 403, "FORBIDDEN")
    redrive = {"action": "redrive", "job_ids": [ours]}
    check_problem(await acme.post("/v1/jobs:bulk", redrive), 403, "FORBIDDEN")
    admin = await deployment.holding("control", "admin", tenants=("acme",))
    assert (await admin.post("/v1/jobs:bulk", redrive)).status_code == 200
    for roles in (("read", "submit", "work"), ("admin",)):
        other = await deployment.holding(*roles)
        check_problem(await other.post("/v1/jobs:bulk", redrive), 403, "FORBIDDEN")


IDS = ["job_1"]
MALFORMED: list[tuple[dict[str, Any], str]] = [
    ({"job_ids": IDS}, "/action"),
    ({"action": "delete", "job_ids": IDS}, "/action"),
    ({"action": ["cancel"], "job_ids": IDS}, "/action"),
    ({"action": "cancel"}, ""),
    ({"action": "cancel", "job_ids": IDS, "filter": {"state": "QUEUED"}}, ""),
    ({"action": "cancel", "job_ids": []}, "/job_ids"),
    ({"action": "cancel", "job_ids": "job_1"}, "/job_ids"),
    ({"action": "cancel", "job_ids": ["x"] * 1_001}, "/job_ids"),
    ({"action": "cancel", "job_ids": ["ok", 7]}, "/job_ids/1"),
    ({"action": "cancel", "job_ids": ["\x00"]}, "/job_ids/0"),
    ({"action": "cancel", "job_ids": IDS, "dry_run": "no"}, "/dry_run"),
    ({"action": "cancel", "job_ids": IDS, "max": 0}, "/max"),
    ({"action": "cancel", "job_ids": IDS, "max": True}, "/max"),
    ({"action": "cancel", "job_ids": IDS, "max": 1_001}, "/max"),
    ({"action": "cancel", "job_ids": IDS, "cursor": "x"}, "/cursor"),
    ({"action": "cancel", "job_ids": IDS, "force": True}, "/force"),
    ({"action": "cancel", "filter": {}}, "/filter"),
    ({"action": "cancel", "filter": []}, "/filter"),
    ({"action": "cancel", "filter": {"limit": "5"}}, "/filter/limit"),
    ({"action": "cancel", "filter": {"state": []}}, "/filter/state"),
    ({"action": "cancel", "filter": {"state": "QUEUE"}}, "/filter/state"),
    ({"action": "cancel", "filter": {"state": [["QUEUED"]]}}, "/filter/state"),
    ({"action": "cancel", "filter": {"tenant_id": None}}, "/filter/tenant_id"),
    ({"action": "cancel", "filter": {"q": ""}}, "/filter/q"),
    ({"action": "cancel", "filter": {"created_after": "soon"}}, "/filter/created_after"),
    ({"action": "cancel", "filter": {"q": "x"}, "cursor": 5}, "/cursor"),
    ({"action": "cancel", "filter": {"q": "x"}, "cursor": "x"}, "/cursor"),
]


@pytest.mark.parametrize(("document", "pointer"), MALFORMED)
async def test_what_is_not_well_formed_is_named(
    deployment: Deployment, document: dict[str, Any], pointer: str
) -> None:
    response = await deployment.post("/v1/jobs:bulk", document)
    assert pointers(check_problem(response, 422, "INVALID_ENVELOPE")) == {pointer}


async def test_a_filter_that_no_index_serves_is_refused(deployment: Deployment) -> None:
    response = await deployment.post("/v1/jobs:bulk", {"action": "cancel", "filter": {"service": "ocr"}})
    assert "add open states" in check_problem(response, 400, "FILTER_NOT_SERVED")["detail"]
    response = await deployment.http.post("/v1/jobs:bulk", content=b"{")
    check_problem(response, 400, "MALFORMED_JSON")

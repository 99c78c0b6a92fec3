"""The API of runs: answers, problem documents, keys, triggers."""

import asyncio
import json
from collections.abc import AsyncIterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.lifebook.api_setup import SECRET, Deployment, wall_ms

from lucius.lifebook import keys
from lucius.lifebook.codec import BadItem
from lucius.lifebook.job import FIELDS, SWEEP_SHARD
from lucius.lifebook.process import LifebookProcess
from lucius.lifebook.settings import BadVariable
from lucius.lifebook.triggers import signed_headers

RUN = {"workspace_id": "ws", "user_id": "u", "workflow_id": "told", "input": {}}


@pytest.fixture
async def deployment() -> AsyncIterator[Deployment]:
    made = Deployment()
    await made.balances.grant("ws", Decimal(10))
    yield made
    await made.client.aclose()


async def test_a_run_from_its_start_to_its_end(deployment: Deployment) -> None:
    answer = await deployment.client.post("/v1/runs", json=RUN)
    assert answer.status_code == 202
    told = answer.json()
    assert set(told) == {"job_id", "status", "duplicate"}
    assert (told["status"], told["duplicate"]) == ("queued", False)
    assert answer.headers["location"] == f"/v1/runs/{told['job_id']}"
    await deployment.work()
    job = await deployment.ask("GET", f"/v1/runs/{told['job_id']}", 200)
    assert list(job) == [field.name for field in FIELDS if field.name != SWEEP_SHARD]
    assert (job["status"], job["step_cursor"], job["credits_spent"]) == ("completed", 3, "0.2")
    page = await deployment.ask("GET", "/v1/runs?workspace_id=ws", 200)
    assert [row["job_id"] for row in page["items"]] == [told["job_id"]]
    assert page["items"][0]["status"] == "completed"


async def test_the_same_key_is_the_same_run(deployment: Deployment) -> None:
    headers = {"Idempotency-Key": "k1"}
    answers = await asyncio.gather(
        *(deployment.ask("POST", "/v1/runs", 202, json=RUN, headers=headers) for _ in range(5))
    )
    assert len({answer["job_id"] for answer in answers}) == 1
    assert sum(not answer["duplicate"] for answer in answers) == 1
    again = await deployment.client.post("/v1/runs", json={**RUN, "idempotency_key": "k1"})
    assert again.headers["idempotent-replayed"] == "true"
    other = {**RUN, "input": {"fails": 1}, "idempotency_key": "k1"}
    refused = await deployment.ask("POST", "/v1/runs", 422, json=other)
    assert refused["code"] == "IDEMPOTENCY_KEY_REUSED"
    elsewhere = {**RUN, "workspace_id": "ws2", "idempotency_key": "k1", "credits_estimate": "0"}
    assert not (await deployment.ask("POST", "/v1/runs", 202, json=elsewhere))["duplicate"]


@pytest.mark.parametrize(
    ("change", "code", "pointer"),
    [
        ({"workflow_id": "nothing"}, "UNKNOWN_WORKFLOW", "/workflow_id"),
        ({"trigger_type": "by hand"}, "INVALID_REQUEST", "/trigger_type"),
        ({"trigger_type": None}, "INVALID_REQUEST", "/trigger_type"),
        ({"credits_estimate": -1}, "INVALID_REQUEST", "/credits_estimate"),
        ({"credits_estimate": "1e999"}, "INVALID_REQUEST", "/credits_estimate"),
        ({"credits_estimate": "NaN"}, "INVALID_REQUEST", "/credits_estimate"),
        ({"credits_estimate": "1_0"}, "INVALID_REQUEST", "/credits_estimate"),
        ({"credits_estimate": "\uff11"}, "INVALID_REQUEST", "/credits_estimate"),
        ({"credits_estimate": " 1"}, "INVALID_REQUEST", "/credits_estimate"),
        ({"credits_estimate": "101"}, "INVALID_REQUEST", "/credits_estimate"),
        ({"credits_estimate": "0.0000000001"}, "INVALID_REQUEST", "/credits_estimate"),
        ({"max_attempts": 0}, "INVALID_REQUEST", "/max_attempts"),
        ({"max_attempts": 101}, "INVALID_REQUEST", "/max_attempts"),
        ({"workspace_id": ""}, "INVALID_REQUEST", "/workspace_id"),
        ({"workspace_id": "a\x00"}, "INVALID_REQUEST", "/workspace_id"),
        ({"user_id": "u" * 257}, "INVALID_REQUEST", "/user_id"),
        ({"idempotency_key": " "}, "INVALID_REQUEST", "/idempotency_key"),
        ({"colour": "blue"}, "INVALID_REQUEST", ""),
        ({"user_id": 7}, "INVALID_REQUEST", "/user_id"),
        ({"input": {"x": "y" * 40_000}}, "INVALID_INPUT", "/input"),
        ({"workflow_id": "typed", "input": {"n": "three"}}, "INVALID_INPUT", "/input"),
    ],
)
async def test_a_bad_request_names_its_fault_and_writes_nothing(
    deployment: Deployment, change: dict[str, Any], code: str, pointer: str
) -> None:
    refused = await deployment.ask("POST", "/v1/runs", 422, json={**RUN, **change})
    assert refused["code"] == code
    assert [each["pointer"] for each in refused["errors"]] == [pointer]
    assert deployment.table.jobs == {}
    assert deployment.table.guards == {}


async def test_an_input_that_is_nested_too_deep_is_refused(deployment: Deployment) -> None:
    """Deeper than what the decoder gives up at, and than what only what hashes it does."""
    before, after = json.dumps({**RUN, "input": "nested"}).split('"nested"')
    for levels, status, code in (
        (120, 422, "INVALID_INPUT"),
        (900, 422, "INVALID_INPUT"),
        (5000, 400, "MALFORMED_JSON"),
    ):
        body = before + "[" * levels + "]" * levels + after
        assert (await deployment.ask("POST", "/v1/runs", status, content=body))["code"] == code
    assert deployment.table.jobs == {}


async def test_no_credits_are_not_fewer_than_none(deployment: Deployment) -> None:
    told = await deployment.ask("POST", "/v1/runs", 202, json={**RUN, "credits_estimate": "-0"})
    assert (await deployment.ask("GET", f"/v1/runs/{told['job_id']}", 200))["credits_estimate"] == "0"


async def test_other_refusals_have_their_codes(deployment: Deployment) -> None:
    for body in (b"{", b"\xff", b""):
        assert (await deployment.ask("POST", "/v1/runs", 400, content=body))["code"] == "MALFORMED_JSON"
    assert (await deployment.ask("POST", "/v1/runs", 413, content=b"x" * 70_000))["code"] == "BODY_TOO_LARGE"
    assert (await deployment.ask("GET", "/v1/runs/none", 404))["code"] == "JOB_NOT_FOUND"
    assert (await deployment.ask("POST", "/v1/runs/none:cancel", 404))["code"] == "JOB_NOT_FOUND"
    assert (await deployment.ask("GET", "/v1/runs", 422))["errors"][0]["pointer"] == "/workspace_id"
    for path in (f"/v1/runs?workspace_id={'w' * 3000}", "/v1/runs?workspace_id=w%00"):
        assert (await deployment.ask("GET", path, 422))["errors"][0]["pointer"] == "/workspace_id"
    for query in ("limit=0", "limit=x", "limit=201", f"limit={'9' * 5000}", "cursor=zzz"):
        await deployment.ask("GET", f"/v1/runs?workspace_id=ws&{query}", 422)
    assert (await deployment.ask("GET", "/v1/nowhere", 404))["code"] == "NOT_FOUND"
    assert (await deployment.ask("DELETE", "/v1/runs", 405))["code"] == "METHOD_NOT_ALLOWED"
    await deployment.ask(
        "POST", "/v1/runs", 422, json={**RUN, "idempotency_key": "a"}, headers={"Idempotency-Key": "b"}
    )


async def test_a_run_without_credits_is_refused_and_its_key_stays_free(deployment: Deployment) -> None:
    asked = {**RUN, "credits_estimate": "50", "idempotency_key": "k"}
    refused = await deployment.ask("POST", "/v1/runs", 402, json=asked)
    assert refused["code"] == "CREDITS_INSUFFICIENT"
    assert deployment.table.jobs == {}
    await deployment.balances.grant("ws", Decimal(100))
    assert (await deployment.ask("POST", "/v1/runs", 202, json=asked))["duplicate"] is False


async def test_cancel_and_redrive(deployment: Deployment) -> None:
    job_id = (await deployment.ask("POST", "/v1/runs", 202, json=RUN))["job_id"]
    assert (await deployment.ask("POST", f"/v1/runs/{job_id}:redrive", 409))["code"] == "JOB_NOT_DEAD"
    assert (await deployment.ask("POST", f"/v1/runs/{job_id}:cancel", 202))["status"] == "canceled"
    assert (await deployment.ask("POST", f"/v1/runs/{job_id}:cancel", 202))["status"] == "canceled"
    failing = {**RUN, "input": {"fails": 3}, "max_attempts": 3}
    job_id = (await deployment.ask("POST", "/v1/runs", 202, json=failing))["job_id"]
    await deployment.work()
    assert (await deployment.ask("GET", f"/v1/runs/{job_id}", 200))["status"] == "dead"
    assert (await deployment.ask("POST", f"/v1/runs/{job_id}:cancel", 409))["code"] == "JOB_TERMINAL"
    (dead,) = (await deployment.ask("GET", "/v1/dlq", 200))["items"]
    assert (dead["job_id"], dead["status"], dead["last_error_code"]) == (job_id, "dead", "TOLD")
    assert (await deployment.ask("POST", f"/v1/runs/{job_id}:redrive", 202))["status"] == "queued"


async def test_everything_in_the_dead_letter_queue_is_brought_back(deployment: Deployment) -> None:
    failing = {**RUN, "input": {"fails": 3}, "max_attempts": 1}
    ids = [(await deployment.ask("POST", "/v1/runs", 202, json=failing))["job_id"] for _ in range(3)]
    deployment.queue.put("no message")
    await deployment.work()
    # Looking hides nothing from whom comes next.
    for _ in range(2):
        assert len((await deployment.ask("GET", "/v1/dlq", 200))["items"]) == 4
    done = await deployment.ask("POST", "/v1/dlq:redrive", 202)
    assert sorted(done["redriven"]) == sorted(ids)
    assert (done["refused"], done["returned"], done["task"]) == ([], 1, None)
    assert {str(deployment.table.jobs[job_id].status) for job_id in ids} == {"queued"}
    assert "no message" in deployment.queue.bodies()
    assert deployment.queue.dead_bodies() == []


async def test_a_job_that_cannot_be_paid_again_stays_dead(deployment: Deployment) -> None:
    failing = {**RUN, "input": {"fails": 3}, "max_attempts": 1}
    job_id = (await deployment.ask("POST", "/v1/runs", 202, json=failing))["job_id"]
    await deployment.work()
    await deployment.balances.grant("ws", Decimal(-10))
    done = await deployment.ask("POST", "/v1/dlq:redrive", 202)
    assert (done["redriven"], done["returned"]) == ([], 1)
    assert [(each["job_id"], each["code"]) for each in done["refused"]] == [(job_id, "CREDITS_INSUFFICIENT")]
    assert str(deployment.table.jobs[job_id].status) == "dead"
    await deployment.work()
    assert len(deployment.queue.dead_bodies()) == 1


async def test_a_signed_webhook_starts_one_run(deployment: Deployment) -> None:
    body = msgspec.json.encode({"workspace_id": "ws", "user_id": "u", "input": {}})
    headers = signed_headers(body, message_id="msg_1", now_ms=wall_ms(), secret=SECRET)
    path = "/v1/webhooks/told"
    first = await deployment.ask("POST", path, 202, content=body, headers=headers)
    second = await deployment.ask("POST", path, 202, content=body, headers=headers)
    assert (first["duplicate"], second["duplicate"]) == (False, True)
    assert str(deployment.table.jobs[first["job_id"]].trigger_type) == "webhook"
    old = signed_headers(body, message_id="msg_1", now_ms=wall_ms() - 3_600_000, secret=SECRET)
    for bad in ({}, old, {**headers, "webhook-id": "msg_2"}):
        refused = await deployment.ask("POST", path, 401, content=body, headers=bad)
        assert refused["code"] == "UNAUTHENTICATED"
    broken = b'{"workspace_id": 1}'
    signed = signed_headers(broken, message_id="m", now_ms=wall_ms(), secret=SECRET)
    await deployment.ask("POST", path, 422, content=broken, headers=signed)


async def test_keys_open_their_workspaces_and_roles(tmp_path: Path) -> None:
    entries = [
        keys.key_entry("all", "k-all", workspaces=["*"], roles=list(keys.ROLES)),
        keys.key_entry("reader", "k-reader", workspaces=["ws"], roles=["read"]),
        keys.key_entry("other", "k-other", workspaces=["ws2"], roles=["read", "submit", "control"]),
    ]
    (tmp_path / "keys.json").write_bytes(b"[" + b",".join(entries) + b"]")
    deployment = Deployment(keys.read_keys(str(tmp_path / "keys.json")))
    await deployment.balances.grant("ws", Decimal(10))

    def by(key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    for headers in ({}, by("k-unknown"), {"Authorization": "Basic k-all"}):
        answer = await deployment.ask("GET", "/v1/runs?workspace_id=ws", 401, headers=headers)
        assert answer["code"] == "UNAUTHENTICATED"
    job_id = (await deployment.ask("POST", "/v1/runs", 202, json=RUN, headers=by("k-all")))["job_id"]
    await deployment.ask("GET", f"/v1/runs/{job_id}", 200, headers=by("k-reader"))
    await deployment.ask("POST", "/v1/runs", 403, json=RUN, headers=by("k-reader"))
    await deployment.ask("POST", f"/v1/runs/{job_id}:cancel", 403, headers=by("k-reader"))
    await deployment.ask("GET", f"/v1/runs/{job_id}", 404, headers=by("k-other"))
    await deployment.ask("POST", f"/v1/runs/{job_id}:cancel", 404, headers=by("k-other"))
    await deployment.ask("GET", "/v1/runs?workspace_id=ws", 403, headers=by("k-other"))
    await deployment.ask("POST", "/v1/runs", 403, json=RUN, headers=by("k-other"))
    deployment.queue._kept.clear()
    deployment.queue.put("poison")
    await deployment.work()
    assert (await deployment.ask("GET", "/v1/dlq", 200, headers=by("k-other")))["items"] == []
    kept = await deployment.ask("POST", "/v1/dlq:redrive", 202, headers=by("k-other"))
    assert (kept["redriven"], kept["returned"], deployment.queue.dead_bodies()) == ([], 0, ["poison"])
    await deployment.ask("POST", "/v1/dlq:redrive", 403, headers=by("k-reader"))
    assert "k-all" not in (tmp_path / "keys.json").read_text()


def test_a_file_of_keys_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadVariable, match="no file of keys"):
        keys.read_keys(str(tmp_path / "none"))
    (tmp_path / "k").write_bytes(b"[" + keys.key_entry("x", "k", workspaces=["*"], roles=["root"]) + b"]")
    with pytest.raises(BadVariable, match="root"):
        keys.read_keys(str(tmp_path / "k"))


async def test_a_table_that_is_down_is_told_as_such(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def down(*args: Any, **named: Any) -> Any:
        raise ConnectionError("10.0.0.1 refused")

    monkeypatch.setattr(deployment.table, "get", down)
    refused = await deployment.ask("GET", "/v1/runs/x", 503)
    assert "10.0.0.1" not in str(refused)


async def test_a_fault_of_our_own_is_not_told_as_one_of_the_table(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unreadable(*args: Any, **named: Any) -> Any:
        raise BadItem("The attribute attempts of ann is not a number.")

    monkeypatch.setattr(deployment.table, "get", unreadable)
    refused = await deployment.ask("GET", "/v1/runs/x", 500)
    assert refused["code"] == "INTERNAL"
    assert "ann" not in str(refused)


async def test_a_worker_process_works_until_it_is_stopped(deployment: Deployment) -> None:
    ids = [
        (await deployment.ask("POST", "/v1/runs", 202, json={**RUN, "input": {"sleep": 0.05}}))["job_id"]
        for _ in range(6)
    ]
    process = LifebookProcess(
        worker=deployment.worker,
        queue=deployment.queue,
        sweeper=deployment.sweeper,
        concurrency=2,
        sweep_seconds=0.05,
        poll_seconds=0,
    )
    running = asyncio.create_task(process.run())
    for _ in range(400):
        await asyncio.sleep(0.02)
        if all(deployment.table.jobs[job_id].terminal for job_id in ids):
            break
    process.stop()
    await asyncio.wait_for(running, 5)
    assert {str(deployment.table.jobs[job_id].status) for job_id in ids} == {"completed"}


async def test_the_workflows_are_listed(deployment: Deployment) -> None:
    listed = (await deployment.ask("GET", "/v1/workflows", 200))["items"]
    assert listed[0] == {
        "workflow_id": "told",
        "credits_estimate": "0.2",
        "steps": ["first", "second", "third"],
    }
    assert (await deployment.ask("GET", "/livez", 200)) == {"status": "ok"}

"""Workers of every kind against a real server: silent ones, dying ones, those that repeat themselves."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.journeys.conftest import Hire, Launch
from tests.journeys.harness import Lucius, Worker
from tests.support.api_setup import Caller, until


async def done_by(worker: "Worker", count: int) -> list[dict[str, Any]]:
    async def look() -> list[dict[str, Any]]:
        done = worker.done()
        return done if len(done) >= count else []

    found: list[dict[str, Any]] = await until(look)
    return found


@pytest.mark.xdist_group("heavy")
async def test_attempts_end_with_the_last_in_the_dlq(
    shared: "Lucius", caller: "Caller", hire: "Hire"
) -> None:
    job_id = await caller.submit(request_type="QUICK")
    for attempt_no in (1, 2, 3):
        last = await caller.directive(job_id, "quick")
        assert last["attempt_no"] == attempt_no
    job = await caller.reach(job_id, "FAILED_FINAL")
    assert (job["error_code"], job["attempts_total"]) == ("ACK_TIMEOUT", 3)
    dlq = (await caller.http.get("/v1/admin/dlq")).json()["items"]
    assert job_id in [one["jobId"] for one in dlq]
    types = await caller.event_types(job_id)
    assert (types.count("STEP_RETRYING"), types.count("STEP_FAILED"), types[-1]) == (2, 1, "JOB_FAILED")
    assert await caller.reply(last, "RESULT") == {"outcome": "recorded", "stop": True}
    assert await caller.job(job_id) == job
    assert (await caller.event_types(job_id))[-1] == "REPLY_LATE"
    again = (await caller.post(f"/v1/admin/dlq/{job_id}:redrive")).json()
    hire(shared.url, ["quick"])
    assert (await caller.reach(again["jobId"], "SUCCEEDED"))["rerun_of"] == job_id


@pytest.mark.xdist_group("heavy")
async def test_no_ack_then_a_retry_that_succeeds(caller: "Caller") -> None:
    job_id = await caller.submit(request_type="QUICK")
    first = await caller.directive(job_id, "quick")
    second = await caller.directive(job_id, "quick")
    assert second["attempt_no"] == 2
    assert (await caller.say(first, "ACK")).status_code == 409
    assert (await caller.reply(second, "RESULT"))["outcome"] == "applied"
    job = await caller.job(job_id)
    assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", 2)
    assert job["steps"][0]["last_error_code"] == "ACK_TIMEOUT"


@pytest.mark.xdist_group("heavy")
async def test_a_lease_runs_out_unless_progress_renews_it(caller: "Caller") -> None:
    job_id = await caller.submit(request_type="QUICK")
    first = await caller.directive(job_id, "quick")
    await caller.reply(first, "ACK")
    second = await caller.directive(job_id, "quick")
    step = (await caller.job(job_id))["steps"][0]
    assert (step["attempt_no"], step["last_error_code"]) == (2, "LEASE_EXPIRED")
    deadlines = []
    for percent in (10, 20, 30):
        assert (await caller.reply(second, "PROGRESS", progress=percent))["outcome"] == "applied"
        deadlines.append((await caller.job(job_id))["steps"][0]["lease_expires_at"])
    assert deadlines == sorted(deadlines)
    await caller.reply(second, "RESULT")
    assert (await caller.job(job_id))["steps"][0]["progress"] == 100


@pytest.mark.xdist_group("heavy")
@pytest.mark.parametrize(
    ("behaviour", "reason", "said"),
    [
        ("silent", "ACK_TIMEOUT", []),
        ("wrong", "ACK_TIMEOUT", [(403, "FORBIDDEN", None)]),
        ("nonsense", "ACK_TIMEOUT", [(400, "MALFORMED_JSON", None), (422, "INVALID_ENVELOPE", None)]),
        ("flaky", "UNSPECIFIED", [(200, None, "applied"), (200, None, "applied")]),
        ("late", "LEASE_EXPIRED", [(200, None, "applied"), (409, "STALE_ATTEMPT", None)]),
    ],
)
async def test_a_worker_that_errs_once(
    shared: "Lucius", caller: "Caller", hire: "Hire", behaviour: str, reason: str, said: list[tuple[Any, ...]]
) -> None:
    # Two threads: while one is late, the other takes the next attempt.
    worker = hire(shared.url, ["quick"], "--behave", behaviour, "--late-ms", "2500", "--threads", "2")
    job_id = await caller.submit(request_type="QUICK")
    job = await caller.reach(job_id, "SUCCEEDED", "FAILED_FINAL")
    assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", 2)
    assert job["steps"][0]["last_error_code"] == reason
    assert job["final_output"].endswith("step_01/2")
    done = await done_by(worker, len(said) + 2)
    first = [line for line in done if line["jobId"] == job_id and line["attempt_no"] == 1]
    assert [(line["status"], line["code"], line["outcome"]) for line in first] == [
        (status, code, outcome if status == 200 else line["outcome"])
        for (status, code, outcome), line in zip(said, first, strict=True)
    ]
    assert all(line["stop"] for line in first if line["status"] == 409)


@pytest.mark.xdist_group("heavy")
async def test_a_worker_that_dies_with_a_directive(shared: "Lucius", caller: "Caller", hire: "Hire") -> None:
    dying = hire(shared.url, ["quick"], "--behave", "die")
    job_id = await caller.submit(request_type="QUICK")
    assert dying.process.wait(20) == 9
    assert (await caller.reach(job_id, "DISPATCHING"))["state"] == "DISPATCHING"
    hire(shared.url, ["quick"])
    job = await caller.reach(job_id, "SUCCEEDED", "FAILED_FINAL")
    assert (job["state"], job["attempts_total"]) == ("SUCCEEDED", 2)


@pytest.mark.xdist_group("heavy")
async def test_a_worker_that_repeats_itself(shared: "Lucius", caller: "Caller", hire: "Hire") -> None:
    worker = hire(shared.url, ["quick"], "--behave", "twice")
    job_id = await caller.submit(request_type="QUICK")
    await caller.reach(job_id, "SUCCEEDED")
    outcomes = [(line["door"], line["outcome"]) for line in await done_by(worker, 3)]
    assert outcomes == [("ack", "applied"), ("result", "applied"), ("result", "duplicate")]
    types = await caller.event_types(job_id)
    assert types[-2:] == ["JOB_SUCCEEDED", "REPLY_DUPLICATE"]


PAINT = """
protocol_id: paint_v1
request_types: [PAINT]
steps:
  - {step_type: SKETCH, service: sketch, payload_key: sketch, defaults: {pencil: soft}}
  - {step_type: COLOUR, service: colour, payload_key: colour}
"""


async def test_a_protocol_dropped_into_the_folder_runs_and_a_bad_edit_does_no_harm(
    launch: "Launch", hire: "Hire", caller_at: "Callable[[Lucius], Caller]", tmp_path: Any
) -> None:
    folder = tmp_path / "protocols"
    folder.mkdir()
    lucius = launch("--protocols", str(folder))
    caller = caller_at(lucius)
    (folder / "paint.yaml").write_text(PAINT)

    async def known() -> bool:
        return (await caller.http.get("/v1/protocols/paint_v1")).status_code == 200

    await until(known)
    hire(lucius.url, ["sketch", "colour"])
    job_id = await caller.submit(request_type="PAINT", payload={"sketch": {"paper": "A4"}})
    job = await caller.reach(job_id, "SUCCEEDED")
    assert [step["payload"] for step in job["steps"]] == [{"paper": "A4", "pencil": "soft"}, {}]

    (folder / "paint.yaml").write_text("protocol_id: paint_v1\nrequest_types: [PAINT]\nsteps: nonsense\n")

    async def complained() -> Any:
        return (await caller.http.get("/v1/protocols")).json()["problems"]

    problems = await until(complained)
    assert any("paint.yaml" in problem for problem in problems)
    assert "paint.yaml" in lucius.stderr
    await caller.reach(await caller.submit(request_type="PAINT"), "SUCCEEDED")

"""Schedules over HTTP: written, shown, paused, run, made up for; each tenant its own."""

from datetime import UTC, datetime, timedelta

import pytest
from tests.support.api_setup import Callers, Deployment, check_problem, envelope, pointers, until
from tests.support.auth_setup import guarded

from lucius.core.model import Json

PATH = "/v1/schedules"


def wish(**changes: Json) -> dict[str, Json]:
    document: dict[str, Json] = {
        "schedule_id": "nightly",
        "command": envelope(),
        "cron": "0 3 * * *",
        "timezone": "Europe/Zurich",
    }
    document.update(changes)
    return {name: value for name, value in document.items() if value is not ...}


async def test_a_schedule_is_written_shown_and_deleted(deployment: "Deployment") -> None:
    made = await deployment.post(PATH, wish())
    assert made.status_code == 201, made.text
    shown = made.json()
    assert (shown["schedule_id"], shown["overlap"], shown["paused"], len(shown["next"])) == (
        "nightly",
        "skip",
        False,
        5,
    )
    assert (await deployment.post(PATH, wish(command=shown["command"]))).status_code == 200
    again = await deployment.http.get(f"{PATH}/nightly")
    assert again.json() == shown
    assert (await deployment.http.get(PATH)).json() == {"items": [shown], "next_cursor": None}
    assert (await deployment.post(f"{PATH}/nightly:delete")).status_code == 200
    check_problem(await deployment.http.get(f"{PATH}/nightly"), 404, "NOT_FOUND")


@pytest.mark.parametrize(
    ("changes", "pointer"),
    [
        ({"schedule_id": "No"}, "/schedule_id"),
        ({"cron": "61 * * * *"}, "/cron"),
        ({"cron": "* * * * * *"}, "/cron"),
        ({"cron": "0 0 30 2 *"}, "/cron"),
        ({"timezone": "Mars/Olympus"}, "/timezone"),
        ({"timezone": "../../etc/passwd"}, "/timezone"),
        ({"every": "1h"}, ""),
        ({"cron": ..., "timezone": ...}, ""),
        ({"cron": ..., "timezone": ..., "every": "1ms"}, "/every"),
        ({"cron": ..., "timezone": ..., "at": "tomorrow"}, "/at"),
        ({"cron": ..., "timezone": ..., "at": "2001-01-01T00:00:00Z"}, "/at"),
        ({"jitter": -1}, "/jitter"),
        ({"overlap": "often"}, "/overlap"),
        ({"command": {}}, "/command/tenant_id"),
        ({"colour": "red"}, "/colour"),
    ],
)
async def test_what_is_wrong_is_named(
    deployment: "Deployment", changes: dict[str, Json], pointer: str
) -> None:
    problem = check_problem(await deployment.post(PATH, wish(**changes)), 422, "INVALID_REQUEST")
    assert pointer in pointers(problem)
    assert (await deployment.http.get(PATH)).json()["items"] == []


async def test_a_schedule_is_not_changed_into_one_that_never_runs(deployment: "Deployment") -> None:
    made = (await deployment.post(PATH, wish())).json()
    over = wish(cron=..., timezone=..., at="2001-01-01T00:00:00Z")
    problem = check_problem(await deployment.post(PATH, over), 422, "INVALID_REQUEST")
    assert pointers(problem) == {"/at"}
    assert (await deployment.http.get(f"{PATH}/nightly")).json()["next"] == made["next"]


async def test_a_command_that_would_be_refused_is_refused_at_once(deployment: "Deployment") -> None:
    command = envelope(request_type="NOPE")
    check_problem(await deployment.post(PATH, wish(command=command)), 422, "UNKNOWN_REQUEST_TYPE")
    command = {**envelope(), "idempotency_key": "mine"}
    problem = check_problem(await deployment.post(PATH, wish(command=command)), 422, "INVALID_REQUEST")
    assert pointers(problem) == {"/command/idempotency_key"}


async def test_ticks_bring_jobs_until_it_is_paused(deployment: "Deployment") -> None:
    await deployment.post(PATH, wish(cron=..., timezone=..., every="1s", overlap="cancel_previous"))

    async def ran() -> bool:
        return bool((await deployment.http.get(f"{PATH}/nightly")).json()["runs"] >= 2)

    await until(ran)
    paused = (await deployment.post(f"{PATH}/nightly:pause")).json()
    assert (paused["paused"], paused["next"]) == (True, [])
    job = await deployment.job(paused["last_job_id"])
    assert job["idempotency_key"] == f"schedule:nightly:{paused['last_tick']}"
    resumed = (await deployment.post(f"{PATH}/nightly:resume")).json()
    assert (resumed["paused"], len(resumed["next"])) == (False, 5)


async def test_a_run_now_is_repeated_with_its_key(deployment: "Deployment") -> None:
    await deployment.post(PATH, wish())
    first = await deployment.post(f"{PATH}/nightly:run", idempotency_key="a")
    again = await deployment.post(f"{PATH}/nightly:run", idempotency_key="a")
    other = await deployment.post(f"{PATH}/nightly:run", idempotency_key="b")
    assert [each.status_code for each in (first, again, other)] == [202, 202, 202]
    assert first.json()["jobId"] == again.json()["jobId"] != other.json()["jobId"]
    assert first.headers["location"] == f"/v1/jobs/{first.json()['jobId']}"


async def test_a_range_is_made_up_for(deployment: "Deployment") -> None:
    now = datetime.now(UTC)
    await deployment.post(PATH, wish(cron="0 * * * *"))
    wanted = {"from": (now - timedelta(hours=3)).isoformat(), "to": now.isoformat()}
    done = (await deployment.post(f"{PATH}/nightly:backfill", wanted)).json()
    assert (len(done["job_ids"]), done["duplicates"], done["more_from"]) == (3, 0, None)
    done = (await deployment.post(f"{PATH}/nightly:backfill", wanted)).json()
    assert (done["job_ids"], done["duplicates"]) == ([], 3)
    wanted["to"] = (now + timedelta(hours=3)).isoformat()
    problem = check_problem(await deployment.post(f"{PATH}/nightly:backfill", wanted), 422, "INVALID_REQUEST")
    assert pointers(problem) == {"/to"}


async def test_a_tenant_sees_its_own_alone(callers: "Callers") -> None:
    deployment = await guarded(callers)
    acme = await deployment.holding("submit", "read", "control", tenants=("acme",))
    beta = await deployment.holding("submit", "read", "control", tenants=("beta",))
    assert (await acme.post(PATH, wish())).status_code == 201
    check_problem(await beta.post(PATH, wish()), 403, "FORBIDDEN")
    theirs = wish(command=envelope(tenant_id="beta"))
    check_problem(await beta.post(PATH, theirs), 403, "FORBIDDEN")
    check_problem(await beta.post(f"{PATH}/nightly:run"), 404, "NOT_FOUND")
    assert (await beta.http.get(PATH)).json()["items"] == []
    reader = await deployment.holding("read")
    check_problem(await reader.post(f"{PATH}/nightly:pause"), 403, "FORBIDDEN")

"""Ids by their beginnings, several at once, and many by a filter with a preview."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.played_api import Done, PlayedApi, Said

FIRST = "job_01m7aaaa000000000000000001"
SECOND = "job_01m7aaab000000000000000002"


@pytest.fixture
def jobs(played_api: "PlayedApi") -> Callable[..., None]:
    """Plays a server that knows these jobs by their whole ids, and finds them by a beginning."""

    def play(*job_ids: str, partial: bool = False) -> None:
        page = {"items": [{"jobId": each} for each in job_ids], "next_cursor": None, "partial": partial}
        played_api.on("GET", "/v1/jobs", played_api.said(200, page))
        for each in job_ids:
            job = played_api.job("QUEUED", jobId=each)
            played_api.on("GET", f"/v1/jobs/{each}", played_api.said(200, job))
            played_api.on(
                "GET", f"/v1/jobs/{each}/events", played_api.listed(played_api.event(1, "JOB_CREATED"))
            )
            for verb in ("cancel", "pause", "resume", "rerun"):
                played_api.on("POST", f"/v1/jobs/{each}:{verb}", played_api.said(202, job))
        gone = played_api.problem(404, "JOB_NOT_FOUND", "there is no such job")
        for beginning in ("01m7aaaa", "job_01m7aaaa", "01M7AAAA", "01m7aaa", "01m", "zzzz"):
            played_api.on("GET", f"/v1/jobs/{beginning}", gone)
            played_api.on("GET", f"/v1/jobs/{beginning}/events", gone)
            for verb in ("cancel", "rerun"):
                played_api.on("POST", f"/v1/jobs/{beginning}:{verb}", gone)

    return play


@pytest.mark.parametrize("beginning", ["01m7aaaa", "job_01m7aaaa", "01M7AAAA"])
def test_a_beginning_that_one_job_has_is_that_job(
    jobs: Callable[..., None], command_line: "Callable[..., Done]", beginning: str
) -> None:
    jobs(FIRST)
    assert f"job          {FIRST}" in command_line("jobs", "show", beginning).out
    assert command_line("jobs", "cancel", beginning).out == f"{FIRST}  QUEUED\n"
    assert command_line("jobs", "rerun", beginning).out == f"{FIRST}\n"
    assert "JOB_CREATED" in command_line("jobs", "events", beginning).out


def test_a_whole_id_costs_one_call(
    jobs: Callable[..., None], played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    jobs(FIRST, SECOND)
    command_line("jobs", "show", FIRST)
    assert [asked.path for asked in played_api.asked] == [f"/v1/jobs/{FIRST}"]


def test_a_beginning_that_several_have_is_refused_with_them(
    jobs: Callable[..., None], command_line: "Callable[..., Done]"
) -> None:
    jobs(FIRST, SECOND)
    shown = command_line("jobs", "show", "01m7aaa")
    assert (shown.code, shown.out) == (2, "")
    assert f"01m7aaa is the beginning of {FIRST}, {SECOND}: give more of it." in shown.err


def test_a_search_that_did_not_come_to_its_end_names_no_job(
    jobs: Callable[..., None], command_line: "Callable[..., Done]"
) -> None:
    jobs(FIRST, partial=True)
    assert command_line("jobs", "show", "01m7aaaa").code == 2


@pytest.mark.parametrize("beginning", ["01m", "zzzz"])
def test_what_is_too_short_or_nowhere_is_not_found(
    jobs: Callable[..., None], command_line: "Callable[..., Done]", beginning: str
) -> None:
    jobs(FIRST)
    done = command_line("jobs", "show", beginning)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("error: JOB_NOT_FOUND")


def test_protocols_and_schedules_have_beginnings_too(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    listed = [{"protocol_id": "ocr_v1"}, {"protocol_id": "ocr_sis_v1"}, {"protocol_id": "sis_v1"}]
    played_api.on("GET", "/v1/protocols", played_api.listed(*listed))
    played_api.on("GET", "/v1/protocols/sis_v1", played_api.said(200, listed[2]))
    assert "sis_v1" in command_line("protocols", "show", "s").out
    several = command_line("protocols", "show", "ocr")
    assert several.code == 2 and "ocr_sis_v1, ocr_v1" in several.err


def test_several_ids_at_once_are_asked_one_after_the_other(
    jobs: Callable[..., None], played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    jobs(FIRST, SECOND)
    assert command_line("jobs", "pause", FIRST, SECOND) == (0, f"{FIRST}  QUEUED\n{SECOND}  QUEUED\n", "")
    shown = command_line("jobs", "show", FIRST, "zzzz", SECOND, "--json")
    assert [json.loads(line).get("jobId") for line in shown.out.splitlines()] == [FIRST, None, SECOND]
    assert shown.code == 1
    assert shown.err.startswith("zzzz: error: JOB_NOT_FOUND")
    assert command_line("jobs", "rerun", FIRST, SECOND, "--key", "k").code == 2


def _bulk(played_api: "PlayedApi", **more: Any) -> Said:
    told = {"matched": 3, "affected": 2, "refused_count": 1, "sample": [FIRST], "next_cursor": None}
    refused = [{"job_id": SECOND, "code": "JOB_TERMINAL", "message": "ended"}]
    return played_api.said(200, {**told, "refused": refused, **more})


def test_a_filter_shows_how_many_it_is_about_before_anything_changes(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("POST", "/v1/jobs:bulk", _bulk(played_api))
    wanted = ("--filter", "state=paused,queued", "--filter", "tenant=acme", "--filter", "since=2h")
    done = command_line("jobs", "cancel", *wanted)
    assert (done.code, done.out) == (2, "")
    assert "3 jobs fit; cancel would change 2." in done.err
    assert "Refused: 1 (JOB_TERMINAL 1)." in done.err
    assert "Nothing was changed. Add --yes" in done.err
    (asked,) = played_api.asked
    assert json.loads(asked.body) == {
        "action": "cancel",
        "filter": {"state": ["PAUSED", "QUEUED"], "tenant_id": "acme", "created_after": "2h"},
        "dry_run": True,
    }


def test_a_filter_that_is_agreed_to_goes_on_to_its_end(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    page = _bulk(played_api, next_cursor="c1")
    played_api.on("POST", "/v1/jobs:bulk", page, _bulk(played_api), page, _bulk(played_api))
    done = command_line("jobs", "rerun", "--filter", "state=CANCELLED", "--yes")
    assert (done.code, done.out) == (0, "4\n")
    sent = [json.loads(asked.body) for asked in played_api.asked]
    assert [each["dry_run"] for each in sent] == [True, True, False, False]
    assert [each.get("cursor") for each in sent] == [None, "c1", None, "c1"]


def test_a_dry_run_says_how_many_and_stops(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("POST", "/v1/jobs:bulk", _bulk(played_api))
    done = command_line("dlq", "redrive", "--filter", "code=TORN", "--dry-run", "--json")
    assert done.code == 0
    assert json.loads(done.out) == {
        "action": "redrive",
        "dry_run": True,
        "matched": 3,
        "affected": 2,
        "refused_count": 1,
    }
    assert json.loads(played_api.asked[0].body)["filter"] == {"state": ["FAILED_FINAL"], "error_code": "TORN"}
    assert len(played_api.asked) == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "Give job ids, or --filter NAME=VALUE."),
        (("job_1", "--filter", "state=QUEUED"), "Give job ids, or --filter NAME=VALUE."),
        (("job_1", "--yes"), "--yes and --dry-run go with --filter."),
        (("--filter", "colour=red"), "must be NAME=VALUE, NAME one of tenant, state,"),
        (("--filter", "state"), "must be NAME=VALUE"),
        (("--filter", "since=yesterday"), "yesterday is no time"),
        (("--filter", "tenant=a", "--filter", "tenant=b"), "--filter tenant is there twice."),
    ],
)
def test_what_cannot_be_meant_asks_nothing(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", arguments: tuple[str, ...], why: str
) -> None:
    done = command_line("jobs", "cancel", *arguments)
    assert (done.code, done.out) == (2, "")
    assert why in " ".join(done.err.split())
    assert played_api.asked == []


def test_a_filter_of_a_state_that_there_is_not_asks_no_server(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    done = command_line("jobs", "cancel", "--filter", "state=PAUSED,DONE")
    assert done.code == 2
    assert "DONE is no state of a job" in " ".join(done.err.split())
    assert played_api.asked == []


def test_a_filter_that_the_server_refuses_is_not_taken_for_an_envelope(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    refused = played_api.problem(422, "INVALID_ENVELOPE", "the bulk action is not well formed")
    played_api.on("POST", "/v1/jobs:bulk", refused)
    done = command_line("jobs", "cancel", "--filter", "search=x", "--dry-run")
    assert done.code == 1
    assert "`lucius jobs list --help`" in done.err and "lucius submit" not in done.err

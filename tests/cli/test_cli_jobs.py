"""`lucius jobs …`, `lucius dlq …` and `lucius outbox …` against a played API."""

import json
from collections.abc import Callable

import pytest
from tests.support.played_api import Done, PlayedApi


def test_list_is_a_table_with_relative_times(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    failed = played_api.job("FAILED_FINAL", played_api.step(1, "FAILED_FINAL"), error_code="BAD_PDF")
    played_api.on("GET", "/v1/jobs", played_api.listed(played_api.job("QUEUED"), failed, next_cursor="abc"))
    done = command_line(
        "jobs", "list", "--tenant", "acme", "--state", "queued", "--type", "OCR", "--limit", "2"
    )
    assert done.code == 0
    rows = [line.split() for line in done.out.splitlines()]
    assert rows[0] == ["JOB", "STATE", "TENANT", "TYPE", "STEP", "CREATED", "ERROR"]
    assert rows[1][:5] == ["job_1", "QUEUED", "acme", "OCR_EMBEDDING", "-"]
    assert rows[1][-1] == "-"
    assert rows[2][-1] == "BAD_PDF"
    assert " ago " in done.out
    assert "\x1b" not in done.out
    assert done.err == "There are more: --cursor abc, or --all.\n"
    query = {"tenant_id": "acme", "state": "QUEUED", "request_type": "OCR", "limit": "2"}
    assert played_api.asked[0].query == query


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--state", "FOO", "FOO is no state of a job"),
        ("--after", "yesterday", "yesterday is no time: give how long ago"),
        ("--before", "2026-01-31", "2026-01-31 is no time: give how long ago"),
    ],
)
def test_a_filter_that_nothing_matches_is_a_mistake_of_the_command_line(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", option: str, value: str, why: str
) -> None:
    done = command_line("jobs", "list", option, value)
    assert (done.code, done.out) == (2, "")
    assert why in " ".join(done.err.split())
    assert not played_api.asked


@pytest.mark.parametrize("value", ["", " "])
@pytest.mark.parametrize(
    "command",
    [
        ("jobs", "show"),
        ("jobs", "watch"),
        ("jobs", "events"),
        ("jobs", "explain"),
        ("jobs", "cancel"),
        ("jobs", "rerun"),
        ("dlq", "redrive"),
        ("keys", "revoke"),
        ("protocols", "show"),
    ],
)
def test_a_blank_id_is_a_mistake_of_the_command_line(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", command: tuple[str, str], value: str
) -> None:
    done = command_line(*command, value)
    assert (done.code, done.out) == (2, "")
    assert "An id must not be blank." in done.err
    assert not played_api.asked


def test_list_as_json_is_the_page_with_every_number_as_it_was(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    page = played_api.listed()
    row = '{"jobId": "job_é", "n": 1.50, "big": 123456789012345678901}'
    body = f'{{"items": [ {row} ], "next_cursor": null}}'.encode()
    played_api.on("GET", "/v1/jobs", page._replace(body=body))
    done = command_line("jobs", "list", "--json")
    assert done.out == (
        '{"items":[{"jobId":"job_é","n":1.50,"big":123456789012345678901}],"next_cursor":null}\n'
    )
    assert done.err == ""


def test_list_all_follows_the_cursor_into_one_document(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on(
        "GET",
        "/v1/jobs",
        played_api.listed({"jobId": "a"}, next_cursor="c1"),
        played_api.listed({"jobId": "b"}),
    )
    done = command_line("jobs", "list", "--all", "--json")
    assert json.loads(done.out) == {"items": [{"jobId": "a"}, {"jobId": "b"}], "next_cursor": None}
    assert [asked.query.get("cursor") for asked in played_api.asked] == [None, "c1"]
    assert {asked.query["limit"] for asked in played_api.asked} == {"200"}


def test_an_empty_list_leaves_stdout_empty(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("GET", "/v1/jobs", played_api.listed())
    assert command_line("jobs", "list") == (0, "", "No jobs.\n")


def test_show_tells_the_job_and_its_steps(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    step = played_api.step(
        1, "FAILED_RETRY", next_attempt_at="2999-01-01T00:00:00.000Z", last_error_code="BUSY"
    )
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, played_api.job("IN_PROGRESS", step)))
    done = command_line("jobs", "show", "job_1", "--wait", "3")
    assert done.code == 0
    assert "state        IN_PROGRESS" in done.out
    assert "type         OCR_EMBEDDING (ocr_embedding_v1)" in done.out
    assert "output" not in done.out
    assert "next try in " in done.out.splitlines()[-1]
    assert done.out.splitlines()[-1].endswith("; BUSY")
    assert played_api.asked[0].query == {"wait": "3"}


def test_what_a_server_sends_cannot_steer_the_terminal(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    job = played_api.job("QUEUED", played_api.step(1, "[red]x"), tenant_id="\x1b[2Jacme\n", doc_id="a\u202eb")
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, job))
    out = command_line("jobs", "show", "job_1").out
    assert "tenant       \\x1b[2Jacme\\n\n" in out
    assert "a\\u202eb" in out
    assert "[red]x" in out
    assert "\x1b" not in out


def test_an_id_is_quoted_on_its_way(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    done = command_line("jobs", "show", "../admin?x#y")
    assert done.code == 1
    assert played_api.asked[0].path == "/v1/jobs/..%2Fadmin%3Fx%23y"


def test_a_missing_job_is_a_failure_with_a_next_step(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("GET", "/v1/jobs/job_9", played_api.problem(404, "JOB_NOT_FOUND", "there is no job job_9"))
    assert command_line("jobs", "watch", "job_9") == (
        1,
        "",
        "error: JOB_NOT_FOUND: there is no job job_9\n"
        "  `lucius jobs list` shows the jobs that you may see.\n",
    )


def test_watch_prints_events_and_ends_with_the_jobs_outcome(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    ended = played_api.job("SUCCEEDED", final_output="s3://out/x")
    played_api.on(
        "GET",
        "/v1/jobs/job_1",
        played_api.said(200, played_api.job("IN_PROGRESS")),
        played_api.said(200, ended),
    )
    played_api.on(
        "GET",
        "/v1/jobs/job_1/events",
        played_api.listed(played_api.event(1, "JOB_CREATED"), next_cursor="1"),
        played_api.listed(played_api.event(2, "STEP_ACKED", stepId="step_01", attempt_no=1)),
        played_api.listed(played_api.event(3, "JOB_SUCCEEDED")),
    )
    done = command_line("jobs", "watch", "job_1")
    assert done.code == 0
    assert [line.split()[2] for line in done.out.splitlines()] == [
        "JOB_CREATED",
        "STEP_ACKED",
        "JOB_SUCCEEDED",
    ]
    assert done.err == "job_1 SUCCEEDED: s3://out/x\n"


def test_watch_as_json_prints_one_job_a_change(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    first, last = played_api.job("IN_PROGRESS"), played_api.job("CANCELLED")
    played_api.on(
        "GET",
        "/v1/jobs/job_1",
        played_api.said(200, first),
        played_api.said(200, first),
        played_api.said(200, last),
    )
    done = command_line("jobs", "watch", "job_1", "--json")
    assert done.code == 3
    assert [json.loads(line) for line in done.out.splitlines()] == [first, last]
    assert not any(asked.path.endswith("/events") for asked in played_api.asked)


def test_watch_outlives_a_gateway_that_is_down_for_a_moment(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    gateway = played_api.said(200, {})._replace(status=502, body=b"<html>")
    played_api.on(
        "GET",
        "/v1/jobs/job_1",
        played_api.said(200, played_api.job("QUEUED")),
        gateway,
        played_api.said(200, played_api.job("SUCCEEDED")),
    )
    done = command_line("jobs", "watch", "job_1", "--json")
    assert done.code == 0
    assert len(done.out.splitlines()) == 2
    assert "answered 502" in done.err
    assert "Trying again." in done.err


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume"])
def test_controls_answer_with_the_job(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", verb: str
) -> None:
    job = played_api.job("CANCELLING")
    played_api.on("POST", f"/v1/jobs/job_1:{verb}", played_api.said(202, job))
    assert command_line("jobs", verb, "job_1") == (0, "job_1  CANCELLING\n", "")
    assert json.loads(command_line("jobs", verb, "job_1", "--json").out) == job


def test_a_job_that_ended_cannot_be_cancelled(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on(
        "POST", "/v1/jobs/job_1:cancel", played_api.problem(409, "JOB_TERMINAL", "the job has SUCCEEDED")
    )
    done = command_line("jobs", "cancel", "job_1")
    assert done.code == 1
    assert "error: JOB_TERMINAL: the job has SUCCEEDED\n" in done.err
    assert "lucius jobs rerun" in done.err


def test_rerun_and_redrive_print_the_new_id(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    fresh = played_api.said(202, played_api.job("QUEUED") | {"jobId": "job_2", "rerun_of": "job_1"})
    played_api.on("POST", "/v1/jobs/job_1:rerun", fresh)
    played_api.on("POST", "/v1/admin/dlq/job_1:redrive", fresh)
    assert command_line("jobs", "rerun", "job_1") == (0, "job_2\n", "")
    assert command_line("jobs", "rerun", "job_1", "--from-step", "step_02", "--key", "k").out == "job_2\n"
    assert command_line("dlq", "redrive", "job_1", "--key", "k2").out == "job_2\n"
    assert [asked.body for asked in played_api.asked] == [b"", b'{"from_step":"step_02"}', b""]
    assert [asked.headers.get("idempotency-key") for asked in played_api.asked] == [None, "k", "k2"]


def test_events_are_lines_and_as_json_one_document_a_line(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    first = played_api.event(
        6, "STEP_PROGRESSED", stepId="step_01", attempt_no=2, data={"progress": 40, "note": "p 4"}
    )
    second = played_api.event(7, "SOMETHING_NEW", data={"deep": {"a": 1}})
    path = "/v1/jobs/job_1/events"
    played_api.on("GET", path, played_api.listed(first, next_cursor="6"), played_api.listed(second))
    done = command_line("jobs", "events", "job_1", "--after", "5")
    lines = done.out.splitlines()
    assert lines[0].endswith("STEP_PROGRESSED  step_01  attempt 2  progress=40  note=p 4")
    assert lines[1].endswith("SOMETHING_NEW")
    assert [asked.query["after"] for asked in played_api.asked] == ["5", "6"]

    played_api.on("GET", path, played_api.listed(first, next_cursor="6"), played_api.listed(second))
    as_json = command_line("jobs", "events", "job_1", "--json")
    assert [json.loads(line) for line in as_json.out.splitlines()] == [first, second]
    assert as_json.err == ""


def test_dead_jobs_are_listed(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    played_api.on(
        "GET", "/v1/admin/dlq", played_api.listed(played_api.job("FAILED_FINAL", error_code="LEASE_EXPIRED"))
    )
    named = ("--tenant", "acme", "--type", "OCR", "--code", "TORN", "--after", "2026-01-01T00:00:00Z")
    done = command_line("dlq", "list", "--limit", "5", *named)
    assert "LEASE_EXPIRED" in done.out
    assert played_api.asked[0].query == {
        "limit": "5",
        "tenant_id": "acme",
        "request_type": "OCR",
        "error_code": "TORN",
        "failed_after": "2026-01-01T00:00:00Z",
    }


def test_outbox_retry_prints_how_many(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    played_api.on("POST", "/v1/admin/outbox/retry", played_api.said(200, {"made_due": 3}))
    assert command_line("outbox", "retry") == (0, "3\n", "")
    assert command_line("outbox", "retry", "--json").out == '{"made_due":3}\n'


@pytest.mark.parametrize(
    "arguments",
    [
        ("list", "--limit", "0"),
        ("list", "--limit", "201"),
        ("show",),
        ("show", "j", "--wait", "61"),
        ("sing",),
    ],
)
def test_wrong_usage_asks_nothing(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", arguments: tuple[str, ...]
) -> None:
    done = command_line("jobs", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: lucius jobs")
    assert played_api.asked == []

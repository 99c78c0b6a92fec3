"""`lucius status` and `lucius services` against a played API, and tables on terminals of any width."""

import json
from collections.abc import Callable

import pytest
from tests.support.played_api import Done, PlayedApi

from lucius.api.described.fleet import AREA
from lucius.api.fleet import CHART_WINDOWS
from lucius.cli.keys import KEY_TABLE
from lucius.cli.keys import _row as key_row
from lucius.cli.render import JOB_TABLE, TableForm, TextLayout, job_row, set_table
from lucius.cli.schedules import SCHEDULE_TABLE
from lucius.cli.status import WINDOWS, overview_text, sparkline

OVERVIEW = AREA.examples["Overview"]
SERVICES = AREA.examples["ServicePage"]
NOW_MS = 1_769_508_150_000
JOB_ID = "job_01m7f5twx4k2n7nspawajhp94r"


@pytest.fixture
def told(played_api: "PlayedApi") -> None:
    played_api.on("GET", "/v1/overview", played_api.said(200, OVERVIEW))
    played_api.on("GET", "/v1/services", played_api.said(200, SERVICES))


@pytest.mark.usefixtures("told")
def test_status_is_the_overview_as_text(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    done = command_line("status", "--tenant", "tenant_a", "--window", "1h")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("error: 3 directives wait for ocr")
    assert any(line.split()[:2] == ["accepted", "12"] and line.endswith("███") for line in lines)
    assert "Lanes with work  15: 3" in lines
    assert "In flight        tenant_a 12 of 1000" in lines
    assert any(line.startswith("ocr") and "lucius-worker/1.0" in line for line in lines)
    assert played_api.asked[0].query == {"tenant_id": "tenant_a", "window": "1h"}


@pytest.mark.usefixtures("told")
def test_status_and_services_as_json_are_what_the_api_said(command_line: "Callable[..., Done]") -> None:
    assert json.loads(command_line("status", "--json").out) == OVERVIEW
    assert json.loads(command_line("services", "--json").out) == SERVICES


@pytest.mark.usefixtures("told")
def test_watching_goes_on_until_the_server_refuses(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    told = played_api.said(200, OVERVIEW)
    refused = played_api.problem(403, "FORBIDDEN", "no")
    played_api.on("GET", "/v1/overview", told, told, refused)
    done = command_line("status", "--watch", "--every", "0.5", "--json")
    assert done.code == 4
    assert len(done.out.splitlines()) == 2 + ("FORBIDDEN" in done.out)


@pytest.mark.usefixtures("told")
def test_services_are_a_table(command_line: "Callable[..., Done]") -> None:
    rows = [line.split() for line in command_line("services").out.splitlines()]
    assert rows[0][:4] == ["SERVICE", "WORKERS", "WAITING", "OLDEST"]
    assert rows[1][:7] == ["ocr", "lucius-worker/1.0", "3", "1.5s", "9", "1", "2"]


def test_bars_add_up_what_does_not_fit() -> None:
    assert sparkline([0, 0, 0], 10) == ""
    assert sparkline([0, 1, 7], 10) == "▁▂█"
    assert sparkline([1] * 10, 5) == "█████"
    assert len(sparkline(list(range(61)), 40)) <= 40
    assert sparkline(None, 10) == ""


@pytest.mark.parametrize("columns", [80, 100, 120])
def test_ids_are_never_broken_and_lines_never_too_long(columns: int) -> None:
    job = {
        "jobId": JOB_ID,
        "state": "FAILED_FINAL",
        "tenant_id": "the-harbour-office-of-the-north",
        "request_type": "OCR_EMBEDDING_SIS",
        "current_step_id": "step_02",
        "current_step_index": 1,
        "created_at": "2026-01-27T10:01:30.000Z",
        "error_code": "WORK_OUT_OF_MEMORY",
        "steps": [{}, {}, {}],
    }
    text = set_table(JOB_TABLE, [job_row(job, NOW_MS)] * 3, TextLayout(columns=columns))
    lines = text.splitlines()
    assert len(lines) == 4, "one line a job"
    assert all(len(line) <= columns for line in lines)
    assert all(line.startswith(f"{JOB_ID}  FAILED_FINAL  ") for line in lines[1:])
    assert ("2/3" in text) is (columns > 80)
    dated = set_table(JOB_TABLE, [job_row(job, NOW_MS, absolute=True)] * 3, TextLayout(columns=columns))
    assert all(len(line) <= columns for line in dated.splitlines())
    assert all(line.startswith(f"{JOB_ID}  FAILED_FINAL  ") for line in dated.splitlines()[1:])
    assert dated.count("2026-01-27T10:01:30.000Z") == 3
    piped = set_table(JOB_TABLE, [job_row(job, NOW_MS, absolute=True)], TextLayout())
    assert "the-harbour-office-of-the-north" in piped and "2026-01-27T10:01:30.000Z" in piped


def test_what_must_stay_whole_does_on_a_terminal_that_is_too_narrow() -> None:
    form = TableForm(headings=("JOB", "CREATED", "NOTE"), whole=("JOB", "CREATED"))
    text = set_table(form, [(JOB_ID, "2026-01-27T10:01:30.000Z", "a note")], TextLayout(columns=50))
    assert f"{JOB_ID}  2026-01-27T10:01:30.000Z  a note" in text


@pytest.mark.parametrize("columns", [80, 120])
def test_ids_of_keys_and_schedules_are_never_broken_either(columns: int) -> None:
    key = {
        "keyId": "f38feab1abea3dac",
        "name": "the-worker-of-the-harbour-office",
        "tenants": ["*"],
        "roles": ["admin", "control", "read", "submit", "work"],
        "services": ["embedding"],
        "created_at": "2026-11-19T20:30:28.454Z",
        "revoked_at": "2026-11-20T20:30:28.454Z",
    }
    layout = TextLayout(columns=columns)
    lines = set_table(KEY_TABLE, [key_row(key, layout)], layout).splitlines()
    assert all(len(line) <= columns for line in lines)
    assert lines[1].startswith("f38feab1abea3dac  the-")
    assert lines[1].endswith("2026-11-19  2026-11-20"), "days are enough"
    assert key_row(key, TextLayout())[-1] == "2026-11-20T20:30:28.454Z"
    schedule = (
        "invoices-of-the-night-of-the-north",
        "0 3 * * MON-FRI Europe/Zurich",
        "in 5h",
        "19h ago",
        JOB_ID,
    )
    lines = set_table(SCHEDULE_TABLE, [schedule], layout).splitlines()
    assert len(lines) == 2 and all(len(line) <= columns for line in lines)
    assert lines[1].split()[0] == "invoices-of-the-night-of-the-north"
    assert JOB_ID in lines[1] and ("MON-FRI" in lines[1]) is (columns > 80)


def test_the_windows_of_the_help_are_those_of_the_server() -> None:
    assert set(WINDOWS) == set(CHART_WINDOWS)


def test_figures_that_no_tenant_has_of_its_own_are_said_to_be_of_all() -> None:
    layout = TextLayout(columns=80)
    text = overview_text(OVERVIEW, [], NOW_MS, layout, tenant="tenant_a")
    assert "Jobs of tenant_a, last " in text
    assert "directives of all tenants" in text and "failed for good of all tenants: " in text
    assert "of all tenants" not in overview_text(OVERVIEW, [], NOW_MS, layout)


@pytest.mark.parametrize("columns", [80, 120])
def test_the_overview_fits_its_terminal(columns: int) -> None:
    layout = TextLayout(columns=columns)
    items = SERVICES["items"]
    text = overview_text({**OVERVIEW, "attention": []}, items, NOW_MS, layout)
    rows = [line for line in text.splitlines() if line.startswith(("SERVICE", "ocr"))]
    assert len(rows) == 2 and rows[0].split()[1] == "WORKERS", "one line a service"
    assert max(map(len, text.splitlines())) <= columns
    assert text.startswith("Nothing needs attention.")

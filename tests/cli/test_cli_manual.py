"""What the command line says about itself: help, manual, completion, version; and what it does when busy."""

import os
import pty
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.played_api import Done, PlayedApi

import lucius as package
from lucius.cli.exits import EXIT_CODES
from lucius.cli.main import app
from lucius.cli.manual import manual
from lucius.cli.tree import command_tree

MANUAL = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
SECONDS_MAX = 60


def test_the_manual_is_current() -> None:
    written = manual(command_tree(app))
    assert MANUAL.read_text() == written, "run: python -m lucius.cli.manual > docs/reference/cli.md"


def test_the_manual_names_every_command_and_every_option() -> None:
    written = manual(command_tree(app))
    for command in ("submit", "jobs watch", "jobs events", "dlq redrive", "completion", "keys", "plan"):
        assert f"`lucius {command}`" in written
    for option in ("--from-step STEP_ID", "--no-sample", "--profile NAME", "--json"):
        assert option in written


def test_help_tells_the_exit_codes(command_line: "Callable[..., Done]") -> None:
    shown = command_line("--help").out
    for code, meaning in EXIT_CODES:
        assert f"  {code:>3}  {meaning}\n" in shown
    assert {code for code, _ in EXIT_CODES} >= {0, 1, 2, 3, 4}


def test_version_is_an_option_too(command_line: "Callable[..., Done]") -> None:
    assert command_line("--version") == (0, f"lucius {package.__version__}\n", "")


def test_commands_that_talk_to_no_server_take_no_profile(command_line: "Callable[..., Done]") -> None:
    assert command_line("lane", "acme", "--profile", "x").code == 2
    assert "--profile" in command_line("jobs", "cancel", "--help").out


def test_a_word_that_is_nearly_a_command_is_suggested(command_line: "Callable[..., Done]") -> None:
    done = command_line("sumbit")
    assert done.code == 2
    assert "submit" in done.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(command_line: "Callable[..., Done]", shell: str) -> None:
    done = command_line("completion", shell)
    assert (done.code, done.err) == (0, "")
    assert f"_LUCIUS_COMPLETE=complete_{shell}" in done.out
    assert "lucius" in done.out
    refused = command_line("completion", "tcsh")
    assert refused.code == 2
    assert "bash, zsh, fish" in refused.err


def _program(tmp_path: Path) -> str:
    """A PATH on which `lucius` is."""
    program = tmp_path / "lucius"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lucius.cli.main "$@"\n')
    program.chmod(0o700)
    return f"{tmp_path}:{os.environ['PATH']}"


def _completed(tmp_path: Path, line: str, **more: str) -> list[str]:
    """What bash itself would offer after this line."""
    words = line.split(" ")
    quoted = " ".join(f'"{word}"' for word in words)
    script = (
        f"source <(lucius completion bash); COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1};"
        ' _lucius_completion lucius; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    bash = shutil.which("bash")
    assert bash is not None
    done = subprocess.run(
        [bash, "-c", script],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        env={**os.environ, "PATH": _program(tmp_path), **more},
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_bash_completes_commands_states_and_profiles(tmp_path: Path) -> None:
    assert _completed(tmp_path, "lucius jobs ca") == ["cancel"]
    assert _completed(tmp_path, "lucius jobs list --state PA") == ["PAUSING", "PAUSED"]
    config = tmp_path / "config.toml"
    config.write_text('[profiles.prod]\nurl = "http://x"\n[profiles.dev]\nurl = "http://y"\n')
    offered = _completed(tmp_path, "lucius jobs list --profile ", LUCIUS_CONFIG=str(config))
    assert sorted(offered) == ["dev", "prod"]


def test_a_short_refusal_is_waited_for_and_said(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    busy = played_api.problem(503, "SYSTEM_SATURATED", "full")._replace(headers={"Retry-After": "0"})
    played_api.on("GET", "/v1/jobs", busy, played_api.listed())
    done = command_line("jobs", "list", "--json")
    assert (done.code, done.out) == (0, '{"items":[],"next_cursor":null}\n')
    assert done.err.startswith("SYSTEM_SATURATED: trying again in 0.")
    assert len(played_api.asked) == 2


def test_a_control_is_repeated_and_a_rerun_without_a_key_is_not(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    busy = played_api.problem(503, "SYSTEM_SATURATED", "full")._replace(headers={"Retry-After": "0"})
    job = played_api.said(202, played_api.job("CANCELLED"))
    played_api.on("POST", "/v1/jobs/job_1:cancel", busy, job)
    assert command_line("jobs", "cancel", "job_1").out == "job_1  CANCELLED\n"
    played_api.on("POST", "/v1/jobs/job_1:rerun", busy, job)
    assert command_line("jobs", "rerun", "job_1").code == 1
    played_api.on("POST", "/v1/jobs/job_1:rerun", busy, job)
    assert command_line("jobs", "rerun", "job_1", "--key", "k").code == 0


def test_a_long_list_shows_on_a_terminal_how_far_it_is(played_api: "PlayedApi") -> None:
    played_api.on(
        "GET",
        "/v1/jobs",
        played_api.listed({"jobId": "a"}, {"jobId": "b"}, next_cursor="c1"),
        played_api.listed({"jobId": "c"}),
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "lucius.cli.main", "jobs", "list", "--all", "--json"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env={**os.environ, "LUCIUS_URL": played_api.url},
    ) as command:
        os.close(theirs)
        out, _ = command.communicate(timeout=SECONDS_MAX)
    seen = os.read(ours, 65_536)
    os.close(ours)
    assert command.returncode == 0
    assert b"2 jobs so far" in seen
    assert seen.endswith(b"\x1b[K")
    assert b"so far" not in out


def test_times_bound_a_list(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> None:
    played_api.on("GET", "/v1/jobs", played_api.listed())
    command_line("jobs", "list", "--after", "2026-01-01T00:00:00Z", "--before", "2026-02-01T00:00:00Z")
    assert played_api.asked[0].query == {
        "created_after": "2026-01-01T00:00:00Z",
        "created_before": "2026-02-01T00:00:00Z",
    }


JOB_IDS = ("job_01m7aaaa000000000000000001", "job_01m7bbbb000000000000000002")


@pytest.fixture
def listed(played_api: "PlayedApi") -> "PlayedApi":
    jobs = [played_api.job("QUEUED", jobId=each) for each in JOB_IDS]
    played_api.on("GET", "/v1/jobs", played_api.listed(*jobs))
    protocols = [{"request_types": ["OCR", "OCR_SIS"]}, {"request_types": ["STAMP"]}]
    played_api.on("GET", "/v1/protocols", played_api.listed(*protocols))
    tenants = [{"tenant_id": "acme"}, {"tenant_id": "beta"}]
    played_api.on("GET", "/v1/tenants", played_api.listed(*tenants))
    return played_api


def test_bash_completes_what_only_the_server_knows(listed: "PlayedApi", tmp_path: Path) -> None:
    assert _completed(tmp_path, "lucius jobs show ", LUCIUS_URL=listed.url) == list(JOB_IDS)
    assert _completed(tmp_path, "lucius jobs cancel job_01m7b", LUCIUS_URL=listed.url) == [JOB_IDS[1]]
    assert listed.asked[-1].query["q"] == "01m7b"
    assert _completed(tmp_path, "lucius jobs list --type OCR", LUCIUS_URL=listed.url) == ["OCR", "OCR_SIS"]
    assert _completed(tmp_path, "lucius jobs list --tenant b", LUCIUS_URL=listed.url) == ["beta"]


def test_without_a_server_nothing_is_offered_and_nothing_is_said(tmp_path: Path) -> None:
    assert _completed(tmp_path, "lucius jobs show ", LUCIUS_URL="http://127.0.0.1:1") == []


@pytest.mark.parametrize(
    ("shell", "variables"),
    [
        ("zsh", {"_TYPER_COMPLETE_ARGS": "lucius jobs show "}),
        ("fish", {"_TYPER_COMPLETE_ARGS": "lucius jobs show ", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}),
    ],
)
def test_other_shells_are_offered_the_same(
    listed: "PlayedApi", tmp_path: Path, shell: str, variables: dict[str, str]
) -> None:
    """As the scripts of these shells ask."""
    asked = {"_LUCIUS_COMPLETE": f"complete_{shell}", "LUCIUS_URL": listed.url, **variables}
    env = {**os.environ, **asked, "PATH": _program(tmp_path)}
    lucius = str(tmp_path / "lucius")
    done = subprocess.run([lucius], capture_output=True, text=True, timeout=SECONDS_MAX, env=env)
    assert all(job_id in done.stdout for job_id in JOB_IDS), done.stderr

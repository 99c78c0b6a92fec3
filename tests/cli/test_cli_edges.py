"""The edges of the command line: servers that are not there, keys, terminals, pipes, signals, options."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.support.played_api import Done, PlayedApi

import lucius as package
from lucius.cli.main import run_cli
from lucius.cli.options import BenchOptions, DevOptions
from lucius.cli.render import ago, instant_ms, plain, span

COMMAND = (sys.executable, "-m", "lucius.cli.main")
SECONDS_MAX = 30


def _environment(played_api: "PlayedApi", **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "LUCIUS_API_KEY")}
    return kept | {"LUCIUS_URL": played_api.url, "TERM": "xterm"} | more


def test_a_server_that_is_not_there(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUCIUS_URL", "http://127.0.0.1:1")
    done = command_line("jobs", "list", "--json")
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("error: Cannot connect to http://127.0.0.1:1: ")
    assert "Is Lucius running? Start it with `lucius dev`" in done.err


@pytest.mark.parametrize(("status", "code"), [(401, "UNAUTHENTICATED"), (403, "FORBIDDEN")])
def test_what_is_not_allowed(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    code: str,
) -> None:
    monkeypatch.setenv("LUCIUS_API_KEY", "very-secret")
    played_api.on("GET", "/v1/jobs", played_api.problem(status, code, "no"))
    done = command_line("jobs", "list")
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith(f"error: {code}: no\n  ")
    assert "very-secret" not in done.err


@pytest.mark.parametrize(
    ("status", "body", "code", "words"),
    [
        (200, b"<html>hello</html>", 4, "not a JSON object"),
        (200, b"[1]", 4, "not a JSON object"),
        (200, b'{"jobs": []}', 1, "not a list"),
        (302, b"", 4, "answered 302"),
        (502, b"bad gateway", 4, "answered 502"),
        (500, b"oops", 1, "answered 500"),
        (404, b'{"detail": "Not Found"}', 1, "answered 404"),
    ],
)
def test_a_server_that_is_not_lucius(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    status: int,
    body: bytes,
    code: int,
    words: str,
) -> None:
    played_api.on("GET", "/v1/jobs", played_api.listed()._replace(status=status, body=body))
    done = command_line("jobs", "list")
    assert (done.code, done.out) == (code, "")
    assert words in done.err


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("LUCIUS_URL", "localhost:8420", "must look like"),
        ("LUCIUS_URL", "http://host:99999", "not a URL"),
        ("LUCIUS_URL", "http://ann:secret@host", "must not carry a name or password"),
        ("LUCIUS_API_KEY", "secret\nX-Evil: 1", "characters that no key has"),
    ],
)
def test_settings_that_cannot_work_are_usage_errors(
    command_line: "Callable[..., Done]", monkeypatch: pytest.MonkeyPatch, name: str, value: str, words: str
) -> None:
    monkeypatch.setenv(name, value)
    done = command_line("jobs", "list")
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "secret" not in done.err


def test_version_and_help(command_line: "Callable[..., Done]") -> None:
    assert command_line("version") == (0, f"{package.__version__}\n", "")
    assert json.loads(command_line("version", "--json").out) == {"version": package.__version__}
    shown = command_line("--help")
    assert shown.code == 0
    for command in ("submit", "run", "jobs", "protocols", "lane", "dlq", "outbox", "dev", "bench"):
        assert f"\n  {command} " in shown.out


def test_light_commands_do_not_load_the_heavy_libraries() -> None:
    program = (
        "import sys; from lucius.cli.main import run_cli; run_cli(['version']);"
        "print([name for name in ('httpx2', 'rich', 'fastapi', 'yaml') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert done.stdout == f"{package.__version__}\n[]\n"


def test_an_interrupt_while_it_loads_is_no_drama() -> None:
    program = """
import sys
class Interrupted:
    def find_spec(self, name, path, target=None):
        if name == "lucius.cli.main":
            raise KeyboardInterrupt
sys.meta_path.insert(0, Interrupted())
from lucius.__main__ import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=SECONDS_MAX
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_reader_that_leaves_is_no_drama(played_api: "PlayedApi") -> None:
    played_api.on("GET", "/v1/jobs", played_api.listed(*(played_api.job("QUEUED") for _ in range(2_000))))
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*COMMAND, "jobs", "list"],
            stdout=writing,
            stderr=subprocess.PIPE,
            env=_environment(played_api),
            timeout=SECONDS_MAX,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


def _hear_interrupts() -> None:
    """A shell starts its background jobs deaf to SIGINT, and so would be what the tests start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_an_interrupt_ends_quietly(played_api: "PlayedApi") -> None:
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, played_api.job("IN_PROGRESS")))
    played_api.on("GET", "/v1/jobs/job_1/events", played_api.listed())
    with subprocess.Popen(
        [*COMMAND, "jobs", "watch", "job_1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=_environment(played_api),
        preexec_fn=_hear_interrupts,
    ) as watching:
        deadline = time.monotonic() + SECONDS_MAX
        while len(played_api.asked) < 4 and time.monotonic() < deadline:
            time.sleep(0.02)
        watching.send_signal(signal.SIGINT)
        out, err = watching.communicate(timeout=SECONDS_MAX)
    assert (watching.returncode, out, err) == (130, b"", b"")


def _on_a_terminal(played_api: "PlayedApi", *arguments: str, **more: str) -> tuple[int, str]:
    """Runs a command with a terminal as its stdout and stderr; what the terminal got to see."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *arguments],
        stdout=theirs,
        stderr=theirs,
        env=_environment(played_api, COLUMNS="100", **more),
    ) as command:
        os.close(theirs)
        seen = bytearray()
        while chunk := _read(ours):
            seen += chunk
        code = command.wait(timeout=SECONDS_MAX)
    os.close(ours)
    return code, seen.decode()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65_536)
    except OSError:  # how Linux says that the other end of a terminal is closed
        return b""


def test_colours_are_for_terminals_and_can_be_turned_off(played_api: "PlayedApi") -> None:
    played_api.on("GET", "/v1/jobs", played_api.listed(played_api.job("SUCCEEDED")))
    code, coloured = _on_a_terminal(played_api, "jobs", "list")
    assert code == 0
    assert "\x1b[32mSUCCEEDED" in coloured
    code, plain_text = _on_a_terminal(played_api, "jobs", "list", NO_COLOR="1")
    assert code == 0
    assert "SUCCEEDED" in plain_text
    assert "\x1b" not in plain_text


def test_a_terminal_gets_a_live_table(played_api: "PlayedApi") -> None:
    working = played_api.job(
        "IN_PROGRESS", played_api.step(1, "SUCCEEDED"), played_api.step(2, "PROCESSING", progress=40)
    )
    ended = played_api.job(
        "SUCCEEDED", played_api.step(1, "SUCCEEDED"), played_api.step(2, "SUCCEEDED"), final_output="s3://o/x"
    )
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, working), played_api.said(200, ended))
    played_api.on(
        "GET",
        "/v1/jobs/job_1/events",
        played_api.listed(played_api.event(1, "STEP_ACKED", stepId="step_02")),
        played_api.listed(),
    )
    code, seen = _on_a_terminal(played_api, "jobs", "watch", "job_1")
    assert code == 0
    assert "40%" in seen
    assert "EMBEDDING" in seen
    assert "STEP_ACKED" in seen
    assert "job_1 SUCCEEDED: s3://o/x" in seen.splitlines()[-1]
    assert seen.endswith("\n")


def test_a_schema_is_not_folded_in_the_middle_of_its_words(played_api: "PlayedApi") -> None:
    schema = {"type": "object", "description": "How the pages of a document are read. " * 5}
    step = {"step_type": "OCR", "service": "ocr", "payload_schema": schema}
    doc = {"protocol_id": "ocr_v1", "request_types": ["OCR"], "steps": [step]}
    played_api.on("GET", "/v1/protocols/ocr_v1", played_api.said(200, doc))
    code, seen = _on_a_terminal(played_api, "protocols", "show", "ocr_v1")
    assert code == 0
    assert json.loads(seen.partition("Payload of OCR:")[2]) == schema


def test_an_address_in_a_live_table_is_never_broken_in_two(played_api: "PlayedApi") -> None:
    output = f"s3://o/{'a' * 90}/job_01m7f5twx4k2n7nspawajhp94r/output.txt"
    ended = played_api.job("SUCCEEDED", played_api.step(1, "SUCCEEDED"), final_output=output)
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, ended))
    event = played_api.event(1, "JOB_SUCCEEDED", data={"final_output": output})
    played_api.on("GET", "/v1/jobs/job_1/events", played_api.listed(event))
    code, seen = _on_a_terminal(played_api, "jobs", "watch", "job_1")
    assert code == 0
    *shown, last = seen.splitlines()
    assert last.endswith(f"job_1 SUCCEEDED: {output}")
    lines = [line for line in shown if "JOB_SUCCEEDED" in line]
    assert lines and all("final_output=s3://o/a" in line and "…" in line for line in lines)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Catches what `dev` and `bench` would be started with: this file is about reading their options."""
    caught: list[Any] = []

    def start(options: Any) -> int:
        caught.append(options)
        return 0

    for name, function in (("lucius.cli.dev", "run_dev"), ("lucius_lab.bench.main", "run_bench")):
        module = ModuleType(name)
        setattr(module, function, start)
        monkeypatch.setitem(sys.modules, name, module)
    return caught


def test_dev_without_options(command_line: "Callable[..., Done]", started: list[Any]) -> None:
    assert command_line("dev").code == 0
    assert started == [DevOptions()]
    assert started[0].services == ("ocr", "embedding", "sis")
    assert (started[0].host, started[0].port, started[0].data) == ("127.0.0.1", 8420, Path(".lucius"))


def test_dev_with_every_option(
    command_line: "Callable[..., Done]", started: list[Any], tmp_path: Path
) -> None:
    done = command_line(
        "dev", "--host", "0.0.0.0", "--port", "9", "--data", str(tmp_path), "--engine", "outbox",
        "--bus", "memory", "--storage", "table", "--services", "sis, ocr", "--protocols", str(tmp_path),
        "--no-sample", "--log-level", "DEBUG",
    )  # fmt: skip
    assert done.code == 0
    assert started == [
        DevOptions(
            host="0.0.0.0",
            port=9,
            data=tmp_path,
            engine="outbox",
            bus="memory",
            storage="table",
            services=("sis", "ocr"),
            protocols=tmp_path,
            sample=False,
            log_level="debug",
        )
    ]


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--engine", "steam", "--engine steam: this version offers outbox, temporal."),
        ("--bus", "pigeon", "this version offers memory, nats, servicebus, servicebus-emulator."),
        ("--storage", "disk", "--storage disk: this version offers ledger, table, memory."),
        ("--services", "ocr,fax", "this version offers all, none, or a list of ocr, embedding, sis."),
        ("--services", ",", "this version offers all, none, or a list"),
        ("--port", "70000", "less than or equal to 65535"),
        ("--protocols", "no-such-folder", "no-such-folder"),
        ("--log-level", "loud", "this version offers debug, info, warning, error."),
    ],
)
def test_dev_refuses_what_this_version_does_not_offer(
    command_line: "Callable[..., Done]", started: list[Any], option: str, value: str, words: str
) -> None:
    done = command_line("dev", option, value)
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert started == []


def test_bench_asks_at_once_whether_its_file_can_be_written(
    command_line: "Callable[..., Done]", started: list[Any], tmp_path: Path
) -> None:
    done = command_line("bench", "--json-out", str(tmp_path / "none" / "bench.json"))
    assert done.code == 2
    assert "--json-out" in done.err and "nothing can be written there" in " ".join(done.err.split())
    assert started == []


def test_bench_options(command_line: "Callable[..., Done]", started: list[Any], tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    assert (
        command_line("bench", "--jobs", "5", "--in-flight", "2", "--json-out", str(out), "--quick").code == 0
    )
    assert started == [BenchOptions(jobs=5, in_flight=2, json_out=out, quick=True)]


def test_times_as_people_say_them() -> None:
    now_ms = instant_ms("2026-11-15T07:00:00.000Z")
    assert now_ms is not None
    assert ago("2026-11-15T06:59:59.500Z", now_ms) == "just now"
    assert ago("2026-11-15T06:59:18.000Z", now_ms) == "42s ago"
    assert ago("2026-11-15T07:05:00.000Z", now_ms) == "in 5m"
    assert ago("2026-11-13T08:00:00.000+01:00", now_ms) == "2d ago"
    assert ago(None, now_ms) == "-"
    assert ago("soon", now_ms) == "soon"
    assert [span(ms) for ms in (5, 1_500, 61_000, 7_200_000)] == ["5ms", "1.5s", "1m", "2h"]
    assert plain("a\x9bb") == "a\\x9bb"


@pytest.mark.parametrize("redirect", [">/dev/full", ">&-"])
def test_a_stdout_that_takes_nothing_is_told_on_stderr_with_what_it_would_have_said(redirect: str) -> None:
    line = f"{sys.executable} -m lucius lane acme --json {redirect}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error: Cannot write to stdout: ")
    assert '"lane":14' in done.stderr
    assert "Traceback" not in done.stderr


def test_a_service_whose_module_is_broken_is_a_mistake_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "broken_service.py").write_text("def handler(:\n")
    monkeypatch.chdir(tmp_path)
    assert run_cli(("service", "run", "broken_service:handler")) == 2
    assert "Cannot load broken_service:handler: SyntaxError" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["OCR", "my service", "-ocr", "x" * 64, ""])
def test_a_name_that_no_service_can_have_is_a_mistake_of_the_command_line(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(("service", "run", "ocr", f"--as={name}")) == 2
    assert f"No service can be called {name!r}" in capsys.readouterr().err


def test_a_service_ends_though_a_thread_goes_on() -> None:
    program = """
import asyncio, time, uvloop
from lucius.cli.service import end_with

async def main():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 50)
    await asyncio.sleep(0.1)
    return await end_with(3)

uvloop.run(main())
"""
    began = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == 3, done.stderr
    assert time.monotonic() - began < 30


def test_links_that_lead_in_a_circle_are_a_mistake_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    options = ("--tenant", "acme", "--type", "OCR", "--output", "s3://out/x")
    assert run_cli(("submit", *options, "--input", str(tmp_path / "a" / "x"))) == 2
    assert "leads nowhere" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("command", "path", "list_command"),
    [
        (("protocols", "show", "nope"), "/v1/protocols/nope", "lucius protocols list"),
        (("schedules", "show", "nope"), "/v1/schedules/nope", "lucius schedules list"),
        (("keys", "revoke", "nope"), "/v1/admin/keys/nope:revoke", "lucius keys list"),
    ],
)
def test_what_is_not_there_leads_to_the_list_of_what_is(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    command: tuple[str, ...],
    path: str,
    list_command: str,
) -> None:
    for method in ("GET", "POST"):
        played_api.on(method, path, played_api.problem(404, "NOT_FOUND", "there is none"))
    done = command_line(*command)
    assert done.code == 1
    assert [hint for hint in ("keys", "protocols", "schedules") if f"lucius {hint} list" in done.err] == [
        list_command.split()[1]
    ]


def test_the_help_of_mode_names_what_the_server_takes(command_line: "Callable[..., Done]") -> None:
    for command in ("submit", "run", "plan"):
        words = command_line(command, "--help").out
        assert all(mode in words for mode in ("DEFAULT", "SAFE", "BURST"))


def test_a_service_says_where_it_cannot_write(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    data = tmp_path / "file" / "data"
    command = (*COMMAND, "service", "run", "ocr", "--data", str(data))
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX)
    assert done.returncode == 1
    assert f"Cannot use the data folder {data} (--data)" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_that_cannot_be_redriven_leads_to_those_that_can(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    gone = played_api.problem(404, "JOB_NOT_FOUND", "there is no finally failed job of this id")
    played_api.on("POST", "/v1/admin/dlq/job_9:redrive", gone)
    done = command_line("dlq", "redrive", "job_9")
    assert done.code == 1
    assert "`lucius dlq list`" in done.err and "`lucius jobs list`" not in done.err


def test_an_address_with_a_path_that_leads_nowhere_is_asked_about(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LUCIUS_URL", f"{played_api.url}/console")
    played_api.on("GET", "/console/v1/jobs", played_api.problem(404, "NOT_FOUND", "leads nowhere"))
    done = command_line("jobs", "list")
    assert done.code == 1
    assert "Does LUCIUS_URL end in a path?" in done.err


def test_a_server_that_speaks_tls_alone_is_called_by_https(
    command_line: "Callable[..., Done]", monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            connection, _ = listener.accept()
            connection.recv(1_024)
            connection.close()

        silent = threading.Thread(target=hang_up)
        silent.start()
        monkeypatch.setenv("LUCIUS_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        done = command_line("jobs", "list")
        silent.join()
    assert done.code == 4
    assert "LUCIUS_URL must begin with https://" in done.err


def test_tools_for_agents_say_that_their_port_is_taken(command_line: "Callable[..., Done]") -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        done = command_line("mcp", "--http", "--port", str(listener.getsockname()[1]))
    assert done.code == 1
    assert "Address already in use. Try another --port." in done.err


def test_a_schedule_that_is_none_is_not_taken_for_an_envelope(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", tmp_path: Path
) -> None:
    (tmp_path / "nightly.yaml").write_text("hello\n")
    refused = played_api.problem(422, "INVALID_ENVELOPE", "the body must be a JSON object")
    played_api.on("POST", "/v1/schedules", refused)
    done = command_line("schedules", "write", str(tmp_path / "nightly.yaml"))
    assert done.code == 1
    assert "A schedule names schedule_id, command" in done.err and "lucius submit" not in done.err

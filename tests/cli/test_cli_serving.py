"""What every process that serves has in common: who may be listened to, how loud it is, whose a folder is."""

import sys
from pathlib import Path
from typing import IO

import pytest
from structlog.testing import capture_logs

from lucius.assembly.stores import mark_layout
from lucius.cli import serving
from lucius.cli.dev import run_dev
from lucius.cli.folder import claim_folder
from lucius.cli.options import DevOptions
from lucius.cli.serving import begin_logging, bind, is_wildcard, open_address_fault, url_of
from lucius.settings import read_settings
from lucius.settings.names import VARIABLES, misspelt


@pytest.mark.parametrize(
    ("terminal", "option", "env", "expected"),
    [
        (True, None, {}, ("warning", True)),
        (False, None, {}, ("info", False)),
        (True, "info", {}, ("info", True)),
        (True, None, {"LUCIUS_LOG_LEVEL": "debug"}, ("debug", True)),
        (True, "error", {"LUCIUS_LOG_LEVEL": "debug"}, ("error", True)),
        (True, None, {"LUCIUS_LOG_FORMAT": "json"}, ("warning", False)),
    ],
)
def test_a_terminal_is_quiet_unless_told_otherwise(
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    option: str | None,
    env: dict[str, str],
    expected: tuple[str, bool],
) -> None:
    said: list[tuple[str, bool]] = []
    monkeypatch.setattr(serving, "configure_logging", lambda level, *, plain: said.append((level, plain)))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    begin_logging(read_settings(env), option, quiet_terminal=True)
    assert said == [expected]
    begin_logging(read_settings(env), option)
    assert said[1][0] == ("info" if expected[0] == "warning" else expected[0])


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("LUCIUS_RETENION", "LUCIUS_RETENTION"),
        ("LUCIUS_AUHT", "LUCIUS_AUTH"),
        ("LUCIUS_MAX_INFLIGHT_PER_TENNANT", "LUCIUS_MAX_INFLIGHT_PER_TENANT"),
    ],
)
@pytest.mark.parametrize("form", ["plain", "json"])
def test_a_variable_that_was_misspelt_is_told_without_its_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, meant: str, form: str
) -> None:
    monkeypatch.setattr(serving, "configure_logging", lambda level, *, plain: None)
    monkeypatch.setenv(name, "hunter2")
    with capture_logs() as logged:
        begin_logging(read_settings({"LUCIUS_LOG_FORMAT": form}), None)
    told = capsys.readouterr().err if form == "plain" else "".join(line["hint"] for line in logged)
    assert f"{name} is set, and nothing reads it: was {meant} meant?" in told
    assert "hunter2" not in f"{told}{logged}" and len(told.splitlines()) == 1


def test_what_others_set_is_none_of_our_business() -> None:
    kubernetes = [
        f"LUCIUS_{service}{name}"
        for service in (
            "",
            "API_",
            "INVOKER_",
            "ORCHESTRATOR_",
            "RECONCILER_",
            "WORKER_",
            "NATS_",
            "TEMPORAL_",
        )
        for name in ("PORT", "SERVICE_HOST", "SERVICE_PORT", "SERVICE_PORT_HTTP", "PORT_8420_TCP")
    ]
    ends = ("ADDR", "PORT", "PROTO")
    parts = [f"{name}_{end}" for name in kubernetes if name.endswith("TCP") for end in ends]
    smoke = [f"LUCIUS_SMOKE_{name}" for name in ("SERVICEBUS_CONNECTION", "TABLE_CONNECTION")]
    assert misspelt([*kubernetes, *parts, *smoke, "LUCIUS_SOAK", "PATH", "RETENION", *VARIABLES]) == {}


@pytest.mark.parametrize(
    ("host", "auth", "refused"),
    [
        ("127.0.0.1", "open", False),
        ("localhost", "open", False),
        ("::1", "open", False),
        ("0.0.0.0", "open", True),
        ("192.0.2.1", "open", True),
        ("example.org", "open", True),
        ("0.0.0.0", "required", False),
    ],
)
def test_only_loopback_is_open(host: str, auth: str, refused: bool) -> None:
    fault = open_address_fault(read_settings({"LUCIUS_AUTH": auth}), host)
    assert (fault is not None) is refused
    assert fault is None or host in fault


@pytest.mark.parametrize("engine", ["outbox", "temporal"])
def test_a_bus_that_has_no_address_is_a_mistake_of_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    options = DevOptions(port=0, data=tmp_path / "data", bus="servicebus", engine=engine)
    assert run_dev(options) == 2
    assert "LUCIUS_SERVICEBUS_CONNECTION" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


def test_addresses_are_told_as_urls() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert url_of("127.0.0.1", listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert url_of("::1", listener).startswith("http://[::1]:")
    assert is_wildcard("0.0.0.0") and is_wildcard("::") and not is_wildcard("example.org")


def held(claim: IO[str] | str) -> IO[str]:
    assert not isinstance(claim, str), claim
    return claim


def test_parts_share_a_folder_and_dev_wants_it_alone(tmp_path: Path) -> None:
    with held(claim_folder(tmp_path, "ledger", shared=True)):
        with held(claim_folder(tmp_path, "ledger", shared=True)):
            assert "Another Lucius" in str(claim_folder(tmp_path, "ledger"))
        mark_layout(tmp_path, "ledger")
        assert "was made with --storage ledger" in str(claim_folder(tmp_path, "table", shared=True))
    with held(claim_folder(tmp_path, "ledger")):
        assert "A `lucius dev` is using" in str(claim_folder(tmp_path, "ledger", shared=True))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lucius.lock", "storage"]


def test_a_layout_that_was_never_written_down_whole_is_written_again(tmp_path: Path) -> None:
    (tmp_path / "storage").write_text("")
    with held(claim_folder(tmp_path, "table", shared=True)):
        mark_layout(tmp_path, "table")
        assert (tmp_path / "storage").read_text() == "table\n"

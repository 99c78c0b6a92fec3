"""What the temporal engine is told, what is refused at once, and what a plain start leaves out."""

import subprocess
import sys
from pathlib import Path

import pytest

from lucius.cli.main import run_cli
from lucius.settings import BadSetting, read_settings
from lucius.settings.table import DEFAULT_INVOKER_URL

SECRET = "hush-hush-hush-hush"


def test_without_variables_everything_is_as_usual() -> None:
    read = read_settings({}).temporal
    assert (read.enabled, read.address, read.secrets, read.execution_timeout_ms) == (None, None, (), None)
    assert (read.namespace, read.task_queue, read.signal_acks) == ("default", "lucius", True)
    assert (read.invoker_url, read.tls, read.api_key) == (DEFAULT_INVOKER_URL, False, None)


def test_variables_are_read() -> None:
    read = read_settings(
        {
            "LUCIUS_TEMPORAL_ENABLED": "true",
            "LUCIUS_TEMPORAL_ADDRESS": "temporal.example:7233",
            "LUCIUS_TEMPORAL_NAMESPACE": "prod",
            "LUCIUS_TEMPORAL_TASK_QUEUE": "jobs",
            "LUCIUS_TEMPORAL_TLS": "true",
            "LUCIUS_TEMPORAL_API_KEY": "key-to-temporal",
            "LUCIUS_TEMPORAL_WORKFLOW_EXECUTION_TIMEOUT": "30d",
            "LUCIUS_TEMPORAL_SIGNAL_ACKS": "false",
            "LUCIUS_INVOKER_URL": "https://invoker.example:8421",
            "LUCIUS_INTERNAL_SECRET": f"{SECRET}, an-older-secret-too",
        }
    ).temporal
    assert (read.enabled, read.address, read.tls) == (True, "temporal.example:7233", True)
    assert (read.namespace, read.task_queue, read.signal_acks) == ("prod", "jobs", False)
    assert read.execution_timeout_ms == 30 * 86_400_000
    assert read.invoker_url == "https://invoker.example:8421"
    assert read.secrets == (SECRET, "an-older-secret-too")
    assert "hush" not in repr(read) and "key-to-temporal" not in repr(read)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("LUCIUS_TEMPORAL_ENABLED", "perhaps"),
        ("LUCIUS_TEMPORAL_ADDRESS", "hush"),
        ("LUCIUS_TEMPORAL_ADDRESS", "http://hush:7233"),
        ("LUCIUS_TEMPORAL_ADDRESS", "hush:99999"),
        ("LUCIUS_TEMPORAL_WORKFLOW_EXECUTION_TIMEOUT", "soon"),
        ("LUCIUS_TEMPORAL_SIGNAL_ACKS", "some"),
        ("LUCIUS_INVOKER_URL", "hush:8421"),
        ("LUCIUS_INVOKER_URL", "http://user:hush@invoker:8421"),
        ("LUCIUS_INVOKER_URL", "http://invoker:hush"),
        ("LUCIUS_PUBLIC_URL", "hush hush"),
        ("LUCIUS_PUBLIC_URL", "ftp://hush/"),
        ("LUCIUS_PUBLIC_URL", "https://user:hush@lucius.example"),
        ("LUCIUS_PUBLIC_URL", "https://hush hush"),
        ("LUCIUS_MAX_ATTEMPTS", "101"),
        ("LUCIUS_MAX_ATTEMPTS", "9" * 5_000),
        ("LUCIUS_MAX_INFLIGHT", "9" * 5_000),
        ("LUCIUS_NATS_URL", "hush hush"),
        ("LUCIUS_INTERNAL_SECRET", "hush"),
        ("LUCIUS_INTERNAL_SECRET", "hush hush hush hush hush"),
        ("LUCIUS_INTERNAL_SECRET", f"{SECRET},"),
        ("LUCIUS_INTERNAL_SECRET", "hüsh-hüsh-hüsh-hüsh"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name_and_not_repeated(name: str, value: str) -> None:
    with pytest.raises(BadSetting) as refused:
        read_settings({name: value})
    assert name in str(refused.value)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("arguments", "env", "words"),
    [
        (("orchestrator", "--port", "0"), {}, "LUCIUS_INTERNAL_SECRET must be set"),
        (("invoker", "--port", "0"), {}, "LUCIUS_INTERNAL_SECRET must be set"),
        (("worker",), {}, "LUCIUS_INTERNAL_SECRET must be set"),
        (("orchestrator", "--port", "0"), {"LUCIUS_INTERNAL_SECRET": SECRET}, "needs LUCIUS_NATS_URL"),
        (("invoker", "--port", "0"), {"LUCIUS_INTERNAL_SECRET": SECRET}, "needs LUCIUS_NATS_URL"),
        (("worker",), {"LUCIUS_INTERNAL_SECRET": "hush"}, "LUCIUS_INTERNAL_SECRET must be 16 visible"),
        (
            ("orchestrator", "--host", "0.0.0.0"),
            {"LUCIUS_INTERNAL_SECRET": SECRET, "LUCIUS_NATS_URL": "nats://127.0.0.1:1"},
            "LUCIUS_AUTH=required",
        ),
        (
            ("worker", "--health-host", "0.0.0.0", "--health-port", "0"),
            {"LUCIUS_INTERNAL_SECRET": SECRET},
            "LUCIUS_AUTH=required",
        ),
        (("invoker", "--bus", "memory"), {}, "this version offers nats"),
        (("dev", "--engine", "temporal", "--bus", "memory", "--port", "0"), {}, "--bus nats"),
        (("dev", "--engine", "steam"), {}, "this version offers outbox, temporal"),
        (("api", "--port", "0"), {"LUCIUS_TEMPORAL_ENABLED": "true"}, "lucius orchestrator"),
    ],
)
def test_what_cannot_be_run_is_refused_before_anything_is_made(
    arguments: tuple[str, ...],
    env: dict[str, str],
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert run_cli(arguments) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "hush" not in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "spared"),
    [
        ("lucius.cli.main", ("temporalio", "nats", "lucius.api.app")),
        ("lucius.assembly", ("temporalio", "nats", "lucius.api.app")),
        ("lucius.cli.dev", ("temporalio", "nats", "pypdfium2")),
        ("lucius.cli.parts", ("temporalio", "nats", "lucius.api.app", "lucius.services")),
        ("lucius.cli.service", ("temporalio", "nats", "lucius.api.app", "pypdfium2")),
        ("lucius.cli.temporal_parts", ("temporalio.worker", "nats", "lucius.services")),
        ("lucius.cli.temporal_worker", ("lucius.api.app", "nats", "lucius.services")),
    ],
)
def test_a_process_loads_nothing_that_is_not_its_own(module: str, spared: tuple[str, ...]) -> None:
    code = f"import {module}, sys; print([n for n in {spared} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", [("worker",), ("dev", "--engine", "temporal", "--port", "0")])
def test_without_the_package_it_is_named(
    command: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LUCIUS_INTERNAL_SECRET", SECRET)
    for name in [name for name in sys.modules if name.startswith(("lucius.engines.temporal", "temporalio"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in (
        "cli.temporal_common",
        "cli.temporal_parts",
        "cli.temporal_worker",
        "cli.dev_temporal",
        "cli.children",
        "assembly.temporal",
        "assembly.temporal_worker",
    ):
        monkeypatch.delitem(sys.modules, f"lucius.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "temporalio", None)
    assert run_cli(command) == 1
    assert "install lucius[temporal]" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

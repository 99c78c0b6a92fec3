"""Profiles: which server a command talks to, and with which key."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.played_api import Done, PlayedApi


@pytest.fixture
def config(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Callable[[str], Path]:
    """Writes the config file; without `LUCIUS_URL`, which would win."""
    monkeypatch.delenv("LUCIUS_URL")
    monkeypatch.delenv("LUCIUS_PROFILE", raising=False)
    path = tmp_path / "config.toml"
    monkeypatch.setenv("LUCIUS_CONFIG", str(path))
    played_api.on("GET", "/v1/jobs", played_api.listed())

    def write(text: str, mode: int = 0o600) -> Path:
        path.write_text(text.replace("URL", f'"{played_api.url}"'))
        path.chmod(mode)
        return path

    return write


def _sent(played_api: "PlayedApi") -> list[str | None]:
    return [asked.headers.get("authorization") for asked in played_api.asked]


@pytest.mark.parametrize(
    "arguments", [("--profile", "prod", "jobs", "list"), ("jobs", "list", "--profile", "prod")]
)
def test_a_profile_may_be_named_before_or_after_the_command(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    config: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    config('[profiles.prod]\nurl = URL\napi_key = "k-prod"\n')
    # What the command line names wins over what the environment happens to hold.
    monkeypatch.setenv("LUCIUS_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("LUCIUS_API_KEY", "k-env")
    assert command_line(*arguments) == (0, "", "No jobs.\n")
    assert _sent(played_api) == ["Bearer k-prod"]
    # And it holds for that command line alone.
    assert command_line("jobs", "list").code == 4


def test_the_order_of_sources(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    config: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config('[profiles.default]\nurl = URL\napi_key = "k-default"\n[profiles.bare]\nurl = URL\n')
    command_line("jobs", "list")
    monkeypatch.setenv("LUCIUS_PROFILE", "bare")
    command_line("jobs", "list")
    monkeypatch.setenv("LUCIUS_API_KEY", "k-env")
    command_line("jobs", "list")
    assert _sent(played_api) == ["Bearer k-default", None, "Bearer k-env"]
    # The key of a profile never goes to an address that the environment names.
    monkeypatch.setenv("LUCIUS_PROFILE", "default")
    monkeypatch.setenv("LUCIUS_URL", played_api.url)
    monkeypatch.delenv("LUCIUS_API_KEY")
    command_line("jobs", "list")
    assert _sent(played_api)[-1] is None


def test_a_key_may_come_from_a_command(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", config: Callable[[str], Path]
) -> None:
    program = f"{sys.executable} -c \\\"print('k-said')\\\""
    config(
        f'[profiles.words]\nurl = URL\napi_key_command = "{program}"\n'
        f"[profiles.list]\nurl = URL\napi_key_command = ['{sys.executable}', '-c', 'print(\"k-list; x\")']\n"
    )
    for name in ("words", "list"):
        assert command_line("jobs", "list", "--profile", name).code == 0
    assert _sent(played_api) == ["Bearer k-said", "Bearer k-list; x"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ('["no-such-program-here"]', "cannot be run: No such file"),
        ('["false"]', "ended with 1"),
        ('["true"]', "printed nothing"),
        ('"\'"', "is not a command"),
        ("[]", "is not a command"),
    ],
)
def test_a_command_that_gives_no_key_is_told(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    config: Callable[[str], Path],
    command: str,
    words: str,
) -> None:
    config(f"[profiles.p]\nurl = URL\napi_key_command = {command}\n")
    done = command_line("jobs", "list", "--profile", "p")
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert played_api.asked == []


def test_a_key_that_others_can_read_is_warned_of(
    command_line: "Callable[..., Done]", config: Callable[..., Path]
) -> None:
    text = '[profiles.p]\nurl = URL\napi_key = "very-secret"\n'
    path = config(text, 0o644)
    done = command_line("jobs", "list", "--profile", "p", "--json")
    assert (done.code, done.out) == (0, '{"items":[],"next_cursor":null}\n')
    assert done.err == f"warning: {path} holds a key and others can read it; do `chmod 600 {path}`.\n"
    config(text, 0o600)
    assert command_line("jobs", "list", "--profile", "p", "--json").err == ""
    config("[profiles.p]\nurl = URL\n", 0o644)
    assert command_line("jobs", "list", "--profile", "p", "--json").err == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[profiles.p", "is not TOML"),
        ("[profiles.p]\napi_key = 'very-secret'\n", "missing required field `url`"),
        ("[profiles.p]\nurl = URL\npassword = 'very-secret'\n", "unknown field `password`"),
        ("[profiles.p]\nurl = 'ftp://x'\n", "The url of profile p must look like"),
        ("[profiles.p]\nurl = 'http://a:very-secret@b'\n", "must not carry a name or password"),
        (
            '[profiles.p]\nurl = URL\napi_key = "very-secret\\n2"\n',
            "the api_key of profile p holds characters",
        ),
        ("[profiles.p]\nurl = URL\napi_key = 'very-secret'\napi_key_command = 'x'\n", "has both"),
        ("[profiles.q]\nurl = URL\n", "There is no profile 'p'"),
        ("#" * 300_000, "larger than 256 KiB"),
    ],
)
def test_a_config_that_cannot_work_is_a_usage_error(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    config: Callable[[str], Path],
    text: str,
    words: str,
) -> None:
    config(text)
    done = command_line("jobs", "list", "--profile", "p")
    assert (done.code, done.out) == (2, "")
    assert words in done.err
    assert "very-secret" not in done.err
    assert played_api.asked == []


def test_a_config_file_that_is_not_there(
    command_line: "Callable[..., Done]", config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = command_line("jobs", "list", "--profile", "p")
    assert done.code == 2
    assert "There is no config file" in done.err
    assert "LUCIUS_CONFIG" in done.err
    # Whoever names a file means it, and not the server on this machine.
    named = command_line("jobs", "list")
    assert named.code == 2
    assert "There is no config file" in named.err
    # Nobody asked for one: then there need not be one.
    monkeypatch.setenv("LUCIUS_URL", "http://127.0.0.1:1")
    assert command_line("jobs", "list").code == 4


def test_where_the_config_file_is(tmp_path: Path) -> None:
    from lucius.cli.profiles import config_path

    assert config_path({}, tmp_path) == tmp_path / ".config" / "lucius" / "config.toml"
    assert config_path({"XDG_CONFIG_HOME": "/x"}, tmp_path) == Path("/x/lucius/config.toml")
    assert config_path({"LUCIUS_CONFIG": "~/c.toml"}, tmp_path) == Path(os.path.expanduser("~/c.toml"))

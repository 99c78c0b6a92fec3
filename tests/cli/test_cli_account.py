"""`lucius login`, `lucius config` and `lucius open` against a played API."""

import json
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.played_api import Done, PlayedApi

KEY = "lk_0123456789abcdef_" + "7" * 64
OTHERS = '# mine\n[profiles.dev]\nurl = "http://y"  # beside\n\n[profiles.prod]\nurl = "http://old"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config" / "config.toml"
    monkeypatch.setenv("LUCIUS_CONFIG", str(path))
    return path


def _known(played_api: "PlayedApi", *, authenticated: bool = True) -> None:
    session = {
        "authenticated": authenticated,
        "problem": None if authenticated else "this key is not known",
        "auth": "required",
        "name": "ci",
        "roles": ["read", "submit"],
    }
    played_api.on("GET", "/v1/session", played_api.said(200, session))


def test_a_key_that_works_is_kept_for_its_owner_alone(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.parent.mkdir()
    file.write_text(OTHERS)
    _known(played_api)
    done = command_line("--profile", "prod", "login", "--url", played_api.url, stdin=f"{KEY}\n".encode())
    assert (done.code, done.out) == (0, "")
    assert "ci; roles: read, submit." in done.err and KEY not in done.err
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = file.read_text()
    assert kept.startswith('# mine\n[profiles.dev]\nurl = "http://y"  # beside\n')
    assert "http://old" not in kept and kept.count("[profiles.prod]") == 1
    assert played_api.asked[0].headers["authorization"] == f"Bearer {KEY}"
    monkeypatch.delenv("LUCIUS_URL")
    played_api.on("GET", "/v1/jobs", played_api.listed())
    assert command_line("--profile", "prod", "jobs", "list").code == 0
    assert played_api.asked[-1].headers["authorization"] == f"Bearer {KEY}"


def test_a_key_that_is_not_known_is_not_kept(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", file: Path
) -> None:
    _known(played_api, authenticated=False)
    done = command_line("login", "--url", played_api.url, stdin=f"{KEY}\n".encode())
    assert done.code == 4 and "this key is not known" in done.err
    assert not file.exists()


def test_profiles_are_set_listed_shown_and_removed(
    command_line: "Callable[..., Done]", file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LUCIUS_URL", raising=False)
    assert "lucius login" in command_line("config", "list").err
    set_it = command_line(
        "config", "set", "default", "--url", "https://l.example", "--key-command", "pass show l"
    )
    assert set_it.code == 0, set_it.err
    listed = json.loads(command_line("config", "list", "--json").out)
    assert listed == {"profiles": {"default": {"url": "https://l.example", "key": True}}}
    assert command_line("config", "set", "default", "--url", "https://m.example").code == 0
    shown = json.loads(command_line("config", "show", "--json").out)
    assert (shown["url"], shown["from"], shown["key"]) == ("https://m.example", "profile default", "none")
    assert command_line("config", "remove", "default").code == 0
    assert command_line("config", "remove", "default").code == 1
    assert json.loads(command_line("config", "list", "--json").out) == {"profiles": {}}
    assert command_line("config", "set", "a b", "--url", "https://l.example").code == 2
    assert command_line("config", "set", "x", "--url", "no url").code == 2


def test_a_file_that_cannot_be_changed_safely_is_left_alone(
    command_line: "Callable[..., Done]", file: Path
) -> None:
    file.parent.mkdir()
    text = '[profiles]\nprod = {url = "http://old"}\n'
    file.write_text(text)
    done = command_line("config", "set", "prod", "--url", "https://l.example")
    assert done.code == 1 and "edit it yourself" in done.err
    assert file.read_text() == text
    assert list(file.parent.iterdir()) == [file]


def test_open_says_where_the_console_is(
    played_api: "PlayedApi", command_line: "Callable[..., Done]", monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def browse(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", browse)
    _known(played_api)
    assert command_line("open") == (0, f"{played_api.url}/\n", "")
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, played_api.job("QUEUED")))
    assert command_line("open", "job_1", "--print").out == f"{played_api.url}/#/jobs/job_1\n"
    assert opened == [f"{played_api.url}/"]

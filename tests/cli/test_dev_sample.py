"""The sample of `lucius dev`: once a folder; and the console in the browser."""

from pathlib import Path

import pytest

from lucius.cli.dev import ANSWER, open_if_asked, sample_wanted
from lucius.cli.options import DevOptions
from lucius.settings import read_settings
from lucius.workspace.own_files import SAMPLES


def test_a_sample_runs_once_a_folder_unless_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = read_settings({})
    usual = DevOptions(data=tmp_path)
    assert sample_wanted(usual, settings)
    (tmp_path / SAMPLES).mkdir()
    assert sample_wanted(usual, settings), "one that did not succeed is tried again"
    (tmp_path / SAMPLES / ANSWER).touch()
    assert not sample_wanted(usual, settings)
    assert "--sample runs it again" in capsys.readouterr().err
    assert sample_wanted(DevOptions(data=tmp_path, sample=True), settings)
    assert not sample_wanted(DevOptions(data=tmp_path / "other", sample=False), settings)
    assert not sample_wanted(DevOptions(data=tmp_path / "other", services=()), settings)


async def test_the_console_is_opened_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[str] = []

    def browse(address: str) -> bool:
        opened.append(address)
        return False

    monkeypatch.setattr("webbrowser.open", browse)
    await open_if_asked(DevOptions(), "http://l")
    await open_if_asked(DevOptions(opens=True), "http://l")
    assert opened == ["http://l"]
    assert "There is no browser here" in capsys.readouterr().err

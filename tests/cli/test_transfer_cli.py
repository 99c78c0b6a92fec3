"""`lucius export`, `lucius verify` and `lucius import` on data folders: what is done, refused, and said."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.cli.test_doctor import LAYOUTS, lucius_in, submitted
from tests.support.played_api import Done

from lucius.cli.folder import claim_folder

CommandLine = Callable[..., Done]


async def made(folder: Path, storage: str = "ledger") -> list[str]:
    async with lucius_in(folder, storage) as lucius:
        return [await submitted(lucius, number) for number in range(3)]


@pytest.fixture
def jobs(tmp_path: Path) -> list[str]:
    return asyncio.run(made(tmp_path / "data"))


def test_a_ledger_goes_into_a_file_and_into_another_folder(
    jobs: list[str], tmp_path: Path, command_line: CommandLine
) -> None:
    file, new = str(tmp_path / "e.jsonl"), str(tmp_path / "new")
    done = command_line("export", file, "--data", str(tmp_path / "data"))
    assert (done.code, done.out) == (0, f"{file}\n")
    assert done.err.startswith("3 jobs, 3 of them open, 0 schedules, 0 API keys, as of ")
    done = command_line("verify", file)
    assert done.code == 0 and f"{file} is sound: 3 jobs, 3 of them open" in done.out
    done = command_line("import", file, "--data", new, "--storage", "table")
    assert (done.code, done.out) == (0, "3 jobs written\n")
    assert (tmp_path / "new" / "storage").read_text() == "table\n"
    done = command_line("export", str(tmp_path / "again"), "--data", new, "--json")
    summary = json.loads(done.out)["summary"]
    assert (summary["end"]["jobs"], summary["head"]["layout"]) == (3, "table")
    done = command_line("import", file, "--data", new)
    assert done.code == 1 and "has that export already" in done.err


@pytest.mark.parametrize("storage", LAYOUTS)
def test_jobs_of_an_import_are_shown_and_go_on(
    storage: str, jobs: list[str], tmp_path: Path, command_line: CommandLine
) -> None:
    file, new = str(tmp_path / "e.jsonl"), tmp_path / "new"
    assert command_line("export", file, "--data", str(tmp_path / "data")).code == 0
    done = command_line("import", file, "--data", str(new), "--storage", storage, "--json")
    assert json.loads(done.out)["jobs_written"] == 3

    async def look() -> None:
        async with lucius_in(new, storage) as lucius:
            assert all([await lucius.deployment.ledger.load(job_id) for job_id in jobs])
            assert await submitted(lucius, 1) == jobs[1], "the same command is the same job"

    asyncio.run(look())


def test_a_folder_in_use_is_exported_only_as_a_copy(
    jobs: list[str], tmp_path: Path, command_line: CommandLine
) -> None:
    data, file = tmp_path / "data", str(tmp_path / "e.jsonl")
    held = claim_folder(data, "ledger")
    assert not isinstance(held, str)
    with held:
        done = command_line("export", file, "--data", str(data))
        assert done.code == 1 and "at work on the ledger" in done.err and "--running" in done.err
        assert not Path(file).exists()
        done = command_line("export", file, "--data", str(data), "--running", "--json")
        assert json.loads(done.out)["summary"]["head"]["running"] is True
        done = command_line("import", file, "--data", str(data))
        assert done.code == 1 and "is using" in done.err
    done = command_line("import", file, "--store", "memory:")
    assert done.code == 1 and "in memory" in done.err
    done = command_line("import", file, "--data", str(tmp_path / "new"))
    assert done.code == 1 and "--accept-running" in done.err
    done = command_line("import", file, "--data", str(tmp_path / "new"), "--accept-running")
    assert (done.code, done.out) == (0, "3 jobs written\n")


def test_mistakes_are_named_and_leave_nothing(
    jobs: list[str], tmp_path: Path, command_line: CommandLine
) -> None:
    data, file = str(tmp_path / "data"), tmp_path / "e.jsonl"
    done = command_line("export", str(file), "--data", str(tmp_path / "nowhere"))
    assert done.code == 4 and "no folder" in done.err
    file.write_text("mine")
    done = command_line("export", str(file), "--data", data)
    assert done.code == 2 and "never replaces" in done.err and file.read_text() == "mine"
    done = command_line("export", str(tmp_path / "no" / "e"), "--data", data)
    assert done.code == 2 and "there is no folder" in done.err
    done = command_line("export", str(tmp_path / "e2"), "--data", data, "--tenant", " ")
    assert done.code == 2 and "--tenant must not be blank" in done.err
    done = command_line("verify", str(file))
    assert done.code == 1 and "line 1: " in done.err
    done = command_line("verify", str(tmp_path / "e3"))
    assert done.code == 2 and "does not exist" in done.err
    done = command_line("import", str(file), "--data", str(tmp_path / "new"))
    assert done.code == 1 and "line 1: " in done.err
    done = command_line("import", str(file), "--store", "mysql://x")
    assert done.code == 2 and "--store" in done.err
    assert {path.name for path in tmp_path.iterdir()} == {"data", "e.jsonl"}


@pytest.mark.parametrize("command", ["export", "verify", "import"])
def test_a_dash_is_no_file_and_no_pipe(
    command: str, jobs: list[str], tmp_path: Path, command_line: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = () if command == "verify" else ("--data", str(tmp_path / "data"))
    done = command_line(command, "-", *options)
    assert (done.code, done.out) == (2, "")
    assert "- is no file, and an export goes through no pipe: name a file." in " ".join(done.err.split())
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


def test_one_tenant_is_exported_whatever_its_spelling(
    jobs: list[str], tmp_path: Path, command_line: CommandLine
) -> None:
    data, file = str(tmp_path / "data"), str(tmp_path / "e.jsonl")
    done = command_line("export", file, "--data", data, "--tenant", " ACME ", "--json")
    summary = json.loads(done.out)["summary"]
    assert (summary["end"]["jobs"], summary["tenants"]) == (3, ["acme"])
    done = command_line("export", str(tmp_path / "none"), "--data", data, "--tenant", "other")
    assert (done.code, done.err.split(",")[0]) == (0, "0 jobs of other")

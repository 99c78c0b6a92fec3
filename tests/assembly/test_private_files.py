"""What Lucius keeps in its data folder is nobody else's to read, whatever its age and the umask."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.log_lines import caught

from lucius.cli.folder import claim_folder
from lucius.ledger.sqlite.store import SqliteStore
from lucius.ledger.store import insert
from lucius.private_files import close_to_others, open_to_others, write_private
from lucius.sdk.result_stores.sqlite import SqliteResultStore


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """What most machines are set to: others may read."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def test_the_ledger_its_log_and_its_index_are_for_the_owner_alone(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "lucius.db")
    await store.commit([insert("jobs", "p", "k", b"{}")])
    assert {file.name: oct(mode_of(file)) for file in tmp_path.iterdir()} == dict.fromkeys(
        ("lucius.db", "lucius.db-wal", "lucius.db-shm", "lucius.db-turn"), "0o600"
    )
    await store.close()


async def test_a_ledger_that_was_open_to_others_is_closed_when_it_is_opened(tmp_path: Path) -> None:
    before = await SqliteStore.open(tmp_path / "lucius.db")
    await before.commit([insert("jobs", "p", "k", b"{}")])
    for suffix in ("", "-wal", "-shm"):  # the fourth file was never open
        (tmp_path / f"lucius.db{suffix}").chmod(0o644)
    beside = await SqliteStore.open(tmp_path / "lucius.db")
    assert {mode_of(file) for file in tmp_path.iterdir()} == {0o600}
    assert await beside.get("jobs", "p", "k") is not None
    await beside.close()
    await before.close()


async def test_kept_results_are_for_the_owner_alone(tmp_path: Path) -> None:
    result_store = await SqliteResultStore.open(tmp_path / "results-ocr.db")
    assert {mode_of(file) for file in tmp_path.iterdir()} == {0o600}
    await result_store.close()


def test_whoever_claims_the_folder_writes_for_the_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "data"
    with claim_folder(folder, "ledger") as claim:  # type: ignore[union-attr]
        (folder / "workspace").mkdir()
        (folder / "workspace" / "output.txt").write_text("a tenant's text")
        assert not isinstance(claim, str)
    assert open_to_others(folder) == []
    assert mode_of(folder) == 0o700 and mode_of(folder.parent) == 0o755


def test_a_folder_of_before_is_closed_with_all_of_lucius_and_nothing_else(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "data", tmp_path / "elsewhere"
    ours = (
        "lucius.lock",
        "lucius.db",
        "nats/jetstream/x.blk",
        "workspace/lucius/acme/job_1/ocr/1/output.txt",
    )
    theirs = "documents/letter.pdf"
    for name in (*ours, theirs):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    elsewhere.write_text("x")
    (folder / "workspace" / "link").symlink_to(elsewhere)
    folder.chmod(0o755)
    claim_folder(folder, "ledger").close()  # type: ignore[union-attr]
    assert mode_of(folder) == 0o700
    assert {mode_of(folder / name) for name in ours} == {0o600}
    assert mode_of(folder / "nats" / "jetstream") == mode_of(folder / "workspace") == 0o700
    assert mode_of(folder / theirs) == mode_of(elsewhere) == 0o644
    # Once: what a service in a process of its own writes there later is behind a closed door anyway.
    (folder / "workspace" / "later").write_text("x")
    (folder / "workspace" / "later").chmod(0o644)
    claim_folder(folder, "ledger").close()  # type: ignore[union-attr]
    assert mode_of(folder / "workspace" / "later") == 0o644


def test_a_folder_that_is_not_ours_to_close_is_told_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    tmp_path.chmod(0o777)
    monkeypatch.setattr(Path, "chmod", refused)
    with caught("warning") as lines:
        claim_folder(tmp_path, "ledger").close()  # type: ignore[union-attr]
    assert lines.one("data_folder_open")["folder"] == str(tmp_path)


def test_what_is_written_is_private_and_whole(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    write_private(file, b"one")
    file.chmod(0o644)
    write_private(file, b"two")
    assert (mode_of(file), file.read_bytes(), len(list(tmp_path.iterdir()))) == (0o600, b"two", 1)
    with pytest.raises(IsADirectoryError):
        write_private_over_a_folder(tmp_path)
    assert len(list(tmp_path.iterdir())) == 2


def write_private_over_a_folder(folder: Path) -> None:
    (folder / "taken").mkdir()
    write_private(folder / "taken", b"x")


def test_what_is_not_there_is_closed(tmp_path: Path) -> None:
    assert close_to_others(tmp_path / "nothing")

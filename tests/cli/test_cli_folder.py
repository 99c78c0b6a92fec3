"""The data folder belongs to one process and keeps its layout; paths become references; hints help."""

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest
from tests.support.played_api import Done, PlayedApi

from lucius.assembly import stores
from lucius.assembly.stores import mark_layout
from lucius.cli.folder import claim_folder
from lucius.cli.render import step_row
from lucius.ledger.store import StoreUnavailable


def test_a_folder_is_held_until_the_claim_is_closed(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "data"
    held = claim_folder(folder, "ledger")
    assert not isinstance(held, str)
    refused = claim_folder(folder, "ledger")
    assert isinstance(refused, str)
    assert refused.startswith(f"Another Lucius is using {folder}.")
    held.close()
    again = claim_folder(folder, "ledger")
    assert not isinstance(again, str)
    again.close()


def test_a_folder_keeps_its_layout(tmp_path: Path) -> None:
    mark_layout(tmp_path, "table")
    refused = claim_folder(tmp_path, "ledger")
    assert isinstance(refused, str)
    assert "was made with --storage table" in refused
    for storage in ("table", "memory"):  # a ledger in memory has nothing to do with the file
        again = claim_folder(tmp_path, storage)
        assert not isinstance(again, str)
        again.close()


def test_a_start_that_is_refused_leaves_no_mark(tmp_path: Path) -> None:
    for storage in ("ledger", "table"):
        claim = claim_folder(tmp_path, storage)
        assert not isinstance(claim, str)
        claim.close()


@pytest.mark.parametrize("content", [b"???\n", b"\xff\xfe", b"ledger table"])
def test_a_mark_that_is_not_ours_is_called_so(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "storage").write_bytes(content)
    refused = claim_folder(tmp_path, "ledger")
    assert isinstance(refused, str)
    assert refused.startswith(f"{tmp_path / 'storage'} is not one of Lucius's files")
    assert "ledger or table" in refused and "--storage" not in refused and "???" not in refused
    assert (tmp_path / "storage").read_bytes() == content


def test_of_several_that_begin_a_folder_together_the_first_word_counts(tmp_path: Path) -> None:
    claims = [claim_folder(tmp_path, storage, shared=True) for storage in ("table", "ledger")]
    mark_layout(tmp_path, "table")
    with pytest.raises(StoreUnavailable, match="was made with --storage table"):
        mark_layout(tmp_path, "ledger")
    mark_layout(tmp_path, "memory")
    assert (tmp_path / "storage").read_text() == "table\n"
    for claim in claims:
        assert not isinstance(claim, str)
        claim.close()


def test_a_path_becomes_a_file_reference(
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = played_api.said(202, {"jobId": "job_1", "state": "QUEUED", "duplicate": False})
    played_api.on("POST", "/v1/orchestrate", answer)
    paths = ("--input", "a letter.txt", "--output", "sub/../out.txt")
    assert command_line("submit", "--tenant", "acme", "--type", "OCR", *paths).code == 0
    sent = json.loads(played_api.asked[0].body)
    here = tmp_path.resolve().as_uri()
    assert sent["input_ref"] == {"uri": f"{here}/a%20letter.txt"}
    assert sent["output_ref"] == {"uri": f"{here}/out.txt"}


def test_run_says_that_a_duplicate_is_not_a_new_job(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    answer = played_api.said(202, {"jobId": "job_1", "state": "SUCCEEDED", "duplicate": True})
    played_api.on("POST", "/v1/orchestrate", answer)
    played_api.on("GET", "/v1/jobs/job_1", played_api.said(200, played_api.job("SUCCEEDED")))
    played_api.on("GET", "/v1/jobs/job_1/events", played_api.listed())
    uris = ("--input", "s3://in/a", "--output", "s3://out/a")
    done = command_line("run", "--tenant", "acme", "--type", "OCR", *uris)
    assert done.code == 0
    assert "job_1 accepted before; a new --key makes a new job" in done.err


def test_a_reference_that_is_not_allowed_comes_with_a_hint(
    played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    played_api.on("POST", "/v1/orchestrate", played_api.problem(422, "REF_NOT_ALLOWED", "no"))
    uris = ("--input", "s3://in/a", "--output", "s3://out/a")
    done = command_line("submit", "--tenant", "acme", "--type", "OCR", *uris)
    assert done.code == 1
    assert "LUCIUS_REF_FILE_ROOTS" in done.err


def test_a_step_tells_what_it_waits_for_and_when_it_is_done() -> None:
    waiting = step_row({"state": "DISPATCHING", "service": "ocr", "attempt_no": 1}, 0)
    assert waiting[-1] == "no worker of ocr has taken it yet"
    assert step_row({"state": "SUCCEEDED", "progress": 95}, 0)[4] == "100%"
    assert step_row({"state": "PROCESSING", "progress": 95}, 0)[4] == "95%"


def test_a_mark_that_another_made_meanwhile_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found the folder without one."""
    looked, looks = stores._mark_of, count()
    path = tmp_path / stores.STORAGE_NAME

    def slow(folder: Path) -> str | None:
        found = looked(folder)
        if not next(looks):  # between the first look and what comes of it
            path.write_text("ledger\n")
        return found

    monkeypatch.setattr(stores, "_mark_of", slow)
    with pytest.raises(StoreUnavailable, match="--storage ledger"):
        mark_layout(tmp_path, "table")
    assert path.read_text() == "ledger\n"

"""`lucius run TYPE DOCUMENT`: the short form of a command, and where its document is taken from."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.support.played_api import Done, PlayedApi

Send = Callable[..., dict[str, Any]]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the user is, with a document."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a letter.pdf").write_bytes(b"%PDF-1.4")
    return tmp_path


@pytest.fixture
def send(played_api: "PlayedApi", command_line: "Callable[..., Done]") -> Send:
    """Submits, and answers with the envelope that was sent."""

    def submit(*words: str) -> dict[str, Any]:
        answer = played_api.said(202, {"jobId": "job_1", "state": "QUEUED", "duplicate": False})
        played_api.on("POST", "/v1/orchestrate", answer)
        done = command_line("submit", *words)
        assert (done.code, done.out) == (0, "job_1\n"), done.err
        sent: dict[str, Any] = json.loads(played_api.asked[-1].body)
        return sent

    return submit


def test_a_type_and_a_document_are_a_command(here: Path, send: Send) -> None:
    place = f"{here.resolve().as_uri()}/a%20letter.pdf"
    assert send("OCR", "a letter.pdf") == {
        "tenant_id": "default",
        "request_type": "OCR",
        "input_ref": {"uri": place},
        "output_ref": {"uri": f"{place}.ocr.result"},
        "payload": {},
        "schema_version": "1",
    }


def test_options_say_more(here: Path, send: Send) -> None:
    more = ("--tenant", "acme", "--output", "s3://out/a", "--payload", '{"ocr": {"language": "de"}}')
    sent = send("OCR", "s3://in/a.pdf", *more)
    assert (sent["tenant_id"], sent["payload"]) == ("acme", {"ocr": {"language": "de"}})
    assert (sent["input_ref"], sent["output_ref"]) == ({"uri": "s3://in/a.pdf"}, {"uri": "s3://out/a"})
    assert send("OCR", "s3://in/a.pdf")["output_ref"] == {"uri": "s3://in/a.pdf.ocr.result"}


def test_beside_a_data_folder_the_document_is_copied_into_it_once(here: Path, send: Send) -> None:
    (here / ".lucius").mkdir()
    first = send("OCR", "a letter.pdf")
    (copy,) = (here / ".lucius" / "documents").rglob("*.pdf")
    assert copy.read_bytes() == b"%PDF-1.4"
    assert first["input_ref"] == {"uri": copy.resolve().as_uri()}
    assert first["output_ref"] == {"uri": f"{copy.resolve().as_uri()}.ocr.result"}
    written_at = copy.stat().st_mtime_ns
    assert send("OCR", "a letter.pdf") == first, "the same document is the same command"
    assert copy.stat().st_mtime_ns == written_at
    (here / "a letter.pdf").write_bytes(b"%PDF-1.5")
    assert send("OCR", "a letter.pdf")["input_ref"] != first["input_ref"], "another content is another"
    assert sorted(path.name for path in copy.parent.iterdir()) == ["a letter.pdf"], "no draft is left"


def test_a_document_in_the_data_folder_stays_where_it_is(here: Path, send: Send) -> None:
    (here / ".lucius").mkdir()
    (here / ".lucius" / "b.pdf").write_bytes(b"b")
    sent = send("OCR", ".lucius/b.pdf")
    assert sent["input_ref"] == {"uri": f"{here.resolve().as_uri()}/.lucius/b.pdf"}
    assert not (here / ".lucius" / "documents").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("OCR", "nothing.pdf"), "There is no document nothing.pdf."),
        (("OCR", "a letter.pdf", "--type", "OCR"), "cannot be combined with --type and --input"),
        (("OCR", "a letter.pdf", "--input", "s3://in/a"), "cannot be combined with --type and --input"),
        (("OCR", '{"uri": "s3://in/a"}'), "must be said with --output"),
        (("--type", "OCR"), "a TYPE and a DOCUMENT, or also --tenant, --input, --output."),
    ],
)
def test_what_makes_no_command(
    here: Path,
    played_api: "PlayedApi",
    command_line: "Callable[..., Done]",
    words: tuple[str, ...],
    reason: str,
) -> None:
    done = command_line("run", *words)
    assert done.code == 2
    assert reason in " ".join(done.err.split())
    assert played_api.asked == []


def test_a_folder_that_takes_no_copy(
    here: Path, played_api: "PlayedApi", command_line: "Callable[..., Done]"
) -> None:
    (here / ".lucius").mkdir()
    (here / ".lucius" / "documents").write_text("in the way")
    done = command_line("run", "OCR", "a letter.pdf")
    assert done.code == 2
    assert "a letter.pdf cannot be copied to .lucius" in " ".join(done.err.split())

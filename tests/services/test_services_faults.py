"""Bad documents and bad surroundings: every fault has a code, and nothing hangs or is lost."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.services_setup import (
    EMBEDDING,
    OCR,
    SIS,
    Bench,
    a_picture,
    as_bytes,
    as_pdf,
    text_pdf,
    unfolding_pdf,
)

from lucius.sdk import Final, Handler, Retryable, Stopped
from lucius.services import pdf_child
from lucius.services.child_environment import child_environment
from lucius.services.ocr import make_ocr
from lucius.services.pdf import open_pdf

# Of a page that would be drawn for hours: whichever bound it meets first.
ENDLESS = ("WORK_TIME_EXCEEDED", "WORK_OUT_OF_MEMORY", "WORK_PROCESS_DIED")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path.resolve())


async def test_a_pdf_that_never_ends_is_given_up(bench: Bench) -> None:
    with pytest.raises(Final) as failure:
        await bench.ocr(unfolding_pdf(), make_ocr(page_seconds_max=1))
    assert failure.value.code in ENDLESS
    assert not (bench.folder / "output").exists()
    # The next document is read as if nothing had been.
    assert await bench.ocr(text_pdf("Still here")) == "Still here\n"


async def test_a_reader_that_dies_is_told_and_leaves_nothing_behind() -> None:
    with pytest.raises(Final) as failure:
        async with open_pdf(text_pdf("One", "Two")) as pdf:
            assert await pdf.text(0) == "One"
            os.kill(pdf.pid, signal.SIGSEGV)
            await pdf.text(1)
    assert failure.value.code == "WORK_PROCESS_DIED"
    assert "by signal 11" in failure.value.message


async def test_a_reader_goes_on_where_somebody_ends_those_at_the_terminal() -> None:
    """Ctrl-C goes to the whole group of processes, and the service finishes what is under way."""
    async with open_pdf(text_pdf("One")) as pdf:
        assert os.getpgid(pdf.pid) != os.getpgid(0)
        assert await pdf.text(0) is not None


async def test_a_reader_may_not_take_all_memory() -> None:
    with pytest.raises(Final) as failure:
        async with open_pdf(unfolding_pdf(), memory_bytes_max=200 * 1024**2) as pdf:
            assert pdf.pages == 1
            await pdf.text(0)
    assert failure.value.code == "WORK_OUT_OF_MEMORY"


def test_a_reader_whose_master_died_over_a_question_ends_by_itself() -> None:
    document, first_page = unfolding_pdf(), pdf_child.PAGE.pack(0, 0)
    asked = b"".join(
        pdf_child.HEAD.pack(kind, len(body)) + body
        for kind, body in ((pdf_child.DOCUMENT, document), (pdf_child.TEXT, first_page))
    )
    line = [sys.executable, "-P", pdf_child.__file__, str(2 * 1024**3), "1"]
    ended = subprocess.run(line, input=asked, capture_output=True, timeout=60)
    assert ended.returncode == -signal.SIGXCPU


async def test_a_reader_ends_with_its_document() -> None:
    async with open_pdf(text_pdf("One")) as pdf:
        assert (pdf.pages, Path(f"/proc/{pdf.pid}").exists()) == (1, True)
    assert not Path(f"/proc/{pdf.pid}").exists()


async def test_a_cancelled_reading_ends_its_reader(bench: Bench) -> None:
    opened = asyncio.Event()
    pids: list[int] = []

    async def read() -> None:
        async with open_pdf(unfolding_pdf()) as pdf:
            pids.append(pdf.pid)
            opened.set()
            await pdf.text(0)

    reading = asyncio.create_task(read())
    await opened.wait()
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert not Path(f"/proc/{pids[0]}").exists()


def test_guests_are_told_no_secrets() -> None:
    ours = {"PATH": "/bin", "LUCIUS_SIS_API_KEY": "secret", "AWS_SECRET_ACCESS_KEY": "secret", "LANG": "C"}
    assert child_environment(ours) == {"PATH": "/bin", "LANG": "C"}


async def test_a_document_of_five_hundred_pages(bench: Bench) -> None:
    pages = [f"Page {number} tells of the thing called t{number}." for number in range(500)]
    pages[77] = ""
    text = await bench.ocr(text_pdf(*pages))
    assert text.split("\n\n") == [*pages[:499], f"{pages[499]}\n"]
    assert [note for _, note in bench.reported] == [f"page {number} of 500" for number in range(1, 501)]
    upstream = [{"stepId": "s", "step_type": "OCR", "result_ref": {"uri": bench.uri("output")}}]
    made = await bench.run(EMBEDDING, "EMBEDDING", upstream=upstream, payload={"chunk_size": 60})
    upstream.append({"stepId": "s", "step_type": "EMBEDDING", "result_ref": made})
    await bench.run(SIS, "SIS", upstream=upstream, payload={"prompt": "What tells of t321?"})
    assert pages[321] in bench.answers()[0]["answer"]


async def test_more_pages_than_are_read_are_refused(bench: Bench) -> None:
    kids = b"3 0 R " * 5001
    many = as_pdf(
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[%s]/Count 5001>>" % kids,
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 612 792]>>",
    )
    with pytest.raises(Final) as failure:
        await bench.ocr(many)
    assert failure.value.code == "DOCUMENT_TOO_LARGE"


async def test_pages_with_and_without_text_layers_and_empty_ones(bench: Bench) -> None:
    assert await bench.ocr(text_pdf("", "Between two empty pages", "")) == "\n\nBetween two empty pages\n\n\n"
    assert (await bench.ocr(as_bytes(a_picture(), "PNG"), attempt_no=3)).strip() == ""


async def test_nothing_to_read_is_answered_with_nothing(bench: Bench) -> None:
    assert await bench.ocr(text_pdf("")) == "\n"
    upstream = [{"stepId": "s", "step_type": "OCR", "result_ref": {"uri": bench.uri("output")}}]
    made = await bench.run(EMBEDDING, "EMBEDDING", upstream=upstream)
    assert json.loads((bench.folder / "output").read_bytes())["chunks"] == []
    upstream.append({"stepId": "s", "step_type": "EMBEDDING", "result_ref": made})
    await bench.run(SIS, "SIS", upstream=upstream, payload={"prompt": "What is it about?"})
    assert bench.answers() == [{"prompt": "What is it about?", "answer": "", "sources": []}]
    with pytest.raises(Final) as failure:
        await bench.run(SIS, "SIS", upstream=upstream, payload={"output_schema": {"type": "string"}})
    assert failure.value.code == "DOCUMENT_EMPTY"


@pytest.mark.parametrize("handler", [OCR, EMBEDDING, SIS])
async def test_a_workspace_that_refuses_writes_is_tried_again(bench: Bench, handler: Handler) -> None:
    (bench.folder / "input").write_text("A text.")
    (bench.folder / "work").write_text("a file where the folder should be")
    with pytest.raises(Retryable) as failure:
        await bench.run(handler, "STEP")
    assert failure.value.code == "WORKSPACE_UNAVAILABLE"
    (bench.folder / "work").unlink()
    (bench.folder / "output").mkdir()
    (bench.folder / "output" / "file").write_text("in the way")
    with pytest.raises(Retryable) as failure:
        await bench.run(handler, "STEP")
    assert failure.value.code == "OUTPUT_UNAVAILABLE"


@pytest.mark.parametrize("handler", [OCR, EMBEDDING, SIS])
async def test_a_workspace_elsewhere_and_an_input_that_is_gone_are_final(
    bench: Bench, handler: Handler
) -> None:
    (bench.folder / "input").write_text("A text.")
    with pytest.raises(Final) as failure:
        await bench.run(handler, "STEP", workspace_ref={"uri": "file:///etc/"})
    assert failure.value.code == "WORKSPACE_NOT_ALLOWED"
    upstream = [{"stepId": "s", "step_type": "X", "result_ref": {"uri": bench.uri("gone")}}]
    (bench.folder / "input").unlink()
    with pytest.raises(Final) as failure:
        await bench.run(handler, "STEP", upstream=upstream)
    assert failure.value.code == "INPUT_NOT_FOUND"


@pytest.mark.parametrize(
    ("handler", "payload"),
    [(EMBEDDING, {"chunk_size": 50}), (SIS, {"prompt_set": ["Which?", "What?", "Who?"]})],
)
async def test_a_stop_ends_the_work_between_pieces(
    bench: Bench, handler: Handler, payload: dict[str, object]
) -> None:
    (bench.folder / "input").write_text("A sentence of some words that is repeated. " * 600)
    bench.stop_after = 1
    with pytest.raises(Stopped):
        await bench.run(handler, "STEP", payload=payload)
    assert len(bench.reported) == 1
    assert not (bench.folder / "output").exists()


async def test_more_chunks_than_are_embedded_are_refused(bench: Bench) -> None:
    (bench.folder / "input").write_text("A sentence of about fifty characters, and no more. " * 21_000)
    with pytest.raises(Final) as failure:
        await bench.run(EMBEDDING, "EMBEDDING", payload={"chunk_size": 50})
    assert failure.value.code == "DOCUMENT_TOO_LARGE"


async def test_long_work_leaves_the_loop_to_others(bench: Bench) -> None:
    (bench.folder / "input").write_text(
        "".join(f"Sentence {number} of a long text. " for number in range(20_000))
    )
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    others = asyncio.create_task(take_turns())
    await bench.run(EMBEDDING, "EMBEDDING")
    others.cancel()
    # One for each batch and each write is what it would be if the work were done on the loop.
    assert turns > 10 * len(bench.reported)

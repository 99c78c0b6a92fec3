"""The reference services on real documents: PDFs, pictures through Tesseract, texts, vectors, answers."""

import json
from math import sqrt
from pathlib import Path
from typing import Any

import pytest
from tests.support.services_setup import EMBEDDING, OCR, SIS, Bench, a_picture, as_bytes

from lucius.sdk import Final, Handler, Retryable, Stopped
from lucius.services.hashing import chunks_of, vector_of
from lucius.services.ocr import make_ocr
from lucius.services.sample import sample_document
from lucius.services.tesseract import language_code

LIGHTHOUSE = "The lighthouse at Harrow Point was lit for the first time in March 1871."


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path.resolve())


async def test_the_text_layer_of_the_sample(bench: Bench) -> None:
    text = await bench.ocr(sample_document())
    assert text.splitlines()[0] == "The lamp of Harrow Point"
    assert LIGHTHOUSE in text.splitlines()
    assert bench.reported == [(95, "page 1 of 1")]


@pytest.mark.parametrize("form", ["PNG", "JPEG", "TIFF", "GIF", "BMP", "WEBP"])
async def test_a_picture_is_read(bench: Bench, form: str) -> None:
    text = await bench.ocr(as_bytes(a_picture("Invoice number 4711", "Total 230 euro"), form))
    assert text.split() == ["Invoice", "number", "4711", "Total", "230", "euro"]


async def test_a_scanned_pdf_is_read_page_by_page(bench: Bench) -> None:
    pages = [a_picture("First page"), a_picture("Second page")]
    scanned = as_bytes(pages[0], "PDF", save_all=True, append_images=pages[1:], resolution=150)
    text = await bench.ocr(scanned, payload={"dpi": 150})
    assert text.split() == ["First", "page", "Second", "page"]
    assert bench.reported == [(47, "page 1 of 2"), (95, "page 2 of 2")]


async def test_a_pdf_is_one_though_something_comes_before_it(bench: Bench) -> None:
    text = await bench.ocr(b"@PJL ENTER LANGUAGE=PDF\r\n" + sample_document())
    assert text.splitlines()[0] == "The lamp of Harrow Point"


async def test_a_picture_without_the_program_says_what_to_install(bench: Bench) -> None:
    with pytest.raises(Final) as failure:
        await bench.ocr(as_bytes(a_picture("x"), "PNG"), make_ocr(program="no-such-program"))
    assert failure.value.code == "OCR_UNAVAILABLE"
    assert "tesseract-ocr" in failure.value.message


async def test_a_language_that_is_not_installed_says_what_to_install(bench: Bench) -> None:
    with pytest.raises(Final) as failure:
        await bench.ocr(as_bytes(a_picture("x"), "PNG"), payload={"language": "xxx"})
    assert failure.value.code == "OCR_UNAVAILABLE"
    assert "tesseract-ocr-xxx" in failure.value.message


async def test_a_picture_that_takes_too_long_is_given_up(bench: Bench) -> None:
    with pytest.raises(Final) as failure:
        await bench.ocr(as_bytes(a_picture("x"), "PNG"), make_ocr(timeout_seconds=0.001))
    assert failure.value.code == "WORK_TIME_EXCEEDED"


@pytest.mark.parametrize(
    ("document", "ref", "text"),
    [
        (b"plain", {}, "plain"),
        ("\ufeffGrüße".encode(), {}, "Grüße"),
        ("Grüße".encode("utf-16"), {}, "Grüße"),
        (b"broken \xff text", {"content_type": "text/plain; charset=utf-8"}, "broken \ufffd text"),
        (b"", {}, ""),
        (b"A header such as %PDF-1.7 comes first.", {}, "A header such as %PDF-1.7 comes first."),
        (b"It begins:\n%PDF-1.7\nand goes on.", {}, "It begins:\n%PDF-1.7\nand goes on."),
    ],
)
async def test_a_text_passes_through(bench: Bench, document: bytes, ref: dict[str, Any], text: str) -> None:
    assert await bench.ocr(document, input_ref={"uri": bench.uri("input"), **ref}) == text


@pytest.mark.parametrize(
    "document",
    [
        b"\x00\x01\x02\x03" * 100,
        b"%PDF-1.4\nand then nothing",
        sample_document()[:300],
        b"\x89PNG\r\n\x1a\nbroken",
        b"\xff\xd8\xffbroken",
        b"RIFF\x10\x00\x00\x00WEBPbroken",
    ],
)
async def test_what_cannot_be_read_is_a_final_failure(bench: Bench, document: bytes) -> None:
    with pytest.raises(Final) as failure:
        await bench.ocr(document)
    assert failure.value.code == "UNREADABLE_DOCUMENT"
    assert not (bench.folder / "output").exists()


async def test_inputs_that_are_missing_or_forbidden_are_final(bench: Bench) -> None:
    for ref, code in (
        ({"uri": bench.uri("nothing")}, "INPUT_NOT_FOUND"),
        ({}, "INPUT_NOT_FOUND"),
        ({"uri": "file:///etc/passwd"}, "INPUT_NOT_ALLOWED"),
        ({"uri": "https://example.com/letter.pdf"}, "INPUT_NOT_ALLOWED"),
        ({"uri": "ftp://example.com/letter.pdf"}, "INPUT_NOT_ALLOWED"),
    ):
        with pytest.raises(Final) as failure:
            await bench.run(OCR, "OCR", input_ref=ref)
        assert failure.value.code == code


async def test_stores_that_cannot_be_used_are_tried_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "someone")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "something")
    with pytest.raises(Retryable) as failure:
        await bench.run(OCR, "OCR", input_ref={"uri": "s3://bucket/input.pdf"})
    assert failure.value.code == "INPUT_UNAVAILABLE"
    with pytest.raises(Retryable) as failure:
        await bench.ocr(b"text", output_ref={"uri": "s3://bucket/output"})
    assert failure.value.code == "OUTPUT_UNAVAILABLE"


async def test_an_output_that_no_store_can_take_is_final(bench: Bench) -> None:
    with pytest.raises(Final) as failure:
        await bench.ocr(b"text", output_ref={"uri": "https://example.com/output"})
    assert failure.value.code == "OUTPUT_NOT_ALLOWED"


async def test_a_stop_ends_the_reading_between_pages(bench: Bench) -> None:
    pages = [a_picture("One"), a_picture("Two"), a_picture("Three")]
    bench.stop_after = 1
    with pytest.raises(Stopped):
        await bench.ocr(as_bytes(pages[0], "PDF", save_all=True, append_images=pages[1:], resolution=150))
    assert len(bench.reported) == 1
    assert not (bench.folder / "output").exists()


async def test_a_document_goes_through_all_three_steps(bench: Bench) -> None:
    await bench.ocr(sample_document())
    upstream = [{"stepId": "step_01", "step_type": "OCR", "result_ref": {"uri": bench.uri("output")}}]
    (bench.folder / "input").unlink()
    made = await bench.run(
        EMBEDDING, "EMBEDDING", upstream=upstream, payload={"dimensions": 64, "chunk_size": 120}
    )
    assert made == {"uri": bench.uri("work/job_1/embedding/2/vectors.json")}
    vectors = json.loads((bench.folder / "output").read_bytes())
    assert vectors["dimensions"] == 64
    assert all(len(chunk["vector"]) == 64 for chunk in vectors["chunks"])
    assert all(0 < len(chunk["text"]) <= 120 for chunk in vectors["chunks"])
    upstream.append({"stepId": "step_02", "step_type": "EMBEDDING", "result_ref": made})
    prompts = {
        "prompt": "How high is the tower?",
        "prompt_set": ["When did the last keeper leave?"],
        "top_k": 2,
    }
    made = await bench.run(SIS, "SIS", upstream=upstream, payload=prompts)
    assert made == {"uri": bench.uri("work/job_1/sis/2/result.json")}
    high, left = json.loads((bench.folder / "output").read_bytes())["answers"]
    assert (high["prompt"], left["prompt"]) == (prompts["prompt"], "When did the last keeper leave?")
    assert "41 metres" in high["answer"]
    assert "1986" in left["answer"]
    assert 1 <= len(high["sources"]) <= 2
    assert all(chunk["score"] > 0 for chunk in high["sources"] + left["sources"])


async def test_a_long_text_is_embedded_in_batches_with_progress(bench: Bench) -> None:
    text = "\n".join(
        f"Sentence number {number} speaks of the thing called t{number}." for number in range(900)
    )
    (bench.folder / "input").write_text(text)
    await bench.run(EMBEDDING, "EMBEDDING", payload={"chunk_size": 60})
    chunks = json.loads((bench.folder / "output").read_bytes())["chunks"]
    assert len(chunks) == 900
    assert [note for _, note in bench.reported] == [f"chunk {n} of 900" for n in (256, 512, 768, 900)]


async def test_answers_come_from_a_text_alone_and_without_a_prompt(bench: Bench) -> None:
    (bench.folder / "input").write_text("Bread is baked at four. Milk comes at five. The shop opens at six.")
    await bench.run(SIS, "SIS", payload={"prompt_set": [{"prompt": "When is bread baked?"}]})
    answers = json.loads((bench.folder / "output").read_bytes())["answers"]
    assert answers[0]["answer"].startswith("Bread is baked at four.")
    await bench.run(SIS, "SIS", attempt_no=3)
    answers = json.loads((bench.folder / "output").read_bytes())["answers"]
    assert (answers[0]["prompt"], answers[0]["answer"]) == (
        None,
        "Bread is baked at four. Milk comes at five.",
    )


@pytest.mark.parametrize(
    ("handler", "payload"),
    [
        (EMBEDDING, {"dimensions": 4}),
        (EMBEDDING, {"dimensions": True}),
        (EMBEDDING, {"chunk_size": "many"}),
        (SIS, {"top_k": 0}),
        (SIS, {"prompt": ""}),
        (SIS, {"prompt_set": [1]}),
        (SIS, {"prompt_set": ["x"] * 101}),
    ],
)
async def test_a_payload_that_makes_no_sense_is_final(
    bench: Bench, handler: Handler, payload: dict[str, Any]
) -> None:
    (bench.folder / "input").write_text("text")
    with pytest.raises(Final) as failure:
        await bench.run(handler, "X", payload=payload)
    assert failure.value.code == "INVALID_PAYLOAD"


async def test_vectors_of_the_wrong_length_and_pdfs_are_refused(bench: Bench) -> None:
    lame = {"dimensions": 3, "chunks": [{"text": "x", "vector": [1.0]}]}
    for handler, document in ((SIS, json.dumps(lame).encode()), (EMBEDDING, sample_document())):
        (bench.folder / "input").write_bytes(document)
        with pytest.raises(Final) as failure:
            await bench.run(handler, "X")
        assert failure.value.code == "UNREADABLE_DOCUMENT"


def test_vectors_are_the_same_everywhere_and_of_length_one() -> None:
    vector = vector_of("The keeper of the lamp", 8)
    assert vector == vector_of("the KEEPER of the lamp!", 8)
    assert vector == [0.0, 0.0, 0.0, 0.0, 0.0, 0.447214, 0.0, -0.894427]
    assert sqrt(sum(value * value for value in vector)) == pytest.approx(1, abs=1e-5)
    assert vector_of("", 8) == [0.0] * 8


def test_chunks_keep_sentences_whole_and_all_of_the_text() -> None:
    text = "One two three. Four five six! " + "x" * 25 + "\n\nSeven."
    assert chunks_of(text, chars_max=20) == ["One two three.", "Four five six!", "x" * 20, "xxxxx Seven."]


@pytest.mark.parametrize(
    ("language", "code"), [("en", "eng"), ("en-GB", "eng"), ("de+en", "deu+eng"), ("osd", "osd")]
)
def test_languages_have_tesseracts_names(language: str, code: str) -> None:
    assert language_code(language) == code


@pytest.mark.parametrize("language", [7, "", "../x", "english please"])
def test_other_languages_are_refused(language: object) -> None:
    with pytest.raises(Final):
        language_code(language)

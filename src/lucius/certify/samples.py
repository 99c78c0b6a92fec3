"""Samples of work: those of the skeletons, those of the reference services, and those of a file.

A service is made slow or made to fail by its inputs alone. One that `lucius service new` wrote takes the
member `certify` of its payload as such an input; the reference services are given long documents, missing
ones, and documents at addresses that are not served.
"""

from pathlib import Path
from string import ascii_lowercase
from typing import Final

import msgspec

from lucius.certify.values import Sample, SampleSet

PAGES = 400
PROMPTS = 100
SENTENCE = "The lease of attempt {number} was kept by a sign of life on lane {lane}, said clerk {clerk}. "

SKELETON: Final = SampleSet(
    ok=Sample(input_text="Ada\n"),
    slow=Sample(payload={"certify": "slow"}),
    retryable=Sample(payload={"certify": "retryable"}),
    final=Sample(payload={"certify": "final"}),
)


class BadSample(Exception):
    """The file holds no samples. The text says why."""


def read_samples(path: Path) -> SampleSet:
    """Files are named relative to the one that names them. Raises `BadSample`."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=SampleSet)
    except OSError as fault:
        raise BadSample(f"{path}: {fault.strerror}") from None
    except msgspec.DecodeError as fault:
        raise BadSample(f"{path}: {fault}") from None
    changes = {
        name: _beside(sample, path.parent)
        for name in ("ok", "slow", "retryable", "final")
        if (sample := found.named(name)) is not None
    }
    return msgspec.structs.replace(found, **changes)


def _beside(sample: Sample, folder: Path) -> Sample:
    if sample.input_file is None:
        return sample
    file = folder / sample.input_file
    if not file.is_file():
        raise BadSample(f"there is no file {file}")
    return msgspec.structs.replace(sample, input_file=str(file))


def samples_for(step_type: str, folder: Path) -> SampleSet:
    """Those of a reference service by its step type, else those of the skeletons. Documents go to
    `folder`."""
    make = {"OCR": _ocr, "EMBEDDING": _embedding, "SIS": _sis}.get(step_type)
    return SKELETON if make is None else make(folder)


def _ocr(folder: Path) -> SampleSet:
    from lucius.services.sample import sample_document  # and with it all of the reference services

    document = folder / "sample.pdf"
    document.write_bytes(sample_document())
    long = folder / "long.pdf"
    long.write_bytes(pictures_pdf(PAGES))
    return _reference(
        folder, ok=Sample(input_file=str(document)), slow=Sample(input_file=str(long), payload={"dpi": 150})
    )


def _embedding(folder: Path) -> SampleSet:
    slow = Sample(input_file=_long_text(folder, 7_000_000), payload={"dimensions": 64})
    return _reference(folder, ok=Sample(input_text=_text(20)), slow=slow)


def _sis(folder: Path) -> SampleSet:
    prompts = [f"What did clerk {number} say of lane {number % 16}?" for number in range(PROMPTS)]
    slow = Sample(input_file=_long_text(folder, 3_000_000), payload={"prompt_set": prompts})
    ok = Sample(input_text=_text(20), payload={"prompt": "Who kept the lease?"})
    return _reference(folder, ok=ok, slow=slow)


def _reference(folder: Path, *, ok: Sample, slow: Sample) -> SampleSet:
    """Reading below a file is an error of the store, which may pass: worth another attempt. A missing file is
    final."""
    file = folder / "file.txt"
    file.touch()
    broken = Sample(input_ref={"uri": (file / "document.txt").as_uri()})
    gone = Sample(input_ref={"uri": (folder / "missing.txt").as_uri()})
    return SampleSet(ok=ok, slow=slow, retryable=broken, final=gone)


def _text(sentences: int) -> str:
    return "".join(SENTENCE.format(number=no, lane=no % 16, clerk=no % 97) for no in range(sentences)) + "\n"


def _long_text(folder: Path, chars: int) -> str:
    """Many short words: it is words that take time, and the number of characters that makes pauses long."""
    path = folder / "long.txt"
    sentence = " ".join(ascii_lowercase[1:] * 12) + ". "
    path.write_text(sentence * (chars // len(sentence)), encoding="utf-8")
    return str(path)


def pictures_pdf(pages: int) -> bytes:
    """A PDF whose pages are lines and boxes and no text, so that each has to be read as a picture."""
    drawing = b"".join(b"%d %d m %d %d l S\n" % (at, 40, at + 30, 160) for at in range(20, 280, 12))
    stream = b"<< /Length %d >>\nstream\n%sendstream" % (len(drawing), drawing)
    kids = b" ".join(b"%d 0 R" % (number + 4) for number in range(pages))
    bodies = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [%s] /Count %d >>" % (kids, pages),
        stream,
        *([b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents 3 0 R >>"] * pages),
    ]
    written, places = bytearray(b"%PDF-1.4\n"), []
    for number, body in enumerate(bodies, start=1):
        places.append(len(written))
        written += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    end = b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(bodies) + 1, len(written))
    return bytes(written) + b"xref\n0 %d\n0000000000 65535 f \n" % (len(bodies) + 1) + table + end

"""OCR: a document becomes text.

In: `input_ref` of a PDF, a picture (PNG, JPEG, TIFF, GIF, BMP, WebP) or a text. Out: `output.txt`, UTF-8.
A PDF page with a text layer gives that; one without is rendered (`dpi`) and read like a picture (`language`).
"""

from typing import Any

from lucius.sdk import Final, Handler, Task
from lucius.services import tesseract
from lucius.services.documents import DocumentKind, check_text_chars, check_text_size, kind_of
from lucius.services.payloads import whole_number
from lucius.services.pdf import PAGE_SECONDS_MAX, open_pdf
from lucius.services.work_process import WorkProcesses, work_processes

DEFAULT_LANGUAGE = "en"
DOTS_PER_INCH = 300
# The rest is for writing what was read.
READING_PERCENT = 95


def make_ocr(
    *,
    program: str = tesseract.PROGRAM,
    timeout_seconds: float = tesseract.TIMEOUT_SECONDS,
    page_seconds_max: float = PAGE_SECONDS_MAX,
    processes: WorkProcesses | None = None,
) -> Handler:
    """The handler, with the program that reads pictures, its time for one, and pdfium's for a page."""
    work = work_processes() if processes is None else processes

    async def read_picture(task: Task, picture: bytes, dots_per_inch: int | None = None) -> str:
        return await tesseract.text_in_picture(
            picture,
            tesseract.language_code(task.payload.get("language") or DEFAULT_LANGUAGE),
            dots_per_inch=dots_per_inch,
            program=program,
            timeout_seconds=timeout_seconds,
        )

    async def read_pdf(task: Task, data: bytes) -> str:
        dpi = whole_number(task.payload, "dpi", default=DOTS_PER_INCH, least=36, most=1200)
        pages: list[str] = []
        async with open_pdf(data, page_seconds_max=page_seconds_max) as pdf:
            for page_no in range(pdf.pages):
                text = await pdf.text(page_no)
                if text is None:
                    text = await read_picture(task, await pdf.picture(page_no, dpi), dpi)
                pages.append(text.strip())
                check_text_chars(pages)
                done = READING_PERCENT * (page_no + 1) // pdf.pages
                await task.progress(done, f"page {page_no + 1} of {pdf.pages}")
        return "\n\n".join(pages) + "\n"

    async def read_document(task: Task) -> bytes:
        data = await task.read(task.input_uri)
        match kind_of(data, task.directive.input_ref):
            case DocumentKind.PDF:
                text = await read_pdf(task, data)
            case DocumentKind.IMAGE:
                text = await read_picture(task, data)
            case DocumentKind.TEXT:
                return await _text(work, task, data)
            case DocumentKind.UNKNOWN:
                raise Final(
                    "UNREADABLE_DOCUMENT", "neither a PDF nor a picture nor a text that is known here"
                )
        return text.encode("utf-8", errors="replace")

    async def ocr(task: Task) -> dict[str, Any]:
        async with work.places.place(task.directive.tenant_id):
            output = await read_document(task)
            uri = await task.write_artifact("output.txt", output)
            await task.write_output(output)
        return {"uri": uri}

    return ocr


async def _text(work: WorkProcesses, task: Task, data: bytes) -> bytes:
    check_text_size(data)
    async with work.session(task) as session:
        _, text = await session.ask("text", data)
    return text

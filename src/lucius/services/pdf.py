"""Pages of a PDF: their text layer, or their picture.

In: the bytes of a PDF. Out: text, or a grey picture (PGM); `Final` for what pdfium cannot open.
pdfium may not be entered by two threads at a time, so all of it happens in one thread of its own; documents
take turns page by page.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from math import sqrt
from typing import Any, TypeVar

import pypdfium2  # type: ignore[import-untyped]

from lucius.sdk import Final

PIXELS_MAX = 25_000_000
PAGES_MAX = 5_000

_POINTS_PER_INCH = 72
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="pdfium")

T = TypeVar("T")


class Pdf:
    """An open document. Pages are counted from 0."""

    def __init__(self, document: Any, pages: int) -> None:
        self._document = document
        self.pages = pages

    async def text(self, page_no: int) -> str | None:
        """The text layer of a page; "" for an empty page; None where there is something but no text."""
        return await _in_thread(lambda: _page_text(self._document, page_no))

    async def picture(self, page_no: int, dots_per_inch: int) -> bytes:
        return await _in_thread(lambda: _page_picture(self._document, page_no, dots_per_inch))


@asynccontextmanager
async def open_pdf(data: bytes) -> AsyncIterator[Pdf]:
    document, pages = await _in_thread(lambda: _open(data))
    try:
        if pages > PAGES_MAX:
            raise Final("DOCUMENT_TOO_LARGE", f"{pages} pages; at most {PAGES_MAX} are read")
        yield Pdf(document, pages)
    finally:
        # Without waiting, so that a cancelled task leaves nothing open.
        _THREAD.submit(document.close)


async def _in_thread(work: Callable[[], T]) -> T:
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREAD, work)
    except pypdfium2.PdfiumError:
        raise Final("UNREADABLE_DOCUMENT", "the PDF is damaged or protected by a password") from None


def _open(data: bytes) -> tuple[Any, int]:
    document = pypdfium2.PdfDocument(data)
    return document, len(document)


def _page_text(document: Any, page_no: int) -> str | None:
    page = document[page_no]
    try:
        layer = page.get_textpage()
        try:
            text: str = layer.get_text_bounded()
        finally:
            layer.close()
        if text.strip():
            return text.replace("\r\n", "\n").replace("\r", "\n")
        return None if next(page.get_objects(max_depth=1), None) is not None else ""
    finally:
        page.close()


def _page_picture(document: Any, page_no: int, dots_per_inch: int) -> bytes:
    page = document[page_no]
    try:
        width, height = page.get_size()
        scale = min(dots_per_inch / _POINTS_PER_INCH, sqrt(PIXELS_MAX / max(width * height, 1.0)))
        bitmap = page.render(scale=scale, grayscale=True)
        try:
            rows = bytes(bitmap.buffer)
            stride, wide, high = bitmap.stride, bitmap.width, bitmap.height
        finally:
            bitmap.close()
    finally:
        page.close()
    pixels = b"".join(rows[at : at + wide] for at in range(0, stride * high, stride))
    return b"P5 %d %d 255\n" % (wide, high) + pixels

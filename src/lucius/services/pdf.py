"""Pages of a PDF: their text layer, or their picture.

In: the bytes of a PDF. Out: text, or a grey picture (PGM); `Final` for what pdfium cannot open, `Retryable`
where it took too long or died. Each document is read in a process of its own (`pdf_child`), which is ended
when the time for a page is over: a thread in pdfium could not be.
"""

import asyncio
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import ceil
from pathlib import Path

from lucius.sdk import Final, Retryable
from lucius.services import pdf_child
from lucius.services.guests import guest_environment

PAGES_MAX = 5_000
PAGE_SECONDS_MAX = 60.0
MEMORY_BYTES_MAX = 2 * 1024**3

_CHILD = Path(pdf_child.__file__)


class Pdf:
    """An open document. Pages are counted from 0."""

    def __init__(self, process: Process, page_seconds_max: float) -> None:
        self._process = process
        self._page_seconds_max = page_seconds_max
        self.pages = 0
        self.pid = process.pid

    async def open(self, data: bytes) -> None:
        self.pages = int.from_bytes(await self._ask(pdf_child.DOCUMENT, data) or b"")
        if self.pages > PAGES_MAX:
            raise Final("DOCUMENT_TOO_LARGE", f"{self.pages} pages; at most {PAGES_MAX} are read")

    async def text(self, page_no: int) -> str | None:
        """The text layer of a page; "" for an empty page; None where there is something but no text."""
        found = await self._ask(pdf_child.TEXT, pdf_child.PAGE.pack(page_no, 0))
        return None if found is None else found.decode()

    async def picture(self, page_no: int, dots_per_inch: int) -> bytes:
        return await self._ask(pdf_child.PICTURE, pdf_child.PAGE.pack(page_no, dots_per_inch)) or b""

    async def _ask(self, kind: bytes, body: bytes) -> bytes | None:
        """None where the page has no text layer."""
        try:
            async with asyncio.timeout(self._page_seconds_max):
                answer, found = await self._exchange(kind, body)
        except TimeoutError:
            raise Retryable("OCR_TIMEOUT", f"a page took over {self._page_seconds_max:g} seconds") from None
        except (EOFError, OSError, struct.error):
            raise Retryable("OCR_CRASHED", "the reader of PDFs died over this document") from None
        if answer == pdf_child.UNREADABLE:
            raise Final("UNREADABLE_DOCUMENT", "the PDF is damaged or protected by a password")
        return None if answer == pdf_child.NO_LAYER else found

    async def _exchange(self, kind: bytes, body: bytes) -> tuple[bytes, bytes]:
        to, back = self._process.stdin, self._process.stdout
        if to is None or back is None:
            raise EOFError
        to.write(pdf_child.HEAD.pack(kind, len(body)))
        to.write(body)
        await to.drain()
        answer, length = pdf_child.HEAD.unpack(await back.readexactly(pdf_child.HEAD.size))
        return answer, await back.readexactly(length)


@asynccontextmanager
async def open_pdf(
    data: bytes, *, page_seconds_max: float = PAGE_SECONDS_MAX, memory_bytes_max: int = MEMORY_BYTES_MAX
) -> AsyncIterator[Pdf]:
    # -P: the folder of the file is not searched for modules, among which are names of the standard library.
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        str(_CHILD),
        str(memory_bytes_max),
        str(ceil(page_seconds_max)),
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env=guest_environment(),
        start_new_session=True,  # Ctrl-C is for us: what is under way is finished
    )
    try:
        pdf = Pdf(process, page_seconds_max)
        await pdf.open(data)
        yield pdf
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.kill()
        # Also takes what is left in the pipes, without which they would stay open.
        await process.communicate()

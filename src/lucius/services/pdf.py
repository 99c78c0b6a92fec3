"""Pages of a PDF: their text layer, or their picture.

In: the bytes of a PDF. Out: text, or a grey picture (PGM); `Final` for what pdfium cannot open, and for a
document over which it took too long, ran out of memory or died: another attempt would end the same way. Each
document is read in a process of its own (`pdf_child`) and in no other, as it may leave anything in it.
"""

import asyncio
import signal
import struct
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from math import ceil
from pathlib import Path

from lucius.sdk import Final
from lucius.services import pdf_child
from lucius.services.child_environment import child_environment
from lucius.services.work_process import TIME_EXCEEDED, WALL_FACTOR, death, slow_down

PAGES_MAX = 5_000
PAGE_SECONDS_MAX = 20.0
PAGE_SLOW_SECONDS = 0.2
MEMORY_BYTES_MAX = 384 * 1024**2

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
        slow = asyncio.get_running_loop().call_later(PAGE_SLOW_SECONDS, slow_down, self.pid)
        try:
            async with asyncio.timeout(self._page_seconds_max * WALL_FACTOR):
                answer, found = await self._exchange(kind, body)
        except TimeoutError:
            raise Final(TIME_EXCEEDED, f"a page took over {self._page_seconds_max:g} seconds") from None
        except (EOFError, OSError, struct.error):
            raise death(await self._ended()) from None
        finally:
            slow.cancel()
        if answer == pdf_child.NO_MEMORY:
            raise death(-signal.SIGABRT)
        if answer == pdf_child.UNREADABLE:
            raise Final("UNREADABLE_DOCUMENT", "the PDF is damaged or protected by a password")
        return None if answer == pdf_child.NO_LAYER else found

    async def _ended(self) -> int | None:
        """How, where it did by itself: its pipes close a moment before."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                return await self._process.wait()
        return None

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
        env=child_environment(),
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

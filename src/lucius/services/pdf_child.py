"""The process in which one PDF is read: pdfium may loop, eat all memory or die on a crafted document.

In, on standard input: a document, then questions about its pages. Out, on standard output: an answer for
each. A frame is a letter, a length and so many bytes. Run as a file of its own, so that it starts fast: it
knows pdfium and Python's own library, and nothing of Lucius.
"""

import struct
import sys
from math import sqrt
from typing import Any, BinaryIO, Final

try:
    import resource
except ImportError:  # not on every system
    resource = None  # type: ignore[assignment]

HEAD: Final = struct.Struct(">cQ")
PAGE: Final = struct.Struct(">II")  # page number from 0, dots per inch

DOCUMENT, TEXT, PICTURE = b"D", b"T", b"P"  # what is asked
PAGES, FOUND, NO_LAYER, UNREADABLE, NO_MEMORY = b"N", b"F", b"0", b"X", b"M"  # what is answered

PIXELS_MAX: Final = 25_000_000
POINTS_PER_INCH: Final = 72


def main(memory_bytes_max: int, page_seconds_max: int) -> None:
    """Ends with its standard input, so that it never outlives the process that started it."""
    import pypdfium2  # type: ignore[import-untyped]  # the parent process does without it

    _bound_memory(memory_bytes_max)
    document: Any = None
    while (asked := _take(sys.stdin.buffer)) is not None:
        kind, body = asked
        _bound_time(page_seconds_max)
        try:
            if kind == DOCUMENT:
                document = pypdfium2.PdfDocument(body)
                _say(PAGES, struct.pack(">Q", len(document)))
            elif kind == TEXT:
                text = page_text(document, PAGE.unpack(body)[0])
                _say(NO_LAYER) if text is None else _say(FOUND, text.encode("utf-8", "replace"))
            else:
                _say(FOUND, page_picture(document, *PAGE.unpack(body)))
        except pypdfium2.PdfiumError:
            _say(UNREADABLE)
        except MemoryError:
            _say(NO_MEMORY)


def page_text(document: Any, page_no: int) -> str | None:
    """The text layer of a page; "" for an empty page; None where there is something but no text."""
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


def page_picture(document: Any, page_no: int, dots_per_inch: int) -> bytes:
    """A grey picture (PGM)."""
    page = document[page_no]
    try:
        width, height = page.get_size()
        scale = min(dots_per_inch / POINTS_PER_INCH, sqrt(PIXELS_MAX / max(width * height, 1.0)))
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


def _take(source: BinaryIO) -> tuple[bytes, bytes] | None:
    head = source.read(HEAD.size)
    if len(head) < HEAD.size:
        return None
    kind, length = HEAD.unpack(head)
    body = source.read(length)
    return (kind, body) if len(body) == length else None


def _say(kind: bytes, body: bytes = b"") -> None:
    sys.stdout.buffer.write(HEAD.pack(kind, len(body)) + body)
    sys.stdout.buffer.flush()


def _bound_memory(bytes_max: int) -> None:
    """Where the system can. A small document may unfold into more than any machine has."""
    if resource is not None:
        resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _bound_time(seconds_max: int) -> None:
    """Bounds the time of the current request. The parent process ends this one sooner, unless it died."""
    if resource is not None:
        used = resource.getrusage(resource.RUSAGE_SELF)
        until = int(used.ru_utime + used.ru_stime) + seconds_max + 1
        resource.setrlimit(resource.RLIMIT_CPU, (until, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

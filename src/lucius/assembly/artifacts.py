"""Artifacts as they are shown: what they are is told by their bytes, never by their names.

In: an address in a workspace. Out: the beginning of a text, a picture that browsers know, or a page of a PDF
as a picture. PDFs are opened in a process of their own, with bounds on its memory and time, as by the OCR
service; pictures and texts are not opened at all.
"""

import asyncio
import struct
import zlib
from typing import Final

from lucius.api.artifact_reader import Preview, UnknownArtifact
from lucius.workspace import ObjectWorkspace

BYTES_MAX: Final = 8 * 1024 * 1024
TEXT_BYTES_MAX: Final = 256 * 1024
DOTS_PER_INCH: Final = 96
PAGE_SECONDS_MAX: Final = 10.0
_PICTURES: Final = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_PNG_HEAD: Final = b"\x89PNG\r\n\x1a\n"
_SNIFF_BYTES: Final = 4096


class WorkspaceArtifacts:
    def __init__(self, workspace: ObjectWorkspace) -> None:
        """`workspace` reads no more than `BYTES_MAX`."""
        self._workspace = workspace

    async def names_below(self, folder_uri: str, names_max: int) -> list[str]:
        return await self._workspace.below(folder_uri, names_max)

    def is_below(self, uri: str, folder_uri: str) -> bool:
        return self._workspace.is_below(uri, folder_uri)

    async def preview(self, uri: str, page_no: int) -> Preview:
        data = await self._workspace.read(uri)
        if data.startswith(b"%PDF-"):
            return await _pdf_page(data, page_no)
        if (media_type := _picture_type(data)) is not None:
            return Preview(media_type=media_type, data=data, size_bytes=len(data))
        if not _is_text(data[:_SNIFF_BYTES]):
            raise UnknownArtifact("names neither a text, a picture (PNG, JPEG, GIF, WebP) nor a PDF")
        return Preview(
            media_type="text/plain; charset=utf-8",
            data=data[:TEXT_BYTES_MAX].decode("utf-8", "replace").encode(),
            size_bytes=len(data),
            cut=len(data) > TEXT_BYTES_MAX,
        )


def _picture_type(data: bytes) -> str | None:
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return next((media_type for head, media_type in _PICTURES.items() if data.startswith(head)), None)


def _is_text(beginning: bytes) -> bool:
    if b"\x00" in beginning:
        return False
    shown = beginning.decode("utf-8", "ignore")
    return len(shown.encode()) >= len(beginning) - 3  # a letter may be cut at the end


async def _pdf_page(data: bytes, page_no: int) -> Preview:
    from lucius.sdk import Final as FinalFailure
    from lucius.services.pdf import open_pdf

    try:
        async with open_pdf(data, page_seconds_max=PAGE_SECONDS_MAX) as pdf:
            if page_no > pdf.pages:
                raise UnknownArtifact(f"has {pdf.pages} pages")
            drawn = await pdf.picture(page_no - 1, DOTS_PER_INCH)
            pages = pdf.pages
    except FinalFailure as fault:
        raise UnknownArtifact(f"names a PDF that cannot be shown: {fault}") from None
    png = await asyncio.to_thread(png_of, drawn)
    return Preview(media_type="image/png", data=png, size_bytes=len(data), pages=pages)


def png_of(grey: bytes) -> bytes:
    """Of a grey picture as `pdf_child` gives it (PGM)."""
    head, _, pixels = grey.partition(b"\n")
    width, height = (int(word) for word in head.split()[1:3])
    rows = b"".join(b"\x00" + pixels[at : at + width] for at in range(0, width * height, width))
    return b"".join(
        (
            _PNG_HEAD,
            _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
            _chunk(b"IDAT", zlib.compress(rows, 6)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

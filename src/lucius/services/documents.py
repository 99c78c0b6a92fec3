"""What kind of document some bytes are, and their text where they are text.

In: bytes and what their reference says of them. Out: a kind, a string; or `Final` for a document that cannot
be read.
"""

import mimetypes
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

from lucius.sdk import Final, Task

SNIFF_BYTES = 8192
# More would be more chunks than are embedded.
TEXT_BYTES_MAX = 16 * 1024 * 1024

_TEXT_LIKE = frozenset({"application/json", "application/xml", "application/yaml", "application/x-ndjson"})
_IMAGES = (b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"II*\x00", b"MM\x00*", b"GIF87a", b"GIF89a")


class DocumentKind(Enum):
    PDF = "pdf"
    IMAGE = "image"
    TEXT = "text"
    UNKNOWN = "unknown"


def kind_of(data: bytes, ref: Mapping[str, Any]) -> DocumentKind:
    """The bytes speak first; what the reference claims only helps where they are silent."""
    if _is_pdf(data):
        return DocumentKind.PDF
    if data.startswith(_IMAGES) or _is_framed_image(data):
        return DocumentKind.IMAGE
    if _claims_text(ref) or _looks_like_text(data):
        return DocumentKind.TEXT
    return DocumentKind.UNKNOWN


def _is_pdf(data: bytes) -> bool:
    """Something may come before its header, but a text that mentions one has no objects."""
    at = data.find(b"%PDF-", 0, 1024)
    return at == 0 or (at > 0 and b"endobj" in data)


def text_of(data: bytes) -> str:
    """UTF-8, or UTF-16 with its mark; what cannot be read is replaced, never refused."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", errors="replace")
    return data.decode("utf-8-sig", errors="replace")


async def read_text_source(task: Task) -> bytes:
    """What the last step before this one made, else the input; refused where it is not text."""
    ref: Mapping[str, Any] = next(
        (step.result_ref for step in reversed(task.upstream) if step.uri and step.result_ref),
        task.directive.input_ref,
    )
    uri = ref.get("uri")
    data = await task.read(uri if isinstance(uri, str) and uri else task.input_uri)
    if kind_of(data, ref) is not DocumentKind.TEXT:
        raise Final("UNREADABLE_DOCUMENT", "this step reads text; run OCR before it for other documents")
    if not data.startswith(b"{"):
        check_text_size(data)  # vectors are longer than the text that they were made of
    return data


def check_text_size(data: bytes) -> None:
    if len(data) > TEXT_BYTES_MAX:
        raise Final("DOCUMENT_TOO_LARGE", f"a text of {len(data)} bytes; at most {TEXT_BYTES_MAX} are read")


def check_text_chars(pages: Sequence[str]) -> None:
    """Of the pages read so far: a few kilobytes of a PDF may hold gigabytes of text."""
    if sum(map(len, pages)) > TEXT_BYTES_MAX:
        raise Final("DOCUMENT_TOO_LARGE", f"a text of more than {TEXT_BYTES_MAX} characters")


def _is_framed_image(data: bytes) -> bool:
    """WebP, and BMP: whose two letters alone could begin a text, but not with zeros after its size."""
    webp = data.startswith(b"RIFF") and data[8:12] == b"WEBP"
    return webp or (data.startswith(b"BM") and data[6:10] == bytes(4))


def _claims_text(ref: Mapping[str, Any]) -> bool:
    claimed = ref.get("content_type") or ref.get("media_type")
    if not isinstance(claimed, str):
        uri = ref.get("uri")
        claimed = mimetypes.guess_type(uri)[0] if isinstance(uri, str) else None
    if claimed is None:
        return False
    essence = claimed.partition(";")[0].strip().lower()
    return essence.startswith("text/") or essence in _TEXT_LIKE


def _looks_like_text(data: bytes) -> bool:
    head = data[:SNIFF_BYTES]
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return True
    if b"\x00" in head:
        return False
    # The cut may fall inside a character, so up to three bytes at the end are forgiven.
    for missing in range(4):
        try:
            head[: len(head) - missing].decode("utf-8")
        except UnicodeDecodeError:
            continue
        return True
    return False

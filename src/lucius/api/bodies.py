"""Reading what a client sent, within bounds."""

from starlette.requests import ClientDisconnect, Request

from lucius.contracts.documents import parse_json
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused

ENVELOPE_BYTES_MAX = 256 * 1024
BATCH_BYTES_MAX = 16 * 1024 * 1024
# So much of a body that is too large is read off, so that its sender gets to see the answer.
READ_OFF_BYTES_MAX = 1024 * 1024


async def read_body(request: Request, bytes_max: int) -> bytes | Refused:
    chunks: list[bytes] = []
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= bytes_max:
                chunks.append(chunk)
            elif size >= max(bytes_max, READ_OFF_BYTES_MAX):
                break
    except ClientDisconnect:
        return Refused(Code.MALFORMED_JSON, "the body ended early")
    if size > bytes_max:
        return Refused(Code.BODY_TOO_LARGE, f"a body may have {bytes_max} bytes")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_json(request: Request, bytes_max: int = ENVELOPE_BYTES_MAX) -> Json | Refused:
    raw = await read_body(request, bytes_max)
    return raw if isinstance(raw, Refused) else parse_json(raw)


async def read_object(request: Request, *, optional: bool = False) -> dict[str, Json] | Refused:
    """A JSON object; `optional`: an empty body counts as an empty one."""
    raw = await read_body(request, ENVELOPE_BYTES_MAX)
    if isinstance(raw, Refused):
        return raw
    if optional and not raw.strip():
        return {}
    document = parse_json(raw)
    if isinstance(document, Refused):
        return document
    if not isinstance(document, dict):
        return Refused(Code.INVALID_ENVELOPE, "the body must be a JSON object")
    return document

"""Reading what a client sent, within bounds."""

from starlette.requests import ClientDisconnect, Request

from lucius.api.memory import MEMORY_TAKEN, UNCOUNTED_BYTES, RequestMemory
from lucius.contracts.documents import parse_json
from lucius.core.model import Json
from lucius.core.refusal import Code, Refused

ENVELOPE_BYTES_MAX = 256 * 1024
BATCH_BYTES_MAX = 16 * 1024 * 1024
# So much of a body that is too large is read off, so that its sender gets to see the answer.
READ_OFF_BYTES_MAX = 1024 * 1024
# So much of the name of an encoding is repeated to the client that sent it.
ENCODING_LENGTH_MAX = 40


async def read_body(request: Request, bytes_max: int) -> bytes | Refused:
    chunks: list[bytes] = []
    size = 0
    memory: RequestMemory | None = None
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size <= bytes_max:
                if size > UNCOUNTED_BYTES:
                    memory = memory or RequestMemory(request)
                    if not memory.reach(max(size, min(_declared(request), bytes_max))):
                        return MEMORY_TAKEN
                chunks.append(chunk)
            elif size >= max(bytes_max, READ_OFF_BYTES_MAX):
                break
    except ClientDisconnect:
        return Refused(Code.MALFORMED_JSON, "the body ended early")
    encoding = _encoding_of(request)
    if encoding and size:
        message = f"a body encoded as {encoding} is not read: send it as plain JSON, without Content-Encoding"
        return Refused(Code.UNSUPPORTED_ENCODING, message)
    if size > bytes_max:
        return Refused(Code.BODY_TOO_LARGE, f"a body may have {bytes_max} bytes")
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _declared(request: Request) -> int:
    """How large the body will be, as far as its sender says so: the parser has checked the header."""
    text = request.headers.get("content-length", "")
    return int(text) if text.isascii() and text.isdecimal() else 0


def _encoding_of(request: Request) -> str:
    """What must be undone before the body can be read; empty if that is nothing."""
    named = ",".join(request.headers.getlist("content-encoding")).split(",")
    encodings = [name for each in named if (name := each.strip().lower()) not in ("", "identity")]
    return ", ".join(encodings)[:ENCODING_LENGTH_MAX]


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

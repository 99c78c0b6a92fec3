"""EMBEDDING: text becomes vectors.

In: the text that the step before made, else `input_ref`; `dimensions` and `chunk_size` in the payload.
Out: `vectors.json`, `{dimensions, chunks: [{text, vector}]}`.
"""

import asyncio
from typing import Any

import msgspec

from lucius.sdk import Final, Task
from lucius.services.documents import read_text_source
from lucius.services.hashing import chunks_of, vector_of
from lucius.services.payloads import whole_number

DIMENSIONS = 256
DIMENSIONS_MAX = 4096
CHUNK_CHARS = 800
CHUNK_CHARS_MAX = 10_000
CHUNKS_MAX = 20_000
BATCH_CHUNKS = 256
TINY_CHARS = 4_096

_encode = msgspec.json.encode


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    vector: list[float]


class Vectors(msgspec.Struct, frozen=True, kw_only=True):
    dimensions: int
    chunks: list[Chunk]


async def embedding(task: Task) -> dict[str, Any]:
    dimensions = whole_number(task.payload, "dimensions", default=DIMENSIONS, least=8, most=DIMENSIONS_MAX)
    chars_max = whole_number(task.payload, "chunk_size", default=CHUNK_CHARS, least=50, most=CHUNK_CHARS_MAX)
    _, text = await read_text_source(task)
    output = await vectors_of(task, text, dimensions=dimensions, chars_max=chars_max)
    encoded = _encode(output) if len(text) <= TINY_CHARS else await asyncio.to_thread(_encode, output)
    uri = await task.write_artifact("vectors.json", encoded)
    await task.write_output(encoded)
    return {"uri": uri}


async def vectors_of(task: Task, text: str, *, dimensions: int, chars_max: int) -> Vectors:
    """Chunk by chunk; work worth a thread is done in one, batch by batch, with progress between."""
    if len(text) <= TINY_CHARS:
        return Vectors(
            dimensions=dimensions, chunks=_embedded(chunks_of(text, chars_max=chars_max), dimensions)
        )
    pieces = await asyncio.to_thread(chunks_of, text, chars_max=chars_max)
    if len(pieces) > CHUNKS_MAX:
        raise Final("DOCUMENT_TOO_LARGE", f"{len(pieces)} chunks; at most {CHUNKS_MAX} are embedded")
    chunks: list[Chunk] = []
    for start in range(0, len(pieces), BATCH_CHUNKS):
        batch = pieces[start : start + BATCH_CHUNKS]
        chunks += await asyncio.to_thread(_embedded, batch, dimensions)
        await task.progress(95 * len(chunks) // len(pieces), f"chunk {len(chunks)} of {len(pieces)}")
    return Vectors(dimensions=dimensions, chunks=chunks)


def _embedded(pieces: list[str], dimensions: int) -> list[Chunk]:
    return [Chunk(text=piece, vector=vector_of(piece, dimensions)) for piece in pieces]

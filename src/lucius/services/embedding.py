"""EMBEDDING: text becomes vectors.

In: the text that the step before made, else `input_ref`; `dimensions` and `chunk_size` in the payload.
Out: `vectors.json`, `{dimensions, chunks: [{text, vector}], model}`.
"""

import asyncio
from typing import Any

import msgspec

from lucius.sdk import Handler, Task
from lucius.services.documents import read_text_source
from lucius.services.payloads import whole_number
from lucius.services.settings import HASHING
from lucius.services.vectors import (
    CHUNK_CHARS,
    CHUNK_CHARS_MAX,
    HASHING_DIMENSIONS_MAX,
    TINY_CHARS,
    make_embedder,
    vectors_of,
)

_encode = msgspec.json.encode


def make_embedding(*, model: str = HASHING) -> Handler:
    """The handler, with the model that makes the vectors."""

    async def embedding(task: Task) -> dict[str, Any]:
        dimensions = whole_number(
            task.payload, "dimensions", default=None, least=8, most=HASHING_DIMENSIONS_MAX
        )
        chars_max = whole_number(
            task.payload, "chunk_size", default=CHUNK_CHARS, least=50, most=CHUNK_CHARS_MAX
        )
        embedder = make_embedder(model, dimensions)
        _, text = await read_text_source(task)
        output = await vectors_of(task, text, embedder, chars_max=chars_max)
        encoded = _encode(output) if len(text) <= TINY_CHARS else await asyncio.to_thread(_encode, output)
        uri = await task.write_artifact("vectors.json", encoded)
        await task.write_output(encoded)
        return {"uri": uri}

    return embedding

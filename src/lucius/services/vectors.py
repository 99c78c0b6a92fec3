"""The vectors of a document: what EMBEDDING writes and SIS reads.

In: text, and an embedder. Out: chunks with their vectors, and the name of what made them, since vectors of
different makers cannot be compared.
"""

from typing import Protocol

import msgspec

from lucius.sdk.errors import Final
from lucius.services import minilm
from lucius.services.hashing import chunks_of, vector_of
from lucius.services.settings import HASHING, MINILM

CHUNK_CHARS = 800
CHUNK_CHARS_MAX = 10_000
CHUNKS_MAX = 20_000
TINY_CHARS = 4_096
# Of all vectors of a document together: beyond it the file would be larger than a workspace takes.
COMPONENTS_MAX = 16_000_000

HASHING_DIMENSIONS = 64
HASHING_DIMENSIONS_MAX = 4096


class Chunk(msgspec.Struct, frozen=True, kw_only=True):
    text: str
    vector: list[float]


class Vectors(msgspec.Struct, frozen=True, kw_only=True):
    dimensions: int
    chunks: list[Chunk]
    model: str = HASHING


class Embedder(Protocol):
    """Makes vectors of one kind. `vector_of` may take long: call it in a process for such work."""

    @property
    def model(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    @property
    def batch_chunks(self) -> int:
        """How many to make at a time, so that signs of life come often enough."""
        ...

    def vector_of(self, text: str) -> list[float]: ...


class HashingEmbedder(msgspec.Struct, frozen=True, kw_only=True):
    dimensions: int = HASHING_DIMENSIONS
    model: str = HASHING
    batch_chunks: int = 256

    def vector_of(self, text: str) -> list[float]:
        return vector_of(text, self.dimensions)


class MiniLmEmbedder(msgspec.Struct, frozen=True, kw_only=True):
    dimensions: int = minilm.DIMENSIONS
    model: str = MINILM
    batch_chunks: int = 8

    def vector_of(self, text: str) -> list[float]:
        try:
            return minilm.load().vector_of(text)
        except minilm.ModelUnavailable as fault:
            raise Final("MODEL_UNAVAILABLE", str(fault)) from None


def make_embedder(model: str, dimensions: int | None = None) -> Embedder:
    if model == HASHING:
        return HashingEmbedder(dimensions=dimensions or HASHING_DIMENSIONS)
    if dimensions not in (None, minilm.DIMENSIONS):
        raise Final("INVALID_PAYLOAD", f"dimensions must be {minilm.DIMENSIONS} with the model {model}")
    return MiniLmEmbedder()


def fitting_embedder(vectors: Vectors) -> Embedder | None:
    """One that makes vectors which can be compared with these; None where there is none here."""
    if vectors.model == HASHING:
        return HashingEmbedder(dimensions=vectors.dimensions)
    if vectors.model != MINILM or vectors.dimensions != minilm.DIMENSIONS:
        return None
    try:
        minilm.model_folder()
    except minilm.ModelUnavailable:
        return None
    return MiniLmEmbedder()


def chunks_for(text: str, embedder: Embedder, *, chars_max: int = CHUNK_CHARS) -> list[str]:
    """The chunks of a text that are worth a vector each; refused where they are too many."""
    pieces = chunks_of(text, chars_max=chars_max)
    chunks_max = min(CHUNKS_MAX, COMPONENTS_MAX // embedder.dimensions)
    if len(pieces) > chunks_max:
        raise Final("DOCUMENT_TOO_LARGE", f"{len(pieces)} chunks; at most {chunks_max} are embedded")
    return pieces


def embedded(pieces: list[str], embedder: Embedder) -> list[Chunk]:
    return [Chunk(text=piece, vector=embedder.vector_of(piece)) for piece in pieces]

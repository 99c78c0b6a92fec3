"""The pieces of work on documents that are done in a process of their own.

In: a document, or what an earlier piece of the same task left here, and arguments. Out: a few words about it,
and bytes; or `Final` for a document that cannot be processed. Each piece ends in bounded time on documents of
the size that is taken, so that heartbeats and stops come between them.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from lucius.sdk.errors import Final
from lucius.services.documents import text_of
from lucius.services.extractive import answer_from
from lucius.services.passages import Passage, Passages
from lucius.services.prompts import Prompt, prompts_in
from lucius.services.vectors import (
    CHUNK_CHARS,
    TINY_CHARS,
    Embedder,
    HashingEmbedder,
    Vectors,
    chunks_for,
    embedded,
    fitting_embedder,
    make_embedder,
)

# Of the vectors that SIS makes, where no step before made any.
SIS_DIMENSIONS = 256

Made = tuple[dict[str, Any], bytes]


class SourceDocument(msgspec.Struct, frozen=True, kw_only=True):
    chunk: int  # its place in the document, from 0
    score: float


class PromptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str | None
    answer: str
    sources: list[SourceDocument]
    name: str | UnsetType = UNSET
    data: Any = UNSET


class DocumentWork:
    """Of one task at a time."""

    def __init__(self) -> None:
        self.pieces: dict[str, Callable[..., Made]] = {
            "text": self.text,
            "embed": self.embed,
            "embed_more": self.embed_more,
            "vectors": self.vectors,
            "ask": self.ask,
            "find": self.find,
            "answer": self.answer,
        }
        self._embedder: Embedder = HashingEmbedder()
        self._texts: list[str] = []
        self._vectors = Vectors(dimensions=0, chunks=[])
        self._prompts: list[Prompt] = []
        self._passages: Passages | None = None

    def text(self, body: bytes) -> Made:
        """Whatever it was written in, as UTF-8."""
        return {}, text_of(body).encode("utf-8", errors="replace")

    # -- vectors -------------------------------------------------------------------------------------------

    def embed(self, body: bytes, *, model: str, dimensions: int | None, chars_max: int) -> Made:
        """Cuts a text into chunks. Those of a short one are embedded at once; `more`: how many are left."""
        text = text_of(body)
        return {"more": self._begin(text, make_embedder(model, dimensions), chars_max)}, b""

    def embed_more(self, _body: bytes) -> Made:
        done = len(self._vectors.chunks)
        batch = self._texts[done : done + self._embedder.batch_chunks]
        self._vectors.chunks.extend(embedded(batch, self._embedder))
        return {"done": len(self._vectors.chunks), "of": len(self._texts)}, b""

    def vectors(self, _body: bytes) -> Made:
        return {}, msgspec.json.encode(self._vectors)

    def _begin(self, text: str, embedder: Embedder, chars_max: int = CHUNK_CHARS) -> int:
        self._embedder = embedder
        self._texts = chunks_for(text, embedder, chars_max=chars_max)
        self._vectors = Vectors(dimensions=embedder.dimensions, chunks=[], model=embedder.model)
        if len(text) <= TINY_CHARS and isinstance(embedder, HashingEmbedder):
            self._vectors.chunks.extend(embedded(self._texts, embedder))
            return 0
        return len(self._texts)

    # -- answers -------------------------------------------------------------------------------------------

    def ask(self, body: bytes, *, payload: dict[str, Any]) -> Made:
        """Understands the prompts, and reads vectors or a text, which are then embedded."""
        self._prompts = prompts_in(payload)
        vectors = _vectors_in(body)
        if vectors is None:
            more = self._begin(text_of(body), HashingEmbedder(dimensions=SIS_DIMENSIONS))
        else:
            self._vectors, more = vectors, 0
        return {"more": more, "prompts": len(self._prompts)}, b""

    def find(self, _body: bytes, *, number: int, top_k: int, opening: bool) -> Made:
        """The passages for a prompt, for a model elsewhere. `opening`: those where none is near."""
        prompt = self._prompts[number]
        document = self._document()
        if not len(document):
            _refuse_shape(prompt)
        found = _near(document, prompt, top_k) or (document.opening(top_k) if opening else [])
        return {"chunks": len(document)}, msgspec.json.encode(found)

    def answer(self, _body: bytes, *, number: int, top_k: int) -> Made:
        """From the document's own sentences."""
        prompt = self._prompts[number]
        document = self._document()
        if not len(document):
            _refuse_shape(prompt)
            return {}, msgspec.json.encode(prompt_answer(prompt, "", UNSET, []))
        found = _near(document, prompt, top_k)
        # Hashing as wide as the document's vectors would mix up the words of single sentences.
        embedder = fitting_embedder(self._vectors)
        dense = None if isinstance(embedder, HashingEmbedder) else embedder
        text, data = answer_from(prompt, found, dense)
        return {}, msgspec.json.encode(prompt_answer(prompt, text, data, found))

    def _document(self) -> Passages:
        if self._passages is None:
            self._passages = Passages(self._vectors, fitting_embedder(self._vectors))
        return self._passages


def prompt_answer(prompt: Prompt, text: str, data: Any, passages: list[Passage]) -> PromptAnswer:
    return PromptAnswer(
        prompt=prompt.text,
        answer=text if data is UNSET else msgspec.json.encode(data).decode(),
        sources=[SourceDocument(chunk=passage.chunk, score=passage.score) for passage in passages],
        name=prompt.name or UNSET,
        data=data,
    )


def _near(document: Passages, prompt: Prompt, top_k: int) -> list[Passage]:
    if prompt.text is None:
        return document.opening(top_k)
    asked_for = () if prompt.shape is None else prompt.shape.schema.get("properties") or ()
    return document.nearest(" ".join([prompt.text, *map(str, asked_for)]), top_k)


def _refuse_shape(prompt: Prompt) -> None:
    if prompt.shape is not None:
        raise Final("DOCUMENT_EMPTY", "there is no text from which output_schema could be filled")


def _vectors_in(data: bytes) -> Vectors | None:
    """None for any other JSON, or a text: its words are as good as any."""
    if not data.lstrip().startswith(b"{"):
        return None
    try:
        vectors = msgspec.json.decode(data, type=Vectors)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if vectors.dimensions < 1 or any(len(chunk.vector) != vectors.dimensions for chunk in vectors.chunks):
        raise Final("UNREADABLE_DOCUMENT", "vectors whose lengths differ from their dimensions")
    return vectors

"""The chunks of a document that are nearest to a question.

In: the vectors of a document, and questions. Out: passages, nearest first. By vector and by word: short
vectors mix words up, and words alone know nothing of their order or meaning.
"""

import msgspec

from lucius.services.hashing import words_of
from lucius.services.vectors import Embedder, Vectors


class Passage(msgspec.Struct, frozen=True, kw_only=True):
    chunk: int
    """Its place in the document, from 0."""
    text: str
    score: float


class Passages:
    """A document, ready to be asked. Making one and asking it take long on a long document: use a thread."""

    def __init__(self, vectors: Vectors, embedder: Embedder | None) -> None:
        """Without an embedder that fits its vectors, words alone count."""
        self._chunks = vectors.chunks
        self._embedder = embedder
        self._words = [frozenset(words_of(chunk.text)) for chunk in vectors.chunks]

    def __len__(self) -> int:
        return len(self._chunks)

    def opening(self, count_max: int) -> list[Passage]:
        first = self._chunks[:count_max]
        return [Passage(chunk=place, text=chunk.text, score=1.0) for place, chunk in enumerate(first)]

    def nearest(self, question: str, count_max: int) -> list[Passage]:
        """Those that have anything to do with it, at most `count_max`."""
        words = frozenset(words_of(question))
        wanted = self._components(question)
        scored = []
        for place, chunk in enumerate(self._chunks):
            score = shared(words, self._words[place]) + sum(it * chunk.vector[at] for at, it in wanted)
            if score > 0:
                scored.append((-score, place))
        return [
            Passage(chunk=place, text=self._chunks[place].text, score=round(-score, 6))
            for score, place in sorted(scored)[:count_max]
        ]

    def _components(self, question: str) -> list[tuple[int, float]]:
        if self._embedder is None:
            return []
        return [(at, it) for at, it in enumerate(self._embedder.vector_of(question)) if it]


def shared(words: frozenset[str], others: frozenset[str]) -> float:
    """The share of the first that the second holds."""
    return len(words & others) / len(words) if words else 0.0

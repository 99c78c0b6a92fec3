"""Text to chunks to vectors, without a model.

In: text. Out: chunks on sentence borders, and vectors by signed feature hashing of words and word pairs, of
length one. The same text gives the same vector on every machine, now and later.
"""

import re
from hashlib import blake2b
from itertools import pairwise
from math import sqrt

DIGITS = 6  # of a component; finer ones would only lengthen the file

_SENTENCE_END = re.compile(r"(?<=[.!?…])\s+|\n\s*\n")
_WORD = re.compile(r"\w+")
# Too frequent to distinguish one text from another.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        "a an and are as at be by did do does for from had has have how in is it its of on or so that the "
        "their there these they this to was were what when where which who why will with",
    )
)


def sentences_of(text: str) -> list[str]:
    found = (" ".join(part.split()) for part in _SENTENCE_END.split(text))
    return [sentence for sentence in found if sentence]


def chunks_of(text: str, *, chars_max: int) -> list[str]:
    """Whole sentences together, up to `chars_max`; a longer sentence is cut."""
    chunks: list[str] = []
    open_chunk = ""
    for sentence in sentences_of(text):
        for start in range(0, len(sentence), chars_max):
            piece = sentence[start : start + chars_max]
            if open_chunk and len(open_chunk) + 1 + len(piece) > chars_max:
                chunks.append(open_chunk)
                open_chunk = piece
            else:
                open_chunk = f"{open_chunk} {piece}" if open_chunk else piece
    if open_chunk:
        chunks.append(open_chunk)
    return chunks


def words_of(text: str) -> list[str]:
    """The words that distinguish one text from another, in small letters."""
    return [word for word in _WORD.findall(text.lower()) if word not in _COMMON]


def sparse_vector(text: str, dimensions: int) -> dict[int, float]:
    """Only the components that are not zero, unrounded."""
    words = words_of(text)
    features = words + [f"{left} {right}" for left, right in pairwise(words)]
    sums: dict[int, float] = {}
    for feature in features:
        number = int.from_bytes(blake2b(feature.encode("utf-8", "replace"), digest_size=8).digest(), "big")
        # The sign comes from a bit of its own, so that colliding features cancel out as often as they add up.
        index, sign = (number >> 1) % dimensions, 1.0 if number & 1 else -1.0
        sums[index] = sums.get(index, 0.0) + sign
    length = sqrt(sum(value * value for value in sums.values()))
    return {index: value / length for index, value in sums.items() if value} if length else {}


def vector_of(text: str, dimensions: int) -> list[float]:
    vector = [0.0] * dimensions
    for index, value in sparse_vector(text, dimensions).items():
        vector[index] = round(value, DIGITS)
    return vector

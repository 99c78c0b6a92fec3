"""Text to the pieces of words that a BERT model knows.

In: text and the model's vocabulary. Out: numbers of pieces. Letters are made small and lose their accents;
signs stand alone; a word is cut into the longest pieces that the vocabulary has, from its beginning.
"""

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Final

WORD_CHARS_MAX: Final = 100
UNKNOWN: Final = "[UNK]"

# Ideographs, each of which is a word to the model.
_IDEOGRAPHS: Final = (
    (0x4E00, 0x9FFF),
    (0x3400, 0x4DBF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF),
    (0xF900, 0xFAFF),
    (0x2F800, 0x2FA1F),
)


def pieces_of(text: str, vocabulary: Mapping[str, int]) -> list[int]:
    return [piece for word in _words(text) for piece in _cut(word, vocabulary)]


def _words(text: str) -> Iterator[str]:
    plain = unicodedata.normalize("NFD", "".join(map(_cleaned, text)))
    for spaced in "".join(sign for sign in plain if unicodedata.category(sign) != "Mn").lower().split():
        word = ""
        for sign in spaced:
            if not _stands_alone(sign):
                word += sign
                continue
            if word:
                yield word
            yield sign
            word = ""
        if word:
            yield word


def _cleaned(sign: str) -> str:
    if sign in "\t\n\r":
        return " "
    if sign in "\0�" or unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Co"):
        return ""
    return " " if unicodedata.category(sign) == "Zs" else sign


def _stands_alone(sign: str) -> bool:
    code = ord(sign)
    if 33 <= code <= 47 or 58 <= code <= 64 or 91 <= code <= 96 or 123 <= code <= 126:
        return True
    return unicodedata.category(sign).startswith("P") or any(low <= code <= high for low, high in _IDEOGRAPHS)


def _cut(word: str, vocabulary: Mapping[str, int]) -> list[int]:
    if len(word) > WORD_CHARS_MAX:
        return [vocabulary[UNKNOWN]]
    pieces: list[int] = []
    start = 0
    while start < len(word):
        end = len(word)
        while end > start:
            piece = vocabulary.get(word[start:end] if start == 0 else f"##{word[start:end]}")
            if piece is not None:
                break
            end -= 1
        else:
            return [vocabulary[UNKNOWN]]
        pieces.append(piece)
        start = end
    return pieces

"""Answers without a language model: sentences of the document, and values found in them.

In: a prompt and passages. Out: the sentences nearest to the prompt, word for word; or, where a shape is asked
for, an object whose members were looked for by their names. Nothing is made up.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any
from typing import Final as Constant

from msgspec import UNSET

from lucius.sdk.errors import Final
from lucius.services.hashing import sentences_of, sparse_vector, words_of
from lucius.services.passages import Passage, shared
from lucius.services.prompts import AnswerShape, Prompt
from lucius.services.vectors import Embedder

ANSWER_SENTENCES_MAX = 2
LIST_SENTENCES_MAX = 10
# Sentences are hashed anew, wide enough that words hardly ever collide.
SENTENCE_DIMENSIONS = 4096

_NOTHING: Constant = object()
# Longer ones are names rather than numbers.
_NUMBER = re.compile(r"[-+]?(?<!\d)\d{1,15}(?!\d)(?:\.\d{1,15})?")
_NAME_PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+|[^\W\d_a-zA-Z]+")


def answer_from(prompt: Prompt, passages: Sequence[Passage], embedder: Embedder | None) -> tuple[str, Any]:
    """A text, and UNSET; or, where a shape was asked for, the value that fits it."""
    sentences = Sentences(passages, embedder)
    if prompt.shape is not None:
        return "", shaped(prompt, prompt.shape, sentences)
    if prompt.text is None:
        return " ".join(sentences.all[:ANSWER_SENTENCES_MAX]), UNSET
    return " ".join(sentences.nearest(prompt.text, ANSWER_SENTENCES_MAX)), UNSET


class Sentences:
    """Those of some passages, each once. Compared by an embedder if there is one, else by their words."""

    def __init__(self, passages: Sequence[Passage], embedder: Embedder | None) -> None:
        in_order = (sentence for passage in passages for sentence in sentences_of(passage.text))
        self.all = list(dict.fromkeys(in_order))
        self._embedder = embedder
        self._known: dict[str, dict[int, float]] = {}

    def nearest(self, question: str, count_max: int) -> list[str]:
        """In the document's order."""
        words = frozenset(words_of(question))
        wanted = self._components(question)
        ranked = []
        for place, sentence in enumerate(self.all):
            found = self._components(sentence)
            nearness = sum(it * found.get(at, 0.0) for at, it in wanted.items())
            score = shared(words, frozenset(words_of(sentence))) + nearness
            if score > 0:
                ranked.append((-score, place))
        return [self.all[place] for place in sorted(place for _, place in sorted(ranked)[:count_max])]

    def _components(self, text: str) -> dict[int, float]:
        if text not in self._known:
            if self._embedder is None:
                self._known[text] = sparse_vector(text, SENTENCE_DIMENSIONS)
            else:
                self._known[text] = dict(enumerate(self._embedder.vector_of(text)))
        return self._known[text]


def shaped(prompt: Prompt, shape: AnswerShape, sentences: Sentences) -> Any:
    value = _value(shape.schema, prompt.text or "", sentences)
    if value is _NOTHING or shape.faults(value):
        raise Final(
            "OUTPUT_SCHEMA_UNMET",
            "what could be found in the document does not fit output_schema; a language model may do better",
        )
    return value


def _value(schema: object, question: str, sentences: Sentences) -> Any:
    """What the sentences hold for it; `_NOTHING` where that cannot be found out."""
    if not isinstance(schema, Mapping):
        return _NOTHING
    properties = schema.get("properties")
    if isinstance(properties, Mapping):
        made = {
            name: _value(part, _question(name, part) or question, sentences)
            for name, part in properties.items()
        }
        return {name: value for name, value in made.items() if value is not _NOTHING}
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if isinstance(schema.get("enum"), list):
        found = _one_of(schema["enum"], sentences)
    elif "array" in kinds:
        found = sentences.nearest(question, LIST_SENTENCES_MAX)
    elif "integer" in kinds or "number" in kinds:
        found = _number(question, sentences, whole="number" not in kinds)
    elif "string" in kinds:
        nearest = sentences.nearest(question, 1)
        found = nearest[0] if nearest else _NOTHING
    else:
        found = _NOTHING
    return None if found is _NOTHING and "null" in kinds else found


def _question(name: str, schema: object) -> str:
    """`invoiceNumber` and `invoice_number` ask for the invoice number; a description says more."""
    said = schema.get("description") if isinstance(schema, Mapping) else None
    return " ".join([*_NAME_PARTS.findall(name), *([said] if isinstance(said, str) else [])])


def _one_of(offered: list[Any], sentences: Sentences) -> Any:
    words = frozenset(words_of(" ".join(sentences.all)))
    for value in offered:
        wanted = frozenset(words_of(value)) if isinstance(value, str) else frozenset()
        if wanted and wanted <= words:
            return value
    return _NOTHING


def _number(question: str, sentences: Sentences, *, whole: bool) -> Any:
    """The first number after the last word of the question that the sentence has, else its first number."""
    for sentence in sentences.nearest(question, 1):
        known = [sentence.lower().rfind(word) for word in words_of(question)]
        found = _NUMBER.search(sentence, max([*known, 0])) or _NUMBER.search(sentence)
        if found is not None:
            number = float(found.group())
            return int(number) if whole and number.is_integer() else number
    return _NOTHING

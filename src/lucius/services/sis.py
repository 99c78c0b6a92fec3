"""SIS: prompts are answered from a document.

In: the vectors that the step before made, or a text; `prompt` or `prompt_set` in the payload.
Out: `result.json`, `{answers: [{prompt, answer, sources: [{chunk, score}]}]}`. Answers are sentences of the
document, taken from the chunks nearest to the prompt; nothing is made up. Without a prompt the document's
opening sentences are given.
"""

import asyncio
from typing import Any

import msgspec

from lucius.sdk import Final, Task
from lucius.services.documents import read_text_source
from lucius.services.embedding import CHUNK_CHARS, DIMENSIONS, Chunk, Vectors, vectors_of
from lucius.services.hashing import sentences_of, sparse_vector, words_of
from lucius.services.payloads import whole_number

TOP_K = 3
TOP_K_MAX = 50
PROMPTS_MAX = 100
PROMPT_CHARS_MAX = 4_000
ANSWER_SENTENCES_MAX = 2
# Sentences are hashed anew, wide enough that words hardly ever collide.
SENTENCE_DIMENSIONS = 4096


class Source(msgspec.Struct, frozen=True, kw_only=True):
    chunk: int  # its place in the document, from 0
    score: float


class PromptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str | None
    answer: str
    sources: list[Source]


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    answers: list[PromptAnswer]


async def sis(task: Task) -> dict[str, Any]:
    prompts = prompts_in(task.payload)
    top_k = whole_number(task.payload, "top_k", default=TOP_K, least=1, most=TOP_K_MAX)
    vectors = await _vectors(task)
    answers: list[PromptAnswer] = []
    for prompt in prompts:
        # In a thread: a long document is scanned whole for every prompt.
        answers.append(await asyncio.to_thread(answer_from, vectors, prompt, top_k))
        await task.progress(95 * len(answers) // len(prompts), f"prompt {len(answers)} of {len(prompts)}")
    encoded = msgspec.json.encode(Answers(answers=answers or [_opening(vectors)]))
    uri = await task.write_artifact("result.json", encoded)
    await task.write_output(encoded)
    return {"uri": uri}


def prompts_in(payload: dict[str, Any]) -> list[str]:
    """`prompt`, then those of `prompt_set`: a list of texts or of objects with a `prompt`, or one text."""
    found: list[Any] = [] if payload.get("prompt") is None else [payload["prompt"]]
    several = payload.get("prompt_set")
    if isinstance(several, list):
        found += [item.get("prompt") if isinstance(item, dict) else item for item in several]
    elif several is not None:
        found.append(several)
    if len(found) > PROMPTS_MAX:
        raise Final("INVALID_PAYLOAD", f"at most {PROMPTS_MAX} prompts are answered")
    if not all(isinstance(prompt, str) and 0 < len(prompt.strip()) <= PROMPT_CHARS_MAX for prompt in found):
        raise Final("INVALID_PAYLOAD", f"a prompt must be a text of 1 to {PROMPT_CHARS_MAX} characters")
    return found


def answer_from(vectors: Vectors, prompt: str, top_k: int) -> PromptAnswer:
    wanted, words = sparse_vector(prompt, vectors.dimensions), frozenset(words_of(prompt))
    scored = ((_nearness(wanted, words, chunk), place) for place, chunk in enumerate(vectors.chunks))
    best = sorted(((score, place) for score, place in scored if score > 0), key=lambda it: (-it[0], it[1]))
    nearest = best[:top_k]
    return PromptAnswer(
        prompt=prompt,
        answer=_best_sentences(prompt, words, [vectors.chunks[place] for _, place in nearest]),
        sources=[Source(chunk=place, score=round(score, 6)) for score, place in nearest],
    )


def _best_sentences(prompt: str, words: frozenset[str], chunks: list[Chunk]) -> str:
    wanted = sparse_vector(prompt, SENTENCE_DIMENSIONS)
    ranked: list[tuple[float, int, str]] = []
    for sentence in dict.fromkeys(sentence for chunk in chunks for sentence in sentences_of(chunk.text)):
        vector = sparse_vector(sentence, SENTENCE_DIMENSIONS)
        score = _shared(words, sentence) + sum(it * vector.get(at, 0.0) for at, it in wanted.items())
        if score > 0:
            ranked.append((-score, len(ranked), sentence))
    chosen = sorted(ranked)[:ANSWER_SENTENCES_MAX]
    return " ".join(sentence for _, _, sentence in sorted(chosen, key=lambda it: it[1]))


def _nearness(wanted: dict[int, float], words: frozenset[str], chunk: Chunk) -> float:
    """By vector and by word: short vectors mix words up, and words alone know nothing of their order."""
    return _shared(words, chunk.text) + sum(it * chunk.vector[at] for at, it in wanted.items())


def _shared(words: frozenset[str], text: str) -> float:
    """The share of the prompt's words that the text holds."""
    return len(words.intersection(words_of(text))) / len(words) if words else 0.0


def _opening(vectors: Vectors) -> PromptAnswer:
    opening = sentences_of(vectors.chunks[0].text)[:ANSWER_SENTENCES_MAX] if vectors.chunks else []
    return PromptAnswer(
        prompt=None, answer=" ".join(opening), sources=[Source(chunk=0, score=1.0)] if opening else []
    )


async def _vectors(task: Task) -> Vectors:
    data, text = await read_text_source(task)
    if not data.lstrip().startswith(b"{"):
        return await vectors_of(task, text, dimensions=DIMENSIONS, chars_max=CHUNK_CHARS)
    try:
        vectors = await asyncio.to_thread(msgspec.json.decode, data, type=Vectors)
    except msgspec.DecodeError:
        # Some other JSON: its text is as good as any.
        return await vectors_of(task, text, dimensions=DIMENSIONS, chars_max=CHUNK_CHARS)
    if vectors.dimensions < 1 or any(len(chunk.vector) != vectors.dimensions for chunk in vectors.chunks):
        raise Final("UNREADABLE_DOCUMENT", "vectors whose lengths differ from their dimensions")
    return vectors

"""SIS: prompts are answered from a document.

In: the vectors that the step before made, or a text; `prompt`, `prompt_set`, `output_schema` and `top_k` in
the payload. Out: `result.json`, `{model, answers: [{prompt, answer, sources: [{chunk, score}]}]}`, with the
prompt's `name` where it has one and the value as `data` where a shape was asked for. Without a prompt the
document's opening is told.
"""

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from lucius.sdk import Final, Handler, Task
from lucius.services.answers import Answered, Answerer
from lucius.services.documents import read_text_source
from lucius.services.extractive import Extractive
from lucius.services.passages import Passage, Passages
from lucius.services.payloads import whole_number
from lucius.services.prompts import Prompt, prompts_in
from lucius.services.vectors import Embedder, HashingEmbedder, Vectors, fitting_embedder, vectors_of

TOP_K = 3
TOP_K_MAX = 50
# Of the vectors that are made here, where no step before made any.
DIMENSIONS = 256


class Source(msgspec.Struct, frozen=True, kw_only=True):
    chunk: int  # its place in the document, from 0
    score: float


class PromptAnswer(msgspec.Struct, frozen=True, kw_only=True):
    prompt: str | None
    answer: str
    sources: list[Source]
    name: str | UnsetType = UNSET
    data: Any = UNSET


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    answers: list[PromptAnswer]


def make_sis(answerer: Answerer | None = None) -> Handler:
    """The handler, with what answers; sentences of the document unless told otherwise."""
    who = Extractive() if answerer is None else answerer

    async def sis(task: Task) -> dict[str, Any]:
        prompts = prompts_in(task.payload)
        top_k = whole_number(task.payload, "top_k", default=TOP_K, least=1, most=TOP_K_MAX)
        vectors = await _vectors(task)
        embedder = fitting_embedder(vectors)
        document = await asyncio.to_thread(Passages, vectors, embedder)
        answers: list[PromptAnswer] = []
        for prompt in prompts:
            answers.append(await _answer(task, who, document, prompt, top_k, embedder))
            await task.progress(95 * len(answers) // len(prompts), f"prompt {len(answers)} of {len(prompts)}")
        encoded = msgspec.json.encode(Answers(model=who.model, answers=answers))
        uri = await task.write_artifact("result.json", encoded)
        await task.write_output(encoded)
        return {"uri": uri}

    return sis


async def _answer(
    task: Task, who: Answerer, document: Passages, prompt: Prompt, top_k: int, embedder: Embedder | None
) -> PromptAnswer:
    if not len(document):
        if prompt.shape is not None:
            raise Final("DOCUMENT_EMPTY", "there is no text from which output_schema could be filled")
        return _told(prompt, Answered(), [])
    passages = await asyncio.to_thread(_passages, document, prompt, top_k)
    if not passages and who.asks_without_passages:
        passages = document.opening(top_k)
    # Hashing as wide as the document's vectors would mix up the words of single sentences.
    dense = embedder if not isinstance(embedder, HashingEmbedder) else None
    return _told(prompt, await who.answer(task, prompt, passages, dense), passages)


def _passages(document: Passages, prompt: Prompt, top_k: int) -> list[Passage]:
    if prompt.text is None:
        return document.opening(top_k)
    asked_for = () if prompt.shape is None else prompt.shape.schema.get("properties") or ()
    return document.nearest(" ".join([prompt.text, *map(str, asked_for)]), top_k)


def _told(prompt: Prompt, answered: Answered, passages: list[Passage]) -> PromptAnswer:
    data = answered.data
    return PromptAnswer(
        prompt=prompt.text,
        answer=answered.text if data is UNSET else msgspec.json.encode(data).decode(),
        sources=[Source(chunk=passage.chunk, score=passage.score) for passage in passages],
        name=prompt.name or UNSET,
        data=data,
    )


async def _vectors(task: Task) -> Vectors:
    data, text = await read_text_source(task)
    own = HashingEmbedder(dimensions=DIMENSIONS)
    if not data.lstrip().startswith(b"{"):
        return await vectors_of(task, text, own)
    try:
        vectors = await asyncio.to_thread(msgspec.json.decode, data, type=Vectors)
    except (msgspec.DecodeError, RecursionError):
        # Some other JSON: its text is as good as any.
        return await vectors_of(task, text, own)
    if vectors.dimensions < 1 or any(len(chunk.vector) != vectors.dimensions for chunk in vectors.chunks):
        raise Final("UNREADABLE_DOCUMENT", "vectors whose lengths differ from their dimensions")
    return vectors

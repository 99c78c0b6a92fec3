"""SIS: prompts are answered from a document.

In: the vectors that the step before made, or a text; `prompt`, `prompt_set`, `output_schema` and `top_k` in
the payload. Out: `result.json`, `{model, answers: [{prompt, answer, sources: [{chunk, score}]}]}`, with the
prompt's `name` where it has one and the value as `data` where a shape was asked for. Without a prompt the
document's opening is told.
"""

import asyncio
from typing import Any

import msgspec
from msgspec import UNSET

from lucius.sdk import Final, Handler, Task
from lucius.services.answers import Answerer
from lucius.services.documents import read_text_source
from lucius.services.embedding import WORK_PERCENT, embed_rest
from lucius.services.passages import Passage
from lucius.services.payloads import whole_number
from lucius.services.prompts import Prompt, prompts_in
from lucius.services.settings import EXTRACTIVE
from lucius.services.work_pieces import prompt_answer
from lucius.services.work_process import WorkProcesses, WorkSession, work_processes

TOP_K = 3
TOP_K_MAX = 50
RESULT_BYTES_MAX = 32 * 1024 * 1024


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    answers: list[msgspec.Raw]


def make_sis(answerer: Answerer | None = None, *, processes: WorkProcesses | None = None) -> Handler:
    """The handler, with what answers; by default, sentences of the document."""
    work = work_processes() if processes is None else processes

    async def sis(task: Task) -> dict[str, Any]:
        top_k = whole_number(task.payload, "top_k", default=TOP_K, least=1, most=TOP_K_MAX)
        async with work.places.place(task.directive.tenant_id):
            data = await read_text_source(task)
            async with work.session(task) as session:
                made, _ = await session.ask("ask", data, payload=task.payload)
                del data
                await embed_rest(task, session, made["more"])
                answers = await _answers(task, session, answerer, made["prompts"], top_k)
            model = EXTRACTIVE if answerer is None else answerer.model
            encoded = msgspec.json.encode(Answers(model=model, answers=answers))
            uri = await task.write_artifact("result.json", encoded)
            await task.write_output(encoded)
        return {"uri": uri}

    return sis


async def _answers(
    task: Task, session: WorkSession, answerer: Answerer | None, prompts: int, top_k: int
) -> list[msgspec.Raw]:
    answers: list[msgspec.Raw] = []
    # The schemas among them were measured and compiled in the other process first, so that they are harmless
    # here, where the answers of a model elsewhere are held against them.
    asked = [] if answerer is None else await asyncio.to_thread(prompts_in, task.payload)
    room_bytes = RESULT_BYTES_MAX
    for number in range(prompts):
        if answerer is None:
            _, found = await session.ask("answer", number=number, top_k=top_k)
        else:
            found = await _asked(task, session, answerer, asked[number], number, top_k)
        room_bytes -= len(found)
        if room_bytes < 0:
            raise Final("RESULT_TOO_LARGE", f"the answers are longer than {RESULT_BYTES_MAX} bytes")
        answers.append(msgspec.Raw(found))
        await task.progress(WORK_PERCENT * len(answers) // prompts, f"prompt {len(answers)} of {prompts}")
    return answers


async def _asked(
    task: Task, session: WorkSession, answerer: Answerer, prompt: Prompt, number: int, top_k: int
) -> bytes:
    opening = answerer.asks_without_passages
    made, found = await session.ask("find", number=number, top_k=top_k, opening=opening)
    passages = msgspec.json.decode(found, type=list[Passage])
    if not made["chunks"]:
        return msgspec.json.encode(prompt_answer(prompt, "", UNSET, []))
    answered = await answerer.answer(task, prompt, passages)
    return msgspec.json.encode(prompt_answer(prompt, answered.text, answered.data, passages))

"""EMBEDDING: text becomes vectors.

In: the text that the step before made, else `input_ref`; `dimensions` and `chunk_size` in the payload.
Out: `vectors.json`, `{dimensions, chunks: [{text, vector}], model}`.
"""

from typing import Any

from lucius.sdk import Handler, Task
from lucius.services.documents import read_text_source
from lucius.services.payloads import whole_number
from lucius.services.settings import HASHING
from lucius.services.vectors import CHUNK_CHARS, CHUNK_CHARS_MAX, HASHING_DIMENSIONS_MAX, make_embedder
from lucius.services.work_process import WorkProcesses, WorkSession, work_processes

WORK_PERCENT = 95  # the rest is for writing what was made


def make_embedding(*, model: str = HASHING, processes: WorkProcesses | None = None) -> Handler:
    """The handler, with the model that makes the vectors."""
    work = work_processes() if processes is None else processes

    async def embedding(task: Task) -> dict[str, Any]:
        dimensions = whole_number(
            task.payload, "dimensions", default=None, least=8, most=HASHING_DIMENSIONS_MAX
        )
        chars_max = whole_number(
            task.payload, "chunk_size", default=CHUNK_CHARS, least=50, most=CHUNK_CHARS_MAX
        )
        make_embedder(model, dimensions)
        async with work.places.place(task.directive.tenant_id):
            data = await read_text_source(task)
            async with work.session(task, model=model != HASHING) as session:
                made, _ = await session.ask(
                    "embed", data, model=model, dimensions=dimensions, chars_max=chars_max
                )
                del data
                await embed_rest(task, session, made["more"])
                _, encoded = await session.ask("vectors")
            uri = await task.write_artifact("vectors.json", encoded)
            await task.write_output(encoded)
        return {"uri": uri}

    return embedding


async def embed_rest(task: Task, session: WorkSession, more: int) -> None:
    """Batch by batch, with progress between."""
    while more:
        made, _ = await session.ask("embed_more")
        more = made["of"] - made["done"]
        await task.progress(
            WORK_PERCENT * made["done"] // made["of"], f"chunk {made['done']} of {made['of']}"
        )
